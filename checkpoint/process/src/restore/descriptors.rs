//! Descriptors of a restored process, made in it by its restorer.

use super::remote_syscalls::{Call, Hands};
use crate::error::OutsideError;
use crate::restore_args::MUTED_MAX;
use rustbtl_checkpoint::image::ImageError;
use rustbtl_checkpoint::image::record::{self, Descriptor, EpollWatch, PipeContent};
use std::collections::BTreeMap;
use std::os::fd::RawFd;

/// What the image says of descriptors.
#[derive(Debug, Default)]
pub struct Descriptors<'a> {
    /// In the order of the image: a duplicate comes after the first.
    pub all: Vec<Descriptor<'a>>,
    /// What epolls watch.
    pub watches: Vec<EpollWatch>,
    /// What was in pipes.
    pub pipes: Vec<PipeContent<'a>>,
    /// Where objects are that were given to the restorer: by device and inode.
    pub objects: BTreeMap<(u64, u64), RawFd>,
    /// Others go on writing: files keep their size, but for those that only grow at the end.
    pub alone: bool,
}

impl<'a> Descriptors<'a> {
    /// The highest number in use.
    pub fn highest(&self) -> RawFd {
        self.all.iter().map(|descriptor| descriptor.fd).max().unwrap_or(2)
    }

    /// Makes all but the files of threads; gives the far ends of those that are muted.
    pub fn make(
        &self,
        hands: &mut Hands,
        supplied: &[RawFd],
    ) -> Result<Vec<(RawFd, RawFd)>, OutsideError> {
        let mut muted = Vec::new();
        let mut ends: BTreeMap<(u64, u8), u64> = BTreeMap::new();
        for descriptor in
            self.all.iter().filter(|descriptor| self.thread_file(descriptor).is_none())
        {
            let to = descriptor.fd;
            if descriptor.same_as >= 0 {
                duplicate(hands, descriptor)?;
            } else if descriptor.kind == record::DESCRIPTOR_SUPPLIED {
                if !supplied.contains(&to) {
                    let what = format!("descriptor {to}");
                    let reason = "it was to be supplied by whoever restores, and is not";
                    return Err(OutsideError::Refused { what, reason });
                }
            } else if descriptor.kind == record::DESCRIPTOR_MUTED {
                let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
                let unix = [libc::AF_UNIX as u64, kind, 0, 0, 0, 0];
                let least = self.highest() + 1;
                let [near, far] = pair(hands, libc::SYS_socketpair, unix, 3, least)?;
                place(hands, near, to)?;
                status_flags(hands, descriptor)?;
                muted.push((to, far as RawFd));
            } else if let Some(other) = other_end(descriptor) {
                let key = (descriptor.inode, descriptor.kind);
                let fd = match ends.remove(&key) {
                    Some(fd) => fd,
                    None => {
                        let [read, write] = self.pipe(hands, descriptor)?;
                        let is_read = descriptor.kind == record::DESCRIPTOR_PIPE_READ;
                        let (own, far) = if is_read { (read, write) } else { (write, read) };
                        ends.insert((descriptor.inode, other), far);
                        own
                    }
                };
                place(hands, fd, to)?;
                status_flags(hands, descriptor)?;
            } else {
                let fd = self.open(hands, descriptor)?;
                place(hands, fd, to)?;
            }
            close_on_exec(hands, descriptor)?;
        }
        // Ends that the program had closed.
        for fd in ends.values() {
            hands.call(libc::SYS_close, [*fd, 0, 0, 0, 0, 0])?;
        }
        for watch in &self.watches {
            let mut event = watch.events.to_le_bytes().to_vec();
            event.extend_from_slice(&watch.data.to_le_bytes());
            let (epoll, fd) = (watch.epoll as u64, watch.fd as u64);
            let a = [epoll, libc::EPOLL_CTL_ADD as u64, fd, 0, 0, 0];
            hands.call_with(libc::SYS_epoll_ctl, a, 3, &event)?;
        }
        if muted.len() > MUTED_MAX {
            return Err(ImageError::Limit("muted descriptors").into());
        }
        Ok(muted)
    }

    /// Makes those that are files of threads, whose ids are by now what `ids` says.
    pub fn make_thread_files(
        &self,
        hands: &mut Hands,
        ids: &BTreeMap<u32, u32>,
    ) -> Result<(), OutsideError> {
        for descriptor in &self.all {
            let Some((tid, name)) = self.thread_file(descriptor) else { continue };
            if descriptor.same_as >= 0 {
                duplicate(hands, descriptor)?;
            } else if let Some(tid) = ids.get(&tid) {
                let path = [format!("/proc/self/task/{tid}").as_bytes(), name].concat();
                let fd = open_path(hands, &path, u64::from(descriptor.flags))?;
                let set = libc::SEEK_SET as u64;
                hands.attempt(libc::SYS_lseek, [fd, descriptor.a, set, 0, 0, 0])?;
                place(hands, fd, descriptor.fd)?;
            } else {
                // The thread had ended: to read it was an error, and is.
                let fd = open_path(hands, b"/dev/null", libc::O_PATH as u64)?;
                place(hands, fd, descriptor.fd)?;
            }
            close_on_exec(hands, descriptor)?;
        }
        Ok(())
    }

    /// Id of the thread that this is a file of in /proc, and what is behind it in the path. Whoever
    /// names a thread has such a file open for a moment.
    fn thread_file(&self, descriptor: &Descriptor<'a>) -> Option<(u32, &'a [u8])> {
        let is_first = |other: &&Descriptor<'a>| other.fd == descriptor.same_as;
        let first = self.all.iter().find(is_first).unwrap_or(descriptor);
        if ![record::DESCRIPTOR_FILE, record::DESCRIPTOR_PATH].contains(&first.kind) {
            return None;
        }
        let (_, rest) = number(first.data.strip_prefix(b"/proc/")?)?;
        number(rest.strip_prefix(b"/task/")?)
    }

    /// Opens what is not a pipe, with all its properties, at any number.
    fn open(&self, hands: &mut Hands, descriptor: &Descriptor<'_>) -> Result<u64, OutsideError> {
        let flags = u64::from(descriptor.flags);
        let nonblock = flags & libc::O_NONBLOCK as u64;
        let (a, b) = (descriptor.a, descriptor.b);
        match descriptor.kind {
            // What is mapped, too, is one object, whatever has become of its name.
            record::DESCRIPTOR_FILE if self.object_of(descriptor).is_some() => {
                self.open_object(hands, descriptor)
            }
            record::DESCRIPTOR_FILE | record::DESCRIPTOR_PATH => {
                let fd = open_path(hands, descriptor.data, flags)?;
                if descriptor.kind == record::DESCRIPTOR_FILE {
                    position(hands, fd, descriptor, self.alone)?;
                }
                Ok(fd)
            }
            record::DESCRIPTOR_UNNAMED => self.open_object(hands, descriptor),
            record::DESCRIPTOR_EVENT => {
                let kind = nonblock | b & 1; // EFD_SEMAPHORE is 1
                let fd = hands.call(libc::SYS_eventfd2, [0, kind, 0, 0, 0, 0])?;
                if a > 0 {
                    let data = a.to_le_bytes();
                    hands.call_with(libc::SYS_write, [fd, 0, 8, 0, 0, 0], 1, &data)?;
                }
                Ok(fd)
            }
            record::DESCRIPTOR_TIMER => {
                let fd = hands.call(libc::SYS_timerfd_create, [a, nonblock, 0, 0, 0, 0])?;
                let mut data = Vec::new();
                for time in [b, descriptor.c] {
                    data.extend_from_slice(&(time / 1_000_000_000).to_le_bytes());
                    data.extend_from_slice(&(time % 1_000_000_000).to_le_bytes());
                }
                hands.call_with(libc::SYS_timerfd_settime, [fd, 0, 0, 0, 0, 0], 2, &data)?;
                Ok(fd)
            }
            record::DESCRIPTOR_SIGNAL => {
                let any = u64::from(u32::MAX);
                let call = [any, 0, 8, nonblock, 0, 0];
                hands.call_with(libc::SYS_signalfd4, call, 1, &a.to_le_bytes())
            }
            record::DESCRIPTOR_EPOLL => hands.call(libc::SYS_epoll_create1, [0; 6]),
            record::DESCRIPTOR_LISTENER | record::DESCRIPTOR_SOCKET => socket(hands, descriptor),
            _ => Err(ImageError::Value("kind of descriptor").into()),
        }
    }

    /// Where the restorer has the object that this descriptor is of, if it is one.
    fn object_of(&self, descriptor: &Descriptor<'_>) -> Option<RawFd> {
        self.objects.get(&(descriptor.device, descriptor.inode)).copied()
    }

    /// Opens an object that was given to the restorer.
    fn open_object(&self, hands: &mut Hands, file: &Descriptor<'_>) -> Result<u64, OutsideError> {
        let object = self.object_of(file).ok_or(ImageError::Value("a file without content"))?;
        let kept = (libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK) as u64;
        let path = format!("/proc/self/fd/{object}");
        let fd = open_path(hands, path.as_bytes(), u64::from(file.flags) & kept)?;
        position(hands, fd, file, false)?;
        Ok(fd)
    }

    /// A pipe with its content.
    fn pipe(&self, hands: &mut Hands, end: &Descriptor<'_>) -> Result<[u64; 2], OutsideError> {
        let [read, write] = pair(hands, libc::SYS_pipe2, [0; 6], 0, self.highest() + 1)?;
        let content = self.pipes.iter().find(|pipe| pipe.inode == end.inode);
        if let Some(content) = content {
            let command = libc::F_SETPIPE_SZ as u64;
            hands.attempt(libc::SYS_fcntl, [write, command, content.capacity, 0, 0, 0])?;
            for part in content.bytes.chunks(32 << 10) {
                let call = [write, 0, part.len() as u64, 0, 0, 0];
                hands.call_with(libc::SYS_write, call, 1, part)?;
            }
        }
        Ok([read, write])
    }
}

/// A number at the beginning, and what follows it.
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(digits);
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

fn duplicate(hands: &mut Hands, descriptor: &Descriptor<'_>) -> Result<(), OutsideError> {
    let (from, to) = (descriptor.same_as as u64, descriptor.fd as u64);
    hands.call(libc::SYS_dup3, [from, to, 0, 0, 0, 0]).map(|_| ())
}

fn close_on_exec(hands: &mut Hands, descriptor: &Descriptor<'_>) -> Result<(), OutsideError> {
    let (fd, flag) = (descriptor.fd as u64, u64::from(descriptor.close_on_exec));
    hands.queue(Call::new(libc::SYS_fcntl, [fd, libc::F_SETFD as u64, flag, 0, 0, 0]))
}

fn other_end(descriptor: &Descriptor<'_>) -> Option<u8> {
    match descriptor.kind {
        record::DESCRIPTOR_PIPE_READ => Some(record::DESCRIPTOR_PIPE_WRITE),
        record::DESCRIPTOR_PIPE_WRITE => Some(record::DESCRIPTOR_PIPE_READ),
        _ => None,
    }
}

/// Moves a descriptor to its number.
fn place(hands: &mut Hands, fd: u64, to: RawFd) -> Result<(), OutsideError> {
    if fd != to as u64 {
        hands.call(libc::SYS_dup3, [fd, to as u64, 0, 0, 0, 0])?;
        hands.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

fn status_flags(hands: &mut Hands, descriptor: &Descriptor<'_>) -> Result<(), OutsideError> {
    let flags = u64::from(descriptor.flags);
    let command = libc::F_SETFL as u64;
    hands.call(libc::SYS_fcntl, [descriptor.fd as u64, command, flags, 0, 0, 0]).map(|_| ())
}

/// A call that makes two descriptors, which it stores where its argument `at` points to. Both are
/// moved to numbers from `least` on, out of the way of those that are still to be made.
fn pair(
    hands: &mut Hands,
    call: i64,
    arguments: [u64; 6],
    at: usize,
    least: RawFd,
) -> Result<[u64; 2], OutsideError> {
    hands.call_with(call, arguments, at, &[0xff; 8])?;
    let mut data = [0; 8];
    hands.look_at_scratch(&mut data)?;
    let (first, second) = data.split_at(4);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or_default());
    let mut both = [u64::from(number(first)), u64::from(number(second))];
    for fd in &mut both {
        let command = libc::F_DUPFD_CLOEXEC as u64;
        let high = hands.call(libc::SYS_fcntl, [*fd, command, least as u64, 0, 0, 0])?;
        hands.call(libc::SYS_close, [*fd, 0, 0, 0, 0, 0])?;
        *fd = high;
    }
    Ok(both)
}

fn open_path(hands: &mut Hands, path: &[u8], flags: u64) -> Result<u64, OutsideError> {
    let mut path = path.to_vec();
    if let Some((_, rest)) = path.strip_prefix(b"/proc/").and_then(number) {
        path = [b"/proc/self", rest].concat();
    }
    path.push(0);
    let creating = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u64;
    let here = libc::AT_FDCWD as u64;
    let call = [here, 0, flags & !creating, 0, 0, 0];
    hands.call_with(libc::SYS_openat, call, 1, &path).map_err(|error| match error {
        OutsideError::System { error, .. } => {
            let path = String::from_utf8_lossy(&path[..path.len() - 1]).into_owned();
            OutsideError::System { what: format!("opening {path} again"), error }
        }
        other => other,
    })
}

/// Offset, and the size that a file had that the program writes to.
fn position(
    hands: &mut Hands,
    fd: u64,
    file: &Descriptor<'_>,
    alone: bool,
) -> Result<(), OutsideError> {
    let writes = file.flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
    // What another process has written behind is not this one's to remove; it writes its own again.
    if writes && (!alone || file.flags as i32 & libc::O_APPEND != 0) {
        hands.call(libc::SYS_ftruncate, [fd, file.b, 0, 0, 0, 0])?;
    }
    let set = libc::SEEK_SET as u64;
    hands.call(libc::SYS_lseek, [fd, file.a, set, 0, 0, 0]).map(|_| ())
}

fn socket(hands: &mut Hands, socket: &Descriptor<'_>) -> Result<u64, OutsideError> {
    let (domain, protocol) = (socket.b & 0xffff_ffff, socket.b >> 32);
    let nonblock = u64::from(socket.flags) & libc::O_NONBLOCK as u64;
    let fd = hands.call(libc::SYS_socket, [domain, socket.a | nonblock, protocol, 0, 0, 0])?;
    let six = (libc::IPPROTO_IPV6 as u64, libc::IPV6_V6ONLY as u64);
    let options = [
        (1, libc::SOL_SOCKET as u64, libc::SO_REUSEADDR as u64),
        (2, libc::SOL_SOCKET as u64, libc::SO_REUSEPORT as u64),
        (4, six.0, six.1),
    ];
    for (bit, level, option) in options {
        if socket.c & bit != 0 {
            let call = [fd, level, option, 0, 4, 0];
            hands.call_with(libc::SYS_setsockopt, call, 3, &1u32.to_le_bytes())?;
        }
    }
    if !socket.data.is_empty() {
        let call = [fd, 0, socket.data.len() as u64, 0, 0, 0];
        let bound = hands.call_with(libc::SYS_bind, call, 1, socket.data);
        if let Err(OutsideError::System { error, .. }) = bound {
            // The port is taken: any other. Who wants to connect has to be told the new one anyway.
            let mut address = socket.data.to_vec();
            address[2..4].fill(0);
            let again = hands.call_with(libc::SYS_bind, call, 1, &address);
            again.map_err(|_| OutsideError::System { what: "binding a socket".into(), error })?;
        }
    }
    if socket.kind == record::DESCRIPTOR_LISTENER {
        hands.call(libc::SYS_listen, [fd, 4096, 0, 0, 0, 0])?;
    }
    Ok(fd)
}
