//! Fields of messages as bytes: integers, ids, texts, blobs, lists.

use super::frame::ControlError;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use rustbtl_fragments::little_endian::{LittleEndian, take_bytes};

/// Something that a message consists of.
pub trait Field: Sized {
    /// Append its bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// Take it from the front of `from`.
    ///
    /// # Errors
    /// [`ControlError::Damaged`]: the bytes end too early or have no meaning.
    fn take(from: &mut &[u8]) -> Result<Self, ControlError>;
}

/// The next `count` bytes.
fn bytes<'a>(from: &mut &'a [u8], count: usize) -> Result<&'a [u8], ControlError> {
    take_bytes(from, count).ok_or(ControlError::Damaged)
}

macro_rules! integer {
    ($($kind:ty)*) => { $(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                self.append(out);
            }

            fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
                LittleEndian::take_from(from).ok_or(ControlError::Damaged)
            }
        }
    )* };
}
integer!(u8 u16 u32 u64 i32);

macro_rules! id {
    ($($kind:ident)*) => { $(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
                Field::take(from).map(Self)
            }
        }
    )* };
}
id!(PeerId SetId Incarnation);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ControlError::Damaged),
        }
    }
}

/// Lengths fit in 32 bits, because whole messages do (`Message::encode` sees to it).
fn put_length(length: usize, out: &mut Vec<u8>) {
    (length as u32).put(out);
}

impl Field for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        put_length(self.len(), out);
        out.extend_from_slice(self);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        let length = u32::take(from)? as usize;
        bytes(from, length).map(<[u8]>::to_vec)
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_length(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        String::from_utf8(Field::take(from)?).map_err(|_| ControlError::Damaged)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        if bool::take(from)? { T::take(from).map(Some) } else { Ok(None) }
    }
}

/// Lists of what takes at least four bytes: so no list is longer in memory than a small multiple
/// of its bytes.
macro_rules! list {
    ($($kind:ty)*) => { $(
        impl Field for Vec<$kind> {
            fn put(&self, out: &mut Vec<u8>) {
                put_length(self.len(), out);
                self.iter().for_each(|item| item.put(out));
            }

            fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
                let length = u32::take(from)? as usize;
                if length > from.len() / 4 {
                    return Err(ControlError::Damaged);
                }
                (0..length).map(|_| <$kind>::take(from)).collect()
            }
        }
    )* };
}
list!(PeerId super::fields::RankEndpoint super::fields::RankClock);
list!(super::collective_fields::MemberRun super::collective_fields::ClockCounter);
list!(super::collective_fields::ClockTarget super::fields::RankPart);
