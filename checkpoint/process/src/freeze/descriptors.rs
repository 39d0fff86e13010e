//! Open descriptors, as records.
//!
//! Source: FACTS-image §3. Invariant 4 of `freeze.rs`: every open number has a record or the
//! freeze is refused, except those that the caller drops.

use super::FreezeOptions;
use super::failure::{FreezeFailure, Name};
use super::sockets;
use crate::mmap_vec::{Description, MmapVec};
use crate::proc_files::{self, Path, Piece};
use crate::raw::{self, Errno};
use rustbtl_checkpoint::image::record::{self, Descriptor, EpollWatch, PipeContent};

/// Same open file? (kcmp(2))
const KCMP_FILE: usize = 0;

/// A descriptor that has been classified.
#[derive(Clone, Copy, Debug)]
pub struct KnownDescriptor {
    /// The number.
    pub fd: i32,
    /// `DESCRIPTOR_*`.
    pub kind: u8,
    /// Of the file.
    pub device: u64,
    /// Of the file.
    pub inode: u64,
    /// Of the device that the file is, if it is one.
    pub special: u64,
    /// Has a record of its own (not `same_as`).
    pub first: bool,
}

/// Buffers that are used for every freeze.
#[derive(Debug)]
pub struct ScratchBuffers {
    /// Texts.
    pub text: MmapVec<u8>,
    /// Paths of descriptors; contents of pipes.
    pub more: MmapVec<u8>,
    /// What has been classified.
    pub known: MmapVec<KnownDescriptor>,
}

impl ScratchBuffers {
    /// Empty.
    pub fn new() -> Result<Self, Errno> {
        let (text, more) = (MmapVec::new(1 << 16)?, MmapVec::new(1 << 16)?);
        Ok(Self { text, more, known: MmapVec::new(1 << 16)? })
    }
}

/// An open descriptor that is being classified.
pub struct OpenDescriptor<'a> {
    /// The number.
    pub fd: i32,
    /// Its target in /proc/self/fd.
    pub name: &'a [u8],
    /// fstat(2).
    pub stat: libc::stat,
    /// /proc/self/fdinfo.
    pub info: &'a [u8],
    /// O_*.
    pub flags: u32,
}

impl OpenDescriptor<'_> {
    /// Has it no name by which it could be opened again? It may have others (a hard link).
    fn is_unnamed(&self) -> bool {
        self.stat.st_nlink == 0
            || self.name.starts_with(b"/memfd:")
            || self.name.ends_with(b" (deleted)")
    }

    /// A refusal that names the descriptor.
    pub fn refuse(&self, reason: &'static str) -> FreezeFailure {
        let number = Path::of(&[Piece::Text("descriptor "), Piece::Number(self.fd as u64)]);
        FreezeFailure::Refused(Name::of(&[number.text(), b" (", self.name, b")"]), reason)
    }
}

/// Writes a record for every open descriptor, but for `own`, which is not there after a restore.
pub fn describe(
    options: &FreezeOptions<'_>,
    own: Option<i32>,
    description: &mut Description,
    scratch: &mut ScratchBuffers,
) -> Result<(), FreezeFailure> {
    let ScratchBuffers { text, more, known } = scratch;
    known.clear();
    proc_files::numbers_in(b"/proc/self/fd\0", text, |fd| {
        let fd = fd as i32;
        if !options.dropped.contains(&fd) && own != Some(fd) {
            let (kind, device, inode, special) = (0, 0, 0, 0);
            known.push(KnownDescriptor { fd, kind, device, inode, special, first: true });
        }
    })
    .map_err(FreezeFailure::system("listing descriptors"))?;
    known.finish().map_err(FreezeFailure::system("room for descriptors"))?;
    // Those that are supplied at a restore come first: others may be the same.
    let rank = |fd: i32| (!options.supplied.contains(&fd), fd);
    known.items_mut().sort_unstable_by_key(|known| rank(known.fd));
    for index in 0..known.items().len() {
        describe_one(options, index, description, text, more, known)?;
    }
    for index in 0..known.items().len() {
        let of = known.items()[index];
        if of.kind == record::DESCRIPTOR_EPOLL && of.first {
            epoll_watches(of.fd, options, description, text, known.items())?;
        }
    }
    pipe_contents(description, more, known.items())
}

fn describe_one(
    options: &FreezeOptions<'_>,
    index: usize,
    description: &mut Description,
    text: &mut MmapVec<u8>,
    more: &mut MmapVec<u8>,
    known: &mut MmapVec<KnownDescriptor>,
) -> Result<(), FreezeFailure> {
    let fd = known.items()[index].fd;
    let number = Piece::Number(fd as u64);
    let info_path = Path::of(&[Piece::Text("/proc/self/fdinfo/"), number]);
    proc_files::read_file(info_path.with_nul(), text)
        .map_err(FreezeFailure::system("reading /proc/self/fdinfo"))?;
    // SAFETY: all of its fields are numbers.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    raw::fill(libc::SYS_fstat, [fd as usize, 0, 0, 0, 0], 1, &mut stat)
        .map_err(FreezeFailure::system("fstat"))?;
    let link = Path::of(&[Piece::Text("/proc/self/fd/"), number]);
    more.clear();
    let buffer = |buffer: &mut [u8]| raw::read_link(link.with_nul(), buffer);
    more.fill(4096, buffer).map_err(FreezeFailure::system("reading /proc/self/fd"))?;
    let info = text.items();
    let flags = proc_files::after(info, "flags:").and_then(|text| proc_files::number(text, 8));
    let flags = flags.unwrap_or_default() as u32;
    let seen = OpenDescriptor { fd, name: more.items(), stat, info, flags };
    let mut descriptor = Descriptor {
        fd,
        same_as: -1,
        kind: 0,
        close_on_exec: flags & libc::O_CLOEXEC as u32 != 0,
        flags: flags & !(libc::O_CLOEXEC as u32),
        device: stat.st_dev,
        inode: stat.st_ino,
        a: 0,
        b: 0,
        c: 0,
        data: b"",
    };
    let is_device = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    let special = if is_device { stat.st_rdev } else { 0 };
    let before = &known.items()[..index];
    let mut socket_name = [0; sockets::NAME_BYTES_MAX];
    if let Some(same) = same_open_file(fd, &stat, before) {
        (descriptor.same_as, descriptor.kind) = (same.fd, same.kind);
    } else if options.supplied.contains(&fd) {
        descriptor.kind = record::DESCRIPTOR_SUPPLIED;
    } else if options.muted.contains(&fd) {
        descriptor.kind = record::DESCRIPTOR_MUTED;
    } else if let Some(same) = same_terminal(special, before) {
        // Another open file of the terminal that is supplied: as good as a duplicate.
        (descriptor.same_as, descriptor.kind) = (same.fd, same.kind);
    } else {
        classify(&seen, &mut descriptor, &mut socket_name)?;
    }
    let (kind, first) = (descriptor.kind, descriptor.same_as < 0);
    descriptor.encode(description);
    let (device, inode) = (stat.st_dev, stat.st_ino);
    known.items_mut()[index] = KnownDescriptor { fd, kind, device, inode, special, first };
    Ok(())
}

fn same_open_file<'a>(
    fd: i32,
    stat: &libc::stat,
    before: &'a [KnownDescriptor],
) -> Option<&'a KnownDescriptor> {
    let pid = raw::plain(libc::SYS_getpid, [0; 4]).ok()?;
    let candidates = before
        .iter()
        .filter(|known| known.first && known.device == stat.st_dev && known.inode == stat.st_ino);
    candidates.into_iter().find(|known| {
        let a = [pid, pid, KCMP_FILE, known.fd as usize, fd as usize, 0];
        // SAFETY: only compares.
        let answer = unsafe { raw::call(libc::SYS_kcmp, a) };
        answer == Ok(0)
    })
}

fn same_terminal(special: u64, before: &[KnownDescriptor]) -> Option<&KnownDescriptor> {
    let is_terminal = matches!(libc::major(special), 4 | 5 | 136..=143);
    let given = |known: &&KnownDescriptor| {
        known.kind == record::DESCRIPTOR_SUPPLIED && known.special == special && known.first
    };
    before.iter().find(given).filter(|_| is_terminal)
}

/// Classifies a descriptor.
fn classify<'a>(
    seen: &OpenDescriptor<'a>,
    descriptor: &mut Descriptor<'a>,
    socket_name: &'a mut [u8; sockets::NAME_BYTES_MAX],
) -> Result<(), FreezeFailure> {
    let field = |key: &str, base| {
        let text = proc_files::after(seen.info, key);
        text.and_then(|text| proc_files::number(text, base)).unwrap_or_default()
    };
    if let Some(kind) = seen.name.strip_prefix(b"anon_inode:") {
        match kind {
            b"[eventfd]" => {
                descriptor.kind = record::DESCRIPTOR_EVENT;
                descriptor.a = field("eventfd-count:", 16);
                descriptor.b = field("eventfd-semaphore:", 10);
            }
            b"[timerfd]" => {
                descriptor.kind = record::DESCRIPTOR_TIMER;
                descriptor.a = field("clockid:", 10);
                descriptor.b = pair_ns(seen.info, "it_interval:");
                descriptor.c = pair_ns(seen.info, "it_value:");
                if descriptor.c == 0 && field("ticks:", 10) > 0 {
                    descriptor.c = 1; // it had expired and not been read: it expires again
                }
            }
            b"[signalfd]" => {
                descriptor.kind = record::DESCRIPTOR_SIGNAL;
                descriptor.a = field("sigmask:", 16);
            }
            b"[eventpoll]" => descriptor.kind = record::DESCRIPTOR_EPOLL,
            _ => return Err(seen.refuse("the kernel cannot re-create it; close it")),
        }
        return Ok(());
    }
    let shape = seen.stat.st_mode & libc::S_IFMT;
    descriptor.a = field("pos:", 10);
    descriptor.b = seen.stat.st_size as u64;
    descriptor.data = seen.name;
    match shape {
        libc::S_IFREG if is_message_queue(seen.fd) => {
            return Err(seen.refuse("a message queue, which outlives its processes; close it"));
        }
        libc::S_IFREG if seen.is_unnamed() => {
            descriptor.kind = record::DESCRIPTOR_UNNAMED;
        }
        libc::S_IFREG => descriptor.kind = record::DESCRIPTOR_FILE,
        libc::S_IFDIR => {
            (descriptor.kind, descriptor.b) = (record::DESCRIPTOR_PATH, record::PATH_OF_FOLDER);
        }
        libc::S_IFCHR => {
            let harmless = libc::major(seen.stat.st_rdev) == 1
                && matches!(libc::minor(seen.stat.st_rdev), 3 | 5 | 7 | 8 | 9);
            if !harmless {
                return Err(seen.refuse("a device or terminal that is not the program's stdio"));
            }
            descriptor.kind = record::DESCRIPTOR_PATH;
        }
        libc::S_IFIFO if seen.name.starts_with(b"pipe:") => {
            descriptor.data = b"";
            descriptor.kind = match seen.flags as i32 & libc::O_ACCMODE {
                libc::O_RDONLY => record::DESCRIPTOR_PIPE_READ,
                libc::O_WRONLY => record::DESCRIPTOR_PIPE_WRITE,
                _ => return Err(seen.refuse("a pipe opened for reading and writing")),
            };
        }
        libc::S_IFSOCK => sockets::classify(seen, descriptor, socket_name)?,
        _ => return Err(seen.refuse("it cannot be opened again")),
    }
    Ok(())
}

/// They look like files (`MQUEUE_MAGIC` of the kernel).
fn is_message_queue(fd: i32) -> bool {
    const MAGIC: i64 = 0x1980_0202;
    // SAFETY: all of its fields are numbers.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    let got = raw::fill(libc::SYS_fstatfs, [fd as usize, 0, 0, 0, 0], 1, &mut system);
    got.is_ok() && system.f_type == MAGIC
}

/// "(seconds, nanoseconds)" after a key, as nanoseconds.
fn pair_ns(info: &[u8], key: &str) -> u64 {
    let Some(text) = proc_files::after(info, key) else { return 0 };
    let text = text.trim_ascii_start().strip_prefix(b"(").unwrap_or(text);
    let seconds = proc_files::number(text, 10).unwrap_or_default();
    let comma = text.iter().position(|byte| *byte == b',').unwrap_or(text.len());
    let rest = text.get(comma + 1..).and_then(|text| proc_files::number(text, 10));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest.unwrap_or_default())
}

/// What an epoll watches.
fn epoll_watches(
    epoll: i32,
    options: &FreezeOptions<'_>,
    description: &mut Description,
    text: &mut MmapVec<u8>,
    known: &[KnownDescriptor],
) -> Result<(), FreezeFailure> {
    let path = Path::of(&[Piece::Text("/proc/self/fdinfo/"), Piece::Number(epoll as u64)]);
    proc_files::read_file(path.with_nul(), text)
        .map_err(FreezeFailure::system("reading /proc/self/fdinfo"))?;
    for line in proc_files::lines(text.items()) {
        let Some(rest) = line.strip_prefix(b"tfd:") else { continue };
        let after = |key: &[u8]| {
            let at = rest.windows(key.len()).position(|part| part == key)?;
            rest.get(at + key.len()..).and_then(|text| proc_files::number(text, 16))
        };
        let fd = proc_files::number(rest, 10).unwrap_or_default() as i32;
        if options.dropped.contains(&fd) {
            continue;
        }
        let same = known.iter().find(|known| known.fd == fd);
        let inode = after(b" ino:");
        if same.is_none_or(|known| inode.is_some_and(|inode| inode != known.inode)) {
            let reason = "an epoll watches a file whose descriptor has been closed";
            return Err(FreezeFailure::Refused(Name::of(&[b"epoll"]), reason));
        }
        let events = after(b"events:").unwrap_or_default() as u32;
        let data = after(b"data:").unwrap_or_default();
        EpollWatch { epoll, fd, events, data }.encode(description);
    }
    Ok(())
}

/// What is in pipes. A pipe to another process cannot be restored.
fn pipe_contents(
    description: &mut Description,
    more: &mut MmapVec<u8>,
    known: &[KnownDescriptor],
) -> Result<(), FreezeFailure> {
    for end in known.iter().filter(|known| known.first) {
        let (other, gone) = match end.kind {
            record::DESCRIPTOR_PIPE_READ => (record::DESCRIPTOR_PIPE_WRITE, libc::POLLHUP),
            record::DESCRIPTOR_PIPE_WRITE => (record::DESCRIPTOR_PIPE_READ, libc::POLLERR),
            _ => continue,
        };
        let here = |known: &&KnownDescriptor| known.inode == end.inode && known.kind == other;
        if known.iter().find(here).is_none() && !poll_says(end.fd, gone) {
            let number = Path::of(&[Piece::Text("descriptor "), Piece::Number(end.fd as u64)]);
            let reason = "a pipe to another process; only the restorer could supply it";
            return Err(FreezeFailure::Refused(Name::of(&[number.text()]), reason));
        }
        if end.kind == record::DESCRIPTOR_PIPE_READ {
            pipe_content(end, description, more)
                .map_err(FreezeFailure::system("reading a pipe"))?;
        }
    }
    Ok(())
}

fn poll_says(fd: i32, event: i16) -> bool {
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one pollfd that lives.
    let done = unsafe { raw::call(libc::SYS_poll, [(&raw mut poll).addr(), 1, 0, 0, 0, 0]) };
    done.is_ok() && poll.revents & event != 0
}

/// Copies what is in a pipe without taking it out: tee(2) into another pipe.
fn pipe_content(
    end: &KnownDescriptor,
    description: &mut Description,
    more: &mut MmapVec<u8>,
) -> Result<(), Errno> {
    let capacity =
        raw::plain(libc::SYS_fcntl, [end.fd as usize, libc::F_GETPIPE_SZ as usize, 0, 0])?;
    let mut waiting = 0i32;
    let fionread = libc::FIONREAD as usize;
    raw::fill(libc::SYS_ioctl, [end.fd as usize, fionread, 0, 0, 0], 2, &mut waiting)?;
    more.clear();
    if waiting > 0 {
        let mut copy = [0i32; 2];
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        raw::fill(libc::SYS_pipe2, [0, flags, 0, 0, 0], 0, &mut copy)?;
        let size = [copy[1] as usize, libc::F_SETPIPE_SZ as usize, capacity, 0];
        let outcome = raw::plain(libc::SYS_fcntl, size).and_then(|_| {
            let nonblock = 2;
            let tee = [end.fd as usize, copy[1] as usize, waiting as usize, nonblock];
            let teed = raw::plain(libc::SYS_tee, tee)?;
            let mut left = teed;
            while left > 0 {
                let got = more.fill(left, |buffer| raw::read(copy[0], buffer))?;
                left -= got.max(1).min(left);
            }
            if teed == waiting as usize { Ok(()) } else { Err(Errno(libc::EMSGSIZE)) }
        });
        copy.into_iter().for_each(raw::close);
        outcome?;
    }
    let (inode, capacity) = (end.inode, capacity as u64);
    PipeContent { inode, capacity, bytes: more.items() }.encode(description);
    Ok(())
}
