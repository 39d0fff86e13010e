//! Completion channels. The descriptor that the program gets is an epoll over the real channel's
//! and an eventfd of ours: it keeps its number when the real channel is made again, and events that
//! no adapter has can be raised.

use crate::system::errno;
use core::ffi::c_int;
use rustbtl_shadow::{ChannelId, CqId, Outcome};
use std::collections::{BTreeMap, VecDeque};

struct Channel {
    /// The program's.
    front: c_int,
    /// The real channel's.
    real: c_int,
    /// Raised while `events` holds any.
    own: c_int,
    events: VecDeque<CqId>,
}

/// All of this process.
#[derive(Default)]
pub struct Channels(BTreeMap<u32, Channel>);

/// A descriptor that is readable when this one is.
///
/// # Errors
/// No descriptors are left.
pub fn front_of(fd: c_int) -> Outcome<c_int> {
    // SAFETY: no pointers.
    let front = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if front < 0 {
        return Err(errno());
    }
    add(front, fd).inspect_err(|_| close(front)).map(|()| front)
}

/// Let a front show another descriptor, too.
///
/// # Errors
/// The kernel has no room for it.
pub fn add(epoll: c_int, fd: c_int) -> Outcome<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: two descriptors, a readable structure.
    let code = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) };
    if code == 0 { Ok(()) } else { Err(errno()) }
}

impl Channels {
    /// The program's descriptor shows events of this real one from now on.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn watch(&mut self, id: ChannelId, real: c_int) -> Outcome<()> {
        // SAFETY: a descriptor; waiting is done on the program's.
        unsafe { libc::fcntl(real, libc::F_SETFL, libc::O_NONBLOCK) };
        if let Some(channel) = self.0.get_mut(&id.0) {
            channel.real = real;
            return add(channel.front, real);
        }
        // SAFETY: no pointers.
        let front = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if front < 0 {
            return Err(errno());
        }
        // SAFETY: no pointers.
        let own = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        let made = if own < 0 { Err(errno()) } else { Ok(()) };
        match made.and_then(|()| add(front, own)).and_then(|()| add(front, real)) {
            Ok(()) => {
                self.0.insert(id.0, Channel { front, real, own, events: VecDeque::new() });
                Ok(())
            }
            Err(error) => {
                close(front);
                close(own);
                Err(error)
            }
        }
    }

    /// Those of real channels.
    pub fn real_descriptors(&self) -> impl Iterator<Item = c_int> {
        self.0.values().map(|channel| channel.real)
    }

    /// The program's descriptor.
    pub fn front(&self, id: ChannelId) -> Option<c_int> {
        Some(self.0.get(&id.0)?.front)
    }

    /// The program has destroyed it.
    pub fn forget(&mut self, id: ChannelId) {
        if let Some(channel) = self.0.remove(&id.0) {
            close(channel.front);
            close(channel.own);
        }
    }

    /// The program has destroyed a queue: events of it are gone.
    pub fn forget_queue(&mut self, cq: CqId) {
        for channel in self.0.values_mut() {
            channel.events.retain(|&other| other != cq);
        }
    }

    /// An event of a queue.
    pub fn raise(&mut self, id: ChannelId, cq: CqId) {
        let Some(channel) = self.0.get_mut(&id.0) else { return };
        channel.events.push_back(cq);
        let one = 1u64;
        // SAFETY: eight bytes that are readable.
        unsafe { libc::write(channel.own, (&raw const one).cast(), 8) };
    }

    /// An event that was raised.
    pub fn take(&mut self, id: ChannelId) -> Option<CqId> {
        let channel = self.0.get_mut(&id.0)?;
        let event = channel.events.pop_front()?;
        if channel.events.is_empty() {
            let mut count = 0u64;
            // SAFETY: eight bytes that are writable.
            unsafe { libc::read(channel.own, (&raw mut count).cast(), 8) };
        }
        Some(event)
    }
}

/// Close a descriptor of ours, if it is one.
pub fn close(fd: c_int) {
    if fd >= 0 {
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(fd) };
    }
}
