//! Determinants of one process as they are sent: numbers and determinants, nothing else, so that
//! the process that records them can append to bytes and needs no list.

use super::codec::{self, CodecError};
use super::{Determinant, Numbered};

/// Append one. `at`: a number that goes with it (its place in the order of the set, or the event
/// clock).
pub fn append(out: &mut Vec<u8>, at: u64, determinant: &Determinant) {
    codec::put(out, at);
    codec::encode(determinant, out);
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
}
