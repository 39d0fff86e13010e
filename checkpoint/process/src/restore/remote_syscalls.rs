//! System calls in the process that is being restored: one method per call, with typed arguments.
//!
//! The numbers of system calls and the order of their arguments are known here only. A call whose
//! name begins with `queue_` is made together with others: when the queue is full, or before the
//! next call that is made at once.

use super::restorer::{CALLS_MAX, Call, CloneArguments, LEADER_STARTED_BYTES, Restorer, Start};
use crate::error::ProcessImageError;
use rustbtl_checkpoint::image::record::Thread;
use std::io;
use std::os::fd::RawFd;

/// Makes system calls in the new process. Dropping it ends that process, unless its restorer has
/// become the leader thread.
#[derive(Debug)]
pub struct RemoteSyscalls {
    restorer: Restorer,
    queue: Vec<Call>,
}

/// Arguments of mmap(2).
#[derive(Clone, Copy, Debug)]
pub struct Mmap {
    /// First byte.
    pub start: u64,
    /// Whole pages.
    pub bytes: u64,
    /// PROT_*.
    pub protection: u32,
    /// MAP_*.
    pub flags: i32,
    /// -1 without a file.
    pub fd: RawFd,
    /// In the file.
    pub offset: u64,
}

/// A thread that is to be started.
#[derive(Clone, Copy, Debug)]
pub struct NewThread {
    /// Memory for the arguments of clone3(2): 104 bytes.
    pub arguments_at: u64,
    /// Its description for the restorer.
    pub description_at: u64,
    /// Lowest address of its first stack, and its bytes.
    pub stack: (u64, u64),
    /// Where the kernel clears its id when it ends.
    pub tid_address: u64,
    /// Base of its own variables.
    pub fs: u64,
    /// The id that it is to have.
    pub tid: Option<u32>,
}

/// Room for some names of a folder: one of the longest fits in.
const FIRST_NAMES: [u8; 1024] = [0; 1024];

/// A file descriptor as an argument.
const fn number(fd: RawFd) -> u64 {
    fd as u64
}

impl RemoteSyscalls {
    /// Starts a restorer.
    pub fn start(start: &Start) -> Result<Self, ProcessImageError> {
        Ok(Self { restorer: Restorer::start(start)?, queue: Vec::new() })
    }

    /// Id of the new process.
    pub fn pid(&self) -> u32 {
        self.restorer.pid
    }

    /// It has the id that was requested.
    pub fn has_pid(&self) -> bool {
        self.restorer.has_pid
    }

    /// The restorer's own memory.
    pub fn range(&self) -> (u64, u64) {
        self.restorer.range()
    }

    /// Where threads are described.
    pub fn threads_at(&self) -> u64 {
        self.restorer.threads_at()
    }

    /// Writes into the memory of the new process.
    pub fn write_memory(&self, address: u64, data: &[u8]) -> Result<(), ProcessImageError> {
        self.restorer.write(address, data)
    }

    /// Makes the calls in the queue.
    pub fn flush(&mut self) -> Result<(), ProcessImageError> {
        if !self.queue.is_empty() {
            let queue = std::mem::take(&mut self.queue);
            self.restorer.run(&queue)?;
        }
        Ok(())
    }

    fn queue(&mut self, call: Call) -> Result<(), ProcessImageError> {
        self.queue.push(call);
        if self.queue.len() == CALLS_MAX { self.flush() } else { Ok(()) }
    }

    /// One call, now; those in the queue come first.
    fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, ProcessImageError> {
        self.flush()?;
        self.restorer.run(&[Call::new(number, arguments)])
    }

    /// One call, now, whose failure does not matter.
    fn attempt(&mut self, number: i64, arguments: [u64; 6]) -> Result<i64, ProcessImageError> {
        self.flush()?;
        self.restorer.run(&[Call::may_fail(number, arguments)]).map(|result| result as i64)
    }

    /// One call with a piece of memory, whose address becomes the argument with the index `at`.
    fn call_with(
        &mut self,
        number: i64,
        mut arguments: [u64; 6],
        at: usize,
        data: &[u8],
    ) -> Result<u64, ProcessImageError> {
        self.flush()?;
        arguments[at] = self.restorer.put(data)?;
        self.restorer.run(&[Call::new(number, arguments)])
    }

    /// A call that makes two descriptors, which it stores where its argument `at` points to.
    fn call_pair(
        &mut self,
        call: i64,
        arguments: [u64; 6],
        at: usize,
    ) -> Result<[RawFd; 2], ProcessImageError> {
        self.call_with(call, arguments, at, &[0xff; 8])?;
        let mut data = [0; 8];
        self.restorer.read_scratch(&mut data)?;
        let (first, second) = data.split_at(4);
        let number = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap_or_default());
        Ok([number(first), number(second)])
    }
}

/// The process and its threads.
impl RemoteSyscalls {
    /// getpid(2).
    pub fn getpid(&mut self) -> Result<u32, ProcessImageError> {
        self.call(libc::SYS_getpid, [0; 6]).map(|pid| pid as u32)
    }

    /// The process gets this signal when the thread that restores it ends.
    pub fn set_parent_death_signal(&mut self, signal: i32) -> Result<(), ProcessImageError> {
        let a = [libc::PR_SET_PDEATHSIG as u64, signal as u64, 0, 0, 0, 0];
        self.call(libc::SYS_prctl, a).map(|_| ())
    }

    /// Permits the AMX tile data (ARCH_REQ_XCOMP_PERM).
    pub fn permit_tile_data(&mut self) -> Result<(), ProcessImageError> {
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const TILE_DATA: u64 = 18;
        let a = [ARCH_REQ_XCOMP_PERM, TILE_DATA, 0, 0, 0, 0];
        self.call(libc::SYS_arch_prctl, a).map(|_| ())
    }

    /// Starts a thread; the inner error is that of clone3(2).
    pub fn spawn_thread(
        &mut self,
        thread: &NewThread,
    ) -> Result<io::Result<u32>, ProcessImageError> {
        self.flush()?;
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS
            | libc::CLONE_CHILD_CLEARTID;
        let at = thread.arguments_at;
        let tid_at = at + 96;
        let arguments = CloneArguments {
            flags: flags as u64,
            child_tid: thread.tid_address,
            stack: thread.stack.0,
            stack_size: thread.stack.1,
            tls: thread.fs,
            set_tid: if thread.tid.is_some() { tid_at } else { 0 },
            set_tid_size: u64::from(thread.tid.is_some()),
            ..CloneArguments::default()
        };
        self.restorer.write(at, &arguments.bytes())?;
        self.restorer.write(tid_at, &thread.tid.unwrap_or(0).to_le_bytes())?;
        let bytes = size_of::<CloneArguments>() as u64;
        let a = [at, bytes, thread.description_at, 0, 0, 0];
        let result = self.restorer.spawn(Call::new(libc::SYS_clone3, a))?;
        let error = || io::Error::from_raw_os_error(-result as i32);
        Ok(if result > 0 { Ok(result as u32) } else { Err(error()) })
    }

    /// The restorer becomes the leader thread, whose description is at this address.
    pub fn become_leader(mut self, description_at: u64) -> Result<u32, ProcessImageError> {
        self.flush()?;
        self.restorer.become_leader(description_at)
    }
}

/// Memory.
impl RemoteSyscalls {
    /// munmap(2).
    pub fn queue_munmap(&mut self, start: u64, bytes: u64) -> Result<(), ProcessImageError> {
        self.queue(Call::new(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]))
    }

    /// mmap(2).
    pub fn queue_mmap(&mut self, map: &Mmap) -> Result<(), ProcessImageError> {
        let (protection, flags) = (map.protection.into(), map.flags as u64);
        let a = [map.start, map.bytes, protection, flags, number(map.fd), map.offset];
        self.queue(Call::new(libc::SYS_mmap, a))
    }

    /// mprotect(2); `protection` is PROT_*.
    pub fn queue_mprotect(
        &mut self,
        start: u64,
        bytes: u64,
        protection: u32,
    ) -> Result<(), ProcessImageError> {
        let a = [start, bytes, protection.into(), 0, 0, 0];
        self.queue(Call::new(libc::SYS_mprotect, a))
    }

    /// madvise(2), which may fail; `advice` is MADV_*.
    pub fn queue_madvise(
        &mut self,
        start: u64,
        bytes: u64,
        advice: i32,
    ) -> Result<(), ProcessImageError> {
        let a = [start, bytes, advice as u64, 0, 0, 0];
        self.queue(Call::may_fail(libc::SYS_madvise, a))
    }

    /// mlock(2), which may fail.
    pub fn queue_mlock(&mut self, start: u64, bytes: u64) -> Result<(), ProcessImageError> {
        self.queue(Call::may_fail(libc::SYS_mlock, [start, bytes, 0, 0, 0, 0]))
    }

    /// Moves a mapping to this address (mremap(2)).
    pub fn move_mapping(
        &mut self,
        from: u64,
        bytes: u64,
        to: u64,
    ) -> Result<(), ProcessImageError> {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        self.call(libc::SYS_mremap, [from, bytes, bytes, flags, to, 0]).map(|_| ())
    }

    /// `PR_SET_MM_MAP` with a `struct prctl_mm_map`.
    pub fn set_memory_map(&mut self, map: &[u8]) -> Result<(), ProcessImageError> {
        const PR_SET_MM_MAP: u64 = 14;
        let a = [libc::PR_SET_MM as u64, PR_SET_MM_MAP, 0, map.len() as u64, 0, 0];
        self.call_with(libc::SYS_prctl, a, 2, map).map(|_| ())
    }
}

/// Descriptors.
impl RemoteSyscalls {
    /// openat(2) from the working directory; the path ends with 0, `flags` is O_*.
    pub fn open(&mut self, path: &[u8], flags: u64) -> Result<RawFd, ProcessImageError> {
        let a = [libc::AT_FDCWD as u64, 0, flags, 0, 0, 0];
        self.call_with(libc::SYS_openat, a, 1, path).map(|fd| fd as RawFd)
    }

    /// close(2).
    pub fn close(&mut self, fd: RawFd) -> Result<(), ProcessImageError> {
        self.call(libc::SYS_close, [number(fd), 0, 0, 0, 0, 0]).map(|_| ())
    }

    /// dup3(2) without flags.
    pub fn dup3(&mut self, from: RawFd, to: RawFd) -> Result<(), ProcessImageError> {
        self.call(libc::SYS_dup3, [number(from), number(to), 0, 0, 0, 0]).map(|_| ())
    }

    /// F_DUPFD_CLOEXEC of fcntl(2): a copy with a number from `least` on.
    pub fn dup_from(&mut self, fd: RawFd, least: RawFd) -> Result<RawFd, ProcessImageError> {
        let a = [number(fd), libc::F_DUPFD_CLOEXEC as u64, number(least), 0, 0, 0];
        self.call(libc::SYS_fcntl, a).map(|fd| fd as RawFd)
    }

    /// F_SETFD of fcntl(2).
    pub fn queue_close_on_exec(&mut self, fd: RawFd, set: bool) -> Result<(), ProcessImageError> {
        let a = [number(fd), libc::F_SETFD as u64, u64::from(set), 0, 0, 0];
        self.queue(Call::new(libc::SYS_fcntl, a))
    }

    /// F_SETFL of fcntl(2); `flags` is O_*.
    pub fn set_status_flags(&mut self, fd: RawFd, flags: u32) -> Result<(), ProcessImageError> {
        let a = [number(fd), libc::F_SETFL as u64, flags.into(), 0, 0, 0];
        self.call(libc::SYS_fcntl, a).map(|_| ())
    }

    /// write(2).
    pub fn write(&mut self, fd: RawFd, data: &[u8]) -> Result<(), ProcessImageError> {
        let a = [number(fd), 0, data.len() as u64, 0, 0, 0];
        self.call_with(libc::SYS_write, a, 1, data).map(|_| ())
    }

    /// lseek(2) from the beginning.
    pub fn seek(&mut self, fd: RawFd, offset: u64) -> Result<(), ProcessImageError> {
        let a = [number(fd), offset, libc::SEEK_SET as u64, 0, 0, 0];
        self.call(libc::SYS_lseek, a).map(|_| ())
    }

    /// Positions a folder that has just been opened and was being listed.
    pub fn seek_in_folder(&mut self, fd: RawFd, offset: u64) -> Result<(), ProcessImageError> {
        // ext4 takes a folder whose first listing begins at its end for one that stays there, even
        // if it is rewound: so the first one begins at the beginning.
        let a = [number(fd), 0, FIRST_NAMES.len() as u64, 0, 0, 0];
        self.call_with(libc::SYS_getdents64, a, 1, &FIRST_NAMES)?;
        self.seek(fd, offset)
    }

    /// [`seek`](Self::seek) that may fail.
    pub fn try_seek(&mut self, fd: RawFd, offset: u64) -> Result<(), ProcessImageError> {
        let a = [number(fd), offset, libc::SEEK_SET as u64, 0, 0, 0];
        self.attempt(libc::SYS_lseek, a).map(|_| ())
    }

    /// ftruncate(2).
    pub fn truncate(&mut self, fd: RawFd, bytes: u64) -> Result<(), ProcessImageError> {
        self.call(libc::SYS_ftruncate, [number(fd), bytes, 0, 0, 0, 0]).map(|_| ())
    }

    /// pipe2(2) without flags: the end that reads, the end that writes.
    pub fn pipe(&mut self) -> Result<[RawFd; 2], ProcessImageError> {
        self.call_pair(libc::SYS_pipe2, [0; 6], 0)
    }

    /// F_SETPIPE_SZ of fcntl(2), which may fail.
    pub fn try_pipe_capacity(&mut self, fd: RawFd, bytes: u64) -> Result<(), ProcessImageError> {
        let a = [number(fd), libc::F_SETPIPE_SZ as u64, bytes, 0, 0, 0];
        self.attempt(libc::SYS_fcntl, a).map(|_| ())
    }

    /// eventfd2(2); `flags` is EFD_*.
    pub fn eventfd(&mut self, flags: u64) -> Result<RawFd, ProcessImageError> {
        self.call(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0]).map(|fd| fd as RawFd)
    }

    /// memfd_create(2) without flags. `name` ends with a zero byte.
    pub fn memfd(&mut self, name: &[u8]) -> Result<RawFd, ProcessImageError> {
        self.call_with(libc::SYS_memfd_create, [0; 6], 0, name).map(|fd| fd as RawFd)
    }

    /// timerfd_create(2); `flags` is TFD_*.
    pub fn timerfd(&mut self, clock: u64, flags: u64) -> Result<RawFd, ProcessImageError> {
        self.call(libc::SYS_timerfd_create, [clock, flags, 0, 0, 0, 0]).map(|fd| fd as RawFd)
    }

    /// timerfd_settime(2), relative; both times in nanoseconds.
    pub fn set_timerfd(
        &mut self,
        fd: RawFd,
        interval_ns: u64,
        left_ns: u64,
    ) -> Result<(), ProcessImageError> {
        let mut data = Vec::new();
        for time in [interval_ns, left_ns] {
            data.extend_from_slice(&(time / 1_000_000_000).to_le_bytes());
            data.extend_from_slice(&(time % 1_000_000_000).to_le_bytes());
        }
        let a = [number(fd), 0, 0, 0, 0, 0];
        self.call_with(libc::SYS_timerfd_settime, a, 2, &data).map(|_| ())
    }

    /// signalfd4(2) for a new descriptor; `flags` is SFD_*.
    pub fn signalfd(&mut self, mask: u64, flags: u64) -> Result<RawFd, ProcessImageError> {
        let a = [u64::from(u32::MAX), 0, 8, flags, 0, 0];
        self.call_with(libc::SYS_signalfd4, a, 1, &mask.to_le_bytes()).map(|fd| fd as RawFd)
    }

    /// epoll_create1(2) without flags.
    pub fn epoll(&mut self) -> Result<RawFd, ProcessImageError> {
        self.call(libc::SYS_epoll_create1, [0; 6]).map(|fd| fd as RawFd)
    }

    /// EPOLL_CTL_ADD of epoll_ctl(2); `events` is EPOLL*, `data` is the program's.
    pub fn epoll_add(
        &mut self,
        epoll: RawFd,
        fd: RawFd,
        (events, data): (u32, u64),
    ) -> Result<(), ProcessImageError> {
        let mut event = events.to_le_bytes().to_vec();
        event.extend_from_slice(&data.to_le_bytes());
        let a = [number(epoll), libc::EPOLL_CTL_ADD as u64, number(fd), 0, 0, 0];
        self.call_with(libc::SYS_epoll_ctl, a, 3, &event).map(|_| ())
    }
}

/// Sockets.
impl RemoteSyscalls {
    /// socket(2): AF_*, SOCK_*, protocol.
    pub fn socket(
        &mut self,
        domain: u64,
        kind: u64,
        protocol: u64,
    ) -> Result<RawFd, ProcessImageError> {
        let a = [domain, kind, protocol, 0, 0, 0];
        self.call(libc::SYS_socket, a).map(|fd| fd as RawFd)
    }

    /// socketpair(2) of Unix streams.
    pub fn socketpair(&mut self) -> Result<[RawFd; 2], ProcessImageError> {
        let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
        self.call_pair(libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, 0, 0, 0], 3)
    }

    /// setsockopt(2) with the value 1.
    pub fn set_socket_option(
        &mut self,
        fd: RawFd,
        level: i32,
        option: i32,
    ) -> Result<(), ProcessImageError> {
        let a = [number(fd), level as u64, option as u64, 0, 4, 0];
        self.call_with(libc::SYS_setsockopt, a, 3, &1u32.to_le_bytes()).map(|_| ())
    }

    /// bind(2) to a `sockaddr`.
    pub fn bind(&mut self, fd: RawFd, address: &[u8]) -> Result<(), ProcessImageError> {
        let a = [number(fd), 0, address.len() as u64, 0, 0, 0];
        self.call_with(libc::SYS_bind, a, 1, address).map(|_| ())
    }

    /// listen(2).
    pub fn listen(&mut self, fd: RawFd, backlog: u64) -> Result<(), ProcessImageError> {
        self.call(libc::SYS_listen, [number(fd), backlog, 0, 0, 0, 0]).map(|_| ())
    }
}

/// Where a thread's description has what its first calls point to.
#[derive(Clone, Copy, Debug)]
pub struct ThreadData {
    /// Its name, ended by 0.
    pub name_at: u64,
    /// CPUs it may run on.
    pub affinity_at: u64,
    /// Its priority, 4 bytes.
    pub priority_at: u64,
}

/// What a thread does by itself before it enters its own code, in this order. `socket`: it is the
/// leader, which reports on that number that it has started, and closes it last.
pub fn first_calls(thread: &Thread, data: ThreadData, socket: Option<RawFd>) -> Vec<Call> {
    const ARCH_SET_GS: u64 = 0x1001;
    const ARCH_SET_FS: u64 = 0x1002;
    let mut calls = Vec::new();
    if socket.is_some() {
        let a = [ARCH_SET_FS, thread.fs, 0, 0, 0, 0];
        calls.push(Call::new(libc::SYS_arch_prctl, a));
        let a = [thread.tid_address, 0, 0, 0, 0, 0];
        calls.push(Call::new(libc::SYS_set_tid_address, a));
    }
    if thread.gs != 0 {
        calls.push(Call::new(libc::SYS_arch_prctl, [ARCH_SET_GS, thread.gs, 0, 0, 0, 0]));
    }
    if thread.robust_bytes != 0 {
        let a = [thread.robust_head, thread.robust_bytes, 0, 0, 0, 0];
        calls.push(Call::new(libc::SYS_set_robust_list, a));
    }
    if thread.rseq != 0 {
        let (bytes, signature) = (thread.rseq_bytes.into(), thread.rseq_signature.into());
        let a = [thread.rseq, bytes, 0, signature, 0, 0];
        calls.push(Call::may_fail(libc::SYS_rseq, a));
    }
    let a = [libc::PR_SET_NAME as u64, data.name_at, 0, 0, 0, 0];
    calls.push(Call::may_fail(libc::SYS_prctl, a));
    let a = [0, thread.affinity.len() as u64, data.affinity_at, 0, 0, 0];
    calls.push(Call::may_fail(libc::SYS_sched_setaffinity, a));
    let (policy, nice) = (u64::from(thread.schedule & 0xff), thread.schedule >> 16);
    if policy != libc::SCHED_OTHER as u64 {
        let a = [0, policy, data.priority_at, 0, 0, 0];
        calls.push(Call::may_fail(libc::SYS_sched_setscheduler, a));
    }
    if nice != 20 {
        let nice = i64::from(nice) - 20;
        let a = [libc::PRIO_PROCESS as u64, 0, nice as u64, 0, 0, 0];
        calls.push(Call::may_fail(libc::SYS_setpriority, a));
    }
    if let Some(socket) = socket {
        let a = [number(socket), data.name_at, LEADER_STARTED_BYTES as u64, 0, 0, 0];
        calls.push(Call::new(libc::SYS_write, a));
        calls.push(Call::may_fail(libc::SYS_close, [number(socket), 0, 0, 0, 0, 0]));
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_restorer_can_be_placed_anywhere() {
        for base in [0x1000_0000_0000, 0x3000_0000_0000, 0x5000_0000_0000] {
            let start =
                Start { base, threads_bytes: 4096, descriptors: vec![], socket: 9, pid: None };
            let mut remote = RemoteSyscalls::start(&start).unwrap();
            assert_eq!(remote.getpid().unwrap(), remote.pid());
            let error = remote.close(12345).unwrap_err();
            assert!(error.to_string().contains("Bad file descriptor"), "{error}");
            let a = [12345, 0, 0, 0, 0, 0];
            assert_eq!(remote.attempt(libc::SYS_close, a).unwrap(), -9);
            let path = remote.call_with(libc::SYS_chdir, [0; 6], 0, b"/tmp\0").unwrap();
            assert_eq!(path, 0);
        }
    }
}
