//! Records: everything of a process that is not the contents of memory.
//!
//! Source: FACTS-image §1 to §3. A record is `u16 kind, u32 length, fields`. Two processes write
//! them: the process itself (*freeze*: what only it can know, written while its threads are
//! suspended) and the process that reads its memory (*dump*). The whole metadata of an image is a
//! sequence of records. What the process can restore by itself (signal actions, timers, limits) it
//! saves in its memory. Addresses, descriptors and thread ids in records are the process's own:
//! they are what is restored, not references between processes.

use super::codec::{Count, Field, ImageError, Reader, Sink};

/// Bytes before the fields of a record.
pub const RECORD_HEAD_BYTES: usize = 6;

macro_rules! records {
    ($($(#[$about:meta])* $number:literal $name:ident $(<$life:lifetime>)? {
        $($(#[$field_about:meta])* $field:ident: $kind:ty,)*
    })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name $(<$life>)? {
                $($(#[$field_about])* pub $field: $kind,)*
            }

            impl $(<$life>)? $name $(<$life>)? {
                /// Appends the record, head included.
                pub fn encode(&self, sink: &mut impl Sink) {
                    let mut count = Count::default();
                    $(self.$field.put(&mut count);)*
                    let kind: u16 = $number;
                    kind.put(sink);
                    (count.0 as u32).put(sink);
                    $(self.$field.put(sink);)*
                }
            }
        )*

        /// One record.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Record<'a> {
            $($(#[$about])* $name($name $(<$life>)?),)*
        }

        impl<'a> Record<'a> {
            /// Appends the record, head included.
            pub fn encode(&self, sink: &mut impl Sink) {
                match self {
                    $(Self::$name(record) => record.encode(sink),)*
                }
            }

            /// Takes the record that comes next.
            pub fn decode(reader: &mut Reader<'a>) -> Result<Self, ImageError> {
                let kind: u16 = reader.take()?;
                let count: u32 = reader.take()?;
                let mut fields = Reader::new(reader.bytes(count as usize)?);
                let record = match kind {
                    $($number => Self::$name($name { $($field: fields.take()?,)* }),)*
                    _ => return Err(ImageError::Kind(kind)),
                };
                if !fields.rest().is_empty() {
                    return Err(ImageError::Value("length of a record"));
                }
                Ok(record)
            }
        }
    };
}

records! {
    /// The process (freeze). The first record of a description.
    1 Process {
        /// Its id when it was frozen.
        pid: u32,
        /// How often it had been restored before.
        generation: u32,
        /// Bytes of a page.
        page_bytes: u32,
        /// umask(2).
        umask: u32,
        /// personality(2).
        personality: u64,
        /// End of the heap: brk(2).
        brk: u64,
        /// Extended CPU state that the program may use (ARCH_GET_XCOMP_PERM).
        state_permitted: u64,
        /// Extended CPU state that the system switches (XGETBV of register 0).
        state_enabled: u64,
        /// Code that the checkpoint thread enters after a restore.
        resume_entry: u64,
        /// Its argument.
        resume_context: u64,
        /// Code that all other threads enter after a restore, with their slot as argument.
        thread_entry: u64,
        /// Where `restore` writes its arguments for the process.
        restore_args: u64,
        /// Bytes there.
        restore_args_bytes: u64,
    }
    /// A thread (freeze).
    2 Thread {
        /// Its id.
        tid: u32,
        /// 0: suspended in a signal handler; 1: the checkpoint thread.
        role: u8,
        /// It has used state that needs permission (AMX): its frame is larger.
        large_state: bool,
        /// Argument of `thread_entry`.
        slot: u64,
        /// Stack pointer to enter with.
        stack: u64,
        /// Base of the thread's own variables.
        fs: u64,
        /// Base of %gs.
        gs: u64,
        /// get_robust_list(2).
        robust_head: u64,
        /// get_robust_list(2).
        robust_bytes: u64,
        /// PR_GET_TID_ADDRESS.
        tid_address: u64,
        /// Registered restartable-sequence area, 0 for none.
        rseq: u64,
        /// Bytes of that registration.
        rseq_bytes: u32,
        /// Its signature.
        rseq_signature: u32,
        /// Its name, ended by 0.
        name: [u8; 16],
        /// Scheduling: SCHED_* in the low byte, then priority, then nice + 20.
        schedule: u32,
        /// CPUs it may run on, the first 1024.
        affinity: [u8; 128],
    }
    /// Working directory (freeze).
    3 WorkingDirectory<'a> {
        /// Its path.
        path: &'a [u8],
    }
    /// An open descriptor (freeze).
    4 Descriptor<'a> {
        /// Its number.
        fd: i32,
        /// Another descriptor of the same open file, or -1.
        same_as: i32,
        /// What it is: `DESCRIPTOR_*`.
        kind: u8,
        /// Closed by execve.
        close_on_exec: bool,
        /// O_* as in fdinfo.
        flags: u32,
        /// Device and inode.
        device: u64,
        /// Device and inode.
        inode: u64,
        /// Offset; counter of an eventfd; clock of a timerfd; backlog; type of a socket.
        a: u64,
        /// Size of a file; interval of a timerfd in nanoseconds; domain of a socket.
        b: u64,
        /// Time left of a timerfd in nanoseconds; other options.
        c: u64,
        /// Path, address, mask, content.
        data: &'a [u8],
    }
    /// A descriptor that an epoll watches (freeze).
    5 EpollWatch {
        /// The epoll.
        epoll: i32,
        /// What it watches.
        fd: i32,
        /// For what.
        events: u32,
        /// The program's own data, returned with the event.
        data: u64,
    }
    /// What was in a pipe (freeze).
    6 PipeContent<'a> {
        /// Inode of the pipe.
        inode: u64,
        /// Its capacity.
        capacity: u64,
        /// The bytes.
        bytes: &'a [u8],
    }
    /// Pages of an object that is mapped shared, copied while all were suspended (freeze).
    7 SharedRun {
        /// The object.
        device: u64,
        /// The object.
        inode: u64,
        /// Where in it.
        offset: u64,
        /// How much.
        bytes: u64,
        /// Where the copy lies in the process's memory.
        copy: u64,
    }
    /// Memory that is not stored and not mapped again (freeze).
    8 Excluded {
        /// First byte.
        start: u64,
        /// One behind the last.
        end: u64,
    }
    /// /proc/self/maps as it was when all were suspended, or a part of it (freeze).
    9 Maps<'a> {
        /// The text.
        text: &'a [u8],
    }
    /// Memory that a child does not get (MADV_DONTFORK) or gets empty (MADV_WIPEONFORK); its pages
    /// are a [`SharedRun`] of device 0 and inode 0, with the address as offset (freeze).
    10 NotForked {
        /// First byte.
        start: u64,
        /// One behind the last.
        end: u64,
        /// A child gets it empty.
        wiped: bool,
    }
    /// Where the process records what it changes in files (freeze): `crate::file_undo`.
    11 FileUndo<'a> {
        /// The folder of its journals.
        folder: &'a [u8],
        /// The epoch that begins with this image.
        epoch: u64,
    }
    /// Memory that was not written between two snapshots, as the kernel has noted (freeze). It is
    /// for the writer of this image, and not part of it.
    12 Unchanged<'a> {
        /// Number of the snapshot since which; 0: there is none.
        since: u64,
        /// Number of this snapshot.
        snapshot: u64,
        /// Runs in order: `u64` first byte, `u64` one behind the last.
        runs: &'a [u8],
    }
    /// A mapping (dump).
    32 Mapping<'a> {
        /// First byte.
        start: u64,
        /// One behind the last.
        end: u64,
        /// PROT_*.
        protection: u32,
        /// What it is: `MAPPING_*`.
        kind: u8,
        /// Advice and form: `MAPPING_FLAG_*`.
        flags: u32,
        /// Offset in its file or object.
        offset: u64,
        /// Device and inode of what it maps.
        device: u64,
        /// Device and inode of what it maps.
        inode: u64,
        /// Size of the file.
        file_bytes: u64,
        /// When the file was changed, nanoseconds since 1970.
        changed_ns: i64,
        /// Path of the file.
        path: &'a [u8],
        /// GNU build id of the file, where it has one.
        build_id: &'a [u8],
    }
    /// Positions of text, data, stack, arguments (dump): fields of `prctl_mm_map` without brk.
    33 MemoryFields {
        /// Code.
        start_code: u64,
        /// Code.
        end_code: u64,
        /// Data.
        start_data: u64,
        /// Data.
        end_data: u64,
        /// Heap.
        start_brk: u64,
        /// Stack.
        start_stack: u64,
        /// Arguments.
        arg_start: u64,
        /// Arguments.
        arg_end: u64,
        /// Environment.
        env_start: u64,
        /// Environment.
        env_end: u64,
    }
    /// What the kernel passed to the program at its start (dump).
    34 AuxiliaryVector<'a> {
        /// /proc/PID/auxv.
        bytes: &'a [u8],
    }
    /// The kernel's code in the process (dump): a restore needs the same.
    35 KernelCode<'a> {
        /// Where it was.
        start: u64,
        /// Its content.
        bytes: &'a [u8],
    }
    /// Features of the processor (dump): a restore needs at least these.
    36 Processor<'a> {
        /// Words of /proc/cpuinfo's flags that programs choose code by.
        flags: &'a [u8],
    }
    /// An object that is mapped shared (dump): block space `space` is its content.
    37 SharedObject<'a> {
        /// Which space, from 1 on.
        space: u32,
        /// The object.
        device: u64,
        /// The object.
        inode: u64,
        /// Its size as far as it is known.
        bytes: u64,
        /// Its path, for messages.
        path: &'a [u8],
    }
    /// The machine that the image is of (dump): on another one, the same device and inode are
    /// another object.
    38 Origin<'a> {
        /// The kernel's boot id: hexadecimal digits.
        boot: &'a [u8],
    }
    /// An image in the same folder that blocks are in (dump). They are numbered from 1 on, in
    /// the order of their records.
    39 Base<'a> {
        /// Name of the file.
        name: &'a [u8],
        /// Its size.
        bytes: u64,
        /// From its header.
        metadata_checksum: u32,
        /// From its header.
        table_checksum: u32,
    }
}

/// Supplied by the caller of `restore`.
pub const DESCRIPTOR_SUPPLIED: u8 = 1;
/// One end of a socket pair after a restore; the other end never answers.
pub const DESCRIPTOR_MUTED: u8 = 2;
/// A regular file that is opened again by its path.
pub const DESCRIPTOR_FILE: u8 = 3;
/// A directory or a device such as /dev/null, opened again by its path.
pub const DESCRIPTOR_PATH: u8 = 4;
/// `b` of a [`DESCRIPTOR_PATH`] that is a folder; `a` is where the program was in listing it.
pub const PATH_OF_FOLDER: u64 = 1;
/// A pipe's read end.
pub const DESCRIPTOR_PIPE_READ: u8 = 5;
/// A pipe's write end.
pub const DESCRIPTOR_PIPE_WRITE: u8 = 6;
/// eventfd(2).
pub const DESCRIPTOR_EVENT: u8 = 7;
/// timerfd(2).
pub const DESCRIPTOR_TIMER: u8 = 8;
/// epoll(7).
pub const DESCRIPTOR_EPOLL: u8 = 9;
/// signalfd(2).
pub const DESCRIPTOR_SIGNAL: u8 = 10;
/// A socket that listens.
pub const DESCRIPTOR_LISTENER: u8 = 11;
/// A socket that is not connected.
pub const DESCRIPTOR_SOCKET: u8 = 12;
/// A file without a name (deleted, memfd); its content comes with it.
pub const DESCRIPTOR_UNNAMED: u8 = 13;
/// One end of a socket pair whose other end is in the process, too.
pub const DESCRIPTOR_PAIR: u8 = 14;

/// Private memory without a file.
pub const MAPPING_ANONYMOUS: u8 = 1;
/// A private mapping of a file: clean pages come from the file.
pub const MAPPING_FILE: u8 = 2;
/// A shared mapping whose content is in the image.
pub const MAPPING_SHARED: u8 = 3;
/// A shared mapping of a file that only reads: the file is mapped again.
pub const MAPPING_SHARED_FILE: u8 = 4;
/// The kernel's own (vdso, vvar): moved to its place.
pub const MAPPING_KERNEL: u8 = 5;

/// Grows downwards (a stack).
pub const MAPPING_FLAG_GROWS: u32 = 1;
/// MADV_HUGEPAGE.
pub const MAPPING_FLAG_HUGE: u32 = 2;
/// MADV_NOHUGEPAGE.
pub const MAPPING_FLAG_NOT_HUGE: u32 = 4;
/// MADV_DONTFORK.
pub const MAPPING_FLAG_NO_FORK: u32 = 8;
/// MADV_WIPEONFORK.
pub const MAPPING_FLAG_WIPE: u32 = 16;
/// MADV_DONTDUMP.
pub const MAPPING_FLAG_NO_DUMP: u32 = 32;
/// mlock(2).
pub const MAPPING_FLAG_LOCKED: u32 = 64;
/// MAP_NORESERVE.
pub const MAPPING_FLAG_NO_RESERVE: u32 = 128;
/// Pages may be in it that are in the image.
pub const MAPPING_FLAG_FILLED: u32 = 256;

/// All records of some metadata; ends after the first error.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, ImageError>> {
    let mut reader = Reader::new(bytes);
    let mut broken = false;
    core::iter::from_fn(move || {
        if broken || reader.rest().is_empty() {
            return None;
        }
        let record = Record::decode(&mut reader);
        broken = record.is_err();
        Some(record)
    })
}
