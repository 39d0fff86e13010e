//! The memory of a process's windows.

use crate::script::SLOT;
use rustbtl_rma::memory::Memory;
use rustbtl_seeds::mix;
use std::cell::RefCell;
use std::rc::Rc;

/// Where the first window begins.
pub const BASE: u64 = 0x7000;

/// The window's memory. A clone is a copy.
pub struct Cells(pub Rc<RefCell<Vec<u8>>>);

impl Clone for Cells {
    fn clone(&self) -> Self {
        Self(Rc::new(RefCell::new(self.0.borrow().clone())))
    }
}

impl Cells {
    /// The same memory, for a neighbour.
    pub fn share(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl Memory for Cells {
    fn read(&self, address: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[(address - BASE) as usize..][..into.len()]);
    }
    fn write(&mut self, address: u64, from: &[u8]) {
        self.0.borrow_mut()[(address - BASE) as usize..][..from.len()].copy_from_slice(from);
    }
}

pub fn values(value: u64) -> Vec<u8> {
    (0..SLOT as u64).flat_map(|i| mix(value, i).to_le_bytes()).collect()
}

pub fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("whole cells")))
}
