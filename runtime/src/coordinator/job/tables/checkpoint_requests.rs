//! Who has asked for lines and has not been answered yet.

use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeSet;

/// Somebody who can ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requester {
    /// A program, with its own number for it.
    Rank(PeerId, u32),
    /// A `rustbtl` command.
    Client(u64),
    /// Who sent mpirun a signal; the answer goes to mpirun's standard error.
    Signal,
}

/// What somebody asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointRequest {
    /// Who.
    pub wisher: Requester,
    /// A global line.
    pub global: bool,
    /// Otherwise a line of each of these.
    pub sets: BTreeSet<SetId>,
    /// The answer comes when it is complete, not when it is ordered.
    pub wait: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub struct CheckpointRequests {
    all: Vec<(CheckpointRequest, bool)>,
    /// The next global line is the end of the job.
    pub exit: bool,
}

impl CheckpointRequests {
    /// One more.
    pub fn add(&mut self, wish: CheckpointRequest) {
        self.all.push((wish, false));
    }

    /// Would this one rather wait than be refused? A program is ready before the others are.
    pub fn waits(&self, wisher: Requester) -> bool {
        let wish = self.all.iter().find(|(wish, _)| wish.wisher == wisher);
        wish.is_some_and(|(wish, _)| wish.wait || matches!(wisher, Requester::Rank(..)))
    }

    /// Not any more.
    pub fn remove(&mut self, wisher: Requester) -> Option<CheckpointRequest> {
        let at = self.all.iter().rposition(|(wish, _)| wish.wisher == wisher)?;
        Some(self.all.remove(at).0)
    }

    /// A line of this kind was ordered: those to whom that is answer enough. The others wait for
    /// the end of this line, not of one that was ordered before.
    pub fn ordered(&mut self, global: bool) -> Vec<CheckpointRequest> {
        for (wish, begun) in &mut self.all {
            *begun |= wish.global == global;
        }
        self.take(|wish, _| wish.global == global && !wish.wait)
    }

    /// A line of these sets has ended: those that need not wait any more.
    pub fn ended(&mut self, global: bool, sets: &[SetId], failed: bool) -> Vec<CheckpointRequest> {
        if global {
            return self.take(|wish, begun| wish.global && begun);
        }
        if failed {
            return self.take(|wish, _| !wish.global && sets.iter().any(|s| wish.sets.contains(s)));
        }
        for (wish, _) in self.all.iter_mut().filter(|(wish, _)| !wish.global) {
            wish.sets.retain(|set| !sets.contains(set));
        }
        self.take(|wish, _| !wish.global && wish.sets.is_empty())
    }

    fn take(&mut self, which: impl Fn(&CheckpointRequest, bool) -> bool) -> Vec<CheckpointRequest> {
        let taken = self.all.extract_if(.., |(wish, begun)| which(wish, *begun));
        taken.map(|(wish, _)| wish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(client: u64, global: bool, sets: &[u32], wait: bool) -> CheckpointRequest {
        let sets = sets.iter().map(|&set| SetId(set)).collect();
        CheckpointRequest { wisher: Requester::Client(client), global, sets, wait }
    }

    fn clients(wishes: &[CheckpointRequest]) -> Vec<u64> {
        let client = |wish: &CheckpointRequest| match wish.wisher {
            Requester::Client(client) => client,
            Requester::Rank(..) | Requester::Signal => 99,
        };
        wishes.iter().map(client).collect()
    }

    #[test]
    fn who_asks_during_a_global_line_waits_for_the_next() {
        let mut wishes = CheckpointRequests::default();
        wishes.add(wish(1, true, &[], true));
        assert!(wishes.ordered(true).is_empty());
        wishes.add(wish(2, true, &[], true));
        wishes.add(wish(3, true, &[], false));
        assert_eq!(clients(&wishes.ended(true, &[], false)), [1]);
        assert_eq!(clients(&wishes.ordered(true)), [3]);
        assert_eq!(clients(&wishes.ended(true, &[], true)), [2]);
    }

    #[test]
    fn lines_of_all_sets_end_with_the_last_or_with_a_failure() {
        let mut wishes = CheckpointRequests::default();
        wishes.add(wish(1, false, &[0, 2], true));
        wishes.add(wish(2, false, &[2], true));
        assert!(wishes.ended(false, &[SetId(0)], false).is_empty());
        assert_eq!(clients(&wishes.ended(false, &[SetId(2)], false)), [1, 2]);
        wishes.add(wish(3, false, &[0, 2], true));
        assert_eq!(clients(&wishes.ended(false, &[SetId(2)], true)), [3]);
    }
}
