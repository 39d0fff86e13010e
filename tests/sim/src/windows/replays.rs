//! Replays of windows: what a restored process has to repeat, and that all replays are over.

use crate::options::Planted;
use crate::process::Process;
use crate::windows::calls::Place;
use crate::world::World;
use rustbtl_coordination::determinants::AppliedRun;
use rustbtl_fragments::ids::Incarnation;
use rustbtl_rma::ids::Tick;
use rustbtl_rma::record::Applied;
use std::collections::{BTreeMap, BTreeSet};

/// What the coordinator knows, and what it has said.
#[derive(Default, Debug)]
pub struct WindowReplays {
    /// Sets whose restart is not followed by the end of all replays yet.
    replaying: BTreeSet<u32>,
    /// Ranks that have said that they are through.
    through: BTreeSet<usize>,
    /// On its way: all replays are over, to a rank in an incarnation.
    mail: Vec<(usize, Incarnation)>,
    /// How often all replays were over, and how often two sets or more had replayed.
    pub ended: [u64; 2],
}

impl Process {
    /// The process was restored alone with its set.
    pub(crate) fn replay_windows(&mut self, planted: Option<Planted>) {
        let applied = self.host.memory.decisions.take_applied();
        self.host.forced_runs += applied.len() as u64;
        let run = |AppliedRun { window, source, count, tick }| {
            let tick = Tick(tick);
            Applied { window, source, count, tick }
        };
        let mut runs: Vec<Applied> = applied.into_iter().map(run).collect();
        if planted == Some(Planted::WindowOrderForgotten) {
            runs.sort_by_key(|run| (run.tick, run.source));
        }
        self.windows().follows = true;
        let rma = &mut self.windows().rma;
        match planted {
            Some(Planted::WindowRecordDropped) => rma.begin_replay(runs),
            _ => rma.resume_replay(runs),
        }
    }

    /// Where it stands, for messages.
    pub(crate) fn window_position(&self) -> String {
        let windows = &self.host.memory.windows;
        let (rma, decisions) = (&windows.rma, &self.host.memory.decisions);
        let past = decisions.has_outcomes_to_replay();
        let (record, holds) = (rma.is_record_applied(), windows.holds());
        format!(
            "kept {:?} record applied {record} holds {holds} past {past} engine complete {} \
             replaying {} awaits receives {} given {:?}",
            rma.kept(),
            self.engine.is_replay_complete(),
            self.engine.is_replaying(),
            self.engine.awaits_receives(),
            windows.given_by_stream(),
        )
    }

    /// All are rolled back together: nothing of the past is left.
    pub(crate) fn forget_window_replay(&mut self) {
        let rma = &mut self.windows().rma;
        rma.begin_replay([]);
        assert!(rma.end_replay(), "nothing is to be repeated");
    }
}

impl World {
    /// A set was restored: what nothing is known of waits.
    pub(crate) fn window_replay_begins(&mut self, set: u32) {
        if !self.shared.options.windows {
            return;
        }
        self.window_replays.replaying.insert(set);
        for rank in self.members(set) {
            self.window_replays.through.remove(&rank);
        }
    }

    /// A set has failed, or all are restarted (`None`).
    pub(crate) fn window_replay_is_void(&mut self, set: Option<u32>) {
        let Some(set) = set else {
            let ended = self.window_replays.ended;
            self.window_replays = WindowReplays { ended, ..WindowReplays::default() };
            return;
        };
        for rank in self.members(set) {
            self.window_replays.through.remove(&rank);
        }
    }

    /// A rank reports, the coordinator concludes, or a rank learns of it.
    pub(crate) fn window_replay_step(&mut self) {
        if !self.shared.options.windows {
            return;
        }
        let rank = self.prng.below(self.processes.len());
        let set = self.shared.options.sets[rank];
        let alive = !self.faults.has_failed(set);
        if alive && self.processes[rank].is_through() {
            self.window_replays.through.insert(rank);
        }
        let replays = &self.window_replays;
        let reported =
            |set: &u32| self.members(*set).iter().all(|member| replays.through.contains(member));
        let over = !replays.replaying.is_empty()
            && self.faults.failed.is_empty()
            && replays.replaying.iter().all(reported);
        if over {
            let sets = core::mem::take(&mut self.window_replays.replaying);
            self.window_replays.ended[0] += 1;
            self.window_replays.ended[1] += u64::from(sets.len() > 1);
            let incarnations = self.net.borrow().incarnations.clone();
            let to = |(rank, incarnation)| (rank, Incarnation(incarnation));
            let restarted = incarnations.into_iter().enumerate().filter(|(_, i)| *i > 0);
            self.window_replays.mail.extend(restarted.map(to));
        }
        if self.window_replays.mail.is_empty() || self.prng.chance(50) {
            return;
        }
        let at = self.prng.below(self.window_replays.mail.len());
        let (rank, incarnation) = self.window_replays.mail.swap_remove(at);
        let current = Incarnation(self.net.borrow().incarnations[rank]);
        if current != incarnation || self.faults.has_failed(self.shared.options.sets[rank]) {
            return;
        }
        let ended = self.processes[rank].windows().rma.end_replay();
        assert!(ended, "{rank} has not repeated what it did in windows");
    }
}

impl World {
    /// Counters are linearizable: each old value is seen once, without a gap, and each program sees
    /// them grow.
    pub(crate) fn check_atomics(&self) {
        let mut seen: BTreeMap<Place, Vec<u64>> = BTreeMap::new();
        for process in &self.processes {
            let mut last: BTreeMap<Place, u64> = BTreeMap::new();
            for &(place, old) in &process.program.fetched.counted {
                let before = last.insert(place, old);
                assert!(before < Some(old), "{place:?}: {old} after {before:?}");
                seen.entry(place).or_default().push(old);
            }
        }
        for (place, mut old) in seen {
            old.sort_unstable();
            let all: Vec<u64> = (0..old.len() as u64).collect();
            assert_eq!(old, all, "not linearizable: {place:?}");
        }
    }
}
