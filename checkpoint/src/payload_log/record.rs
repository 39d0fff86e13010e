//! How a record is encoded in its index segment, and how a [`LogRecord`] names it.
//!
//! ```text
//!  0 u64 next     record to the same destination that follows; 0: none
//!  8 u64 sequence low 48 bits; high 16 bits: upper bits of the digest
//! 16 u64 bytes    low 48 bits; then 8 bits flags, 8 bits: lowest ones of the digest
//! 24 u32 to
//! 28 u32 context
//! 32 i32 tag
//! 36 u32 source
//! 40 payload, or with BULK: u64 place (slot << 32 | offset / 64 in that bulk segment)
//! ```
//!
//! All little endian. The lane of the stream follows from the tag ([`StreamKey::of`]), the set
//! from the segment.

use rustbtl_fragments::host::LogEntry;
use rustbtl_fragments::ids::{CommRank, ContextId, LogRecord, MessageSeq, PeerId, SetId};
use rustbtl_fragments::little_endian::LittleEndian;
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::wire::StreamKey;

/// Bytes of metadata before an inline payload.
pub const HEAD_BYTES: usize = 40;
/// Records start at multiples of this.
pub const RECORD_ALIGN: usize = 16;
/// Bulk payloads start at multiples of this.
pub const BULK_ALIGN: usize = 64;
/// Largest payload that lies beside its metadata.
pub const INLINE_BYTES_MAX: usize = 1024;
/// Largest payload of all.
pub const BYTES_MAX: u64 = (1 << 48) - 1;

const SEQUENCE: u64 = (1 << 48) - 1;
const LIVE: u64 = 1 << 48;
const BULK: u64 = 1 << 49;

/// Bytes that a record with a payload of `bytes` takes in an index segment.
#[inline]
pub const fn stride(bytes: usize) -> usize {
    let tail = if bytes > INLINE_BYTES_MAX { 8 } else { bytes };
    (HEAD_BYTES + tail).next_multiple_of(RECORD_ALIGN)
}

const OFFSET_BITS: u32 = 18;
const SLOT_BITS: u32 = 20;
/// Serials of index segments are compared modulo two to this power: right as long as no record
/// stays live while 32 million index segments (2 TiB of small messages) come and go.
pub const SERIAL_BITS: u32 = 26;
/// Largest index segment that an id can point into.
pub const INDEX_SEGMENT_BYTES_MAX: usize = RECORD_ALIGN << OFFSET_BITS;
/// Most segments at a time.
pub const SLOTS_MAX: usize = 1 << SLOT_BITS;

/// Where a record lies: the decoded form of a [`LogRecord`]. `serial` is never 0 and thereby no
/// id either; it is the generation of the slot as well as the age of the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Serial of the index segment.
    pub serial: u32,
    /// Its slot.
    pub slot: u32,
    /// Offset of the metadata in it.
    pub offset: usize,
}

impl Position {
    #[inline]
    pub const fn id(self) -> LogRecord {
        let offset = (self.offset / RECORD_ALIGN) as u64;
        let slot = (self.slot as u64) << OFFSET_BITS;
        LogRecord((self.serial as u64) << (OFFSET_BITS + SLOT_BITS) | slot | offset)
    }

    #[inline]
    pub const fn of(record: LogRecord) -> Self {
        let offset = (record.0 & ((1 << OFFSET_BITS) - 1)) as usize * RECORD_ALIGN;
        let slot = (record.0 >> OFFSET_BITS) as u32 & ((1 << SLOT_BITS) - 1);
        Self { serial: (record.0 >> (OFFSET_BITS + SLOT_BITS)) as u32, slot, offset }
    }

    /// Appended after `other` (in the same set)?
    pub const fn is_after(self, other: Self) -> bool {
        if self.serial == other.serial {
            return self.offset > other.offset;
        }
        let ahead = self.serial.wrapping_sub(other.serial) & ((1 << SERIAL_BITS) - 1);
        ahead < 1 << (SERIAL_BITS - 1)
    }
}

/// The serial after this one; 0 is left out.
#[inline]
pub const fn next_serial(serial: u32) -> u32 {
    let next = (serial + 1) & ((1 << SERIAL_BITS) - 1);
    if next == 0 { 1 } else { next }
}

/// Where a bulk payload starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BulkPlace {
    /// Slot of the bulk segment.
    pub slot: u32,
    /// Offset in it.
    pub offset: usize,
}

/// Metadata as read from a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Id of the record to the same destination that follows; 0: none.
    pub next: u64,
    /// Payload bytes.
    pub bytes: usize,
    /// Not yet received by a checkpoint of the destination.
    pub live: bool,
    /// The payload lies in a bulk segment.
    pub bulk: bool,
}

#[inline]
fn head_of(segment: &[u8], offset: usize) -> &[u8; HEAD_BYTES] {
    match segment[offset..].first_chunk() {
        Some(head) => head,
        None => unreachable!("a record lies wholly in its segment"),
    }
}

/// Write the metadata of a new, live record.
#[inline]
pub fn write(segment: &mut [u8], offset: usize, entry: &LogEntry, bulk: Option<BulkPlace>) {
    debug_assert_eq!(entry.stream, StreamKey::of(entry.stream.context, entry.tag), "lane and tag");
    let mut head = [0; HEAD_BYTES];
    let flags = if bulk.is_some() { LIVE | BULK } else { LIVE };
    let digest = u64::from(entry.digest.bits());
    (entry.sequence.0 & SEQUENCE | digest >> 8 << 48).write_at(&mut head, 8);
    (entry.bytes | flags | digest << 56).write_at(&mut head, 16);
    entry.to.0.write_at(&mut head, 24);
    entry.stream.context.0.write_at(&mut head, 28);
    entry.tag.write_at(&mut head, 32);
    entry.source.0.write_at(&mut head, 36);
    segment[offset..offset + HEAD_BYTES].copy_from_slice(&head);
    if let Some(place) = bulk {
        let code = (place.slot as u64) << 32 | (place.offset / BULK_ALIGN) as u64;
        code.write_at(segment, offset + HEAD_BYTES);
    }
}

/// Read length, flags and chain.
#[inline]
pub fn read(segment: &[u8], offset: usize) -> Head {
    let head = head_of(segment, offset);
    let word = u64::read_at(head, 16);
    Head {
        next: u64::read_at(head, 0),
        bytes: (word & BYTES_MAX) as usize,
        live: word & LIVE != 0,
        bulk: word & BULK != 0,
    }
}

/// Read what was appended, to a peer of `set`.
#[inline]
pub fn read_entry(segment: &[u8], offset: usize, set: SetId) -> LogEntry {
    let head = head_of(segment, offset);
    let tag = u32::read_at(head, 32) as i32;
    LogEntry {
        to: PeerId(u32::read_at(head, 24)),
        set,
        stream: StreamKey::of(ContextId(u32::read_at(head, 28)), tag),
        sequence: MessageSeq(u64::read_at(head, 8) & SEQUENCE),
        source: CommRank(u32::read_at(head, 36)),
        tag,
        bytes: u64::read_at(head, 16) & BYTES_MAX,
        digest: PayloadDigest::from_bits(
            u32::from(u16::read_at(head, 14)) << 8 | u32::from(head[23]),
        ),
    }
}

/// Read the place of a bulk payload.
#[inline]
pub fn read_place(segment: &[u8], offset: usize) -> BulkPlace {
    let code = u64::read_at(segment, offset + HEAD_BYTES);
    BulkPlace { slot: (code >> 32) as u32, offset: code as u32 as usize * BULK_ALIGN }
}

/// Keep the digest of the payload.
#[inline]
pub fn set_digest(segment: &mut [u8], offset: usize, digest: PayloadDigest) {
    ((digest.bits() >> 8) as u16).write_at(segment, offset + 14);
    segment[offset + 23] = digest.bits() as u8;
}

/// Make `next` the follower of a record.
#[inline]
pub fn link(segment: &mut [u8], offset: usize, next: u64) {
    next.write_at(segment, offset);
}

/// Marks a record as dropped.
pub fn kill(segment: &mut [u8], offset: usize) {
    // The flags are the top 16 bits of a little-endian word: LIVE is bit 0 of byte 6.
    segment[offset + 22] &= !1;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tag: i32) -> LogEntry {
        LogEntry {
            to: PeerId(0x0102_0304),
            set: SetId(7),
            stream: StreamKey::of(ContextId(0x0506_0708), tag),
            sequence: MessageSeq(0x3344_5566_7788),
            source: CommRank(9),
            tag,
            bytes: 5,
            digest: PayloadDigest::from_bits(0x11_22AA),
        }
    }

    #[test]
    fn golden_bytes_of_a_record() {
        let mut segment = [0xFF; 64];
        write(&mut segment, 0, &sample(-2), None);
        let golden = [
            0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 5, 0, 0, 0, 0,
            0, 1, 0xAA, 4, 3, 2, 1, 8, 7, 6, 5, 0xFE, 0xFF, 0xFF, 0xFF, 9, 0, 0, 0,
        ];
        assert_eq!(segment[..HEAD_BYTES], golden);
        assert_eq!(segment[HEAD_BYTES], 0xFF, "the payload is the caller's to fill");
    }

    #[test]
    fn what_is_written_reads_back() {
        for tag in [-2, 0, 77] {
            let mut segment = [0; 128];
            let place = BulkPlace { slot: 0xABCDE, offset: 192 };
            write(&mut segment, 16, &sample(tag), Some(place));
            link(&mut segment, 16, 42);
            let head = Head { next: 42, bytes: 5, live: true, bulk: true };
            assert_eq!(read(&segment, 16), head);
            assert_eq!(read_entry(&segment, 16, SetId(7)), sample(tag));
            assert_eq!(read_place(&segment, 16), place);
            let digest = PayloadDigest::from_bits(0xFE_DCBA);
            set_digest(&mut segment, 16, digest);
            assert_eq!(read(&segment, 16), head);
            let other = LogEntry { digest, ..sample(tag) };
            assert_eq!(read_entry(&segment, 16, SetId(7)), other);
            kill(&mut segment, 16);
            assert_eq!(read(&segment, 16), Head { live: false, ..head });
        }
    }

    #[test]
    fn ids_keep_every_bit_of_a_position() {
        let far = Position {
            serial: (1 << SERIAL_BITS) - 1,
            slot: SLOTS_MAX as u32 - 1,
            offset: INDEX_SEGMENT_BYTES_MAX - RECORD_ALIGN,
        };
        let near = Position { serial: 1, slot: 0, offset: 0 };
        for position in [far, near] {
            assert_eq!(Position::of(position.id()), position);
        }
        assert_eq!(next_serial(far.serial), 1);
        assert!(near.is_after(far), "serials are compared around the wrap");
        assert!(!far.is_after(near));
    }

    #[test]
    fn the_smallest_message_takes_48_bytes() {
        assert_eq!(
            [stride(0), stride(8), stride(9), stride(1024), stride(1025)],
            [48, 48, 64, 1072, 48]
        );
    }
}
