//! What a peer may read by RDMA: who exposes it says so at the end of a message.
//!
//! A message may carry exposures behind its frame; the bits above its credits say how many. Each is
//! told with the next message after it was made, so it is at the peer not later than the frame that
//! announces the payload.
//!
//! ```text
//! 0  u64 id, of the sender's choice     16  u64 bytes
//! 8  u64 address there                  24  u32 remote key
//! 28 u8 1 if there is a key of the second port, then u32 that key
//! ```
//!
//! Invariants:
//! * V7 An exposure is read by the peer that it was made to, by the queue pair that its message
//!   came by, and inside of its bytes. With the queue pair all that came by it are forgotten.

use crate::transports::verbs::credits::GRANT_MAX;
use core::ops::Range;
use rustbtl_fragments::little_endian::{LittleEndian, take_array};

/// Bytes of an exposure in a message.
pub const EXPOSURE_BYTES: usize = 33;
/// Exposures that wait for a message. With an announcement they are not longer than the shortest
/// slot.
pub const WAITING_MAX: usize = 16;
/// Where the number of exposures begins in the immediate data.
const COUNT_SHIFT: u32 = 24;
/// Ids are small and dense in their low half.
const INDEX_MAX: usize = 1 << 16;

const _: () = assert!(GRANT_MAX < 1 << COUNT_SHIFT);

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exposure {
    /// Of the sender's choice; its low 32 bits are small and dense.
    pub id: u64,
    /// Its first byte, there.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Of the region it lies in.
    pub rkey: u32,
    /// The same at the second port.
    pub second_rkey: Option<u32>,
}

/// What this process exposes: the registered memory, its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exposed {
    /// See there.
    pub memory: Range<usize>,
    /// At the first port.
    pub rkey: u32,
    /// At the second port.
    pub second_rkey: Option<u32>,
}

impl Exposure {
    /// Write it.
    pub fn encode(&self, into: &mut [u8]) {
        self.id.write_at(into, 0);
        self.start.write_at(into, 8);
        self.bytes.write_at(into, 16);
        self.rkey.write_at(into, 24);
        into[28] = u8::from(self.second_rkey.is_some());
        self.second_rkey.unwrap_or(0).write_at(into, 29);
    }

    fn take_from(from: &mut &[u8]) -> Option<Self> {
        Some(Self {
            id: u64::take_from(from)?,
            start: u64::take_from(from)?,
            bytes: u64::take_from(from)?,
            rkey: u32::take_from(from)?,
            second_rkey: {
                let [is_there] = take_array(from)?;
                let key = u32::take_from(from)?;
                (is_there != 0).then_some(key)
            },
        })
    }
}

/// Immediate data of a message with so many credits and exposures.
#[inline]
pub fn immediate(credits: u32, exposures: usize) -> u32 {
    debug_assert!(credits < 1 << COUNT_SHIFT && exposures <= WAITING_MAX);
    credits | (exposures as u32) << COUNT_SHIFT
}

/// Credits and exposures that it says.
#[inline]
pub fn of_immediate(immediate: u32) -> (u32, usize) {
    (immediate & ((1 << COUNT_SHIFT) - 1), (immediate >> COUNT_SHIFT) as usize)
}

/// Something by its id, as far as the low halves of ids are small.
#[derive(Debug)]
pub struct ById<T> {
    slots: Vec<Option<(u64, T)>>,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> ById<T> {
    fn index(id: u64) -> usize {
        (id & u64::from(u32::MAX)) as usize
    }

    /// Has it no place, or has another id with the same low half its place?
    pub fn is_taken(&self, id: u64) -> bool {
        let index = Self::index(id);
        index >= INDEX_MAX || self.slots.get(index).is_some_and(Option::is_some)
    }

    /// In place of what was there; ids without a place are left out.
    pub fn insert(&mut self, id: u64, value: T) {
        let index = Self::index(id);
        if index >= INDEX_MAX {
            return;
        }
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some((id, value));
    }

    /// What this id stands for.
    pub fn get(&self, id: u64) -> Option<&T> {
        let (found, value) = self.slots.get(Self::index(id))?.as_ref()?;
        (*found == id).then_some(value)
    }

    /// The same, which it does no more.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let slot = self.slots.get_mut(Self::index(id))?;
        slot.take_if(|(found, _)| *found == id).map(|(_, value)| value)
    }
}

/// The exposures at the end of a message, and the bytes of its frame. `None`: it is damaged.
pub fn split(message: &[u8], exposures: usize) -> Option<(&[u8], impl Iterator<Item = Exposure>)> {
    let frame = message.len().checked_sub(exposures.checked_mul(EXPOSURE_BYTES)?)?;
    let (frame, mut rest) = message.split_at(frame);
    Some((frame, core::iter::from_fn(move || Exposure::take_from(&mut rest))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPOSURE: Exposure =
        Exposure { id: 0x0102, start: 0x1000, bytes: 77, rkey: 0xABCD, second_rkey: Some(0xEF) };

    #[test]
    fn golden_bytes() {
        let mut bytes = [0; EXPOSURE_BYTES];
        EXPOSURE.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "020100000000000000100000000000004d00000000000000cdab000001ef000000");
        assert_eq!(immediate(7, 3), 0x0300_0007);
        assert_eq!(of_immediate(0x0300_0007), (7, 3));
    }

    #[test]
    fn what_is_behind_a_frame_is_read_and_what_is_too_short_is_refused() {
        let other = Exposure { id: 9, second_rkey: None, ..EXPOSURE };
        let mut message = b"frame".to_vec();
        for exposure in [EXPOSURE, other] {
            let at = message.len();
            message.resize(at + EXPOSURE_BYTES, 0);
            exposure.encode(&mut message[at..]);
        }
        let (frame, exposures) = split(&message, 2).unwrap();
        assert_eq!((frame, exposures.collect::<Vec<_>>()), (&b"frame"[..], vec![EXPOSURE, other]));
        assert!(split(&message, 3).is_none());
        assert!(split(&message, usize::MAX).is_none());
        assert_eq!(split(&message, 0).unwrap().0, message);
    }

    #[test]
    fn an_id_finds_only_what_was_put_under_it() {
        let mut table = ById::default();
        table.insert(5 << 32 | 3, 'a');
        assert!(table.is_taken(6 << 32 | 3) && !table.is_taken(2) && table.is_taken(1 << 31));
        assert_eq!((table.get(5 << 32 | 3), table.get(3), table.get(2)), (Some(&'a'), None, None));
        assert_eq!(table.remove(3), None);
        table.insert(6 << 32 | 3, 'b');
        assert_eq!(table.get(5 << 32 | 3), None);
        assert_eq!(table.remove(6 << 32 | 3), Some('b'));
        table.insert(1 << 31, 'c');
        assert_eq!(table.get(1 << 31), None);
    }
}
