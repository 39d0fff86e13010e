//! What the C side of the BTL calls: mirror of `glue-c/btl/btl_rustbtl_core.h`. It is in another
//! DSO than this crate and gets these functions as a table, by
//! `glue-c/vprotocol/vprotocol_correlated_btl.c`.

use crate::btl::core::{Above, Access, Core};
use crate::btl::frame::{Way, What};
use crate::btl::operation::{Atomic, Change};
use crate::btl::outbox::{Cookie, Message};
use crate::btl::state::{Arrived, Outcome, Place, Settings, State, node_bytes_max};
use crate::ffi::table::Name;
use crate::transports::shm::SegmentOptions;
use crate::transports::tcp::TcpConfig;
use core::ffi::{CStr, c_char, c_void};
use memoffset::offset_of;
use rustbtl_fragments::ids::PeerId;
use static_assertions::const_assert_eq;
use std::ffi::CString;
use std::path::PathBuf;

/// Changes with the table and what it passes.
const VERSION: u32 = 2;

const DONE: i32 = 0;
const NO_ROOM: i32 = 1;
const DOWN: i32 = -1;

/// MCA parameters.
#[repr(C)]
#[allow(missing_docs)]
pub struct CSettings {
    pub shm_directory: *const c_char,
    pub tcp_if_include: *const c_char,
    pub tcp_if_exclude: *const c_char,
    pub shm_ring: u64,
    pub tcp_socket_buffer: u64,
    pub tcp_max_bytes: u32,
    pub tcp_connect_timeout: u32,
    pub tcp_silence_timeout: u32,
    pub shm: u8,
    pub single_copy: u8,
    pub tcp_ipv4: u8,
    pub tcp_ipv6: u8,
    pub tcp_encrypt: u8,
    pub threads: u8,
}

const_assert_eq!(size_of::<CSettings>(), 64);
const_assert_eq!(offset_of!(CSettings, shm), 52);

/// Where the process is.
#[repr(C)]
#[allow(missing_docs)]
pub struct CPlace {
    pub job: u32,
    pub rank: u32,
    pub size: u32,
    pub local_size: u32,
    pub local_ranks: *const u32,
    pub node: *const c_char,
}

const_assert_eq!(size_of::<CPlace>(), 32);

/// What Rust calls.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CCalls {
    pub arrived: unsafe extern "C" fn(way: i32, from: u32, tag: u8, start: *const u8, bytes: usize),
    pub over: unsafe extern "C" fn(cookie: *mut c_void, accepted: i32),
    pub lost: unsafe extern "C" fn(job: u32, rank: u32, reason: *const c_char),
    pub notice: unsafe extern "C" fn(text: *const c_char),
}

/// Two pieces of memory.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CMessage {
    pub first: *const u8,
    pub first_bytes: usize,
    pub second: *const u8,
    pub second_bytes: usize,
}

/// A change of 4 or 8 bytes of memory.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CAtomic {
    pub address: u64,
    pub operand: u64,
    pub compare: u64,
    pub change: u8,
    pub narrow: u8,
}

const_assert_eq!(size_of::<CAtomic>(), 32);

/// Room for a text.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CText {
    pub start: *mut c_char,
    pub bytes: usize,
}

/// A BTL that is open.
pub struct Btl {
    core: Core,
    calls: CCalls,
}

/// A process that was met.
pub struct Peer {
    id: PeerId,
    way: Way,
    access: Access,
}

/// The functions.
#[repr(C)]
#[allow(missing_docs)]
pub struct Functions {
    pub version: u32,
    pub open: unsafe extern "C" fn(&CSettings, &CPlace, &CCalls, CText) -> *mut Btl,
    pub node_bytes_max: extern "C" fn(u64, u32) -> u64,
    pub file: unsafe extern "C" fn(&Btl, CText) -> i32,
    pub card: unsafe extern "C" fn(&Btl, *mut u8, usize) -> usize,
    pub leader: unsafe extern "C" fn(&Btl) -> i64,
    pub attach: unsafe extern "C" fn(&Btl, *const u8, usize, CText) -> i32,
    pub meet: unsafe extern "C" fn(&Btl, u32, u32, *const u8, usize, CText) -> *mut Peer,
    pub way: unsafe extern "C" fn(&Peer) -> i32,
    pub number: unsafe extern "C" fn(&Peer) -> u32,
    pub forget: unsafe extern "C" fn(*mut Peer),
    pub send: unsafe extern "C" fn(&Btl, &Peer, u8, &CMessage, *mut c_void) -> i32,
    pub send_now: unsafe extern "C" fn(&Btl, &Peer, u8, &CMessage) -> i32,
    pub send_packed: unsafe extern "C" fn(
        &Btl,
        &Peer,
        u8,
        &CMessage,
        unsafe extern "C" fn(*mut c_void, *mut u8, usize),
        *mut c_void,
    ) -> i32,
    pub read: unsafe extern "C" fn(&Btl, &Peer, u64, *mut u8, usize) -> i32,
    pub write: unsafe extern "C" fn(&Btl, &Peer, u64, *const u8, usize) -> i32,
    pub put: unsafe extern "C" fn(&Btl, &Peer, u64, *const u8, usize, *mut c_void) -> i32,
    pub change: unsafe extern "C" fn(&CAtomic) -> u64,
    pub ask_read: unsafe extern "C" fn(&Btl, &Peer, u64, *mut u8, usize, *mut c_void) -> i32,
    pub ask_write: unsafe extern "C" fn(&Btl, &Peer, u64, *const u8, usize, *mut c_void) -> i32,
    pub ask_change: unsafe extern "C" fn(&Btl, &Peer, &CAtomic, *mut u8, *mut c_void) -> i32,
    pub progress: unsafe extern "C" fn(&Btl) -> i32,
    pub close: unsafe extern "C" fn(*mut Btl),
}

/// See the module's documentation.
pub static FUNCTIONS: Functions = Functions {
    version: VERSION,
    open,
    node_bytes_max: largest,
    file,
    card,
    leader,
    attach,
    meet,
    way,
    number: number_of,
    forget,
    send,
    send_now,
    send_packed,
    read,
    write,
    put,
    change,
    ask_read,
    ask_write,
    ask_change,
    progress,
    close,
};

/// For C of the same DSO.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_btl_functions() -> *const c_void {
    (&raw const FUNCTIONS).cast()
}

impl CText {
    /// As much as there is room for.
    ///
    /// # Safety
    /// The room is writable.
    unsafe fn put(self, text: &str) {
        let Some(room) = self.bytes.checked_sub(1) else { return };
        let mut len = room.min(text.len());
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        // SAFETY: the caller's promise; there is room for so many.
        unsafe { self.start.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len) };
        // SAFETY: and for one more.
        let end = unsafe { self.start.add(len) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
}

/// # Safety
/// Null or a text that ends with 0.
unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn number(way: Way) -> i32 {
    match way {
        Way::Node => 0,
        Way::Network => 1,
    }
}

impl Above for CCalls {
    #[inline]
    fn arrived(&self, message: &Arrived) {
        let (start, bytes) = message.payload;
        // SAFETY: the payload stays there during the call.
        unsafe { (self.arrived)(number(message.way), message.from.0, message.tag, start, bytes) }
    }
    fn over(&self, cookie: Cookie, accepted: bool) {
        // SAFETY: a cookie that C has given, once.
        unsafe { (self.over)(cookie as *mut c_void, i32::from(accepted)) }
    }
    fn lost(&self, name: Name, reason: &str) {
        let reason = CString::new(reason).unwrap_or_default();
        // SAFETY: a text that ends with 0.
        unsafe { (self.lost)(name.job, name.rank, reason.as_ptr()) }
    }
    fn notice(&self, text: &str) {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: a text that ends with 0.
        unsafe { (self.notice)(text.as_ptr()) }
    }
}

fn outcome(outcome: Outcome) -> i32 {
    match outcome {
        Outcome::Done => DONE,
        Outcome::NoRoom => NO_ROOM,
        Outcome::Down => DOWN,
    }
}

fn message(tag: u8, from: &CMessage) -> Message {
    let (first, second) = ((from.first, from.first_bytes), (from.second, from.second_bytes));
    Message { what: What::Message(tag), first, second }
}

/// # Safety
/// Readable for so many bytes.
unsafe fn slice<'a>(start: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(start, bytes) }
}

unsafe extern "C" fn open(
    settings: &CSettings,
    place: &CPlace,
    calls: &CCalls,
    why: CText,
) -> *mut Btl {
    // SAFETY: texts of C.
    let [directory, if_include, if_exclude, node] =
        [settings.shm_directory, settings.tcp_if_include, settings.tcp_if_exclude, place.node]
            .map(|from| unsafe { text(from) });
    let segment = SegmentOptions {
        directory: PathBuf::from(directory),
        ring_bytes: settings.shm_ring as usize,
        single_copy: settings.single_copy != 0,
        ..SegmentOptions::default()
    };
    let tcp = TcpConfig {
        if_include,
        if_exclude,
        ipv4: settings.tcp_ipv4 != 0,
        ipv6: settings.tcp_ipv6 != 0,
        encrypt: settings.tcp_encrypt != 0,
        socket_buffer_bytes: settings.tcp_socket_buffer as usize,
        eager_bytes_max: settings.tcp_max_bytes,
        chunk_bytes_max: settings.tcp_max_bytes,
        connect_ms_max: settings.tcp_connect_timeout,
        silence_ms_max: settings.tcp_silence_timeout,
        ..TcpConfig::default()
    };
    // SAFETY: C gives so many.
    let local =
        unsafe { core::slice::from_raw_parts(place.local_ranks, place.local_size as usize) };
    let me = Name { job: place.job, rank: place.rank };
    let place = Place { me, size: place.size, node, local: local.to_vec() };
    match State::open(place, Settings { shm: settings.shm != 0, segment, tcp }) {
        Ok(state) => {
            let core = Core::new(state, settings.threads != 0);
            Box::into_raw(Box::new(Btl { core, calls: *calls }))
        }
        Err(error) => {
            // SAFETY: C's room.
            unsafe { why.put(&error) };
            core::ptr::null_mut()
        }
    }
}

extern "C" fn largest(ring: u64, ranks: u32) -> u64 {
    node_bytes_max(ring as usize, ranks as usize) as u64
}

unsafe extern "C" fn file(btl: &Btl, into: CText) -> i32 {
    let Some(file) = btl.core.with(|state| state.file()) else { return 0 };
    // SAFETY: C's room.
    unsafe { into.put(&file) };
    1
}

unsafe extern "C" fn card(btl: &Btl, into: *mut u8, room: usize) -> usize {
    let card = btl.core.with(|state| state.card());
    if card.len() <= room {
        // SAFETY: there is room.
        unsafe { into.copy_from_nonoverlapping(card.as_ptr(), card.len()) };
    }
    card.len()
}

unsafe extern "C" fn leader(btl: &Btl) -> i64 {
    btl.core.with(|state| state.leader()).map_or(-1, i64::from)
}

unsafe extern "C" fn attach(btl: &Btl, card: *const u8, bytes: usize, why: CText) -> i32 {
    // SAFETY: C's memory.
    let card = unsafe { slice(card, bytes) };
    match btl.core.with(|state| state.attach(card)) {
        Ok(()) => DONE,
        Err(error) => {
            // SAFETY: C's room.
            unsafe { why.put(&error) };
            DOWN
        }
    }
}

unsafe extern "C" fn meet(
    btl: &Btl,
    job: u32,
    rank: u32,
    card: *const u8,
    bytes: usize,
    why: CText,
) -> *mut Peer {
    // SAFETY: C's memory.
    let card = unsafe { slice(card, bytes) };
    match btl.core.with(|state| state.meet(Name { job, rank }, card)) {
        Ok(Some((id, way))) => Box::into_raw(Box::new(Peer { id, way, access: Access::default() })),
        Ok(None) => core::ptr::null_mut(),
        Err(error) => {
            // SAFETY: C's room.
            unsafe { why.put(&error) };
            core::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn way(peer: &Peer) -> i32 {
    number(peer.way)
}

unsafe extern "C" fn number_of(peer: &Peer) -> u32 {
    peer.id.0
}

unsafe extern "C" fn forget(peer: *mut Peer) {
    // SAFETY: from `meet`, given back once.
    drop(unsafe { Box::from_raw(peer) });
}

unsafe extern "C" fn send(
    btl: &Btl,
    to: &Peer,
    tag: u8,
    from: &CMessage,
    cookie: *mut c_void,
) -> i32 {
    // SAFETY: C keeps the pieces until it is done or over.
    outcome(unsafe { btl.core.send(to.way, to.id, message(tag, from), cookie as Cookie) })
}

unsafe extern "C" fn send_now(btl: &Btl, to: &Peer, tag: u8, from: &CMessage) -> i32 {
    let message = message(tag, from);
    // SAFETY: C's memory.
    outcome(btl.core.with(|state| unsafe { state.send_now(to.way, to.id, &message) }))
}

unsafe extern "C" fn send_packed(
    btl: &Btl,
    to: &Peer,
    tag: u8,
    from: &CMessage,
    pack: unsafe extern "C" fn(*mut c_void, *mut u8, usize),
    of: *mut c_void,
) -> i32 {
    // SAFETY: C's memory.
    let first = unsafe { slice(from.first, from.first_bytes) };
    // SAFETY: C's function, which writes so many bytes.
    let mut pack = |into: *mut u8, bytes: usize| unsafe { pack(of, into, bytes) };
    let bytes = from.second_bytes;
    outcome(btl.core.with(|s| s.send_packed(to.way, to.id, (tag, first), bytes, &mut pack)))
}

unsafe extern "C" fn read(btl: &Btl, of: &Peer, from: u64, into: *mut u8, bytes: usize) -> i32 {
    // SAFETY: C's memory.
    let done = unsafe { of.access.read(&btl.core, of.id, from, into, bytes) };
    if done { DONE } else { DOWN }
}

unsafe extern "C" fn write(btl: &Btl, of: &Peer, to: u64, from: *const u8, bytes: usize) -> i32 {
    // SAFETY: C's memory.
    let done = unsafe { of.access.write(&btl.core, of.id, to, from, bytes) };
    if done { DONE } else { DOWN }
}

unsafe extern "C" fn put(
    btl: &Btl,
    of: &Peer,
    to: u64,
    from: *const u8,
    bytes: usize,
    cookie: *mut c_void,
) -> i32 {
    // SAFETY: C keeps the memory until it is done or over.
    outcome(btl.core.with(|state| unsafe { state.put(of.id, to, (from, bytes), cookie as Cookie) }))
}

fn atomic(of: &CAtomic) -> Atomic {
    Atomic {
        change: Change::of(of.change).expect("C and Rust have the same list"),
        narrow: of.narrow != 0,
        address: of.address,
        operand: of.operand,
        compare: of.compare,
    }
}

unsafe extern "C" fn change(of: &CAtomic) -> u64 {
    // SAFETY: memory of a window.
    unsafe { atomic(of).execute() }
}

/// What was asked is over later.
fn asked(outcome: Outcome) -> i32 {
    if outcome == Outcome::Down { DOWN } else { DONE }
}

unsafe extern "C" fn ask_read(
    btl: &Btl,
    of: &Peer,
    from: u64,
    into: *mut u8,
    bytes: usize,
    cookie: *mut c_void,
) -> i32 {
    let (whom, into) = ((of.way, of.id), (into, bytes));
    // SAFETY: C keeps the room until it is over.
    asked(btl.core.with(|state| unsafe { state.ask_read(whom, from, into, cookie as Cookie) }))
}

unsafe extern "C" fn ask_write(
    btl: &Btl,
    of: &Peer,
    to: u64,
    from: *const u8,
    bytes: usize,
    cookie: *mut c_void,
) -> i32 {
    let (whom, data) = ((of.way, of.id), (from, bytes));
    // SAFETY: C keeps the data until it is over.
    asked(btl.core.with(|state| unsafe { state.ask_write(whom, to, data, cookie as Cookie) }))
}

unsafe extern "C" fn ask_change(
    btl: &Btl,
    of: &Peer,
    by: &CAtomic,
    into: *mut u8,
    cookie: *mut c_void,
) -> i32 {
    let (whom, by) = ((of.way, of.id), atomic(by));
    // SAFETY: C keeps the room until it is over.
    asked(btl.core.with(|state| unsafe { state.ask_change(whom, by, into, cookie as Cookie) }))
}

unsafe extern "C" fn progress(btl: &Btl) -> i32 {
    btl.core.progress(&btl.calls) as i32
}

unsafe extern "C" fn close(btl: *mut Btl) {
    // SAFETY: from `open`, given back once; nobody else uses it any more.
    let btl = unsafe { Box::from_raw(btl) };
    btl.core.with(State::close);
}
