//! Descriptors of a restored process, made in it by its restorer.

use super::remote_syscalls::RemoteSyscalls;
use crate::error::ProcessImageError;
use crate::restore_args::MUTED_MAX;
use rustbtl_checkpoint::image::ImageError;
use rustbtl_checkpoint::image::record::{self, Descriptor, EpollWatch, PipeContent};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;

/// Name of the memory in place of a file that was removed.
const PLACEHOLDER: &[u8] = b"removed\0";

/// What the image has of descriptors.
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
    /// Other processes continue to write: files keep their size, except those that are only
    /// appended to.
    pub alone: bool,
    /// Of files that were removed since by ranks that are not rolled back: memory in their place.
    /// The process does nothing to them any more (docs/adr/0023).
    pub removed: BTreeSet<RawFd>,
}

impl<'a> Descriptors<'a> {
    /// The highest number in use.
    pub fn highest(&self) -> RawFd {
        self.all.iter().map(|descriptor| descriptor.fd).max().unwrap_or(2)
    }

    /// Makes all but the files of threads; gives the far ends of those that are muted.
    pub fn make(
        &self,
        remote: &mut RemoteSyscalls,
        supplied: &[RawFd],
    ) -> Result<Vec<(RawFd, RawFd)>, ProcessImageError> {
        let mut muted = Vec::new();
        let mut ends: BTreeMap<(u64, u8), RawFd> = BTreeMap::new();
        for descriptor in
            self.all.iter().filter(|descriptor| self.thread_file(descriptor).is_none())
        {
            let to = descriptor.fd;
            if descriptor.same_as >= 0 {
                duplicate(remote, descriptor)?;
            } else if descriptor.kind == record::DESCRIPTOR_SUPPLIED {
                if !supplied.contains(&to) {
                    let what = format!("descriptor {to}");
                    let reason = "it was to be supplied at the restore, and is not";
                    return Err(ProcessImageError::Refused { what, reason });
                }
            } else if descriptor.kind == record::DESCRIPTOR_MUTED {
                let both = remote.socketpair()?;
                let [near, far] = move_out_of_the_way(remote, both, self.highest() + 1)?;
                place(remote, near, to)?;
                status_flags(remote, descriptor)?;
                muted.push((to, far));
            } else if let Some(other) = other_end(descriptor) {
                let key = (descriptor.inode, descriptor.kind);
                let fd = match ends.remove(&key) {
                    Some(fd) => fd,
                    None => {
                        let [read, write] = self.pipe(remote, descriptor)?;
                        let is_read = descriptor.kind == record::DESCRIPTOR_PIPE_READ;
                        let (own, far) = if is_read { (read, write) } else { (write, read) };
                        ends.insert((descriptor.inode, other), far);
                        own
                    }
                };
                place(remote, fd, to)?;
                status_flags(remote, descriptor)?;
            } else {
                let fd = self.open(remote, descriptor)?;
                place(remote, fd, to)?;
            }
            close_on_exec(remote, descriptor)?;
        }
        // Ends that the program had closed.
        for fd in ends.values() {
            remote.close(*fd)?;
        }
        for watch in &self.watches {
            remote.epoll_add(watch.epoll, watch.fd, (watch.events, watch.data))?;
        }
        if muted.len() > MUTED_MAX {
            return Err(ImageError::Limit("muted descriptors").into());
        }
        Ok(muted)
    }

    /// Makes those that are files of threads; `ids` has the new ids of threads.
    pub fn make_thread_files(
        &self,
        remote: &mut RemoteSyscalls,
        ids: &BTreeMap<u32, u32>,
    ) -> Result<(), ProcessImageError> {
        for descriptor in &self.all {
            let Some((tid, name)) = self.thread_file(descriptor) else { continue };
            if descriptor.same_as >= 0 {
                duplicate(remote, descriptor)?;
            } else if let Some(tid) = ids.get(&tid) {
                let path = [format!("/proc/self/task/{tid}").as_bytes(), name].concat();
                let fd = open_path(remote, &path, u64::from(descriptor.flags))?;
                remote.try_seek(fd, descriptor.a)?;
                place(remote, fd, descriptor.fd)?;
            } else {
                // The thread had ended: to read it was an error, and still is.
                let fd = open_path(remote, b"/dev/null", libc::O_PATH as u64)?;
                place(remote, fd, descriptor.fd)?;
            }
            close_on_exec(remote, descriptor)?;
        }
        Ok(())
    }

    /// Id of the thread that this is a file of in /proc, and what is behind it in the path. A
    /// program that sets the name of a thread has such a file open for a moment.
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
    fn open(
        &self,
        remote: &mut RemoteSyscalls,
        descriptor: &Descriptor<'_>,
    ) -> Result<RawFd, ProcessImageError> {
        let flags = u64::from(descriptor.flags);
        let nonblock = flags & libc::O_NONBLOCK as u64;
        let (a, b) = (descriptor.a, descriptor.b);
        match descriptor.kind {
            // What is mapped, too, is one object, whatever has become of its name.
            record::DESCRIPTOR_FILE if self.object_of(descriptor).is_some() => {
                self.open_object(remote, descriptor)
            }
            record::DESCRIPTOR_FILE if self.removed.contains(&descriptor.fd) => {
                let fd = remote.memfd(PLACEHOLDER)?;
                remote.set_status_flags(fd, descriptor.flags)?;
                remote.seek(fd, a)?;
                Ok(fd)
            }
            record::DESCRIPTOR_FILE | record::DESCRIPTOR_PATH => {
                let fd = open_path(remote, descriptor.data, flags)?;
                if descriptor.kind == record::DESCRIPTOR_FILE {
                    position(remote, fd, descriptor, self.alone)?;
                } else if descriptor.b == record::PATH_OF_FOLDER && descriptor.a > 0 {
                    remote.seek_in_folder(fd, descriptor.a)?;
                }
                Ok(fd)
            }
            record::DESCRIPTOR_UNNAMED => self.open_object(remote, descriptor),
            record::DESCRIPTOR_EVENT => {
                let kind = nonblock | b & 1; // EFD_SEMAPHORE is 1
                let fd = remote.eventfd(kind)?;
                if a > 0 {
                    remote.write(fd, &a.to_le_bytes())?;
                }
                Ok(fd)
            }
            record::DESCRIPTOR_TIMER => {
                let fd = remote.timerfd(a, nonblock)?;
                remote.set_timerfd(fd, b, descriptor.c)?;
                Ok(fd)
            }
            record::DESCRIPTOR_SIGNAL => remote.signalfd(a, nonblock),
            record::DESCRIPTOR_EPOLL => remote.epoll(),
            record::DESCRIPTOR_LISTENER | record::DESCRIPTOR_SOCKET => socket(remote, descriptor),
            _ => Err(ImageError::Value("kind of descriptor").into()),
        }
    }

    /// Where the restorer has the object that this descriptor is of, if it is one.
    fn object_of(&self, descriptor: &Descriptor<'_>) -> Option<RawFd> {
        self.objects.get(&(descriptor.device, descriptor.inode)).copied()
    }

    /// Opens an object that was given to the restorer.
    fn open_object(
        &self,
        remote: &mut RemoteSyscalls,
        file: &Descriptor<'_>,
    ) -> Result<RawFd, ProcessImageError> {
        let object = self.object_of(file).ok_or(ImageError::Value("a file without content"))?;
        let kept = (libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK) as u64;
        let path = format!("/proc/self/fd/{object}");
        let fd = open_path(remote, path.as_bytes(), u64::from(file.flags) & kept)?;
        position(remote, fd, file, false)?;
        Ok(fd)
    }

    /// A pipe with its content.
    fn pipe(
        &self,
        remote: &mut RemoteSyscalls,
        end: &Descriptor<'_>,
    ) -> Result<[RawFd; 2], ProcessImageError> {
        let both = remote.pipe()?;
        let [read, write] = move_out_of_the_way(remote, both, self.highest() + 1)?;
        let content = self.pipes.iter().find(|pipe| pipe.inode == end.inode);
        if let Some(content) = content {
            remote.try_pipe_capacity(write, content.capacity)?;
            for part in content.bytes.chunks(32 << 10) {
                remote.write(write, part)?;
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

fn duplicate(
    remote: &mut RemoteSyscalls,
    descriptor: &Descriptor<'_>,
) -> Result<(), ProcessImageError> {
    remote.dup3(descriptor.same_as, descriptor.fd)
}

fn close_on_exec(
    remote: &mut RemoteSyscalls,
    descriptor: &Descriptor<'_>,
) -> Result<(), ProcessImageError> {
    remote.queue_close_on_exec(descriptor.fd, descriptor.close_on_exec)
}

fn other_end(descriptor: &Descriptor<'_>) -> Option<u8> {
    match descriptor.kind {
        record::DESCRIPTOR_PIPE_READ => Some(record::DESCRIPTOR_PIPE_WRITE),
        record::DESCRIPTOR_PIPE_WRITE => Some(record::DESCRIPTOR_PIPE_READ),
        _ => None,
    }
}

/// Moves a descriptor to its number.
fn place(remote: &mut RemoteSyscalls, fd: RawFd, to: RawFd) -> Result<(), ProcessImageError> {
    if fd != to {
        remote.dup3(fd, to)?;
        remote.close(fd)?;
    }
    Ok(())
}

fn status_flags(
    remote: &mut RemoteSyscalls,
    descriptor: &Descriptor<'_>,
) -> Result<(), ProcessImageError> {
    remote.set_status_flags(descriptor.fd, descriptor.flags)
}

/// Moves both descriptors to numbers from `least` on, which no other descriptor of the image has.
fn move_out_of_the_way(
    remote: &mut RemoteSyscalls,
    mut both: [RawFd; 2],
    least: RawFd,
) -> Result<[RawFd; 2], ProcessImageError> {
    for fd in &mut both {
        let high = remote.dup_from(*fd, least)?;
        remote.close(*fd)?;
        *fd = high;
    }
    Ok(both)
}

fn open_path(
    remote: &mut RemoteSyscalls,
    path: &[u8],
    flags: u64,
) -> Result<RawFd, ProcessImageError> {
    let mut path = path.to_vec();
    if let Some((_, rest)) = path.strip_prefix(b"/proc/").and_then(number) {
        path = [b"/proc/self", rest].concat();
    }
    path.push(0);
    let creating = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u64;
    remote.open(&path, flags & !creating).map_err(|error| match error {
        ProcessImageError::System { error, .. } => {
            let path = String::from_utf8_lossy(&path[..path.len() - 1]).into_owned();
            ProcessImageError::System { what: format!("opening {path} again"), error }
        }
        other => other,
    })
}

/// Offset, and the size that a file had that the program writes to.
fn position(
    remote: &mut RemoteSyscalls,
    fd: RawFd,
    file: &Descriptor<'_>,
    alone: bool,
) -> Result<(), ProcessImageError> {
    let writes = file.flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
    // What another process has appended is not this one's to remove; it writes its own again.
    if writes && (!alone || file.flags as i32 & libc::O_APPEND != 0) {
        remote.truncate(fd, file.b)?;
    }
    remote.seek(fd, file.a)
}

fn socket(
    remote: &mut RemoteSyscalls,
    socket: &Descriptor<'_>,
) -> Result<RawFd, ProcessImageError> {
    let (domain, protocol) = (socket.b & 0xffff_ffff, socket.b >> 32);
    let nonblock = u64::from(socket.flags) & libc::O_NONBLOCK as u64;
    let fd = remote.socket(domain, socket.a | nonblock, protocol)?;
    let options = [
        (1, libc::SOL_SOCKET, libc::SO_REUSEADDR),
        (2, libc::SOL_SOCKET, libc::SO_REUSEPORT),
        (4, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    ];
    for (bit, level, option) in options {
        if socket.c & bit != 0 {
            remote.set_socket_option(fd, level, option)?;
        }
    }
    if !socket.data.is_empty() {
        let bound = remote.bind(fd, socket.data);
        if let Err(ProcessImageError::System { error, .. }) = bound {
            // The port is taken: any other. A peer that wants to connect has to learn the new one
            // anyway.
            let mut address = socket.data.to_vec();
            address[2..4].fill(0);
            let again = remote.bind(fd, &address);
            again.map_err(|_| ProcessImageError::System {
                what: "binding a socket".into(),
                error,
            })?;
        }
    }
    if socket.kind == record::DESCRIPTOR_LISTENER {
        remote.listen(fd, 4096)?;
    }
    Ok(fd)
}
