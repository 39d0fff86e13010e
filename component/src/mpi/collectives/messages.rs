//! The data of steps as messages to each reader, where members share no memory. Inside a set
//! messages are not logged. They have a tag of their own, which does not count as an action of the
//! program: a collective is one, however its data travels.

use crate::ffi::collective::{CollectiveSetup, TEST_FAILED, TEST_PENDING};
use core::ffi::c_void;
use std::collections::VecDeque;

/// No collective of Open MPI's has it, and it does not count as an action of the program.
const TAG: i32 = i32::MIN + 0x200;

/// A receive, or a send that is under way.
#[derive(Debug)]
struct Message {
    number: u64,
    peer: u32,
    bytes: Box<[u8]>,
    /// Null: complete.
    request: *mut c_void,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Messages {
    /// Of the members.
    ranks: Box<[u32]>,
    received: VecDeque<Message>,
    sent: VecDeque<Message>,
    /// Open MPI has reported an error.
    pub failed: bool,
}

impl Messages {
    /// Among members with these ranks.
    pub fn new(ranks: Box<[u32]>) -> Self {
        let (received, sent) = (VecDeque::new(), VecDeque::new());
        Self { ranks, received, sent, failed: false }
    }

    /// Send a copy of these bytes.
    ///
    /// # Safety
    /// `setup` is of a communicator that exists.
    pub unsafe fn send(&mut self, setup: &CollectiveSetup, to: u32, number: u64, bytes: &[u8]) {
        let bytes: Box<[u8]> = bytes.into();
        let (mut request, length) = (core::ptr::null_mut(), bytes.len() as u64);
        let (rank, start) = (self.ranks[to as usize], bytes.as_ptr());
        // SAFETY: the caller's promise; the copy lives as long as the request.
        let code = unsafe { (setup.send)(setup.comm, rank, TAG, start, length, &mut request) };
        self.failed |= code != 0;
        if code == 0 && !request.is_null() {
            self.sent.push_back(Message { number, peer: to, bytes, request });
        }
    }

    /// Is the message of this step here? It is asked for with the first question.
    ///
    /// # Safety
    /// `setup` is of a communicator that exists.
    pub unsafe fn is_here(
        &mut self,
        setup: &CollectiveSetup,
        from: u32,
        number: u64,
        length: u64,
    ) -> bool {
        if !self.received.iter().any(|m| (m.number, m.peer) == (number, from)) {
            let mut bytes: Box<[u8]> = vec![0; length as usize].into();
            let (start, mut request) = (bytes.as_mut_ptr(), core::ptr::null_mut());
            let rank = self.ranks[from as usize];
            // SAFETY: the caller's promise; the buffer lives as long as the request.
            let code =
                unsafe { (setup.receive)(setup.comm, rank, TAG, start, length, &mut request) };
            self.failed |= code != 0;
            self.received.push_back(Message { number, peer: from, bytes, request });
        }
        let wanted = |m: &&mut Message| (m.number, m.peer) == (number, from);
        let Some(message) = self.received.iter_mut().find(wanted) else { return true };
        if !message.request.is_null() {
            // SAFETY: the request of this communicator, which is not complete.
            let code = unsafe { (setup.test)(message.request) };
            if code == TEST_PENDING {
                return false;
            }
            self.failed |= code == TEST_FAILED;
            message.request = core::ptr::null_mut();
        }
        true
    }

    /// What has come for this step from there; `None`: it did not come as a message.
    pub fn payload(&self, from: u32, number: u64) -> Option<*const u8> {
        let of = |m: &&Message| (m.number, m.peer) == (number, from);
        self.received.iter().find(of).map(|message| message.bytes.as_ptr())
    }

    /// The steps before this one are over.
    pub fn forget(&mut self, number: u64) {
        while self.received.front().is_some_and(|message| message.number < number) {
            self.received.pop_front();
        }
    }

    /// Are all sends complete?
    ///
    /// # Safety
    /// `setup` is of a communicator that exists.
    pub unsafe fn are_sent(&mut self, setup: &CollectiveSetup) -> bool {
        // SAFETY: requests of this communicator that are not complete.
        self.sent.retain(|message| unsafe { (setup.test)(message.request) } == TEST_PENDING);
        self.sent.is_empty()
    }
}
