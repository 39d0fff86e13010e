//! Jobs that are restarted from a global checkpoint, sets that are rolled back alone to one of
//! theirs.

use super::coordinator;
use crate::options::Planted;
use crate::world::World;
use rustbtl_coordination::checkpoints;
use rustbtl_fragments::ids::*;

impl World {
    /// All processes end, and a new job starts from the last global checkpoint.
    pub(crate) fn restart_job(&mut self) {
        let Some(checkpoint) = self.checkpoints.coordinator.last_global() else {
            panic!("there is checkpoint 0")
        };
        assert!(
            self.checkpoints.exit.is_none_or(|exit| exit == checkpoint),
            "exit with a complete checkpoint"
        );
        self.checkpoints.exit = None;
        let Some(images) = self.checkpoints.images.get(&checkpoint).cloned() else {
            panic!("no {checkpoint}")
        };
        self.checkpoints.report.restarts += 1;
        self.faults.happened[1] += 1;
        let ranks = self.processes.len();
        self.faults.failed.clear();
        self.net.borrow_mut().exposed.clear();
        self.net.borrow_mut().late_frames.clear();
        for a in 0..ranks {
            for b in 0..ranks {
                self.lose(a, b);
                let mut net = self.net.borrow_mut();
                if !self.shared.options.same_set(a, b) {
                    net.connection(a, b).alive = false;
                }
                net.end(a, b).events.clear();
            }
        }
        let keep_exposed = self.prng.chance(50);
        for (&rank, image) in &images {
            self.restore(rank, image, keep_exposed);
        }
        self.restore_book(&images);
        for a in 0..ranks {
            for b in 0..ranks {
                if !self.shared.options.same_set(a, b) {
                    self.peer_down(a, b);
                }
            }
        }
        let checkpoints = &mut self.checkpoints;
        let first = checkpoints.next_checkpoint;
        checkpoints.coordinator =
            coordinator(&self.shared.options, checkpoint, first, checkpoints.now);
        checkpoints.images.retain(|&kept, _| kept == checkpoint);
        checkpoints.storing.clear();
        checkpoints.replaying.clear();
        checkpoints.again = None;
        checkpoints.committing.clear();
        checkpoints.vectors.clear();
        self.restart_determinants();
    }

    /// A set has failed: its guardians report it.
    pub fn report_failed_set(&mut self, members: &[usize]) {
        for &rank in members {
            let thread = &mut self.checkpoints.threads[rank];
            thread.orders.clear();
            thread.freezing = None;
            self.checkpoints.storing.retain(|(of, _)| *of != rank);
            // What it has sent before is handled before.
            let lost = checkpoints::Input::RankFailed { rank: PeerId(rank as u32) };
            self.checkpoints.threads[rank].answers.push_back(lost);
        }
    }

    /// A failed set is restarted from one of the checkpoints that the coordinator names.
    pub fn restart_from_checkpoint(&mut self, set: u32) -> bool {
        for rank in self.members(set) {
            while let Some(answer) = self.checkpoints.threads[rank].answers.pop_front() {
                self.coordinate(answer);
            }
        }
        let coordinator = &self.checkpoints.coordinator;
        let mut kept: Vec<u64> = coordinator.checkpoints_of(SetId(set)).collect();
        let suspended = coordinator.is_suspended(SetId(set));
        let state = coordinator.state();
        if let Some(all) = state.kept.get(&SetId(set))
            && let Some(&from) = state.alone_from.get(&SetId(set))
        {
            match self.shared.options.planted {
                Some(Planted::AloneAlthoughSuspended) if suspended => kept.clone_from(all),
                Some(Planted::ResumedWithoutCheckpoint) if !suspended && from > 0 => {
                    kept.clone_from(all);
                }
                _ => {}
            }
        }
        self.checkpoints.report.suspended[2] += u64::from(suspended);
        if self.shared.options.acknowledges.is_some() {
            // What it has acknowledged since the beginning is in no log any more.
            kept.retain(|&checkpoint| checkpoint > 0);
        }
        if kept.is_empty() {
            self.restart_job();
            return false;
        }
        let mut checkpoint = self.prng.pick(&kept);
        if self.shared.options.determinants {
            // Older ones are of no use: determinants between them and the youngest may be lost.
            checkpoint = kept.last().copied().unwrap_or(checkpoint);
        }
        let images = self.checkpoints.images[&checkpoint].clone();
        let taken_in = images[&self.members(set)[0]].engine.incarnation();
        if !self.fetch_determinants(set, taken_in) {
            // More has failed than there are replicas.
            self.restart_job();
            return false;
        }
        self.faults.failed.remove(&set);
        let keep_exposed = self.prng.chance(50);
        for rank in self.members(set) {
            self.restore(rank, &images[&rank], keep_exposed);
        }
        self.coordinate(checkpoints::Input::SetRestarted { set: SetId(set), checkpoint });
        self.checkpoints.replaying.insert(set);
        true
    }

    /// Is every channel open that was ever used? (Until then a process may know what another one
    /// did in an earlier incarnation, such as a grant.)
    fn is_repaired(&self) -> bool {
        let ranks = self.processes.len();
        (0..ranks).all(|a| {
            (0..ranks).all(|b| {
                let mut net = self.net.borrow_mut();
                let same = self.shared.options.same_set(a, b);
                let learned = same || net.is_current(a, b) && net.end(a, b).events.is_empty();
                learned && self.processes[a].engine.is_open(PeerId(b as u32))
            })
        })
    }

    /// What the guardians of the others' processes send before the next order: who was restarted.
    /// Then a process has no channel to an earlier incarnation of somebody that it knows.
    pub(crate) fn read_endpoints(&mut self, rank: usize) {
        for other in 0..self.processes.len() {
            let peer = PeerId(other as u32);
            let failed = self.faults.has_failed(self.shared.options.sets[other]);
            let incarnation = self.net.borrow().incarnations[other];
            let engine = &self.processes[rank].engine;
            if failed
                || !engine.is_outgoing_peer(peer)
                || engine.is_current_incarnation(peer, Incarnation(incarnation))
            {
                continue;
            }
            self.peer_down(rank, other);
            let process = &mut self.processes[rank];
            process.engine.peer_up(&mut process.host, peer, Incarnation(incarnation));
            process.settle(&mut self.shared);
        }
    }

    /// Restarted sets have replayed what others know of them, as far as they know that themselves.
    /// (Without determinants the state of all processes shows it.)
    pub(super) fn report_replay_complete(&mut self) {
        for rank in 0..self.processes.len() {
            let alive = !self.faults.has_failed(self.shared.options.sets[rank]);
            if alive && self.checkpoints.threads[rank].late && self.has_completed_replay(rank) {
                self.checkpoints.threads[rank].late = false;
                let repaired = checkpoints::Input::RankReplayComplete { rank: PeerId(rank as u32) };
                self.checkpoints.threads[rank].answers.push_back(repaired);
            }
        }
        if self.shared.options.determinants {
            for set in self.checkpoints.replaying.clone() {
                if !self.faults.has_failed(set) && self.has_replayed(set) {
                    self.checkpoints.replaying.remove(&set);
                    self.coordinate(checkpoints::Input::ReplayComplete { set: SetId(set) });
                }
            }
            return;
        }
        if self.checkpoints.replaying.is_empty()
            || !self.faults.failed.is_empty()
            || !self.is_repaired()
        {
            return;
        }
        let programs = self.processes.iter().map(|process| &process.program).enumerate();
        if self.orphan(&programs.collect()).is_some() {
            return;
        }
        for set in core::mem::take(&mut self.checkpoints.replaying) {
            self.coordinate(checkpoints::Input::ReplayComplete { set: SetId(set) });
        }
    }
}
