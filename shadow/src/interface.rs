//! Between `librustbtl_verbs.so` and the component of the same process: the library offers
//! [`Interface`] by the name [`SYMBOL`], the component gives it [`Callbacks`]. Both are of one
//! release; [`VERSION`] says so. Also what tallies and names are as bytes.

use crate::drain::{Readiness, Tallies, Tally};
use crate::names::{Name, Value};
use core::ffi::{CStr, c_void};

/// Of this file.
pub const VERSION: u32 = 2;
/// An [`Interface`] that stays.
pub const SYMBOL: &CStr = c"rustbtl_verbs_interface";

/// Takes bytes, whose place is valid during the call.
pub type Sink = unsafe extern "C" fn(to: *mut c_void, bytes: *const u8, count: usize);

/// What the component does for the library.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Callbacks {
    /// The program has opened an adapter.
    pub opened: unsafe extern "C" fn(),
    /// A name, of `count` bytes, stands for 16 bytes.
    pub publish:
        unsafe extern "C" fn(name: *const u8, count: usize, generation: u64, value: *const u8),
    /// What it stands for, into 16 bytes. False: nobody has said.
    pub find: unsafe extern "C" fn(
        name: *const u8,
        count: usize,
        generation: u64,
        value: *mut u8,
    ) -> bool,
}

/// What the library does for the component's checkpoint thread. Sizes and pointers are of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// [`VERSION`].
    pub version: u32,
    /// The component is here. False: this process is not shadowed.
    pub attach: unsafe extern "C" fn(callbacks: Callbacks) -> bool,
    /// Has the program opened an adapter?
    pub is_used: unsafe extern "C" fn() -> bool,
    /// Close the gate, if nobody is inside. By the thread that opens it.
    pub try_close: unsafe extern "C" fn() -> bool,
    /// Open it.
    pub open: unsafe extern "C" fn(),
    /// What is posted here: [`encode_tallies`]. Gate closed, as below.
    pub tallies: unsafe extern "C" fn(to: *mut c_void, sink: Sink),
    /// What all have posted: [`encode_tallies`] one behind the other.
    pub told: unsafe extern "C" fn(all: *const u8, count: usize),
    /// Does a connection that is only being made postpone the drain?
    pub is_postponed: unsafe extern "C" fn() -> bool,
    /// Drain: 1: nothing is under way here, 0: not yet, below: the negated error number.
    pub drain: unsafe extern "C" fn() -> i32,
    /// Descriptors of adapters, `i32` each, which are in no image.
    pub descriptors: unsafe extern "C" fn(to: *mut c_void, sink: Sink),
    /// Memory of adapters, which is in no image: start and end, `usize` each.
    pub memory: unsafe extern "C" fn(to: *mut c_void, sink: Sink),
    /// After a restore: abandon the old objects, make new ones. Names, by [`encode_name`], or, if
    /// it returns false, what cannot be made.
    pub make: unsafe extern "C" fn(to: *mut c_void, sink: Sink) -> bool,
    /// Names of all processes.
    pub know: unsafe extern "C" fn(names: *const u8, count: usize),
    /// Connect again: false: the sink gets what cannot be.
    pub connect: unsafe extern "C" fn(to: *mut c_void, sink: Sink) -> bool,
}

/// Numbers as bytes, little endian.
fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*first)
}

/// Tallies as bytes; several may stand behind each other.
pub fn encode_tallies(tallies: &[Tally]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for tally in tallies {
        bytes.extend(tally.qpn.to_le_bytes());
        bytes.extend(tally.peer.to_le_bytes());
        bytes.push(match tally.readiness {
            Readiness::No => 0,
            Readiness::Yes => 1,
            Readiness::Broken => 2,
        });
        bytes.extend(tally.consuming.to_le_bytes());
        bytes.extend(tally.sends.to_le_bytes());
        bytes.extend((tally.under_way.len() as u32).to_le_bytes());
        tally.under_way.iter().for_each(|length| bytes.extend(length.to_le_bytes()));
    }
    bytes
}

/// Tallies of all processes. None: that is not what [`encode_tallies`] writes.
pub fn decode_tallies(mut bytes: &[u8]) -> Option<Tallies> {
    let mut all = Tallies::new();
    while !bytes.is_empty() {
        let qpn = u32::from_le_bytes(take(&mut bytes)?);
        let peer = u32::from_le_bytes(take(&mut bytes)?);
        let readiness = match take::<1>(&mut bytes)? {
            [0] => Readiness::No,
            [1] => Readiness::Yes,
            [2] => Readiness::Broken,
            _ => return None,
        };
        let consuming = u64::from_le_bytes(take(&mut bytes)?);
        let sends = u64::from_le_bytes(take(&mut bytes)?);
        let count = u32::from_le_bytes(take(&mut bytes)?) as usize;
        if count > bytes.len() / 4 {
            return None;
        }
        let lengths = (0..count).map(|_| take(&mut bytes).map(u32::from_le_bytes));
        let under_way = lengths.collect::<Option<Vec<u32>>>()?;
        all.insert(qpn, Tally { qpn, peer, readiness, consuming, under_way, sends });
    }
    Some(all)
}

/// The length of a name as bytes.
pub const NAME_BYTES: usize = 21;
/// The length of a name with its generation and value.
const ENTRY_BYTES: usize = NAME_BYTES + 8 + 16;
/// Keys of one slot, which follow each other, differ in these bits (`names.rs`).
const GENERATION: u32 = 0xFF;

/// A name as bytes, and its generation: of its epoch, and of its slot. So a table that keeps one
/// generation of each name holds no more than exists at once.
pub fn name_bytes(epoch: u32, name: Name) -> ([u8; NAME_BYTES], u64) {
    let mut bytes = [0; NAME_BYTES];
    let mut generation = u64::from(epoch) << 8;
    match name {
        Name::Qp(qpn) => {
            bytes[0] = 1;
            bytes[1..5].copy_from_slice(&qpn.to_le_bytes());
        }
        Name::Key { process, key } => {
            bytes[0] = 2;
            bytes[1..5].copy_from_slice(&process.to_le_bytes());
            bytes[5..9].copy_from_slice(&(key & !GENERATION).to_le_bytes());
            generation |= u64::from(key & GENERATION);
        }
        Name::Lid(lid) => {
            bytes[0] = 3;
            bytes[1..3].copy_from_slice(&lid.to_le_bytes());
        }
        Name::Gid(gid) => {
            bytes[0] = 4;
            bytes[1..17].copy_from_slice(&gid);
        }
        Name::GidOf { process, gid } => {
            bytes[0] = 5;
            bytes[1..5].copy_from_slice(&process.to_le_bytes());
            bytes[5..].copy_from_slice(&gid);
        }
    }
    (bytes, generation)
}

/// A name, its generation and what it stands for, as bytes behind others.
pub fn encode_name(epoch: u32, name: Name, value: Value, to: &mut Vec<u8>) {
    let (name, generation) = name_bytes(epoch, name);
    to.extend(name);
    to.extend(generation.to_le_bytes());
    to.extend(value);
}

/// What [`encode_name`] has written, one after the other.
pub fn decode_names(bytes: &[u8]) -> impl Iterator<Item = ([u8; NAME_BYTES], u64, Value)> {
    bytes.chunks_exact(ENTRY_BYTES).filter_map(|mut entry| {
        let name = take(&mut entry)?;
        let generation = u64::from_le_bytes(take(&mut entry)?);
        Some((name, generation, take(&mut entry)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_of_several_processes_are_what_they_were() {
        let tally = |qpn, readiness, under_way| Tally {
            qpn,
            peer: 3,
            readiness,
            consuming: u64::MAX,
            under_way,
            sends: 9,
        };
        let mine =
            [tally(1, Readiness::No, vec![]), tally(2, Readiness::Yes, vec![0, u32::MAX, 7])];
        let theirs = [tally(4, Readiness::Broken, vec![1])];
        let bytes = [encode_tallies(&mine), encode_tallies(&theirs)].concat();
        let all = decode_tallies(&bytes).expect("tallies");
        assert!(all.values().eq(mine.iter().chain(&theirs)));
        for end in 1..bytes.len() {
            // At the end of one there are fewer; anywhere else nothing is taken for a tally.
            let fewer = decode_tallies(&bytes[..end]);
            assert!(fewer.is_none_or(|fewer| fewer.len() < all.len()), "{end}");
        }
    }

    #[test]
    fn names_are_what_they_were_and_generations_of_a_slot_share_one() {
        let names = [
            Name::Qp(7),
            Name::Key { process: 7, key: 0x8000_0305 },
            Name::Lid(7),
            Name::Gid([7; 16]),
            Name::GidOf { process: 7, gid: [7; 16] },
        ];
        let mut bytes = Vec::new();
        for name in names {
            encode_name(3, name, [9; 16], &mut bytes);
        }
        let read: Vec<_> = decode_names(&bytes).collect();
        let expected = names.map(|name| name_bytes(3, name));
        assert!(read.iter().map(|&(name, of, _)| (name, of)).eq(expected));
        assert!(read.iter().all(|&(.., value)| value == [9; 16]));
        let (before, now) =
            (expected[1], name_bytes(3, Name::Key { process: 7, key: 0x8000_0306 }));
        assert!(before.0 == now.0 && before.1 < now.1);
        assert_ne!(before.0, name_bytes(3, Name::Key { process: 7, key: 0x8000_0405 }).0);
    }
}
