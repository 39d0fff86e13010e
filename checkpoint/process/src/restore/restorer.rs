//! The restorer: a child process that makes the system calls that it is sent.
//!
//! Which calls there are is `remote_syscalls.rs`; this file starts the child and speaks its
//! protocol. Mirrors `glue-c/restorer/restorer.c`. Between `clone3` and `execveat` the child runs
//! only system calls on data that was prepared before: the caller may have other threads.

use crate::error::ProcessImageError;
use crate::pages;
use crate::raw;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The executable; compiled by build.rs.
static RESTORER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/restorer"));
/// Most calls in one order.
pub const CALLS_MAX: usize = 120;

/// Bytes that the leader thread sends before it enters its own code; any will do. Without them the
/// end of a program that ends at once would look like a failure to start it.
pub const LEADER_STARTED_BYTES: usize = 16;
/// Memory for paths and structs that calls point to.
pub const SCRATCH_BYTES: u64 = 64 << 10;

/// A system call to be made by the restorer. Made by `remote_syscalls.rs` only.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    number: u64,
    arguments: [u64; 6],
    flags: u64,
}

impl Call {
    /// The restore fails if it fails.
    pub const fn new(number: i64, arguments: [u64; 6]) -> Self {
        Self { number: number as u64, arguments, flags: 0 }
    }

    /// The restore continues if it fails.
    pub const fn may_fail(number: i64, arguments: [u64; 6]) -> Self {
        Self { number: number as u64, arguments, flags: 1 }
    }

    /// As the restorer reads it.
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let words = [self.number].into_iter().chain(self.arguments).chain([self.flags]);
        for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *into = word.to_le_bytes();
        }
        bytes
    }
}

/// What the child is started with.
#[derive(Debug)]
pub struct Start {
    /// Where the restorer lies.
    pub base: u64,
    /// Memory for the descriptions of threads, behind it.
    pub threads_bytes: u64,
    /// Descriptors that the child gets: number there, descriptor here.
    pub descriptors: Vec<(RawFd, RawFd)>,
    /// Number of its end of the socket, above all others.
    pub socket: RawFd,
    /// Id that it should have, if that is permitted and free.
    pub pid: Option<u32>,
}

/// A restorer that waits for orders. Dropping it ends it, unless it has become the leader thread.
#[derive(Debug)]
pub struct Restorer {
    /// Its process id.
    pub pid: u32,
    /// It has the id that was requested.
    pub has_pid: bool,
    socket: OwnedFd,
    base: u64,
    bytes: u64,
    scratch: u64,
    alive: bool,
    /// How it has ended.
    end: Option<ExitStatus>,
}

/// Bytes of address space that a restorer takes at its base.
pub fn span(threads_bytes: u64) -> u64 {
    own_bytes() + SCRATCH_BYTES + threads_bytes
}

/// Code, data and stack of the restorer: `p_memsz` of its only segment.
fn own_bytes() -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&RESTORER[64 + 40..64 + 48]);
    u64::from_le_bytes(bytes).next_multiple_of(pages::PAGE)
}

/// The executable for another base: file header and program header are all that names addresses.
fn placed(base: u64, bytes: u64) -> Vec<u8> {
    let mut file = RESTORER.to_vec();
    let mut word = |at: usize, change: &dyn Fn(u64) -> u64| {
        let mut old = [0; 8];
        old.copy_from_slice(&file[at..at + 8]);
        let new = change(u64::from_le_bytes(old));
        file[at..at + 8].copy_from_slice(&new.to_le_bytes());
    };
    const LINKED_AT: u64 = 0x2000_0000_0000;
    word(24, &|entry| entry - LINKED_AT + base);
    word(64 + 16, &|_| base);
    word(64 + 24, &|_| base);
    word(64 + 40, &|_| bytes);
    word(64 + 48, &|_| pages::PAGE);
    file
}

/// struct clone_args as far as it is used (CLONE_ARGS_SIZE_VER1).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CloneArguments {
    /// CLONE_*.
    pub flags: u64,
    /// Unused.
    pub pidfd: u64,
    /// Where the kernel clears the id when the thread ends.
    pub child_tid: u64,
    /// Unused.
    pub parent_tid: u64,
    /// Sent to the parent when a process ends.
    pub exit_signal: u64,
    /// Lowest address of the stack.
    pub stack: u64,
    /// Its bytes.
    pub stack_size: u64,
    /// Base of the thread's own variables.
    pub tls: u64,
    /// Address of the wanted id.
    pub set_tid: u64,
    /// 1: an id is wanted.
    pub set_tid_size: u64,
}

impl CloneArguments {
    /// As the kernel reads them.
    pub fn bytes(&self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let words = [
            self.flags,
            self.pidfd,
            self.child_tid,
            self.parent_tid,
            self.exit_signal,
            self.stack,
            self.stack_size,
            self.tls,
            self.set_tid,
            self.set_tid_size,
        ];
        for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *into = word.to_le_bytes();
        }
        bytes
    }
}

/// All that the child needs between clone and exec.
struct Child {
    moves: Vec<(RawFd, RawFd)>,
    first_high: RawFd,
    program: RawFd,
    socket_text: CString,
}

impl Restorer {
    /// Starts a restorer.
    pub fn start(start: &Start) -> Result<Self, ProcessImageError> {
        let bytes = span(start.threads_bytes);
        let program = memory_file(&placed(start.base, bytes))?;
        let (ours, theirs) = packet_pair()?;
        let highest = start.descriptors.iter().flat_map(|(to, from)| [*to, *from]);
        let own = [program.as_raw_fd(), theirs.as_raw_fd(), start.socket];
        let first_high = highest.chain(own).max().unwrap_or(0) + 1;
        let mut moves = start.descriptors.clone();
        moves.push((start.socket, theirs.as_raw_fd()));
        let socket_text = CString::new(start.socket.to_string()).unwrap_or_default();
        let child = Child { moves, first_high, program: program.as_raw_fd(), socket_text };
        let descriptors = first_high as u64 + child.moves.len() as u64 + 1;
        must_be_permitted(descriptors)?;
        let (pid, has_pid) = clone_child(start.pid, &child, descriptors)?;
        let scratch = start.base + own_bytes();
        let (base, socket) = (start.base, ours);
        Ok(Self { pid, has_pid, socket, base, bytes, scratch, alive: true, end: None })
    }

    /// The restorer's own memory.
    pub fn range(&self) -> (u64, u64) {
        (self.base, self.base + self.bytes)
    }

    /// Where threads are described.
    pub fn threads_at(&self) -> u64 {
        self.scratch + SCRATCH_BYTES
    }

    /// Writes to the scratch memory; the address is good until the next call.
    pub fn put(&mut self, data: &[u8]) -> Result<u64, ProcessImageError> {
        if data.len() as u64 > SCRATCH_BYTES {
            let error = io::Error::from_raw_os_error(libc::ENAMETOOLONG);
            return Err(ProcessImageError::System { what: "data for the restorer".into(), error });
        }
        self.write(self.scratch, data)?;
        Ok(self.scratch)
    }

    /// Reads what the last call has left in the scratch memory.
    pub fn read_scratch(&self, into: &mut [u8]) -> Result<(), ProcessImageError> {
        let reading = ProcessImageError::system("reading the memory of the new process");
        pages::read(self.pid, self.scratch, into).map_err(reading)
    }

    /// Writes into the child's memory.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), ProcessImageError> {
        let writing = ProcessImageError::system("writing the memory of the new process");
        pages::write(self.pid, address, data).map_err(writing)
    }

    /// Makes these calls in one order; the result of the last one that was made.
    pub fn run(&mut self, calls: &[Call]) -> Result<u64, ProcessImageError> {
        debug_assert!(calls.len() <= CALLS_MAX);
        let (done, result) = self.order(1, calls)?;
        let last = calls.get((done as usize).wrapping_sub(1));
        let Some(last) = last else { return Err(self.lost("answered nonsense")) };
        if last.flags == 0 && (-4095..0).contains(&result) {
            let a = last.arguments.map(|argument| format!("{argument:#x}")).join(", ");
            let what = format!("system call {} ({a}) in the new process", last.number);
            let error = io::Error::from_raw_os_error(-result as i32);
            return Err(ProcessImageError::System { what, error });
        }
        Ok(result as u64)
    }

    /// Starts a thread by this call of clone3; its result.
    pub fn spawn(&mut self, clone: Call) -> Result<i64, ProcessImageError> {
        self.order(2, &[clone]).map(|(_, result)| result)
    }

    /// Has the restorer become the leader thread, and waits until it has.
    pub fn become_leader(mut self, thread: u64) -> Result<u32, ProcessImageError> {
        self.send(3, &[Call::new(0, [thread, 0, 0, 0, 0, 0])])?;
        let mut buffer = [0; 16];
        match self.receive(&mut buffer) {
            Ok(LEADER_STARTED_BYTES) => {
                self.alive = false;
                Ok(self.pid)
            }
            _ => Err(self.lost("ended while its threads were started")),
        }
    }

    fn order(&mut self, kind: u64, calls: &[Call]) -> Result<(u64, i64), ProcessImageError> {
        self.send(kind, calls)?;
        let mut buffer = [0; 16];
        match self.receive(&mut buffer) {
            Ok(16) => {
                let (done, result) = buffer.split_at(8);
                let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or([0; 8]));
                Ok((word(done), word(result) as i64))
            }
            _ => Err(self.lost("ended")),
        }
    }

    fn send(&mut self, kind: u64, calls: &[Call]) -> Result<(), ProcessImageError> {
        let mut packet = Vec::with_capacity(16 + 64 * calls.len());
        packet.extend_from_slice(&kind.to_le_bytes());
        packet.extend_from_slice(&(calls.len() as u64).to_le_bytes());
        for call in calls {
            packet.extend_from_slice(&call.bytes());
        }
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads the packet.
        let sent = unsafe {
            libc::send(self.socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), flags)
        };
        if sent == packet.len() as isize { Ok(()) } else { Err(self.lost("does not listen")) }
    }

    fn receive(&self, buffer: &mut [u8]) -> Result<usize, ProcessImageError> {
        raw::read(self.socket.as_raw_fd(), buffer)
            .map_err(io::Error::from)
            .map_err(ProcessImageError::system("listening to the restorer"))
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Option<ExitStatus> {
        if self.end.is_some() {
            return self.end;
        }
        let mut status = 0;
        // SAFETY: our own child; the status is written to a local variable.
        let pid = unsafe { libc::waitpid(self.pid as i32, &raw mut status, libc::WNOHANG) };
        if pid == self.pid as i32 {
            self.alive = false;
            self.end = Some(ExitStatus::from_raw(status));
        }
        self.end
    }

    fn lost(&mut self, what: &str) -> ProcessImageError {
        // It may take a moment until an end that was seen on the socket can be waited for.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let what = format!("the new process (restorer) {what}");
        match self.ended() {
            Some(status) if status.signal().is_some() => {
                ProcessImageError::Killed { what: format!("{what}: {status}") }
            }
            Some(status) => {
                ProcessImageError::System { what, error: io::Error::other(status.to_string()) }
            }
            None => ProcessImageError::System { what, error: io::Error::other("it still runs") },
        }
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        if self.alive {
            // SAFETY: our own child, not waited for yet.
            unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
            // SAFETY: as above; nobody wants its status.
            unsafe { libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0) };
        }
    }
}

/// An executable in memory.
fn memory_file(bytes: &[u8]) -> Result<OwnedFd, ProcessImageError> {
    use std::io::Write;
    const MFD_EXEC: u32 = 0x10;
    let create = |flags| {
        // SAFETY: the name is a constant.
        unsafe { libc::memfd_create(c"rustbtl-restorer".as_ptr(), flags) }
    };
    let mut fd = create(libc::MFD_CLOEXEC | MFD_EXEC);
    if fd < 0 {
        fd = create(libc::MFD_CLOEXEC); // before Linux 6.3
    }
    if fd < 0 {
        return Err(ProcessImageError::last("memfd_create for the restorer"));
    }
    // SAFETY: just created, nobody else has it.
    let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.write_all(bytes).map_err(ProcessImageError::system("writing the restorer to memory"))?;
    Ok(file.into())
}

fn packet_pair() -> Result<(OwnedFd, OwnedFd), ProcessImageError> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two numbers.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(ProcessImageError::last("socketpair"));
    }
    // SAFETY: just created, nobody else has it.
    let owned = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let [ours, theirs] = owned;
    Ok((ours, theirs))
}

/// Clones: with the id that is wanted if possible, else with any.
fn clone_child(
    wanted: Option<u32>,
    child: &Child,
    descriptors: u64,
) -> Result<(u32, bool), ProcessImageError> {
    let tid = wanted.unwrap_or(0);
    for set in [wanted.is_some(), false] {
        let arguments = CloneArguments {
            exit_signal: libc::SIGCHLD as u64,
            set_tid: if set { (&raw const tid).addr() as u64 } else { 0 },
            set_tid_size: u64::from(set),
            ..CloneArguments::default()
        };
        let bytes = size_of::<CloneArguments>();
        // SAFETY: a copy of this process in which only `be_restorer` runs.
        let pid = unsafe {
            raw::call(libc::SYS_clone3, [(&raw const arguments).addr(), bytes, 0, 0, 0, 0])
        };
        match pid {
            Ok(0) => be_restorer(child, descriptors),
            Ok(pid) => return Ok((pid as u32, set)),
            Err(_) if set => {}
            Err(errno) => {
                let error = errno.into();
                return Err(ProcessImageError::System {
                    what: "cloning the restorer".into(),
                    error,
                });
            }
        }
    }
    Err(ProcessImageError::last("cloning the restorer"))
}

/// While a process is restored it has more files open than before, under higher numbers.
fn must_be_permitted(descriptors: u64) -> Result<(), ProcessImageError> {
    let limit_of_files = libc::RLIMIT_NOFILE as usize;
    let mut limit = [0u64; 2];
    let known = raw::fill(libc::SYS_getrlimit, [limit_of_files, 0, 0, 0, 0], 1, &mut limit).is_ok();
    if !known || descriptors <= limit[1] {
        return Ok(());
    }
    let what = format!("a restore with {descriptors} open files");
    let reason = "the limit (ulimit -Hn) is lower on this node: raise it";
    Err(ProcessImageError::Refused { what, reason })
}

/// In the child: descriptors to their numbers, then the restorer.
fn be_restorer(child: &Child, descriptors: u64) -> ! {
    let limit_of_files = libc::RLIMIT_NOFILE as usize;
    let mut limit = [0u64; 2];
    let _ = raw::fill(libc::SYS_getrlimit, [limit_of_files, 0, 0, 0, 0], 1, &mut limit);
    if limit[0] < descriptors {
        limit[0] = limit[1].min(descriptors);
        let _ = raw::pass(libc::SYS_setrlimit, [limit_of_files, 0, 0, 0, 0], 1, &limit);
    }
    let cloexec = libc::O_CLOEXEC as usize;
    let dup = |from: RawFd, to: RawFd, flags| {
        if raw::plain(libc::SYS_dup3, [from as usize, to as usize, flags, 0]).is_err() {
            let _ = raw::plain(libc::SYS_exit_group, [117, 0, 0, 0]);
        }
    };
    let high = |index: usize| child.first_high + index as i32;
    let program = high(child.moves.len());
    for (index, (_, from)) in child.moves.iter().enumerate() {
        dup(*from, high(index), cloexec);
    }
    dup(child.program, program, cloexec);
    let _ = raw::plain(libc::SYS_close_range, [0, child.first_high as usize - 1, 0, 0]);
    let _ = raw::plain(libc::SYS_close_range, [program as usize + 1, u32::MAX as usize, 0, 0]);
    for (index, (to, _)) in child.moves.iter().enumerate() {
        dup(high(index), *to, 0);
    }
    let block_all = u64::MAX;
    let how = [libc::SIG_SETMASK as usize, 0, 0, 8, 0];
    let _ = raw::pass(libc::SYS_rt_sigprocmask, how, 1, &block_all);
    const ADDR_NO_RANDOMIZE: usize = 0x0004_0000;
    let _ = raw::plain(libc::SYS_personality, [ADDR_NO_RANDOMIZE, 0, 0, 0]);
    let arguments = [child.socket_text.as_ptr(), std::ptr::null()];
    let a = [
        program as usize,
        c"".as_ptr().addr(),
        arguments.as_ptr().addr(),
        arguments[1..].as_ptr().addr(),
        libc::AT_EMPTY_PATH as usize,
        0,
    ];
    // SAFETY: strings and arrays live; on success this program is replaced.
    let _ = unsafe { raw::call(libc::SYS_execveat, a) };
    loop {
        let _ = raw::plain(libc::SYS_exit_group, [118, 0, 0, 0]);
    }
}
