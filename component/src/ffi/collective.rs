//! Collectives as C and Rust see them: mirrors `glue-c/include/glue.h`.

use core::ffi::{c_char, c_void};
use core::mem::offset_of;
use static_assertions::const_assert_eq;

/// What `test` of a [`CollectiveSetup`] answers: it is not complete.
pub const TEST_PENDING: i32 = 0;
/// It is complete, and has failed.
pub const TEST_FAILED: i32 = 2;

/// A communicator whose collectives are ours: `rustbtl_collective_setup_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollectiveSetup {
    /// Its handle.
    pub comm: *mut c_void,
    /// Where shared memory is made.
    pub directory: *const c_char,
    /// Send to a member: communicator, rank, tag, bytes, how many; the request, null: it is
    /// complete. `DONE`, `FAILED` or `LOG_FULL`.
    pub send: unsafe extern "C" fn(*mut c_void, u32, i32, *const u8, u64, *mut *mut c_void) -> i32,
    /// Receive from a member: the same.
    pub receive: unsafe extern "C" fn(*mut c_void, u32, i32, *mut u8, u64, *mut *mut c_void) -> i32,
    /// [`TEST_PENDING`], or it does not exist any more: 1, or [`TEST_FAILED`].
    pub test: unsafe extern "C" fn(*mut c_void) -> i32,
    /// `out = a op b`: op, type, a, b, out, elements. `b` may be `out`.
    pub fold: unsafe extern "C" fn(*mut c_void, *mut c_void, *const u8, *const u8, *mut u8, u64),
    /// Pack data that is not one piece, as a call's `packs` says: `DONE`, or it has failed.
    pub pack: unsafe extern "C" fn(*mut c_void) -> i32,
    /// All communicators of this process together may use so much memory.
    pub bytes_max: u64,
    /// Own rank.
    pub rank: u32,
    /// Members.
    pub size: u32,
    /// So many members of a set share memory at most.
    pub ranks_max: u32,
    /// Zero.
    pub reserved: u32,
}

const_assert_eq!(size_of::<CollectiveSetup>(), 80);
const_assert_eq!(offset_of!(CollectiveSetup, bytes_max), 56);

/// One of a call's blocks, where they vary: `rustbtl_block_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollectiveBlock {
    /// Its contents; only written to in what a member gets.
    pub start: *mut u8,
    /// How many.
    pub bytes: u64,
}

const_assert_eq!(size_of::<CollectiveBlock>(), 16);

/// A collective: `rustbtl_collective_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollectiveCall {
    /// What this member gives; may be `into`.
    pub from: *const u8,
    /// Where its result goes.
    pub into: *mut u8,
    /// Of what one member gives another; where that varies, of the longest that this member knows.
    pub bytes: u64,
    /// Bytes that a fold must not tear.
    pub element: u64,
    /// For `fold`.
    pub op: *mut c_void,
    /// For `fold`.
    pub datatype: *mut c_void,
    /// Where blocks vary: what this member gives, as `Plan::gives_to` counts them; else null.
    pub gives: *const CollectiveBlock,
    /// The same of what it gets, as `Plan::gets_from` counts them.
    pub gets: *const CollectiveBlock,
    /// For `pack`; null: all data is there.
    pub packs: *mut c_void,
    /// `enum rustbtl_collective_kind`.
    pub kind: u32,
    /// For those that have one.
    pub root: u32,
    /// Open MPI's, by which it counts as an action of the program.
    pub tag: i32,
    /// The operation of a fold commutes: 1.
    pub commutes: u32,
}

const_assert_eq!(size_of::<CollectiveCall>(), 88);
const_assert_eq!(offset_of!(CollectiveCall, kind), 72);
