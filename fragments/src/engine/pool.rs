//! Buffers for payloads that arrive before their receive: pooled by size class.

const SMALLEST: usize = 64;
/// Classes of 64 B, 128 B, … 64 KiB; larger buffers are not pooled.
const CLASSES: usize = 11;
/// Bytes that a class holds at most.
const POOLED_BYTES: usize = 1 << 20;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Pool {
    classes: [Vec<Vec<u8>>; CLASSES],
}

/// A copy has no pooled buffers: they are capacity, not state.
impl Clone for Pool {
    fn clone(&self) -> Self {
        Self::default()
    }
}

#[inline]
fn class(bytes: usize) -> usize {
    (bytes.max(SMALLEST).next_power_of_two() / SMALLEST).trailing_zeros() as usize
}

impl Pool {
    /// An empty buffer with room for `bytes`.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        if bytes == 0 {
            return Vec::new();
        }
        let class = class(bytes);
        if let Some(buffer) = self.classes.get_mut(class).and_then(Vec::pop) {
            return buffer;
        }
        Vec::with_capacity(if class < CLASSES { SMALLEST << class } else { bytes })
    }

    /// Return a buffer.
    #[inline]
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity < SMALLEST || !capacity.is_power_of_two() {
            return;
        }
        let class = class(capacity);
        if let Some(pooled) = self.classes.get_mut(class)
            && pooled.len() < (POOLED_BYTES >> class) / SMALLEST
        {
            buffer.clear();
            pooled.push(buffer);
        }
    }
}
