//! The coordinator of a simulated job, its storage, and what senders trim.

use super::{Order, VectorMail};
use crate::options::Planted;
use crate::world::World;
use rustbtl_coordination::checkpoints;
use rustbtl_coordination::quiescence::{CheckpointScope, Input};
use rustbtl_fragments::engine::ReceivedVector;
use rustbtl_fragments::host::DIRECT_TAGS;
use rustbtl_fragments::ids::*;

impl World {
    /// Hand something to the coordinator, and carry out its outputs.
    pub fn coordinate(&mut self, input: checkpoints::Input) {
        let now = self.checkpoints.now;
        match self.checkpoints.coordinator.handle(now, input.clone()) {
            Ok(())
            | Err(
                checkpoints::SchedulerError::Finishing
                | checkpoints::SchedulerError::NotSuspendable(..),
            ) => {}
            Err(error) => panic!("{input:?}: {error}"),
        }
        while let Some(output) = self.checkpoints.coordinator.poll_output() {
            self.dispatch(output);
        }
        self.checkpoints.coordinator.check();
    }

    fn send_order(&mut self, sets: Option<&[SetId]>, order: &Input) {
        self.send_to_ranks(sets, &Order::Machine(order.clone()));
    }

    /// The log towards a set costs too much.
    pub(super) fn request_suspension(&mut self, set: SetId) {
        if self.shared.options.planted == Some(Planted::SuspendedByOneself) {
            let before = self.checkpoints.next_checkpoint;
            return self.send_to_ranks(Some(&[set]), &Order::SuspendLogging { before });
        }
        self.coordinate(checkpoints::Input::RequestSuspension { set });
    }

    /// A process acknowledges from now on, if the others of its set have not brought it into a
    /// later checkpoint already.
    pub(super) fn suspend_logging(&mut self, rank: usize, before: u64) {
        if self.checkpoints.threads[rank].entered < before {
            let process = &mut self.processes[rank];
            process.engine.set_acknowledging(self.shared.options.suspends);
            process.engine.acknowledge_all(&mut process.host);
            process.settle(&mut self.shared);
        }
    }

    fn send_to_ranks(&mut self, sets: Option<&[SetId]>, order: &Order) {
        for rank in 0..self.processes.len() {
            let set = self.shared.options.sets[rank];
            let named = sets.is_none_or(|sets| sets.contains(&SetId(set)));
            if named && !self.faults.has_failed(set) {
                self.checkpoints.threads[rank].orders.push_back(order.clone());
            }
        }
    }

    fn dispatch(&mut self, output: checkpoints::Output) {
        match output {
            checkpoints::Output::StopOutgoing { checkpoint } => {
                self.checkpoints.next_checkpoint =
                    self.checkpoints.next_checkpoint.max(checkpoint + 1);
                self.send_order(None, &Input::StopOutgoing { checkpoint });
            }
            checkpoints::Output::Begin { checkpoint, scope, sets } => {
                self.checkpoints.next_checkpoint =
                    self.checkpoints.next_checkpoint.max(checkpoint + 1);
                self.checkpoints.scopes.insert(checkpoint, scope);
                self.send_order(Some(&sets), &Input::Begin { checkpoint, scope });
            }
            checkpoints::Output::Resume { checkpoint } => {
                self.send_order(None, &Input::Resume { checkpoint })
            }
            checkpoints::Output::Abort { checkpoint, sets, .. } => {
                self.send_order(Some(&sets), &Input::Abort { checkpoint });
                // Somebody requests one again at once: frames of the aborted checkpoint are still
                // under way.
                if self.checkpoints.orders_left > 0 && self.prng.chance(70) {
                    self.checkpoints.again = Some(sets[0]);
                }
            }
            checkpoints::Output::Commit { checkpoint, .. } => {
                self.checkpoints.committing.push(checkpoint)
            }
            checkpoints::Output::Complete { checkpoint, .. } => self.complete(checkpoint),
            checkpoints::Output::Trim { set, checkpoint } => {
                self.send_received_vectors(set, checkpoint)
            }
            checkpoints::Output::Delete { checkpoint } => {
                self.checkpoints.images.remove(&checkpoint);
                self.checkpoints.committing.retain(|other| *other != checkpoint);
            }
            checkpoints::Output::SuspendLogging { set, before } => {
                self.checkpoints.report.suspended[0] += 1;
                self.send_to_ranks(Some(&[set]), &Order::SuspendLogging { before });
            }
            checkpoints::Output::LoggingResumed { .. } => {
                self.checkpoints.report.suspended[1] += 1;
            }
            checkpoints::Output::Exit { checkpoint } => self.checkpoints.exit = Some(checkpoint),
        }
    }

    fn complete(&mut self, checkpoint: u64) {
        let images = &self.checkpoints.images[&checkpoint];
        self.assert_consistent(images);
        let global = self.checkpoints.scopes[&checkpoint] == CheckpointScope::Global;
        self.checkpoints.report.complete[usize::from(global)] += 1;
        if global {
            assert_eq!(images.len(), self.processes.len(), "a snapshot of every process");
        }
    }

    /// The members of a set send their peers the received vectors of a checkpoint.
    fn send_received_vectors(&mut self, set: SetId, checkpoint: u64) {
        let Some(images) = self.checkpoints.images.get(&checkpoint) else {
            panic!("checkpoint {checkpoint} of {set} is to be trimmed by, and is gone")
        };
        let images = images.clone();
        self.cover_determinants(set.0, &images);
        if !self.shared.options.trim {
            return;
        }
        let options = &self.shared.options;
        for (&from, image) in images.iter().filter(|(rank, _)| options.sets[**rank] == set.0) {
            let vectors = image.held.iter();
            self.checkpoints.vectors.extend(vectors.map(|(&to, held)| VectorMail {
                to,
                from,
                held: held.clone(),
            }));
        }
    }

    pub(super) fn trim_by_received_vector(&mut self) {
        if self.checkpoints.vectors.is_empty() {
            return;
        }
        let at = self.prng.below(self.checkpoints.vectors.len());
        let VectorMail { to: me, from, held } = self.checkpoints.vectors.swap_remove(at);
        if self.faults.has_failed(self.shared.options.sets[me]) {
            return;
        }
        let held = match ReceivedVector::decode(&held) {
            Ok(held) => held,
            Err(error) => panic!("{error}"),
        };
        let set = SetId(self.shared.options.sets[from]);
        let of_windows = self.shared.options.planted == Some(Planted::WindowTrimmedEarly);
        let (covered, report) = (&mut self.faults.covered, &mut self.checkpoints.report);
        self.processes[me].host.memory.log.trim(set, |entry| {
            let covers = entry.to.0 as usize == from
                && held.is_complete(entry)
                && (!of_windows || DIRECT_TAGS.contains(&entry.tag));
            if covers {
                let stream = (entry.stream.context.number(), me, from, entry.stream.lane);
                covered.insert((stream, entry.sequence.0));
                report.trimmed += 1;
            }
            covers
        });
    }

    /// The coordinator reads an answer.
    pub(super) fn read_answer(&mut self, rank: usize) {
        if let Some(answer) = self.checkpoints.threads[rank].answers.pop_front() {
            self.coordinate(answer);
        }
    }

    pub(super) fn store_or_commit(&mut self) {
        let failures = self.shared.options.storage_failures;
        match self.prng.below(4) {
            0 | 1 if !self.checkpoints.storing.is_empty() => {
                let at = self.prng.below(self.checkpoints.storing.len());
                let (rank, checkpoint) = self.checkpoints.storing[at];
                if !self.is_snapshot_stable(rank, checkpoint) {
                    return;
                }
                self.checkpoints.storing.swap_remove(at);
                let rank_id = PeerId(rank as u32);
                let input = if self.prng.chance(failures) {
                    checkpoints::Input::NotStored { rank: rank_id, checkpoint }
                } else {
                    checkpoints::Input::Stored { rank: rank_id, checkpoint }
                };
                self.checkpoints.threads[rank].answers.push_back(input);
            }
            2 => {
                if let Some(checkpoint) = self.checkpoints.committing.pop() {
                    let input = if self.prng.chance(failures) {
                        checkpoints::Input::NotCommitted { checkpoint }
                    } else {
                        checkpoints::Input::Committed { checkpoint }
                    };
                    self.coordinate(input);
                }
            }
            _ => self.trim_by_received_vector(),
        }
    }
}
