//! Names that a program sees in place of real ones, and what they stand for.
//!
//! Real numbers die with the adapter's context: after a restart a queue pair has another number, a
//! region other keys, a port another LID and other GIDs. A program has told its peers the old ones.
//! So it gets *virtual* names that never change, and each use is translated (Cao et al. §3.2).
//!
//! * Queue pair, 24 bits: 1, process, counter. No two processes ever have the same, and none is in
//!   use as a real one.
//! * Key, 32 bits: 1 if remote, slot (23 bits), generation (8 bits). The two keys of a region
//!   differ; a key of before is not taken for the next one, and none is used twice.
//! * LID, 16 bits: process, adapter, port; only where the real one is not 0.
//! * GID: the first real one. Processes of one node share it, and may be restored on different
//!   ones: so it has a name for each of them, too.

/// Set in every virtual queue-pair number.
const VIRTUAL: u32 = 1 << 23;
/// Bits below it.
const QPN_BITS: u32 = 23;
/// Set in every remote key.
const REMOTE: u32 = 1 << 31;
/// Adapters of a process whose LIDs are virtual.
pub(crate) const ADAPTERS_WITH_LIDS: u32 = 4;
/// Ports of an adapter whose LIDs are virtual.
const PORTS_WITH_LIDS: u32 = 2;
/// The first LID of multicast groups.
const LIDS_END: u32 = 0xC000;
/// The number of a queue pair that takes no requests of connections: of the general services. A
/// virtual number could be somebody's real one.
pub(crate) const NO_QPN: u32 = 1;
/// A key that no adapter gives out.
pub(crate) const NO_KEY: u32 = u32::MAX;

/// Something that another process may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// A queue pair, by its virtual number.
    Qp(u32),
    /// A remote key of a process.
    Key {
        /// Whose.
        process: u32,
        /// Virtual.
        key: u32,
    },
    /// A port, by its virtual LID.
    Lid(u16),
    /// A port, by its virtual GID.
    Gid([u8; 16]),
    /// The same port, as this process has it.
    GidOf {
        /// Whose.
        process: u32,
        /// Virtual.
        gid: [u8; 16],
    },
}

/// What a name stands for: a number in its first four bytes, little endian, or a GID.
pub type Value = [u8; 16];

/// A number as a value.
pub(crate) fn value_of(number: u32) -> Value {
    let mut value = [0; 16];
    value[..4].copy_from_slice(&number.to_le_bytes());
    value
}

/// The number of a value.
pub(crate) fn number_of(value: Value) -> u32 {
    u32::from_le_bytes([value[0], value[1], value[2], value[3]])
}

/// This process in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// From 0.
    pub process: u32,
    /// How many there are.
    pub processes: u32,
}

impl Job {
    /// Bits of a queue pair's counter.
    fn counter_bits(self) -> u32 {
        QPN_BITS - self.processes.max(1).next_power_of_two().trailing_zeros().min(QPN_BITS)
    }

    /// The number of a process's queue pair `counter`, which wraps around.
    pub fn qpn(self, counter: u32) -> u32 {
        let bits = self.counter_bits();
        VIRTUAL | self.process << bits | counter & ((1 << bits) - 1)
    }

    /// How many queue pairs a process can have.
    pub fn qps_max(self) -> usize {
        1 << self.counter_bits()
    }

    /// Whose queue pair it is. None: the number is not virtual.
    pub fn process_of(self, qpn: u32) -> Option<u32> {
        let process = (qpn & (VIRTUAL - 1)) >> self.counter_bits();
        (qpn & VIRTUAL != 0 && process < self.processes).then_some(process)
    }

    /// The LID of a port. None: it keeps its real one.
    pub fn lid(self, adapter: u32, port: u8) -> Option<u16> {
        let port = u32::from(port).checked_sub(1)?;
        let of_process = ADAPTERS_WITH_LIDS * PORTS_WITH_LIDS;
        let lid = self.process * of_process + adapter * PORTS_WITH_LIDS + port + 1;
        let fits = adapter < ADAPTERS_WITH_LIDS && port < PORTS_WITH_LIDS && lid < LIDS_END;
        fits.then_some(lid as u16)
    }
}

/// The virtual keys of a region in this slot.
pub(crate) fn keys(slot: usize, generation: u8) -> (u32, u32) {
    let local = (slot as u32) << 8 | u32::from(generation);
    (local, local | REMOTE)
}

/// Slots that a key can name; the last one is not used (`NO_KEY`).
pub(crate) const SLOTS_MAX: usize = (1 << 23) - 1;

/// The slot of a local key.
pub(crate) fn slot_of(local: u32) -> Option<usize> {
    (local & REMOTE == 0).then_some((local >> 8) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_processes_do_not_meet() {
        for processes in [1, 2, 3, 16, 1000, 8192] {
            for process in [0, processes / 2, processes - 1] {
                let job = Job { process, processes };
                for counter in [0, 1, job.qps_max() as u32 - 1, job.qps_max() as u32] {
                    let qpn = job.qpn(counter);
                    assert_eq!(job.process_of(qpn), Some(process), "{job:?} {counter}");
                    assert!(qpn < 1 << 24);
                }
                assert_eq!(job.qpn(job.qps_max() as u32), job.qpn(0));
                assert_eq!(job.process_of(17), None);
            }
        }
    }

    #[test]
    fn lids_are_unicast_and_of_one_port() {
        let job = Job { process: 3, processes: 8 };
        assert_eq!(job.lid(0, 1), Some(25));
        assert_eq!(job.lid(0, 2), Some(26));
        assert_eq!(job.lid(3, 2), Some(32));
        assert_eq!(Job { process: 4, processes: 8 }.lid(0, 1), Some(33));
        for (adapter, port) in [(4, 1), (0, 0), (0, 3)] {
            assert_eq!(job.lid(adapter, port), None);
        }
        assert_eq!(Job { process: 6144, processes: 8192 }.lid(0, 1), None);
    }

    #[test]
    fn keys_of_a_region_differ_and_name_it() {
        let (local, remote) = keys(5, 200);
        assert_eq!((slot_of(local), slot_of(remote)), (Some(5), None));
        assert_ne!(local, remote);
        assert_ne!(keys(5, 201), keys(5, 200));
        assert_ne!(keys(SLOTS_MAX - 1, 255).1, NO_KEY);
    }
}
