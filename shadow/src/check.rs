//! The invariants that can be seen from inside.

use crate::abi::number::*;
use crate::host::Host;
use crate::objects::{SPARE, Shadow};
use std::collections::BTreeSet;

impl<H: Host> Shadow<H> {
    /// Assert V1 to V6, outside of drains.
    ///
    /// # Panics
    /// With the invariant that does not hold.
    pub fn check(&self) {
        let numbers: BTreeSet<_> = self.qps.values().map(|qp| qp.qpn).collect();
        assert_eq!(numbers.len(), self.qps.values().count(), "V1: a number is of two queue pairs");
        assert_eq!(numbers.len(), self.qpns.len(), "V1: numbers and queue pairs differ");
        for &qpn in &numbers {
            assert_eq!(self.job.process_of(qpn), Some(self.job.process), "V1: another's number");
        }
        for (_, region) in self.regions.iter() {
            assert_ne!(region.keys.local, region.keys.remote, "V1: one key for both");
        }
        for qp in self.qps.values() {
            let room = qp.sends.depth + usize::from(qp.sends.has_marker);
            assert!(qp.sends.len() <= room, "V2: more sends than the program may have");
            assert!(qp.sends.lengths().len() as u64 <= qp.sends.consuming, "V2: counted wrongly");
            assert_eq!(qp.receives.check(), Ok(()), "{:#x}", qp.qpn);
        }
        for srq in self.srqs.values() {
            assert_eq!(srq.receives.check(), Ok(()));
        }
        for cq in self.cqs.values() {
            assert!(cq.own <= SPARE, "V5: {} requests of our own", cq.own);
            let known = |number| self.qpns.contains_key(&number);
            assert!(cq.private.iter().all(|it| known(it.qp_num)), "V6: another's completion");
        }
    }

    /// Assert V7: the drain is over everywhere.
    ///
    /// # Panics
    /// If something is under way.
    pub fn check_drained(&self) {
        self.check();
        for qp in self.qps.values() {
            let is_datagram = qp.wish.kind == IBV_QPT_UD && qp.sends.is_unsignalled();
            assert!(qp.sends.is_empty() || is_datagram, "V7: {:#x} has sends", qp.qpn);
            assert_eq!(qp.receives.captures, 0, "V7: {:#x} has captures", qp.qpn);
        }
        assert!(self.srqs.values().all(|srq| srq.receives.captures == 0), "V7: captures");
        assert!(self.cqs.values().all(|cq| cq.own == 0), "V7: requests of our own");
    }
}
