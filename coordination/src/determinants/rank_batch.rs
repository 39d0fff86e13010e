//! Determinants of one process as they are sent: numbers and determinants, nothing else, so that
//! the process that records them can append to bytes and needs no list. To the coordinator also
//! what was piggybacked to the process, without its content ([`PiggybackedPlaces`]).

use super::codec::{self, CodecError};
use super::{Determinant, Numbered, PiggybackedPlaces};

/// In place of the kind of a determinant: what was piggybacked follows. No kind has this number.
const PLACES: u8 = 0;

/// The same: of these the process has not received the content.
const NAME: u8 = u8::MAX;

/// What a process has recorded at a place of its set's order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// A determinant of its own.
    Own(Determinant),
    /// Something was piggybacked to it; the content is not here.
    Received(PiggybackedPlaces),
    /// It was only named to it.
    Named(PiggybackedPlaces),
}

/// Append one. `at`: a number that goes with it (its place in the order of the set, or the event
/// clock).
pub fn append(out: &mut Vec<u8>, at: u64, determinant: &Determinant) {
    codec::put(out, at);
    codec::encode(determinant, out);
}

/// Append what was piggybacked to the process and is at this place, without its content.
pub fn append_places(out: &mut Vec<u8>, at: u64, places: &PiggybackedPlaces) {
    codec::put(out, at);
    out.push(PLACES);
    places.append(out);
}

/// Append what was named to the process, which has not received its content.
pub fn append_name(out: &mut Vec<u8>, at: u64, places: &PiggybackedPlaces) {
    codec::put(out, at);
    out.push(NAME);
    places.append(out);
}

/// Everything that [`append`], [`append_places`] and [`append_name`] wrote, each with its place.
///
/// # Errors
/// The bytes are damaged.
pub fn read_recorded(mut bytes: &[u8]) -> Result<Vec<(u64, Recorded)>, CodecError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let at = codec::take(&mut bytes)?;
        let recorded = match bytes.split_first() {
            Some((&PLACES, rest)) => {
                bytes = rest;
                Recorded::Received(PiggybackedPlaces::take(&mut bytes)?)
            }
            Some((&NAME, rest)) => {
                bytes = rest;
                Recorded::Named(PiggybackedPlaces::take(&mut bytes)?)
            }
            _ => Recorded::Own(codec::decode(&mut bytes)?),
        };
        all.push((at, recorded));
    }
    Ok(all)
}

/// All of them, each with its number.
///
/// # Errors
/// The bytes are damaged.
pub fn read(mut bytes: &[u8]) -> Result<Vec<(u64, Determinant)>, CodecError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let at = codec::take(&mut bytes)?;
        all.push((at, codec::decode(&mut bytes)?));
    }
    Ok(all)
}

/// As [`read`], of what was appended with the event clock.
///
/// # Errors
/// The bytes are damaged.
pub fn read_numbered(bytes: &[u8]) -> Result<Vec<Numbered>, CodecError> {
    let numbered = |(number, determinant)| Numbered { number, determinant };
    Ok(read(bytes)?.into_iter().map(numbered).collect())
}

#[cfg(test)]
mod tests {
    use super::super::{CallKind, NondetCall, Outcome};
    use super::*;
    use rustbtl_fragments::ids::{Incarnation, SetId};

    #[test]
    fn what_is_appended_is_read_and_a_cut_is_an_error() {
        let call = NondetCall::requests(CallKind::TestAny, 3);
        let found = |place| Determinant::Outcome { call, outcome: Outcome::Requests(vec![place]) };
        let mut bytes = Vec::new();
        append(&mut bytes, 7, &found(1));
        append(&mut bytes, 900, &found(2));
        assert_eq!(read(&bytes).unwrap(), [(7, found(1)), (900, found(2))]);
        assert_eq!(
            read_numbered(&bytes).unwrap()[1],
            Numbered { number: 900, determinant: found(2) }
        );
        assert_eq!(read(&bytes[..bytes.len() - 1]), Err(CodecError::Short));
        assert_eq!(read(&[]), Ok(vec![]));
    }

    #[test]
    fn what_was_piggybacked_is_between_determinants_in_the_order_of_places() {
        let call = NondetCall::requests(CallKind::TestAny, 3);
        let found = |place| Determinant::Outcome { call, outcome: Outcome::Requests(vec![place]) };
        let places =
            PiggybackedPlaces { set: SetId(300), incarnation: Incarnation(2), upto: 1 << 40 };
        let mut bytes = Vec::new();
        append(&mut bytes, 7, &found(1));
        let cut = bytes.len();
        append_places(&mut bytes, 8, &places);
        append_name(&mut bytes, 9, &places);
        append(&mut bytes, 900, &found(2));
        let all = [
            (7, Recorded::Own(found(1))),
            (8, Recorded::Received(places)),
            (9, Recorded::Named(places)),
            (900, Recorded::Own(found(2))),
        ];
        assert_eq!(read_recorded(&bytes).unwrap(), all);
        assert!(read_recorded(&bytes[..cut + 3]).is_err());
        assert_eq!(read(&bytes), Err(CodecError::Kind(0)), "not where only determinants are");
        let mut wide = vec![8, PLACES, 1, 0x80, 0x80, 0x04, 3];
        assert_eq!(read_recorded(&wide), Err(CodecError::Range), "no such incarnation");
        wide.truncate(2);
        assert_eq!(read_recorded(&wide), Err(CodecError::Short));
    }
}
