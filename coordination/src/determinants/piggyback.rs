//! Determinants that are piggybacked: those of one set, of consecutive places in its order.
//!
//! Source: docs/adr/0019, 0047. The sender copies entries that lie ready as bytes ([`append`],
//! [`append_received`]); the receiver that stores them reads them whole before it trusts them.
//! What a place holds of another set is only named: that set has it, and this one.

use super::Numbered;
use super::codec::{self, CodecError};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};

/// Instead of a rank and 1: what another set had piggybacked follows.
const RECEIVED: u64 = 0;

/// What a place of a set's order holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PiggybackedEntry {
    /// A determinant of a rank of the set.
    Own(PeerId, Numbered),
    /// What another set had piggybacked to it, without its content.
    Received(PiggybackedPlaces),
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piggybacked {
    /// Whose.
    pub set: SetId,
    /// Of which incarnation of the set.
    pub incarnation: Incarnation,
    /// Place of the first.
    pub from: u64,
    /// One for each place.
    pub entries: Vec<PiggybackedEntry>,
}

/// The same without its content, which whoever received it keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PiggybackedPlaces {
    /// Whose.
    pub set: SetId,
    /// Of which incarnation of the set.
    pub incarnation: Incarnation,
    /// The place after the last. Those before the first were stable, or the receiver has them.
    pub upto: u64,
}

/// Begin: entries for the places from `from` on follow.
pub fn begin(out: &mut Vec<u8>, set: SetId, incarnation: Incarnation, from: u64) {
    for number in [u64::from(set.0), u64::from(incarnation.0), from] {
        codec::put(out, number);
    }
}

/// Append an entry.
pub fn append(out: &mut Vec<u8>, rank: PeerId, numbered: &Numbered) {
    codec::put(out, u64::from(rank.0) + 1);
    codec::put(out, numbered.number);
    codec::encode(&numbered.determinant, out);
}

/// Append the entry of a place that holds what another set had piggybacked.
pub fn append_received(out: &mut Vec<u8>, places: &PiggybackedPlaces) {
    codec::put(out, RECEIVED);
    places.append(out);
}

impl PiggybackedPlaces {
    /// As bytes.
    pub(super) fn append(&self, out: &mut Vec<u8>) {
        for number in [u64::from(self.set.0), u64::from(self.incarnation.0), self.upto] {
            codec::put(out, number);
        }
    }

    /// What `append` wrote.
    pub(super) fn take(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        let set = SetId(codec::take_u32(bytes)?);
        let incarnation = u16::try_from(codec::take(bytes)?);
        let incarnation = Incarnation(incarnation.map_err(|_| CodecError::Range)?);
        Ok(Self { set, incarnation, upto: codec::take(bytes)? })
    }
}

impl Piggybacked {
    /// Is there anything in it that the set replays? If not, its receiver depends on no place of
    /// it, but on what is named.
    pub fn has_own(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry, PiggybackedEntry::Own(..)))
    }

    /// What is named in it.
    pub fn received(&self) -> impl Iterator<Item = &PiggybackedPlaces> {
        self.entries.iter().filter_map(|entry| match entry {
            PiggybackedEntry::Received(places) => Some(places),
            PiggybackedEntry::Own(..) => None,
        })
    }

    /// Without its content.
    pub fn places(&self) -> PiggybackedPlaces {
        let (set, incarnation, upto) = (self.set, self.incarnation, self.upto());
        PiggybackedPlaces { set, incarnation, upto }
    }

    /// The place after the last.
    pub fn upto(&self) -> u64 {
        self.from + self.entries.len() as u64
    }

    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        begin(&mut out, self.set, self.incarnation, self.from);
        for entry in &self.entries {
            match entry {
                PiggybackedEntry::Own(rank, numbered) => append(&mut out, *rank, numbered),
                PiggybackedEntry::Received(places) => append_received(&mut out, places),
            }
        }
        out
    }

    /// Read what `encode` or `append` wrote. No memory beyond some multiple of the length of
    /// `bytes` is used.
    ///
    /// # Errors
    /// The bytes are damaged, or there is no entry.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, CodecError> {
        let PiggybackedPlaces { set, incarnation, upto: from } =
            PiggybackedPlaces::take(&mut bytes)?;
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            let rank = codec::take(&mut bytes)?;
            let Some(rank) = rank.checked_sub(1) else {
                entries.push(PiggybackedEntry::Received(PiggybackedPlaces::take(&mut bytes)?));
                continue;
            };
            let rank = PeerId(u32::try_from(rank).map_err(|_| CodecError::Range)?);
            let number = codec::take(&mut bytes)?;
            let determinant = codec::decode(&mut bytes)?;
            entries.push(PiggybackedEntry::Own(rank, Numbered { number, determinant }));
        }
        if entries.is_empty() {
            return Err(CodecError::Short);
        }
        from.checked_add(entries.len() as u64).ok_or(CodecError::Range)?;
        Ok(Self { set, incarnation, from, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CallKind, Determinant, NondetCall, Outcome};
    use super::*;

    #[test]
    fn what_is_encoded_decodes_and_a_cut_or_nothing_is_an_error() {
        let call = NondetCall::requests(CallKind::TestAny, 3);
        let found = |number| {
            let determinant =
                Determinant::Outcome { call, outcome: Outcome::Requests(vec![number as u32]) };
            PiggybackedEntry::Own(PeerId(300), Numbered { number, determinant })
        };
        let third = PiggybackedPlaces { set: SetId(9), incarnation: Incarnation(1), upto: 1 << 40 };
        let piggybacked = Piggybacked {
            set: SetId(4),
            incarnation: Incarnation(2),
            from: 1000,
            entries: vec![found(7), PiggybackedEntry::Received(third), found(900)],
        };
        assert_eq!((piggybacked.upto(), piggybacked.has_own()), (1003, true));
        assert_eq!(piggybacked.received().collect::<Vec<_>>(), [&third]);
        let bytes = piggybacked.encode();
        assert_eq!(Piggybacked::decode(&bytes), Ok(piggybacked));
        assert_eq!(Piggybacked::decode(&bytes[..bytes.len() - 1]), Err(CodecError::Short));
        let mut none = Vec::new();
        begin(&mut none, SetId(0), Incarnation(0), 0);
        assert_eq!(Piggybacked::decode(&none), Err(CodecError::Short), "what for?");
        let mut past = Vec::new();
        begin(&mut past, SetId(0), Incarnation(0), u64::MAX);
        append_received(&mut past, &third);
        assert_eq!(Piggybacked::decode(&past), Err(CodecError::Range));
    }
}
