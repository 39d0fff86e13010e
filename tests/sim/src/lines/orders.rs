//! The coordinator of a simulated job, its storage, and what senders trim.

use super::Account;
use crate::world::World;
use rustbtl_coordination::checkpoints;
use rustbtl_coordination::quiescence::{Input, Scope};
use rustbtl_fragments::engine::ReceivedVector;
use rustbtl_fragments::ids::*;

impl World {
    /// Hand something to the coordinator, and do what it says.
    pub fn coordinate(&mut self, input: lines::Input) {
        let now = self.lines.now;
        match self.lines.coordinator.handle(now, input.clone()) {
            Ok(()) | Err(lines::SchedulerError::Finishing) => {}
            Err(error) => panic!("{input:?}: {error}"),
        }
        while let Some(output) = self.lines.coordinator.poll_output() {
            self.dispatch(output);
        }
        self.lines.coordinator.check();
    }

    fn tell(&mut self, sets: Option<&[SetId]>, order: &Input) {
        for rank in 0..self.processes.len() {
            let set = self.shared.options.sets[rank];
            let named = sets.is_none_or(|sets| sets.contains(&SetId(set)));
            if named && !self.faults.is_dead(set) {
                self.lines.threads[rank].orders.push_back(order.clone());
            }
        }
    }

    fn dispatch(&mut self, output: lines::Output) {
        match output {
            lines::Output::StopOutgoing { line } => {
                self.lines.next_line = self.lines.next_line.max(line + 1);
                self.tell(None, &Input::StopOutgoing { line });
            }
            lines::Output::Begin { line, scope, sets } => {
                self.lines.next_line = self.lines.next_line.max(line + 1);
                self.lines.scopes.insert(line, scope);
                self.tell(Some(&sets), &Input::Begin { line, scope });
            }
            lines::Output::Resume { line } => self.tell(None, &Input::Resume { line }),
            lines::Output::Abort { line, sets, .. } => {
                self.tell(Some(&sets), &Input::Abort { line });
                // Somebody asks again at once: frames of the aborted line are still under way.
                if self.lines.orders_left > 0 && self.prng.chance(70) {
                    self.lines.again = Some(sets[0]);
                }
            }
            lines::Output::Commit { line, .. } => self.lines.committing.push(line),
            lines::Output::Complete { line, .. } => self.complete(line),
            lines::Output::Trim { set, line } => self.send_accounts(set, line),
            lines::Output::Drop { line } => {
                self.lines.images.remove(&line);
                self.lines.committing.retain(|other| *other != line);
            }
            lines::Output::Exit { line } => self.lines.exit = Some(line),
        }
    }

    fn complete(&mut self, line: u64) {
        let images = &self.lines.images[&line];
        self.assert_consistent(images);
        let global = self.lines.scopes[&line] == Scope::Global;
        self.lines.report.complete[usize::from(global)] += 1;
        if global {
            assert_eq!(images.len(), self.processes.len(), "a picture of every process");
        }
    }

    /// The members of a set tell their peers what they held at a line.
    fn send_accounts(&mut self, set: SetId, line: u64) {
        let Some(images) = self.lines.images.get(&line) else {
            panic!("line {line} of {set} is to be trimmed by, and is gone")
        };
        let images = images.clone();
        self.cover_determinants(set.0, &images);
        if !self.shared.options.trim {
            return;
        }
        let options = &self.shared.options;
        for (&from, image) in images.iter().filter(|(rank, _)| options.sets[**rank] == set.0) {
            let accounts = image.held.iter();
            self.lines.accounts.extend(accounts.map(|(&to, held)| Account {
                to,
                from,
                held: held.clone(),
            }));
        }
    }

    pub(super) fn trim_by_account(&mut self) {
        if self.lines.accounts.is_empty() {
            return;
        }
        let at = self.prng.below(self.lines.accounts.len());
        let Account { to: me, from, held } = self.lines.accounts.swap_remove(at);
        if self.faults.is_dead(self.shared.options.sets[me]) {
            return;
        }
        let held = match ReceivedVector::decode(&held) {
            Ok(held) => held,
            Err(error) => panic!("{error}"),
        };
        let set = SetId(self.shared.options.sets[from]);
        let (covered, report) = (&mut self.faults.covered, &mut self.lines.report);
        self.processes[me].host.memory.log.trim(set, |entry| {
            let covers = entry.to.0 as usize == from && held.is_complete(entry);
            if covers {
                let stream = (entry.stream.context.number(), me, from, entry.stream.lane);
                covered.insert((stream, entry.sequence.0));
                report.trimmed += 1;
            }
            covers
        });
    }

    /// The coordinator reads an answer.
    pub(super) fn hear(&mut self, rank: usize) {
        if let Some(answer) = self.lines.threads[rank].answers.pop_front() {
            self.coordinate(answer);
        }
    }

    pub(super) fn store_or_commit(&mut self) {
        let failures = self.shared.options.failures;
        match self.prng.below(4) {
            0 | 1 if !self.lines.storing.is_empty() => {
                let at = self.prng.below(self.lines.storing.len());
                let (rank, line) = self.lines.storing[at];
                if !self.is_picture_stable(rank, line) {
                    return;
                }
                self.lines.storing.swap_remove(at);
                let rank_id = PeerId(rank as u32);
                let input = if self.prng.chance(failures) {
                    lines::Input::NotStored { rank: rank_id, line }
                } else {
                    lines::Input::Stored { rank: rank_id, line }
                };
                self.lines.threads[rank].answers.push_back(input);
            }
            2 => {
                if let Some(line) = self.lines.committing.pop() {
                    let input = if self.prng.chance(failures) {
                        lines::Input::NotCommitted { line }
                    } else {
                        lines::Input::Committed { line }
                    };
                    self.coordinate(input);
                }
            }
            _ => self.trim_by_account(),
        }
    }
}
