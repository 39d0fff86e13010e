//! State in the kernel that the process itself saves in its memory and restores: signal actions,
//! timers, limits, working directory.
//!
//! Source: FACTS-image §1. All of it is saved while the threads are suspended, so that it is
//! consistent, and restored before they are released.

use super::failure::{FreezeFailure, Name};
use super::suspend::{KernelAction, SIGNAL};
use crate::mmap_vec::MmapVec;
use crate::proc_files::{self, Piece};
use crate::raw::{self, Errno};

const SIGNALS: usize = 64;
const LIMITS: usize = 16;
const INTERVAL_TIMERS: usize = 3;
/// Most attempts to get the same id for a timer.
const TIMER_IDS_MAX: i32 = 100_000;

/// A timer of timer_create(2).
#[derive(Clone, Copy, Debug)]
struct Timer {
    id: i32,
    clock: i32,
    /// sigevent: value, signal, notify, tid.
    value: u64,
    signal: i32,
    notify: i32,
    tid: u32,
    /// itimerspec: interval, value.
    times: [i64; 4],
}

/// See the head of this file.
pub struct KernelState {
    actions: [KernelAction; SIGNALS],
    interval_timers: [[i64; 4]; INTERVAL_TIMERS],
    limits: [[u64; 2]; LIMITS],
    alternate_stack: [usize; 3],
    umask: usize,
    personality: usize,
    /// Signals that are pending for the process.
    pending: u64,
    folder: [u8; 4097],
    folder_bytes: usize,
    timers: MmapVec<Timer>,
}

impl KernelState {
    /// Nothing yet.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            actions: [KernelAction::default(); SIGNALS],
            interval_timers: [[0; 4]; INTERVAL_TIMERS],
            limits: [[0; 2]; LIMITS],
            alternate_stack: [0; 3],
            umask: 0,
            personality: 0,
            pending: 0,
            folder: [0; 4097],
            folder_bytes: 0,
            timers: MmapVec::new(1 << 16)?,
        })
    }

    /// umask(2) when it was saved.
    pub fn umask(&self) -> u32 {
        self.umask as u32
    }

    /// personality(2) when it was saved.
    pub fn personality(&self) -> u64 {
        self.personality as u64
    }

    /// Working directory when it was saved.
    pub fn folder(&self) -> &[u8] {
        &self.folder[..self.folder_bytes]
    }

    /// Saves everything.
    pub fn save(&mut self, buffer: &mut MmapVec<u8>) -> Result<(), FreezeFailure> {
        for (signal, action) in (1..).zip(&mut self.actions) {
            *action = KernelAction::of(signal)
                .map_err(FreezeFailure::system("reading signal actions"))?;
        }
        for (which, timer) in self.interval_timers.iter_mut().enumerate() {
            raw::fill(libc::SYS_getitimer, [which, 0, 0, 0, 0], 1, timer)
                .map_err(FreezeFailure::system("reading interval timers"))?;
        }
        for (resource, limit) in self.limits.iter_mut().enumerate() {
            raw::fill(libc::SYS_getrlimit, [resource, 0, 0, 0, 0], 1, limit)
                .map_err(FreezeFailure::system("reading limits"))?;
        }
        raw::fill(libc::SYS_sigaltstack, [0; 5], 1, &mut self.alternate_stack)
            .map_err(FreezeFailure::system("reading the signal stack"))?;
        let umask = raw::plain(libc::SYS_umask, [0; 4]).unwrap_or_default();
        self.umask = umask;
        let _ = raw::plain(libc::SYS_umask, [umask, 0, 0, 0]);
        self.personality =
            raw::plain(libc::SYS_personality, [0xffff_ffff, 0, 0, 0]).unwrap_or_default();
        let count = raw::read_link(b"/proc/self/cwd\0", &mut self.folder[..4096])
            .map_err(FreezeFailure::system("reading the working directory"))?;
        self.folder[count] = 0;
        self.folder_bytes = count;
        proc_files::read_file(b"/proc/self/status\0", buffer)
            .map_err(FreezeFailure::system("reading /proc/self/status"))?;
        let waiting = proc_files::after(buffer.items(), "ShdPnd:");
        self.pending = waiting.and_then(|text| proc_files::number(text, 16)).unwrap_or(0);
        self.save_timers(buffer)
    }

    fn save_timers(&mut self, buffer: &mut MmapVec<u8>) -> Result<(), FreezeFailure> {
        self.timers.clear();
        match proc_files::read_file(b"/proc/self/timers\0", buffer) {
            Err(Errno(libc::ENOENT)) => return Ok(()),
            other => other.map_err(FreezeFailure::system("reading /proc/self/timers"))?,
        }
        let mut timer = None;
        for line in proc_files::lines(buffer.items()) {
            let field = |key: &str| line.strip_prefix(key.as_bytes());
            if let Some(text) = field("ID:") {
                self.push_timer(timer)?;
                let id = proc_files::number(text, 10).unwrap_or_default() as i32;
                let (value, times) = (0, [0; 4]);
                timer = Some(Timer { id, clock: 0, value, signal: 0, notify: 0, tid: 0, times });
            }
            let Some(timer) = &mut timer else { continue };
            if let Some(text) = field("signal:") {
                timer.signal = proc_files::number(text, 10).unwrap_or_default() as i32;
                let value = text.iter().position(|byte| *byte == b'/');
                let value = value.and_then(|at| proc_files::number(&text[at + 1..], 16));
                timer.value = value.unwrap_or_default();
            } else if let Some(text) = field("notify:") {
                timer.notify = if text.starts_with(b" none") { 1 } else { 0 };
                if let Some(at) = text.windows(4).position(|part| part == b"tid.") {
                    timer.notify = libc::SIGEV_THREAD_ID;
                    timer.tid = proc_files::number(&text[at + 4..], 10).unwrap_or(0) as u32;
                }
            } else if let Some(text) = field("ClockID:") {
                timer.clock = proc_files::number(text, 10).unwrap_or_default() as i32;
            }
        }
        self.push_timer(timer)?;
        self.timers.finish().map_err(FreezeFailure::system("room for timers"))
    }

    fn push_timer(&mut self, timer: Option<Timer>) -> Result<(), FreezeFailure> {
        let Some(mut timer) = timer else { return Ok(()) };
        let a = [timer.id as usize, 0, 0, 0, 0];
        raw::fill(libc::SYS_timer_gettime, a, 1, &mut timer.times)
            .map_err(FreezeFailure::system("reading a timer"))?;
        if timer.signal == SIGNAL {
            let reason = "a thread of the C library would have to handle it; not supported";
            return Err(FreezeFailure::Refused(Name::of(&[b"a timer with SIGEV_THREAD"]), reason));
        }
        self.timers.push(timer);
        Ok(())
    }

    /// Restores everything; runs in the restored process while the threads wait. What the new
    /// environment forbids stays as it is there.
    pub fn restore(&self, new_tid: impl Fn(u32) -> u32) {
        for (signal, action) in (1..).zip(&self.actions) {
            if signal != libc::SIGKILL && signal != libc::SIGSTOP {
                let a = [signal as usize, 0, 0, 8, 0];
                let _ = raw::pass(libc::SYS_rt_sigaction, a, 1, action);
            }
        }
        for (resource, limit) in self.limits.iter().enumerate() {
            restore_limit(resource, limit);
        }
        if self.alternate_stack[1] & libc::SS_DISABLE as usize == 0 {
            let _ = raw::pass(libc::SYS_sigaltstack, [0; 5], 0, &self.alternate_stack);
        }
        let _ = raw::plain(libc::SYS_umask, [self.umask, 0, 0, 0]);
        let _ = raw::plain(libc::SYS_personality, [self.personality, 0, 0, 0]);
        let folder = self.folder.as_ptr().addr();
        // SAFETY: the kernel reads the path up to its 0.
        let _ = unsafe { raw::call(libc::SYS_chdir, [folder, 0, 0, 0, 0, 0]) };
        for timer in self.timers.items() {
            timer.restore(new_tid(timer.tid));
        }
        for (which, timer) in self.interval_timers.iter().enumerate() {
            let mut timer = *timer;
            if timer == [0; 4] {
                continue;
            }
            // Its signal waits, and is sent again: the kernel starts the next interval after that.
            // Without a time it would not start at all.
            if timer[2..] == [0; 2] {
                timer = [timer[0], timer[1], timer[0], timer[1]];
            }
            let _ = raw::pass(libc::SYS_setitimer, [which, 0, 0, 0, 0], 1, &timer);
        }
    }

    /// Sends the signals that were pending for the process.
    pub fn send_pending(&self) {
        let pid = raw::plain(libc::SYS_getpid, [0; 4]).unwrap_or_default();
        for signal in signals(self.pending) {
            let _ = raw::plain(libc::SYS_kill, [pid, signal, 0, 0]);
        }
    }
}

/// Sets a limit (soft, hard), as far as this node's own hard limit lets an ordinary user.
fn restore_limit(resource: usize, limit: &[u64; 2]) {
    let a = [resource, 0, 0, 0, 0];
    let mut here = [0u64; 2];
    if raw::pass(libc::SYS_setrlimit, a, 1, limit).is_err()
        && raw::fill(libc::SYS_getrlimit, a, 1, &mut here).is_ok()
    {
        let most = limit.map(|limit| limit.min(here[1]));
        let _ = raw::pass(libc::SYS_setrlimit, a, 1, &most);
    }
}

/// Sends the signals that were pending for a thread.
pub fn send_to_thread(tid: u32, pending: u64) {
    let pid = raw::plain(libc::SYS_getpid, [0; 4]).unwrap_or_default();
    for signal in signals(pending) {
        let _ = raw::plain(libc::SYS_tgkill, [pid, tid as usize, signal, 0]);
    }
}

fn signals(set: u64) -> impl Iterator<Item = usize> {
    (0..SIGNALS).filter(move |bit| set & (1 << bit) != 0).map(|bit| bit + 1)
}

impl Timer {
    /// A timer with the id that it had: the kernel counts ids up, from 0 in a new process.
    fn restore(&self, tid: u32) {
        // struct sigevent: value, signal, notify, tid, padding to 64 bytes.
        let words = (self.signal as u64) | (self.notify as u64) << 32;
        let event = [self.value, words, tid.into(), 0, 0, 0, 0, 0];
        loop {
            let mut id = -1i32;
            let id_at = (&raw mut id).addr();
            let a = [self.clock as usize, 0, id_at, 0, 0];
            let made = raw::pass(libc::SYS_timer_create, a, 1, &event);
            if made.is_err() || id > self.id || id > TIMER_IDS_MAX {
                break;
            }
            if id == self.id {
                let a = [id as usize, 0, 0, 0, 0];
                let _ = raw::pass(libc::SYS_timer_settime, a, 2, &self.times);
                break;
            }
            let _ = raw::plain(libc::SYS_timer_delete, [id as usize, 0, 0, 0]);
        }
    }
}

/// What /proc has of one thread: name and pending signals.
pub fn thread_status(tid: u32, buffer: &mut MmapVec<u8>) -> Result<([u8; 16], u64), Errno> {
    let file = |name| {
        let task = Piece::Text("/proc/self/task/");
        proc_files::Path::of(&[task, Piece::Number(tid.into()), Piece::Text(name)])
    };
    proc_files::read_file(file("/status").with_nul(), buffer)?;
    let text = buffer.items();
    let mut name = [0; 16];
    if let Some(words) = proc_files::after(text, "Name:") {
        let words = words.trim_ascii();
        let words = &words[..words.len().min(15)];
        name[..words.len()].copy_from_slice(words);
    }
    let waiting = proc_files::after(text, "SigPnd:");
    let waiting = waiting.and_then(|text| proc_files::number(text, 16)).unwrap_or(0);
    Ok((name, waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_restored_as_far_as_the_hard_limit_of_the_node_permits() {
        const CORE: usize = libc::RLIMIT_CORE as usize;
        let set = |limit: [u64; 2]| raw::pass(libc::SYS_setrlimit, [CORE, 0, 0, 0, 0], 1, &limit);
        let get = || {
            let mut limit = [0u64; 2];
            raw::fill(libc::SYS_getrlimit, [CORE, 0, 0, 0, 0], 1, &mut limit).unwrap();
            limit
        };
        let as_a_user = move || {
            // Version 3, this thread; no capability.
            let (head, none) = ([0x2008_0522u32, 0], [0u32; 6]);
            // SAFETY: two structures that the kernel reads.
            let done = unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) };
            assert_eq!(done, 0);
            set([100, 1000]).unwrap();
            restore_limit(CORE, &[500, 2000]);
            assert_eq!(get(), [500, 1000]);
            restore_limit(CORE, &[u64::MAX, u64::MAX]);
            assert_eq!(get(), [1000, 1000]);
            restore_limit(CORE, &[3, 900]);
            assert_eq!(get(), [3, 900]);
        };
        std::thread::spawn(as_a_user).join().unwrap();
    }
}
