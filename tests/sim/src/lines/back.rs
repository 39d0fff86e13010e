//! Jobs that start again from a global line, sets that come back alone from one of theirs.

use super::coordinator;
use crate::world::World;
use rustbtl_coordination::checkpoints;
use rustbtl_fragments::ids::*;

impl World {
    /// All processes end, and a new job starts from the last global line.
    pub(super) fn restart_job(&mut self) {
        let Some(line) = self.lines.coordinator.last_global() else { panic!("there is line 0") };
        assert!(self.lines.exit.is_none_or(|exit| exit == line), "exit with a complete line");
        self.lines.exit = None;
        let Some(images) = self.lines.images.get(&line).cloned() else { panic!("no {line}") };
        self.lines.report.restarts += 1;
        self.faults.happened[1] += 1;
        let ranks = self.processes.len();
        self.faults.dead.clear();
        self.net.borrow_mut().exposed.clear();
        self.net.borrow_mut().last_words.clear();
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
        let lines = &mut self.lines;
        let first = lines.next_line;
        lines.coordinator = coordinator(&self.shared.options, line, first, lines.now);
        lines.images.retain(|&kept, _| kept == line);
        lines.storing.clear();
        lines.behind.clear();
        lines.again = None;
        lines.committing.clear();
        lines.accounts.clear();
        self.restart_determinants();
    }

    /// A set has died: its guardians tell.
    pub fn lines_lost(&mut self, members: &[usize]) {
        for &rank in members {
            let thread = &mut self.lines.threads[rank];
            thread.orders.clear();
            thread.freezing = None;
            self.lines.storing.retain(|(of, _)| *of != rank);
            // What it has said before is heard before.
            let lost = lines::Input::Lost { rank: PeerId(rank as u32) };
            self.lines.threads[rank].answers.push_back(lost);
        }
    }

    /// A dead set comes back from one of the lines that the coordinator names.
    pub fn come_back_from_line(&mut self, set: u32) -> bool {
        for rank in self.members(set) {
            while let Some(answer) = self.lines.threads[rank].answers.pop_front() {
                self.coordinate(answer);
            }
        }
        let kept: Vec<u64> = self.lines.coordinator.lines_of(SetId(set)).collect();
        let mut line = self.prng.pick(&kept);
        if self.shared.options.determinants {
            // Older ones are of no use: determinants between them and the youngest may be lost.
            line = kept.last().copied().unwrap_or(line);
        }
        let images = self.lines.images[&line].clone();
        let taken_in = images[&self.members(set)[0]].engine.incarnation();
        if !self.fetch_determinants(set, taken_in) {
            // More has failed than there are copies.
            self.restart_job();
            return false;
        }
        self.faults.dead.remove(&set);
        let keep_exposed = self.prng.chance(50);
        for rank in self.members(set) {
            self.restore(rank, &images[&rank], keep_exposed);
        }
        self.coordinate(lines::Input::Back { set: SetId(set), line });
        self.lines.behind.insert(set);
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

    /// What the guardians of the others' processes say before the next order: who was started
    /// again. Then a process has no channel to an earlier life of somebody that it knows.
    pub(super) fn read_cards(&mut self, rank: usize) {
        for other in 0..self.processes.len() {
            let peer = PeerId(other as u32);
            let dead = self.faults.is_dead(self.shared.options.sets[other]);
            let incarnation = self.net.borrow().incarnations[other];
            let engine = &self.processes[rank].engine;
            if dead || !engine.is_outgoing_peer(peer) || engine.is_current_incarnation(peer, Incarnation(incarnation)) {
                continue;
            }
            self.peer_down(rank, other);
            let process = &mut self.processes[rank];
            process.engine.peer_up(&mut process.host, peer, Incarnation(incarnation));
            process.settle(&mut self.shared);
        }
    }

    /// Sets that came back have done again what others know of them, as far as they know that
    /// themselves. (Without determinants it is the state of all processes that says so.)
    pub(super) fn catch_up(&mut self) {
        for rank in 0..self.processes.len() {
            let alive = !self.faults.is_dead(self.shared.options.sets[rank]);
            if alive && self.lines.threads[rank].late && self.has_caught_up(rank) {
                self.lines.threads[rank].late = false;
                let repaired = lines::Input::Repaired { rank: PeerId(rank as u32) };
                self.lines.threads[rank].answers.push_back(repaired);
            }
        }
        if self.shared.options.determinants {
            for set in self.lines.behind.clone() {
                if !self.faults.is_dead(set) && self.has_replayed(set) {
                    self.lines.behind.remove(&set);
                    self.coordinate(lines::Input::ReplayComplete { set: SetId(set) });
                }
            }
            return;
        }
        if self.lines.behind.is_empty() || !self.faults.dead.is_empty() || !self.is_repaired() {
            return;
        }
        let programs = self.processes.iter().map(|process| &process.program).enumerate();
        if self.orphan(&programs.collect()).is_some() {
            return;
        }
        for set in core::mem::take(&mut self.lines.behind) {
            self.coordinate(lines::Input::ReplayComplete { set: SetId(set) });
        }
    }
}
