//! A message of the lane of operations: one operation or several, each behind its length. So small
//! operations share what a message costs, at both ends and between them.
//!
//! ```text
//! message    (bytes u32, operation)+
//! ```
//!
//! Where a message ends depends only on what the program calls, in its order, and on sizes: a
//! process that was rolled back sends the same messages again.

use crate::error::RmaError;
use crate::wire::{Malformed, Operation};
use core::ops::Range;
use rustbtl_fragments::little_endian::{LittleEndian, take_bytes};
use std::collections::VecDeque;

const LENGTH_BYTES: usize = 4;

/// Append an operation to a message.
///
/// # Errors
/// As [`Operation::encode`]; the message is as before.
pub fn append(operation: &Operation<'_>, message: &mut Vec<u8>) -> Result<(), RmaError> {
    let at = message.len();
    message.extend_from_slice(&[0; LENGTH_BYTES]);
    let encoded = operation.encode(message).and_then(|()| {
        let bytes = message.len() - at - LENGTH_BYTES;
        u32::try_from(bytes).map_err(|_| RmaError::Type)
    });
    match encoded {
        Ok(bytes) => message[at..at + LENGTH_BYTES].copy_from_slice(&bytes.to_le_bytes()),
        Err(_) => message.truncate(at),
    }
    encoded.map(|_| ())
}

/// Where the operation lies that begins at `at`.
fn next(message: &[u8], at: usize) -> Option<Range<usize>> {
    let mut from = message.get(at..)?;
    let bytes = u32::take_from(&mut from)? as usize;
    take_bytes(&mut from, bytes)?;
    let first = at + LENGTH_BYTES;
    Some(first..first + bytes)
}

/// The operation that begins at `at`, and where it ends.
pub(crate) fn operation_at(message: &[u8], at: usize) -> Result<(Operation<'_>, usize), Malformed> {
    let found = next(message, at).ok_or(Malformed)?;
    let end = found.end;
    Ok((Operation::decode(&message[found])?, end))
}

/// The operations of a message. A message that is none ends with an error.
pub fn operations(message: &[u8]) -> impl Iterator<Item = Result<Operation<'_>, Malformed>> {
    let mut at = Some(0);
    core::iter::from_fn(move || {
        let found = operation_at(message, at?);
        at = found.as_ref().ok().map(|&(_, end)| end).filter(|&end| end < message.len());
        Some(found.map(|(operation, _)| operation))
    })
}

/// Messages of one origin, in order, and how far the first is applied.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct BatchQueue {
    messages: VecDeque<Vec<u8>>,
    /// In the first message: where the oldest operation that is not applied begins.
    at: usize,
}

impl BatchQueue {
    /// A message whose operations are sound.
    pub(crate) fn push(&mut self, message: Vec<u8>) {
        self.messages.push_back(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The oldest operation.
    pub(crate) fn first(&self) -> Option<Operation<'_>> {
        operation_at(self.messages.front()?, self.at).ok().map(|(operation, _)| operation)
    }

    /// Take the message of the oldest operation, and where in it that begins. Followed by
    /// [`BatchQueue::put_back`].
    pub(crate) fn take_message(&mut self) -> Option<(Vec<u8>, usize)> {
        let message = self.messages.pop_front()?;
        Some((message, core::mem::take(&mut self.at)))
    }

    /// What begins before `at` of this message was applied.
    pub(crate) fn put_back(&mut self, message: Vec<u8>, at: usize) {
        if at < message.len() {
            self.at = at;
            self.messages.push_front(message);
        }
    }

    /// Messages, as far as they are kept.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.messages.iter()
    }

    /// Operations that are not applied, in order.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Result<Operation<'_>, Malformed>> {
        self.messages.iter().enumerate().flat_map(|(number, message)| {
            let begin = if number == 0 { self.at } else { 0 };
            operations(&message[begin..])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Action, Epoch};

    fn flush(number: u32) -> Operation<'static> {
        Operation { epoch: Epoch::Passive, number, action: Action::Flush }
    }

    fn message(numbers: Range<u32>) -> Vec<u8> {
        let mut message = Vec::new();
        numbers.for_each(|number| append(&flush(number), &mut message).expect("sound"));
        message
    }

    #[test]
    fn golden_bytes() {
        let message = message(1..3);
        let of_one = [FLUSH_BYTES, &[8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(message[..message.len() / 2], of_one);
    }

    const FLUSH_BYTES: &[u8] = &[16, 0, 0, 0];

    #[test]
    fn operations_come_out_in_order_and_once() {
        let mut queue = BatchQueue::default();
        queue.push(message(1..4));
        queue.push(message(4..5));
        let mut numbers = Vec::new();
        while let Some(first) = queue.first() {
            numbers.push(first.number);
            let left = queue.operations().map(|operation| operation.expect("sound").number);
            assert!(left.eq(*numbers.last().expect("pushed")..5));
            let (message, at) = queue.take_message().expect("there is a first one");
            let (_, end) = operation_at(&message, at).expect("sound");
            queue.put_back(message, end);
        }
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_is_none_is_refused() {
        let sound = message(1..3);
        let is_sound = |message: &[u8]| operations(message).all(|operation| operation.is_ok());
        assert!(is_sound(&sound));
        assert!(!is_sound(&[]), "nothing");
        let half = sound.len() / 2;
        for bytes in (1..sound.len()).filter(|&bytes| bytes != half) {
            assert!(!is_sound(&sound[..bytes]), "{bytes} bytes of it");
        }
        let mut long = sound.clone();
        long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(!is_sound(&long));
    }

    #[test]
    fn what_cannot_be_sent_leaves_the_message_as_it_was() {
        let mut batch = message(1..2);
        let before = batch.clone();
        let element = crate::primitive::Primitive::from_code(1).expect("known");
        let swap =
            Action::CompareAndSwap { displacement: 0, primitive: element, compare: &[], new: &[] };
        let operation = Operation { epoch: Epoch::Passive, number: 2, action: swap };
        assert_eq!(append(&operation, &mut batch), Err(RmaError::Type));
        assert_eq!(batch, before);
    }
}
