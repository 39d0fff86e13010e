//! Who is who: processes by name and by number, and how each is reached.

use crate::ffi::table::{Glue, Name};
use crate::peers::endpoint::{Endpoint, EndpointError};
use rustbtl_fragments::ids::PeerId;

/// Numbers of a job's processes start at a multiple of this (a power of two).
const STRIDE: u32 = 1 << 17;

/// Names and numbers. The number of a process is the same at all others of one mpirun, since they
/// greet each other by it: its rank in the first job, and ranks of spawned jobs behind that.
#[derive(Clone, Copy, Debug)]
pub struct Peers {
    me: Name,
    size: u32,
    /// Number of the own rank 0.
    first: u32,
}

/// Set by mpirun (4.1, 5.0) for all that it starts.
const MPIRUN_MARKS: [&str; 2] = ["OMPI_MCA_orte_launch", "PRTE_LAUNCHED"];

/// Has mpirun given the job its number? Where others start the ranks (srun), Open MPI 4.1 makes it
/// from a hash of the job's name: no number to count from.
pub fn is_numbered_by_mpirun() -> bool {
    MPIRUN_MARKS.iter().any(|mark| std::env::var_os(mark).is_some())
}

/// First number of a job. Open MPI's job ids: family (one mpirun) in the high half, then the
/// number of the job, from 1.
fn base(job: u32) -> u32 {
    (job & 0x7FFF).saturating_sub(1) * STRIDE
}

impl Peers {
    /// For process `me` of a job of `size`. A job that is not `numbered` by mpirun is the only one
    /// of its family, and is numbered like a first one.
    pub fn new(me: Name, size: u32, numbered: bool) -> Self {
        Self { me, size, first: if numbered { base(me.job) } else { 0 } }
    }

    /// This process.
    pub fn me(&self) -> PeerId {
        self.of_rank(self.me.rank)
    }

    /// Rank of this process in the world of its job.
    pub fn rank(&self) -> u32 {
        self.me.rank
    }

    /// Processes of the own job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Number of a rank of the own job.
    #[inline]
    pub fn of_rank(&self, rank: u32) -> PeerId {
        PeerId(self.first + rank)
    }

    /// Is it a member of the own job?
    #[inline]
    pub fn is_own(&self, peer: PeerId) -> bool {
        peer.0.wrapping_sub(self.first) < self.size
    }

    /// Number of a process; `None`: it belongs to another mpirun.
    #[inline]
    pub fn number(&self, name: Name) -> Option<PeerId> {
        if name.job == self.me.job {
            return Some(self.of_rank(name.rank));
        }
        let is_known = self.first == base(self.me.job) && name.job >> 16 == self.me.job >> 16;
        is_known.then(|| PeerId(base(name.job) + name.rank))
    }

    /// Name of a process.
    pub fn name(&self, peer: PeerId) -> Name {
        if self.is_own(peer) {
            return Name { job: self.me.job, rank: peer.0 - self.first };
        }
        let job = (self.me.job & 0xFFFF_0000) | (peer.0 / STRIDE + 1);
        Name { job, rank: peer.0 % STRIDE }
    }
}

/// What a process has published: `None` if nothing.
pub fn endpoint_of(glue: &Glue, name: Name) -> Option<Result<Endpoint, EndpointError>> {
    published(glue, name).map(|endpoint| Endpoint::decode(&endpoint))
}

/// The same, as it was published.
pub fn published(glue: &Glue, name: Name) -> Option<Vec<u8>> {
    let mut bytes = 0;
    // SAFETY: both arguments are ours for the call.
    let start = unsafe { (glue.endpoint_of)(&name, &mut bytes) };
    if start.is_null() {
        return None;
    }
    // SAFETY: C gave us a copy of this many bytes.
    let endpoint = unsafe { core::slice::from_raw_parts(start, bytes) }.to_vec();
    // SAFETY: given back once, not used any more.
    unsafe { (glue.release)(start.cast()) };
    Some(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: u32 = 77 << 16;

    #[test]
    fn ranks_of_the_first_job_are_their_numbers_and_spawned_jobs_follow() {
        let name = |job, rank| Name { job: FAMILY | job, rank };
        let first = Peers::new(name(1, 1), 4, true);
        let spawned = Peers::new(name(3, 0), 2, true);
        for peers in [first, spawned] {
            assert_eq!(peers.number(name(1, 3)), Some(PeerId(3)));
            assert_eq!(peers.number(name(3, 1)), Some(PeerId(2 * STRIDE + 1)));
            assert_eq!(peers.name(PeerId(2)), name(1, 2));
            assert_eq!(peers.name(PeerId(2 * STRIDE + 1)), name(3, 1));
            assert_eq!(peers.number(Name { job: 78 << 16 | 1, rank: 0 }), None);
        }
        assert!(first.is_own(PeerId(3)) && !first.is_own(PeerId(4)));
        assert!(spawned.is_own(spawned.me()) && !spawned.is_own(PeerId(0)));
        assert_eq!(spawned.me(), PeerId(2 * STRIDE));
    }
    /// What Open MPI 4.1 makes of "slurm.pmix.3.0".
    #[test]
    fn a_job_that_mpirun_has_not_numbered_is_a_first_one() {
        let name = |rank| Name { job: 0x1A2B_77F3, rank };
        let peers = Peers::new(name(1), 2, false);
        assert_eq!(peers.me(), PeerId(1));
        assert_eq!(peers.number(name(0)), Some(PeerId(0)));
        assert_eq!(peers.name(PeerId(1)), name(1));
        assert_eq!(peers.number(Name { job: 0x1A2B_77F4, rank: 0 }), None);
        assert!(peers.is_own(PeerId(1)) && !peers.is_own(PeerId(2)));
    }

    /// One that runs alone may spawn others: its number is one to count from.
    #[test]
    fn a_program_without_mpirun_knows_what_it_spawns() {
        let name = |job, rank| Name { job: FAMILY | job, rank };
        for alone in [0, 1] {
            let peers = Peers::new(name(alone, 0), 1, false);
            assert_eq!(peers.me(), PeerId(0));
            assert_eq!(peers.number(name(2, 1)), Some(PeerId(STRIDE + 1)));
        }
    }
}
