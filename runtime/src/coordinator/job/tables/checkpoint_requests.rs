//! Who has requested checkpoints and waits for the answer.

use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeSet;

/// Who can request a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requester {
    /// A program, with its own number of the request.
    Rank(PeerId, u32),
    /// A `rustbtl` command.
    Client(u64),
    /// A signal to mpirun; the answer goes to mpirun's standard error.
    Signal,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointRequest {
    /// Who.
    pub requester: Requester,
    /// A global checkpoint.
    pub global: bool,
    /// Otherwise a checkpoint of each of these sets.
    pub sets: BTreeSet<SetId>,
    /// The answer comes when it is complete, not when it is ordered.
    pub wait: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub struct CheckpointRequests {
    all: Vec<(CheckpointRequest, bool)>,
    /// The next global checkpoint is the end of the job.
    pub exit: bool,
}

impl CheckpointRequests {
    /// One more.
    pub fn add(&mut self, request: CheckpointRequest) {
        self.all.push((request, false));
    }

    /// Does this one rather wait than be refused? A program may be ready before the others are.
    pub fn waits(&self, requester: Requester) -> bool {
        let request = self.all.iter().find(|(request, _)| request.requester == requester);
        request.is_some_and(|(request, _)| request.wait || matches!(requester, Requester::Rank(..)))
    }

    /// Not any more.
    pub fn remove(&mut self, requester: Requester) -> Option<CheckpointRequest> {
        let at = self.all.iter().rposition(|(request, _)| request.requester == requester)?;
        Some(self.all.remove(at).0)
    }

    /// A checkpoint of this kind was ordered: returns those for whom that is the answer. The others
    /// wait for the end of this checkpoint, not of one that was ordered before.
    pub fn ordered(&mut self, global: bool) -> Vec<CheckpointRequest> {
        for (request, begun) in &mut self.all {
            *begun |= request.global == global;
        }
        self.take(|request, _| request.global == global && !request.wait)
    }

    /// A checkpoint of these sets has ended: returns those that need not wait any more.
    pub fn ended(&mut self, global: bool, sets: &[SetId], failed: bool) -> Vec<CheckpointRequest> {
        if global {
            return self.take(|request, begun| request.global && begun);
        }
        if failed {
            return self.take(|request, _| {
                !request.global && sets.iter().any(|s| request.sets.contains(s))
            });
        }
        for (request, _) in self.all.iter_mut().filter(|(request, _)| !request.global) {
            request.sets.retain(|set| !sets.contains(set));
        }
        self.take(|request, _| !request.global && request.sets.is_empty())
    }

    fn take(&mut self, which: impl Fn(&CheckpointRequest, bool) -> bool) -> Vec<CheckpointRequest> {
        let taken = self.all.extract_if(.., |(request, begun)| which(request, *begun));
        taken.map(|(request, _)| request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(client: u64, global: bool, sets: &[u32], wait: bool) -> CheckpointRequest {
        let sets = sets.iter().map(|&set| SetId(set)).collect();
        CheckpointRequest { requester: Requester::Client(client), global, sets, wait }
    }

    fn clients(requests: &[CheckpointRequest]) -> Vec<u64> {
        let client = |request: &CheckpointRequest| match request.requester {
            Requester::Client(client) => client,
            Requester::Rank(..) | Requester::Signal => 99,
        };
        requests.iter().map(client).collect()
    }

    #[test]
    fn who_asks_during_a_global_checkpoint_waits_for_the_next() {
        let mut requests = CheckpointRequests::default();
        requests.add(request(1, true, &[], true));
        assert!(requests.ordered(true).is_empty());
        requests.add(request(2, true, &[], true));
        requests.add(request(3, true, &[], false));
        assert_eq!(clients(&requests.ended(true, &[], false)), [1]);
        assert_eq!(clients(&requests.ordered(true)), [3]);
        assert_eq!(clients(&requests.ended(true, &[], true)), [2]);
    }

    #[test]
    fn checkpoints_of_all_sets_end_with_the_last_or_with_a_failure() {
        let mut requests = CheckpointRequests::default();
        requests.add(request(1, false, &[0, 2], true));
        requests.add(request(2, false, &[2], true));
        assert!(requests.ended(false, &[SetId(0)], false).is_empty());
        assert_eq!(clients(&requests.ended(false, &[SetId(2)], false)), [1, 2]);
        requests.add(request(3, false, &[0, 2], true));
        assert_eq!(clients(&requests.ended(false, &[SetId(2)], true)), [3]);
    }
}
