//! What is posted: the records of a send queue and of a receive queue.
//!
//! The id of a request that the adapter gets says where its record is, so a completion finds it at
//! once, also one that failed, and also one of a request that was not signalled.

use crate::abi::{Completion, Sge};
use crate::host::Capture;
use crate::objects::CqId;
use std::collections::VecDeque;

/// Where the record of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A send: queue pair, number in its queue.
    Send(u32, u64),
    /// A receive of a queue pair: slot.
    Receive(u32, u32),
    /// A receive of a shared receive queue: slot.
    SharedReceive(u32, u32),
}

const RECEIVE: u64 = 1 << 63;
const SHARED: u64 = 1 << 62;
const OWNER_SHIFT: u32 = 40;
const OWNER_BITS: u32 = 22;
const PLACE_MASK: u64 = (1 << OWNER_SHIFT) - 1;
/// Queue pairs and shared receive queues that a process can ever make.
pub(crate) const OWNERS_MAX: u32 = 1 << OWNER_BITS;

impl Record {
    pub(crate) const fn id(self) -> u64 {
        match self {
            Self::Send(qp, number) => (qp as u64) << OWNER_SHIFT | number & PLACE_MASK,
            Self::Receive(qp, slot) => RECEIVE | (qp as u64) << OWNER_SHIFT | slot as u64,
            Self::SharedReceive(srq, slot) => {
                RECEIVE | SHARED | (srq as u64) << OWNER_SHIFT | slot as u64
            }
        }
    }

    pub(crate) const fn of(id: u64) -> Self {
        let owner = (id >> OWNER_SHIFT) as u32 & (OWNERS_MAX - 1);
        let place = id & PLACE_MASK;
        match (id & RECEIVE != 0, id & SHARED != 0) {
            (false, _) => Self::Send(owner, place),
            (true, false) => Self::Receive(owner, place as u32),
            (true, true) => Self::SharedReceive(owner, place as u32),
        }
    }
}

/// A send that is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The program's.
    pub(crate) id: u64,
    pub(crate) is_signalled: bool,
    /// Bytes of the receive that it consumes, if it does.
    pub(crate) receives: Option<u32>,
    /// The shadow's own, behind requests that are not signalled.
    pub(crate) is_marker: bool,
}

/// Sends that have no completion yet. They complete in their order.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    posted: VecDeque<Sent>,
    /// The number of the first of them.
    head: u64,
    /// How many the program may have.
    pub(crate) depth: usize,
    /// Requests that consume a receive of the peer, ever since it was connected.
    pub(crate) consuming: u64,
    pub(crate) has_marker: bool,
}

impl SendQueue {
    pub(crate) fn new(depth: u32) -> Self {
        let posted = VecDeque::with_capacity(depth as usize + 1);
        Self { posted, depth: depth as usize, ..Self::default() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() - usize::from(self.has_marker) >= self.depth
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// The number that the next one gets.
    pub(crate) fn next(&self) -> u64 {
        self.head + self.posted.len() as u64
    }

    pub(crate) fn push(&mut self, sent: Sent) {
        self.consuming += u64::from(sent.receives.is_some());
        self.has_marker |= sent.is_marker;
        self.posted.push_back(sent);
    }

    /// The last one, if no completion will tell of it.
    pub(crate) fn ends_unsignalled(&self) -> bool {
        self.posted.back().is_some_and(|last| !last.is_signalled)
    }

    /// A request has a completion: those before it have none and are over.
    pub(crate) fn finish(&mut self, number: u64) -> Option<Sent> {
        // The adapter's id holds the low bits only.
        let ahead = number.wrapping_sub(self.head) & PLACE_MASK;
        let ahead = usize::try_from(ahead).ok().filter(|&ahead| ahead < self.posted.len())?;
        let sent = self.posted.drain(..=ahead).next_back();
        self.head += ahead as u64 + 1;
        self.has_marker &= self.posted.iter().any(|sent| sent.is_marker);
        sent
    }

    /// Nothing of it will have a completion, unless it fails.
    pub(crate) fn is_unsignalled(&self) -> bool {
        self.posted.iter().all(|sent| !sent.is_signalled)
    }

    /// Lengths of those that consume a receive, in their order.
    pub(crate) fn lengths(&self) -> Vec<u32> {
        self.posted.iter().filter_map(|sent| sent.receives).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.next();
        self.posted.clear();
        self.consuming = 0;
        self.has_marker = false;
    }
}

/// A receive that is posted.
#[derive(Debug, Default)]
pub(crate) struct Receive<T> {
    /// The program's.
    pub(crate) id: u64,
    /// The program's, with its keys.
    pub(crate) sges: Vec<Sge>,
    /// In order of posting.
    pub(crate) number: u64,
    pub(crate) is_posted: bool,
    /// The shadow's own: for a message for which the program has posted none yet; and the
    /// completion queue where it has room.
    pub(crate) capture: Option<(Capture<T>, CqId)>,
}

/// A message that came before the program's receive for it.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) completion: Completion,
    pub(crate) bytes: Vec<u8>,
}

/// The program's id of a receive that is over, or the memory of a captured message.
pub(crate) type Finished<T> = (u64, Option<(Capture<T>, CqId)>);

/// Receives of a queue pair, or of several.
#[derive(Debug)]
pub(crate) struct ReceiveQueue<T> {
    pub(crate) slots: Vec<Receive<T>>,
    free: Vec<u32>,
    posted: u64,
    /// How many the program may have.
    pub(crate) depth: usize,
    /// Of the program, posted.
    pub(crate) held: usize,
    /// The shadow's own, posted.
    pub(crate) captures: usize,
    pub(crate) captured: VecDeque<Captured>,
}

impl<T: Copy> ReceiveQueue<T> {
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            posted: 0,
            depth: depth as usize,
            held: 0,
            captures: 0,
            captured: VecDeque::new(),
        }
    }

    /// A receive to fill in; not posted yet.
    pub(crate) fn slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Receive {
                id: 0,
                sges: Vec::new(),
                number: 0,
                is_posted: false,
                capture: None,
            });
            self.slots.len() as u32 - 1
        })
    }

    /// It was not posted after all.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// It is posted.
    pub(crate) fn is_posted(&mut self, slot: u32, id: u64, capture: Option<(Capture<T>, CqId)>) {
        self.posted += 1;
        let receive = &mut self.slots[slot as usize];
        (receive.id, receive.number, receive.is_posted) = (id, self.posted, true);
        receive.capture = capture;
        match capture {
            Some(_) => self.captures += 1,
            None => self.held += 1,
        }
    }

    /// It has a completion: the program's id, or the memory of a captured message.
    pub(crate) fn finish(&mut self, slot: u32) -> Option<Finished<T>> {
        let receive = self.slots.get_mut(slot as usize).filter(|receive| receive.is_posted)?;
        receive.is_posted = false;
        let capture = receive.capture.take();
        match capture {
            Some(_) => self.captures -= 1,
            None => self.held -= 1,
        }
        let id = receive.id;
        self.free.push(slot);
        Some((id, capture))
    }

    /// Posted ones, in their order.
    pub(crate) fn in_order(&self) -> Vec<u32> {
        let posted = |&at: &u32| self.slots[at as usize].is_posted;
        let mut order: Vec<u32> = (0..self.slots.len() as u32).filter(posted).collect();
        order.sort_by_key(|&at| self.slots[at as usize].number);
        order
    }

    /// Nothing is posted any more: memory of the shadow's own that was.
    pub(crate) fn clear(&mut self) -> Vec<(Capture<T>, CqId)> {
        self.captured.clear();
        let slots = self.in_order();
        slots.into_iter().filter_map(|slot| self.finish(slot)?.1).collect()
    }

    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let posted = self.slots.iter().filter(|slot| slot.is_posted);
        let captures = posted.clone().filter(|slot| slot.capture.is_some()).count();
        let held = posted.clone().count() - captures;
        if (held, captures) != (self.held, self.captures) || held > self.depth {
            return Err("V3: receives are counted wrongly, or are too many");
        }
        if self.free.iter().any(|&at| self.slots[at as usize].is_posted) {
            return Err("V3: a posted receive is free");
        }
        let oldest = posted.clone().filter(|slot| slot.capture.is_some()).map(|slot| slot.number);
        let newest = posted.filter(|slot| slot.capture.is_none()).map(|slot| slot.number).max();
        if newest.zip(oldest.min()).is_some_and(|(newest, oldest)| newest > oldest) {
            return Err("V4: a receive of the program is behind a capture");
        }
        if held > 0 && !self.captured.is_empty() {
            return Err("V4: a message was captured though a receive was posted");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_records() {
        for record in [
            Record::Send(0, 0),
            Record::Send(OWNERS_MAX - 1, PLACE_MASK),
            Record::Receive(3, u32::MAX),
            Record::SharedReceive(OWNERS_MAX - 1, 7),
        ] {
            assert_eq!(Record::of(record.id()), record);
        }
    }

    #[test]
    fn sends_before_a_completion_are_over() {
        let mut queue = SendQueue::new(3);
        let sent = |id, is_signalled| Sent {
            id,
            is_signalled,
            receives: Some(id as u32),
            is_marker: false,
        };
        queue.head = PLACE_MASK - 1;
        for id in 1..=3 {
            queue.push(sent(id, id == 2));
        }
        assert!(queue.is_full() && queue.ends_unsignalled());
        assert_eq!(queue.lengths(), [1, 2, 3]);
        // The second one's number has no low bits left of the first one's.
        assert_eq!(queue.finish(PLACE_MASK).map(|sent| sent.id), Some(2));
        assert!(queue.finish(PLACE_MASK).is_none(), "it completed twice");
        assert_eq!((queue.len(), queue.consuming), (1, 3));
    }

    #[test]
    fn receives_keep_their_order() {
        let mut queue: ReceiveQueue<u8> = ReceiveQueue::new(4);
        for id in 0..3 {
            let slot = queue.slot();
            queue.is_posted(slot, id, None);
        }
        assert_eq!(queue.finish(1), Some((1, None)));
        let slot = queue.slot();
        queue.is_posted(slot, 9, None);
        let ids: Vec<_> = queue.in_order().iter().map(|&at| queue.slots[at as usize].id).collect();
        assert_eq!(ids, [0, 2, 9]);
        assert_eq!(queue.finish(7), None);
        assert_eq!(queue.check(), Ok(()));
        queue.captured.push_back(Captured { completion: Completion::default(), bytes: vec![] });
        assert!(queue.check().is_err());
    }
}
