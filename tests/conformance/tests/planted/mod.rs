//! Bugs of the transport over queue pairs, planted from outside: each changes what it asks of its
//! verbs, or what becomes of its control messages, as a bug in it would.

use core::ops::Range;
use rustbtl_component::transports::verbs::api::*;
use rustbtl_component::transports::verbs::fake::{Fake, Handle};
use rustbtl_conformance::carrier::Tampered;
use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// No completion of a send is asked for.
    NothingIsSignaled,
    /// A receive buffer is not posted again, now and then.
    ABufferIsForgotten,
    /// Credits are not returned.
    CreditsAreKept,
    /// A message is posted twice, now and then.
    PostedTwice,
    /// The number of the peer's first packet is not used.
    WrongPacketNumber,
    /// The remote key is taken for the local one.
    WrongKey,
    /// A queue pair is destroyed while its last receives are under way.
    DestroyedTooEarly,
    /// A queue pair is never destroyed.
    NeverDestroyed,
    /// The queue pair is connected to the peer's of the same number as the own one.
    WrongQueuePair,
    /// Exposures are taken for the end of the frame.
    ExposuresStayInFrames,
    /// Memory is deregistered as soon as it was offered.
    RegionIsGone,
    /// A payload is read from eight bytes before where it lies.
    ReadFromElsewhere,
    /// A piece is read in half.
    ReadInHalf,
    /// `Switch` overtakes frames.
    SwitchComesEarly,
    /// `Switch` is never sent.
    SwitchIsLost,
    /// `Leave` is never sent.
    LeaveIsLost,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::NothingIsSignaled,
        Self::ABufferIsForgotten,
        Self::CreditsAreKept,
        Self::PostedTwice,
        Self::WrongPacketNumber,
        Self::WrongKey,
        Self::DestroyedTooEarly,
        Self::NeverDestroyed,
        Self::WrongQueuePair,
        Self::ExposuresStayInFrames,
        Self::RegionIsGone,
        Self::ReadFromElsewhere,
        Self::ReadInHalf,
        Self::SwitchComesEarly,
        Self::SwitchIsLost,
        Self::LeaveIsLost,
    ];

    /// What it does to frames of the connection.
    pub fn of_the_connection(self) -> Option<fn(&mut Vec<u8>, usize) -> Tampered> {
        fn is(frame: &[u8], message: u8) -> bool {
            frame[5] == 0xFD && frame[32] == message
        }
        match self {
            Self::SwitchComesEarly => Some(|frame, waiting| match is(frame, 3) && waiting > 0 {
                true => Tampered::First,
                false => Tampered::Not,
            }),
            Self::SwitchIsLost => Some(|frame, _| match is(frame, 3) {
                true => Tampered::Lost,
                false => Tampered::Not,
            }),
            Self::LeaveIsLost => Some(|frame, _| match is(frame, 5) {
                true => Tampered::Lost,
                false => Tampered::Not,
            }),
            _ => None,
        }
    }
}

/// The fake verbs, asked for the wrong things.
pub struct Planted {
    verbs: Fake,
    bug: Option<Bug>,
    posts: Cell<u32>,
    remote_key: Cell<u32>,
    destroyed: RefCell<Vec<Handle>>,
    deregistered: RefCell<Vec<Handle>>,
    keys: RefCell<Vec<(Handle, (u32, u32))>>,
}

impl Planted {
    /// With this bug.
    pub fn new(verbs: Fake, bug: Option<Bug>) -> Self {
        let (posts, remote_key) = (Cell::new(0), Cell::new(0));
        let (destroyed, deregistered, keys) = <_>::default();
        Self { verbs, bug, posts, remote_key, destroyed, deregistered, keys }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Is it the turn of a bug that happens now and then?
    fn now_and_then(&self) -> bool {
        self.posts.set(self.posts.get() + 1);
        self.posts.get().is_multiple_of(97)
    }
}

impl Verbs for Planted {
    type Device = Handle;
    type Region = Handle;
    type Cq = Handle;
    type Srq = Handle;
    type Qp = Handle;

    fn devices(&self) -> Result<Vec<String>, VerbsError> {
        self.verbs.devices()
    }
    fn open(&self, name: &str) -> Result<Handle, VerbsError> {
        self.verbs.open(name)
    }
    fn port(&self, device: Handle, port: u8) -> Result<Port, VerbsError> {
        self.verbs.port(device, port)
    }
    fn gid(&self, device: Handle, port: u8, index: u32) -> Result<GidEntry, VerbsError> {
        self.verbs.gid(device, port, index)
    }
    fn reads_at_once(&self, device: Handle) -> u8 {
        self.verbs.reads_at_once(device)
    }
    unsafe fn register(
        &self,
        device: Handle,
        start: *mut u8,
        len: usize,
        access: u32,
    ) -> Result<Handle, VerbsError> {
        // SAFETY: the caller's promise.
        let region = unsafe { self.verbs.register(device, start, len, access) }?;
        self.remote_key.set(self.verbs.keys(region).1);
        if self.has(Bug::RegionIsGone) && access == REMOTE_READ {
            self.keys.borrow_mut().push((region, self.verbs.keys(region)));
            self.deregistered.borrow_mut().push(region);
            self.verbs.deregister(region);
        }
        Ok(region)
    }
    fn keys(&self, region: Handle) -> (u32, u32) {
        let keys = self.keys.borrow();
        let gone = keys.iter().find(|(of, _)| *of == region).map(|(_, keys)| *keys);
        gone.unwrap_or_else(|| self.verbs.keys(region))
    }
    fn deregister(&self, region: Handle) {
        if !self.deregistered.borrow().contains(&region) {
            self.verbs.deregister(region);
        }
    }
    fn create_cq(&self, device: Handle, entries: u32) -> Result<Handle, VerbsError> {
        self.verbs.create_cq(device, entries)
    }
    fn create_srq(&self, device: Handle, receives: u32) -> Result<Handle, VerbsError> {
        self.verbs.create_srq(device, receives)
    }
    fn create_qp(
        &self,
        device: Handle,
        queues: (Handle, Handle),
        srq: Handle,
        sizes: QpSizes,
    ) -> Result<(Handle, u32), VerbsError> {
        self.verbs.create_qp(device, queues, srq, sizes)
    }
    fn qp_number(&self, qp: Handle) -> u32 {
        self.verbs.qp_number(qp)
    }
    fn modify(&self, qp: Handle, to: Transition) -> Result<(), VerbsError> {
        match to {
            Transition::Error if self.has(Bug::DestroyedTooEarly) => {
                self.destroyed.borrow_mut().push(qp);
                self.verbs.destroy_qp(qp);
                Ok(())
            }
            Transition::ReadyToReceive(to) if self.has(Bug::WrongPacketNumber) => {
                self.verbs.modify(qp, Transition::ReadyToReceive(Destination { psn: 0, ..to }))
            }
            Transition::ReadyToReceive(to) if self.has(Bug::WrongQueuePair) => {
                let number = self.verbs.qp_number(qp);
                self.verbs.modify(qp, Transition::ReadyToReceive(Destination { qp: number, ..to }))
            }
            _ => self.verbs.modify(qp, to),
        }
    }
    unsafe fn post_send(&self, qp: Handle, work: &SendWork) -> Result<(), i32> {
        let mut work = *work;
        work.signaled &= !self.has(Bug::NothingIsSignaled);
        match &mut work.work {
            Work::Send { immediate } if self.has(Bug::CreditsAreKept) => *immediate &= !0xFF_FFFF,
            Work::Send { immediate } if self.has(Bug::ExposuresStayInFrames) => {
                *immediate &= 0xFF_FFFF;
            }
            Work::Read { start, .. } if self.has(Bug::ReadFromElsewhere) => *start -= 8,
            Work::Read { .. } if self.has(Bug::ReadInHalf) => work.piece.len /= 2,
            _ => {}
        }
        if self.has(Bug::WrongKey) {
            work.piece.lkey = self.remote_key.get();
        }
        // SAFETY: the caller's promise.
        unsafe { self.verbs.post_send(qp, &work) }?;
        if self.has(Bug::PostedTwice) && self.now_and_then() {
            // SAFETY: as above, nearly.
            let _ = unsafe { self.verbs.post_send(qp, &work) };
        }
        Ok(())
    }
    unsafe fn post_receives(&self, srq: Handle, work: &[ReceiveWork]) -> Result<(), i32> {
        if self.has(Bug::ABufferIsForgotten) && self.now_and_then() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.verbs.post_receives(srq, work) }
    }
    fn poll(&self, cq: Handle, into: &mut [Completion]) -> Result<usize, i32> {
        self.verbs.poll(cq, into)
    }
    fn async_event(&self, device: Handle) -> Option<AsyncEvent> {
        match self.verbs.async_event(device)? {
            AsyncEvent::LastReceive(_) if self.has(Bug::NeverDestroyed) => {
                Some(AsyncEvent::Other(0))
            }
            event => Some(event),
        }
    }
    fn destroy_qp(&self, qp: Handle) {
        if !self.has(Bug::NeverDestroyed) && !self.destroyed.borrow().contains(&qp) {
            self.verbs.destroy_qp(qp);
        }
    }
    fn destroy_srq(&self, srq: Handle) {
        self.verbs.destroy_srq(srq);
    }
    fn destroy_cq(&self, cq: Handle) {
        self.verbs.destroy_cq(cq);
    }
    fn close(&self, device: Handle) {
        self.verbs.close(device);
    }
    fn descriptors(&self, device: Handle) -> Vec<RawFd> {
        self.verbs.descriptors(device)
    }
    fn mapped(&self) -> Vec<Range<usize>> {
        self.verbs.mapped()
    }
}
