//! What goes over an authenticated connection: encrypted, and bound to its place. Pure: bytes in,
//! bytes out.
//!
//! ```text
//! record = length of the text (u32) | text, encrypted | tag (16)
//! ```
//! AES-256-GCM (RFC 5116) under the key of the direction; the nonce is the number of the record in
//! its direction, which is not sent; the length is authenticated with the text.
//!
//! 1. What is opened is what was sealed, in the same order, from the first record on: a changed,
//!    repeated, left out or exchanged record is refused.
//! 2. After a refusal nothing is opened any more.
//! 3. A length above [`RECORD_BYTES_MAX`] is refused before room is made for it.
//! 4. A connection that ends too early is not noticed here: each message that goes over it says how
//!    long it is, and ends of conversations are messages.

use crate::session_keys::{KEY, SessionKeys};
use core::fmt;
use core::ops::{Deref, Range};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Most bytes of text in a record.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// Bytes before the text.
const LENGTH: usize = 4;
/// Bytes after it.
const TAG: usize = 16;
/// What a record costs beside its text, in bytes.
pub const OVERHEAD: usize = LENGTH + TAG;

/// A record is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SealError {
    /// It is longer than records are.
    Length(u32),
    /// It was changed, or is not the next one.
    Forged,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "a record of {bytes} bytes, longer than any is"),
            Self::Forged => f.write_str("what was received is not what was sent: was it changed?"),
        }
    }
}

impl core::error::Error for SealError {}

/// A key, and the number of the next record under it.
struct Cipher {
    key: LessSafeKey,
    next: u64,
}

impl Cipher {
    fn new(key: &[u8; KEY]) -> Self {
        // Only another length is refused.
        let key = UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes");
        Self { key: LessSafeKey::new(key), next: 0 }
    }

    /// Of the next record. There are more numbers than a connection could send.
    fn take_nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// One direction of a connection, where it begins.
pub struct Sealer {
    cipher: Cipher,
}

impl Sealer {
    /// Nothing is sealed yet under this key.
    pub fn new(key: &[u8; KEY]) -> Self {
        Self { cipher: Cipher::new(key) }
    }

    /// Appends the records of this text.
    ///
    /// # Panics
    /// Never: texts of records are shorter than what the cipher takes.
    pub fn seal(&mut self, text: &[u8], out: &mut Vec<u8>) {
        self.seal_parts(&[text], out);
    }

    /// The same for a text in several parts.
    ///
    /// # Panics
    /// Never, as above.
    pub fn seal_parts(&mut self, parts: &[impl Deref<Target = [u8]>], out: &mut Vec<u8>) {
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        let mut parts = parts.iter().map(|part| &part[..]);
        let mut part: &[u8] = &[];
        out.reserve(left + left.div_ceil(RECORD_BYTES_MAX) * OVERHEAD);
        while left > 0 {
            let bytes = left.min(RECORD_BYTES_MAX);
            left -= bytes;
            let length = (bytes as u32).to_le_bytes();
            out.extend_from_slice(&length);
            let from = out.len();
            while out.len() < from + bytes {
                if part.is_empty() {
                    part = parts.next().unwrap_or_default();
                }
                let (now, later) = part.split_at(part.len().min(from + bytes - out.len()));
                out.extend_from_slice(now);
                part = later;
            }
            let (nonce, key) = (self.cipher.take_nonce(), &self.cipher.key);
            let tag = key.seal_in_place_separate_tag(nonce, Aad::from(length), &mut out[from..]);
            out.extend_from_slice(tag.expect("a record is short").as_ref());
        }
    }
}

/// One direction of a connection, where it ends.
pub struct Opener {
    cipher: Cipher,
    /// What has arrived.
    bytes: Vec<u8>,
    /// So much of it is opened.
    opened: usize,
    refused: Option<SealError>,
}

impl Opener {
    /// Nothing is opened yet under this key.
    pub fn new(key: &[u8; KEY]) -> Self {
        Self { cipher: Cipher::new(key), bytes: Vec::new(), opened: 0, refused: None }
    }

    /// Bytes that have arrived and are not opened.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.opened
    }

    /// So much has arrived.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.refused.is_some() {
            return;
        }
        if self.opened > 0 {
            self.bytes.drain(..self.opened);
            self.opened = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The text of the next record that has arrived completely.
    ///
    /// # Errors
    /// The record is refused, and so is all that comes after it.
    pub fn next_text(&mut self) -> Result<Option<&[u8]>, SealError> {
        match self.step() {
            Ok(None) => Ok(None),
            Ok(Some(range)) => Ok(Some(&self.bytes[range])),
            Err(refused) => {
                self.refused = Some(refused);
                self.bytes = Vec::new();
                self.opened = 0;
                Err(refused)
            }
        }
    }

    /// So much has arrived: hands on the text of each record that is complete by now.
    ///
    /// # Errors
    /// As [`Self::next_text`].
    pub fn open(&mut self, bytes: &[u8], mut hand_on: impl FnMut(&[u8])) -> Result<(), SealError> {
        self.add(bytes);
        while let Some(text) = self.next_text()? {
            hand_on(text);
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Range<usize>>, SealError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let Some((length, rest)) = self.bytes[self.opened..].split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = *length;
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes > RECORD_BYTES_MAX {
            return Err(SealError::Length(bytes as u32));
        }
        if rest.len() < bytes + TAG {
            return Ok(None);
        }
        let from = self.opened + LENGTH;
        let end = from + bytes + TAG;
        let (nonce, key) = (self.cipher.take_nonce(), &self.cipher.key);
        key.open_in_place(nonce, Aad::from(length), &mut self.bytes[from..end])
            .map_err(|_| SealError::Forged)?;
        self.opened = end;
        Ok(Some(from..from + bytes))
    }
}

/// Both directions of a connection, at one end.
pub struct Session {
    /// For what this end sends.
    pub sealer: Sealer,
    /// For what it receives.
    pub opener: Opener,
}

impl Session {
    /// At the end that has connected.
    pub fn of_initiator(keys: &SessionKeys) -> Self {
        let (sealer, opener) = (Sealer::new(&keys.to_target), Opener::new(&keys.to_initiator));
        Self { sealer, opener }
    }

    /// At the end that was connected to.
    pub fn of_target(keys: &SessionKeys) -> Self {
        let (sealer, opener) = (Sealer::new(&keys.to_initiator), Opener::new(&keys.to_target));
        Self { sealer, opener }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: [u8; KEY] = [1; KEY];

    fn sealed(texts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut sealer = Sealer::new(&ONE);
        let seal = |text: &&[u8]| {
            let mut out = Vec::new();
            sealer.seal(text, &mut out);
            out
        };
        texts.iter().map(seal).collect()
    }

    fn open_all(opener: &mut Opener, bytes: &[u8]) -> Result<Vec<Vec<u8>>, SealError> {
        opener.add(bytes);
        let mut texts = Vec::new();
        while let Some(text) = opener.next_text()? {
            texts.push(text.to_vec());
        }
        Ok(texts)
    }

    #[test]
    fn records_are_opened_in_the_order_in_which_they_were_sealed_and_in_no_other() {
        let records = sealed(&[b"one", b"two", b"three"]);
        let mut opener = Opener::new(&ONE);
        assert_eq!(
            open_all(&mut opener, &records.concat()).unwrap(),
            [&b"one"[..], b"two", b"three"]
        );
        for order in [vec![1, 0], vec![0, 0], vec![0, 2], vec![1]] {
            let bytes: Vec<u8> = order.iter().flat_map(|&i| records[i].clone()).collect();
            let mut opener = Opener::new(&ONE);
            assert_eq!(open_all(&mut opener, &bytes), Err(SealError::Forged), "{order:?}");
        }
    }

    #[test]
    fn every_flipped_bit_is_refused_and_nothing_is_opened_after_it() {
        let records = sealed(&[b"text", b"next"]);
        for bit in 0..records[0].len() * 8 {
            let mut damaged = records.concat();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut opener = Opener::new(&ONE);
            // A longer length waits for what does not come.
            let opened = open_all(&mut opener, &damaged);
            assert!(opened.as_ref().map_or(true, Vec::is_empty), "1: bit {bit}");
            if let Err(refused) = opened {
                assert_eq!(open_all(&mut opener, &records[1]), Err(refused), "2: bit {bit}");
            }
        }
    }

    #[test]
    fn a_record_of_the_other_direction_or_of_another_connection_is_refused() {
        let keys = SessionKeys { to_target: [1; KEY], to_initiator: [2; KEY] };
        let mut one = Session::of_initiator(&keys);
        let mut two = Session::of_target(&keys);
        let mut bytes = Vec::new();
        one.sealer.seal(b"text", &mut bytes);
        assert_eq!(open_all(&mut one.opener, &bytes), Err(SealError::Forged));
        assert_eq!(open_all(&mut two.opener, &bytes).unwrap(), [b"text"]);
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_the_rest_is_here() {
        let mut opener = Opener::new(&ONE);
        let bytes = (RECORD_BYTES_MAX as u32 + 1).to_le_bytes();
        assert_eq!(open_all(&mut opener, &bytes), Err(SealError::Length(65_537)), "3");
    }

    #[test]
    fn an_empty_record_is_opened_like_any_other() {
        let mut bytes = sealed(&[b""]).concat();
        assert!(bytes.is_empty(), "nothing is sealed for nothing");
        bytes.extend_from_slice(&[0; OVERHEAD]);
        assert_eq!(open_all(&mut Opener::new(&ONE), &bytes), Err(SealError::Forged));
    }

    proptest! {
        #[test]
        fn texts_of_any_length_arrive_in_any_pieces(
            lengths in prop::collection::vec(0usize..3 * RECORD_BYTES_MAX, 1..4),
            piece in 1usize..200_000,
        ) {
            let text: Vec<u8> = (0..lengths.iter().sum()).map(|i: usize| (i % 251) as u8).collect();
            let mut sealer = Sealer::new(&ONE);
            let (mut bytes, mut at) = (Vec::new(), 0);
            for length in lengths {
                let (first, second) = text[at..at + length].split_at(length / 3);
                sealer.seal_parts(&[first, &[], second], &mut bytes);
                at += length;
            }
            prop_assert!(bytes.windows(8).all(|window| window != &text[..8]) || text.len() < 8);
            let mut opener = Opener::new(&ONE);
            let mut opened = Vec::new();
            for piece in bytes.chunks(piece) {
                for text in open_all(&mut opener, piece).unwrap() {
                    opened.extend_from_slice(&text);
                }
            }
            prop_assert_eq!(opened, text);
        }

        #[test]
        fn whatever_arrives_nothing_is_opened_that_was_not_sealed(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let opened = open_all(&mut Opener::new(&ONE), &bytes);
            prop_assert!(opened.map_or(true, |texts| texts.is_empty()));
        }
    }
}
