//! The suite over the in-process transport.

use rustbtl_component::transports::inproc::{Inproc, connected};
use rustbtl_conformance::{Fabric, conformance, id};

struct Rings(usize);

impl Fabric for Rings {
    type End = Inproc;

    fn ends(&self, n: usize) -> Vec<Inproc> {
        connected(&(0..n).map(id).collect::<Vec<_>>(), self.0)
    }

    fn pulls(&self) -> bool {
        true
    }
}

conformance!(usual, Rings(64 << 10));
conformance!(smallest, Rings(512));
