//! The kernel acknowledges a message of several segments at once, while it takes it in, only if the
//! window that it has announced need not shrink for it. If that is all of the receive buffer, as it
//! is soon where the kernel tunes the buffer, any message makes it shrink, and the acknowledgement
//! is sent by who reads the message, before it goes on: 2 µs of half a round trip, where the
//! other end's processor would have sent it for nothing (Linux, `__tcp_ack_snd_check` and
//! `__tcp_select_window`).
//!
//! So a part of the buffer is kept out of the window.

use crate::os::socket;
use std::net::TcpStream;

/// So many reads are one look. The kernel makes the buffer larger meanwhile, and announces it all.
const READS: u32 = 512;
/// One part of so many of the window is kept out of it.
const KEPT_OUT: u32 = 8;
/// Smaller windows stay as they are: the part would be less than a message.
const WINDOW_MIN: u32 = 64 << 10;

/// What has been done for one connection.
#[derive(Debug, Default)]
pub(super) struct ReceiveWindow {
    reads: u32,
    /// No more is announced; 0: what the kernel likes.
    limit: u32,
}

impl ReceiveWindow {
    /// Something was read.
    #[inline]
    pub(super) fn has_read(&mut self, stream: &TcpStream) {
        self.reads += 1;
        if self.reads >= READS {
            self.look(stream);
        }
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self, stream: &TcpStream) {
        self.reads = 0;
        if let Some(limit) = limit_of(socket::receive_window(stream), self.limit) {
            // A hint: a connection without it works.
            let _ = socket::limit_receive_window(stream, limit);
            self.limit = limit;
        }
    }
}

/// What to announce at most from now on, where the kernel would announce `window`, and `before` was
/// said before.
fn limit_of(window: u32, before: u32) -> Option<u32> {
    // The kernel has forgotten what was said when it announces more.
    (window >= WINDOW_MIN && window > before).then(|| window - window / KEPT_OUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_part_is_kept_out_once_and_again_when_the_kernel_announces_more() {
        assert_eq!(limit_of(WINDOW_MIN - 1, 0), None);
        assert_eq!(limit_of(80 << 10, 0), Some(70 << 10));
        assert_eq!(limit_of(70 << 10, 70 << 10), None);
        assert_eq!(limit_of(800 << 10, 70 << 10), Some(700 << 10));
    }

    /// If it fails, kernels do it otherwise now: measure MPI_ANY_SOURCE of 4 KiB between nodes.
    #[test]
    fn the_kernel_keeps_to_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut window = ReceiveWindow::default();
        let (mut bytes, mut limits) = (vec![7; 4096], Vec::new());
        for _ in 0..8 * READS {
            sender.write_all(&bytes).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            window.has_read(&stream);
            limits.push(window.limit);
        }
        limits.dedup();
        assert!(limits.len() > 1, "never limited: {limits:?}");
        let announced = socket::receive_window(&stream);
        assert!(announced > 0 && announced <= window.limit, "{announced} of {limits:?}");
    }
}
