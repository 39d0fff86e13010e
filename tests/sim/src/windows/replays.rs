//! Replays of windows: what a restored process has to repeat, and that all replays are over.

use crate::options::Planted;
use crate::process::Process;
use crate::windows::calls::Place;
use crate::world::World;
use rustbtl_coordination::determinants::{
    AppliedRun, PastRun, ReplayQuestion, ReplayStep, ReplaysEnd,
};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_rma::ids::Tick;
use rustbtl_rma::record::{Applied, Past};
use std::collections::{BTreeMap, BTreeSet};

/// Something between the coordinator and a rank.
#[derive(Clone, Copy, Debug)]
enum Mail {
    /// To a rank.
    Question(ReplayQuestion),
    /// The rank says yes.
    Answer(u64),
    /// To a rank: all replays are over.
    Over,
}

/// What the coordinator knows, and what it has said.
#[derive(Debug)]
pub struct WindowReplays {
    /// Sets whose restart is not followed by a report that their replay is complete yet.
    replaying: BTreeSet<u32>,
    /// Ranks that have reported that they are through, as far as they know.
    through: BTreeSet<usize>,
    end: ReplaysEnd,
    /// What ranks have been asked and have not answered.
    asked: BTreeMap<usize, ReplayQuestion>,
    /// On its way, to or from a rank in an incarnation.
    mail: Vec<(usize, Incarnation, Mail)>,
    /// How often all replays were over; how often those of two sets or more; how often a rank that
    /// had reported that it was through was not when it was asked.
    pub ended: [u64; 3],
}

impl Default for WindowReplays {
    fn default() -> Self {
        Self {
            replaying: BTreeSet::new(),
            through: BTreeSet::new(),
            end: ReplaysEnd::new(0),
            asked: BTreeMap::new(),
            mail: Vec::new(),
            ended: [0; 3],
        }
    }
}

impl Process {
    /// The process was restored alone with its set.
    pub(crate) fn replay_windows(&mut self, planted: Option<Planted>) {
        let applied = self.host.memory.decisions.take_applied();
        self.host.forced_runs += applied.len() as u64;
        let run = |past| {
            let PastRun::Own(run) = past else { panic!("nothing is direct here") };
            let AppliedRun { window, source, count, tick } = run;
            Applied { window, source, count, tick: Tick(tick) }
        };
        let mut runs: Vec<Applied> = applied.into_iter().map(run).collect();
        if planted == Some(Planted::WindowOrderForgotten) {
            runs.sort_by_key(|run| (run.tick, run.source));
        }
        self.windows().follows = true;
        let rma = &mut self.windows().rma;
        let runs = runs.into_iter().map(Past::Own);
        let begun = match planted {
            Some(Planted::WindowRecordDropped) => rma.begin_replay(runs),
            _ => rma.resume_replay(runs),
        };
        begun.expect("nothing is missing");
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
            windows.given(),
        )
    }

    /// All are rolled back together: nothing of the past is left.
    pub(crate) fn forget_window_replay(&mut self) {
        let rma = &mut self.windows().rma;
        rma.begin_replay([]).expect("nothing is missing");
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
        self.window_replays.end.void();
        let Some(set) = set else {
            let WindowReplays { end, ended, .. } = core::mem::take(&mut self.window_replays);
            self.window_replays = WindowReplays { end, ended, ..WindowReplays::default() };
            return;
        };
        for rank in self.members(set) {
            self.window_replays.through.remove(&rank);
            self.window_replays.asked.remove(&rank);
        }
    }

    /// A rank reports or answers, the coordinator concludes, or a rank reads what it says.
    pub(crate) fn window_replay_step(&mut self) {
        if !self.shared.options.windows {
            return;
        }
        let rank = self.prng.below(self.processes.len());
        if !self.faults.has_failed(self.shared.options.sets[rank]) {
            self.report_window_replay(rank);
        }
        let replays = &self.window_replays;
        let reported =
            |set: &u32| self.members(*set).iter().all(|member| replays.through.contains(member));
        let all = !replays.replaying.is_empty()
            && self.faults.failed.is_empty()
            && replays.replaying.iter().all(reported);
        if all {
            self.ask_whether_replays_are_over();
        }
        if self.window_replays.mail.is_empty() || self.prng.chance(50) {
            return;
        }
        let at = self.prng.below(self.window_replays.mail.len());
        let (rank, incarnation, mail) = self.window_replays.mail.swap_remove(at);
        let current = Incarnation(self.net.borrow().incarnations[rank]);
        if current == incarnation && !self.faults.has_failed(self.shared.options.sets[rank]) {
            self.read_window_mail(rank, mail);
        }
    }

    /// What the thread of a rank that runs looks after.
    fn report_window_replay(&mut self, rank: usize) {
        let is_through = self.processes[rank].is_through();
        if is_through {
            self.window_replays.through.insert(rank);
        }
        let Some(&ReplayQuestion { number, replay }) = self.window_replays.asked.get(&rank) else {
            return;
        };
        if if replay { is_through } else { self.processes[rank].engine.is_repaired() } {
            self.window_replays.asked.remove(&rank);
            self.send_window_mail([PeerId(rank as u32)], Mail::Answer(number));
        }
    }

    /// All sets that had failed have reported that their replays are complete.
    fn ask_whether_replays_are_over(&mut self) {
        let sets = core::mem::take(&mut self.window_replays.replaying);
        self.window_replays.ended[1] += u64::from(sets.len() > 1);
        let incarnations = self.net.borrow().incarnations.clone();
        let all = (0..).map(PeerId).take(incarnations.len());
        let restarted = all.clone().filter(|rank| incarnations[rank.0 as usize] > 0);
        let end = &mut self.window_replays.end;
        let step = match self.shared.options.planted {
            // What was reported is believed.
            Some(Planted::WindowReportsBelieved) => Some(ReplayStep::Over(restarted.collect())),
            Some(Planted::WindowSurvivorsNotAsked) => end.begin([], restarted),
            _ => end.begin(all, restarted),
        };
        self.window_replays_go_on(step);
    }

    fn window_replays_go_on(&mut self, step: Option<ReplayStep>) {
        match step {
            Some(ReplayStep::Ask(question, ranks)) => {
                self.send_window_mail(ranks, Mail::Question(question));
            }
            Some(ReplayStep::Over(ranks)) => {
                self.window_replays.ended[0] += 1;
                self.send_window_mail(ranks, Mail::Over);
            }
            None => {}
        }
    }

    fn send_window_mail(&mut self, ranks: impl IntoIterator<Item = PeerId>, mail: Mail) {
        for PeerId(rank) in ranks {
            let incarnation = Incarnation(self.net.borrow().incarnations[rank as usize]);
            self.window_replays.mail.push((rank as usize, incarnation, mail));
        }
    }

    fn read_window_mail(&mut self, rank: usize, mail: Mail) {
        match mail {
            Mail::Question(question) => {
                // They were sent before it, the same way.
                self.read_endpoints(rank);
                let is_through = self.processes[rank].is_through();
                self.window_replays.ended[2] += u64::from(question.replay && !is_through);
                let asked = self.window_replays.asked.entry(rank).or_insert(question);
                if question.number > asked.number {
                    *asked = question;
                }
            }
            Mail::Answer(number) => {
                let step = self.window_replays.end.answered(PeerId(rank as u32), number);
                self.window_replays_go_on(step);
            }
            Mail::Over => {
                let ended = self.processes[rank].windows().rma.end_replay();
                assert!(ended, "{rank} has not repeated what it did in windows");
            }
        }
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
