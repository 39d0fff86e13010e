//! Messages for the machine of windows, in the order of their streams. One whose payload is still
//! coming keeps those behind it.

use crate::engine::windows::messages::{MessageRef, Stream};
use crate::ffi::operation::Op;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
enum Arrival {
    Whole(Vec<u8>),
    Coming(MessageRef),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Inbox {
    ready: VecDeque<(Stream, Vec<u8>)>,
    /// Streams whose first message is still coming; none is empty.
    coming: BTreeMap<Stream, VecDeque<Arrival>>,
}

impl Inbox {
    /// Is there a message for the machine?
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next one.
    pub fn take(&mut self) -> Option<(Stream, Vec<u8>)> {
        self.ready.pop_front()
    }

    /// A whole message.
    pub fn arrived(&mut self, stream: Stream, payload: &[u8]) {
        match self.coming.get_mut(&stream) {
            None => self.ready.push_back((stream, payload.to_vec())),
            Some(behind) => behind.push_back(Arrival::Whole(payload.to_vec())),
        }
    }

    /// Room for a message that was announced.
    pub fn announced(&mut self, stream: Stream, bytes: u64) -> Option<Op> {
        let message = MessageRef::to_receive(stream, bytes)?;
        self.coming.entry(stream).or_default().push_back(Arrival::Coming(message));
        Some(message.op())
    }

    /// The engine has done with an operation. False: it is of a message that was sent.
    pub fn completed(&mut self, op: Op) -> bool {
        let message = MessageRef::of(op);
        let Some(stream) = message.stream() else { return false };
        message.set_come();
        let Some(arrivals) = self.coming.get_mut(&stream) else { return true };
        while let Some(first) = arrivals.pop_front() {
            let bytes = match first {
                Arrival::Whole(bytes) => bytes,
                // SAFETY: the engine has done with it, and it is in no list any more.
                Arrival::Coming(message) if message.has_come() => unsafe { message.take() },
                still => {
                    arrivals.push_front(still);
                    return true;
                }
            };
            self.ready.push_back((stream, bytes));
        }
        self.coming.remove(&stream);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_fragments::ids::{CommRank, ContextId};
    use rustbtl_rma::machine::Lane;

    #[test]
    fn nothing_overtakes_a_payload_that_is_coming() {
        let stream =
            |from| Stream { window: ContextId(3), from: CommRank(from), lane: Lane::Operations };
        let mut inbox = Inbox::default();
        inbox.arrived(stream(1), b"a");
        let first = inbox.announced(stream(1), 1).expect("memory");
        let second = inbox.announced(stream(1), 2).expect("memory");
        inbox.arrived(stream(1), b"d");
        inbox.arrived(stream(2), b"x");
        let all = |inbox: &mut Inbox| {
            let next = core::iter::from_fn(|| inbox.take());
            next.map(|(stream, bytes)| (stream.from.0, bytes)).collect::<Vec<_>>()
        };
        assert_eq!(all(&mut inbox), [(1, b"a".to_vec()), (2, b"x".to_vec())]);
        assert!(inbox.completed(second));
        assert!(!inbox.has_ready(), "the first is still coming");
        assert!(inbox.completed(first));
        let expected = [(1, vec![0]), (1, vec![0, 0]), (1, b"d".to_vec())];
        assert_eq!(all(&mut inbox), expected);
        inbox.arrived(stream(1), b"e");
        assert_eq!(all(&mut inbox), [(1, b"e".to_vec())]);
    }
}
