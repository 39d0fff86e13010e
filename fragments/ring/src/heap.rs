//! A ring between two threads of one process, for tests and the in-process transport.

use crate::{Consumer, Control, LINE, Memory, Producer, Raw, valid_ring_bytes};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;

/// Ring memory on the heap, freed with its last user.
#[derive(Debug)]
pub struct Heap {
    raw: Raw,
    _region: Arc<Region>,
}

#[derive(Debug)]
struct Region {
    start: NonNull<u8>,
    layout: Layout,
    control: Box<Control>,
}

// SAFETY: Region only owns the memory; accesses go through `Raw`.
unsafe impl Send for Region {}
// SAFETY: as above; a shared Region gives no access to the bytes.
unsafe impl Sync for Region {}

impl Region {
    fn new(bytes: usize) -> Self {
        assert!(valid_ring_bytes(bytes), "a ring cannot have {bytes} bytes");
        let layout = Layout::from_size_align(bytes, LINE).expect("size and alignment are valid");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout, control: Box::new(Control { consumed: AtomicU64::new(0) }) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, and nobody uses it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Heap {
    fn new(region: &Arc<Region>) -> Self {
        let control = NonNull::from(&*region.control);
        // SAFETY: the region has this size and alignment, is zeroed, and lives as long as the Arc
        // next to the Raw; `heap` makes one producer and one consumer.
        let raw = unsafe { Raw::new(region.start, region.layout.size(), control) };
        Self { raw, _region: Arc::clone(region) }
    }
}

/// Both ends of a new ring.
pub fn heap(bytes: usize) -> (Producer<Heap>, Consumer<Heap>) {
    let region = Arc::new(Region::new(bytes));
    (Producer::new(Heap::new(&region)), Consumer::new(Heap::new(&region)))
}

// SAFETY: forwards to Raw, whose memory `_region` keeps alive.
unsafe impl Memory for Heap {
    #[inline]
    fn bytes(&self) -> usize {
        self.raw.bytes()
    }
    #[inline]
    fn poll(&self, at: usize) -> u64 {
        self.raw.poll(at)
    }
    #[inline]
    fn publish(&self, at: usize, word: u64) {
        self.raw.publish(at, word);
    }
    #[inline]
    fn clear(&self, at: usize) {
        self.raw.clear(at);
    }
    #[inline]
    fn consumed(&self) -> u64 {
        self.raw.consumed()
    }
    #[inline]
    fn release(&self, position: u64) {
        self.raw.release(position);
    }
    #[inline]
    fn pointer(&self, at: usize) -> *mut u8 {
        self.raw.pointer(at)
    }
    #[inline]
    unsafe fn write(&self, at: usize, from: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.raw.write(at, from) }
    }
}
