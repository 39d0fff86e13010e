//! A checkpoint thread for any dynamically linked program, by LD_PRELOAD: used by the tests.
//!
//! It takes orders from the socket whose number is in RUSTBTL_TEST_FD, one packet each:
//! `fork`, `pause`, `either`, with `;mute=N,N;drop=N,N;dead=HEX-HEX;exclude=HEX-HEX;track`. It
//! answers with packets that begin with a letter: C (continued: pid, timings, description), P
//! (paused), E (error), R (restored).

#[path = "support/pmix.rs"]
mod pmix;

use rustbtl_process::freeze::{
    AfterSuspended, BeforeRelease, Copying, FreezeOptions, Freezer, Outcome,
};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An order has not been answered yet. Whoever has given it must have the answer, also from a
/// program that ends as soon as its threads run again.
static ORDERED: AtomicBool = AtomicBool::new(false);

/// Runs at the end of the program.
extern "C" fn wait_for_the_answer() {
    while ORDERED.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A child of the program has no checkpoint thread.
extern "C" fn nobody_ordered() {
    ORDERED.store(false, Ordering::Release);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Some(socket) = std::env::var("RUSTBTL_TEST_FD").ok().and_then(|text| text.parse().ok())
    else {
        return;
    };
    // SAFETY: only checks whether the number is open: children of the program do not have it.
    if unsafe { libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return;
    }
    // SAFETY: plain data.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut old = all;
    // SAFETY: a local set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: local sets. The new thread inherits the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old) };
    let made = std::thread::Builder::new().name("checkpoint".into()).spawn(move || serve(socket));
    made.expect("a thread");
    // SAFETY: plain functions, which stay loaded as long as the program.
    unsafe { libc::atexit(wait_for_the_answer) };
    // SAFETY: as above.
    unsafe { libc::pthread_atfork(None, None, Some(nobody_ordered)) };
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut()) };
}

fn send(socket: RawFd, parts: &[&[u8]]) {
    let parts: Vec<libc::iovec> = parts
        .iter()
        .map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() })
        .collect();
    // SAFETY: plain data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len();
    // SAFETY: the kernel reads the parts. If nobody receives any more, there is no more to do.
    unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) };
}

fn receive(socket: RawFd, buffer: &mut [u8]) -> usize {
    // SAFETY: the kernel writes into `buffer`.
    let got = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    got.max(0) as usize
}

/// Reports that this process has come so far, and waits until it may continue.
fn wait_for_all(socket: RawFd) -> Result<(), &'static str> {
    // SAFETY: the kernel reads one byte.
    unsafe { libc::send(socket, c"B".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    receive(socket, &mut [0; 16]);
    Ok(())
}

fn numbers(order: &str, key: &str) -> Vec<RawFd> {
    let list = order.split(';').find_map(|part| part.strip_prefix(key)).unwrap_or_default();
    list.split(',').filter_map(|number| number.parse().ok()).collect()
}

fn ranges(order: &str, key: &str) -> Vec<Range<usize>> {
    let list = order.split(';').find_map(|part| part.strip_prefix(key)).unwrap_or_default();
    let range = |text: &str| {
        let (start, end) = text.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?)
    };
    list.split(',').filter_map(range).collect()
}

fn serve(socket: RawFd) {
    let mut freezer = Freezer::new().expect("a freezer");
    loop {
        let mut buffer = [0; 4096];
        let count = receive(socket, &mut buffer);
        if count == 0 {
            return; // there will be no more orders
        }
        ORDERED.store(true, Ordering::Release);
        let order = String::from_utf8_lossy(&buffer[..count]).into_owned();
        if order.contains("mute=") {
            pmix::survive_loss();
        }
        let supplied = [0, 1, 2, socket];
        let (muted, dropped) = (numbers(&order, "mute="), numbers(&order, "drop="));
        let dead: Vec<_> = ranges(&order, "dead=");
        let exclude: Vec<_> = ranges(&order, "exclude=");
        let mut while_paused = |snapshot: &rustbtl_process::freeze::Snapshot<'_>| {
            // No allocation here: the threads are suspended.
            let mut head = [0u8; 5];
            head[0] = b'P';
            head[1..].copy_from_slice(&snapshot.pid.to_le_bytes());
            let part = |part: &[u8]| libc::iovec {
                iov_base: part.as_ptr() as *mut _,
                iov_len: part.len(),
            };
            let mut parts = [part(&head), part(snapshot.description)];
            // SAFETY: plain data.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = parts.len();
            // SAFETY: the kernel reads the parts.
            unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) };
            receive(socket, &mut [0; 16]);
        };
        let mut barrier = || wait_for_all(socket);
        let mut second_barrier = || {
            let _ = wait_for_all(socket);
        };
        let together = order.contains(";barrier");
        let after_suspended: Option<AfterSuspended<'_>> =
            if together { Some(&mut barrier) } else { None };
        let before_release: Option<BeforeRelease<'_>> =
            if together { Some(&mut second_barrier) } else { None };
        let mut options = FreezeOptions {
            after_suspended,
            before_release,
            supplied: &supplied,
            muted: &muted,
            dropped: &dropped,
            dead: &dead,
            exclude: &exclude,
            copying: match order.split(';').next() {
                Some("fork") => Copying::Fork,
                Some("pause") => Copying::Pause,
                _ => Copying::ForkOrPause,
            },
            while_paused: Some(&mut while_paused),
            track_changes: order.contains(";track"),
            ..FreezeOptions::default()
        };
        if order.contains(";collapse") {
            freezer.make_huge_pages();
        }
        match freezer.freeze(&mut options) {
            Ok(Outcome::Continued(done)) => {
                let t = done.timings;
                let times =
                    [t.suspend_us, t.hook_us, t.describe_us, t.copy_us, t.clone_us, t.pause_us];
                let times: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
                let pid = done.child.as_ref().map_or(0, |child| child.pid());
                send(socket, &[b"C", &pid.to_le_bytes(), &times, &done.description]);
                if done.child.is_some() {
                    receive(socket, &mut [0; 16]);
                }
            }
            Ok(Outcome::Restored(restored)) => {
                let facts = [u8::from(restored.same_ids), restored.generation as u8];
                send(socket, &[b"R", &facts, &restored.payload]);
            }
            Err(error) => send(socket, &[b"E", error.to_string().as_bytes()]),
        }
        ORDERED.store(false, Ordering::Release);
    }
}
