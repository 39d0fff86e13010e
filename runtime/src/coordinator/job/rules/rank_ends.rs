//! The end of a rank: by itself, or because it was ended. Part of [`Job`]: no I/O.
//!
//! 1. A rank has ended when its program has exited. One that a signal has ended, or its daemon, has
//!    not: it is `killed`.
//! 2. What becomes of a killed rank is for mpirun to say. A daemon ends its ranks when mpirun ends
//!    the job, and also when the daemon itself is ended (by a batch system, an administrator): only
//!    mpirun knows which. It ends the job, or reports the node as lost (`rollback`), or that a
//!    guardian has ended (`guardian_loss`).
//! 3. A rank that was killed keeps the others in MPI_Finalize: it may have to receive what they
//!    have sent once more.
//! 4. If mpirun says nothing the job ends (`unreachable_agents`).

use crate::coordinator::job::state::{Job, Rank};
use crate::coordinator::job::tables::checkpoints::CheckpointState;
use rustbtl_coordination::checkpoints::Input;
use rustbtl_coordination::control::{CheckpointId, ToRank};
use rustbtl_fragments::ids::PeerId;
use serde_json::json;

impl Rank {
    /// Will it leave MPI_Finalize with the others, or has it ended already (3)?
    fn is_past_its_work(&self) -> bool {
        !self.killed && (self.finishing || self.ended.is_some())
    }
}

impl Job {
    /// All are in MPI_Finalize, or have ended.
    pub(crate) fn finish(&mut self, id: PeerId) {
        if self.all(Rank::is_past_its_work) {
            let known = self.ranks.iter().filter(|(_, rank)| rank.finishing);
            for rank in known.map(|(&id, _)| id).collect::<Vec<_>>() {
                self.send(rank, ToRank::MayFinish {});
            }
            (self.may_finish, self.changed) = (true, true);
            self.log(json!({"event": "job_finished", "last": id.0}));
        }
    }

    /// The program has ended, and its guardian ends; `ordered`: by its daemon.
    pub(crate) fn ended(&mut self, now: u64, id: PeerId, status: i32, ordered: bool) {
        let Some(rank) = self.ranks.get_mut(&id) else { return };
        let mut event = json!({"event": "ended", "rank": id.0, "status": status});
        if ordered {
            event["ordered"] = json!(true);
        }
        if ordered || libc::WIFSIGNALED(status) {
            (rank.killed, rank.here) = (true, false);
            self.log(event);
            return self.input(now, Input::RankFailed { rank: id });
        }
        rank.ended = Some(status);
        let finishing = rank.finishing;
        // At the end of a job this is not needed.
        self.changed |= !self.may_finish;
        self.log(event);
        // The job ends with it: that is no failure.
        if status == 0 {
            let of_it = |s: &CheckpointState| !s.complete && s.ranks.contains(&id);
            let open = self.checkpoints.iter().filter(|(_, s)| of_it(s));
            let open: Vec<CheckpointId> = open.map(|(&checkpoint, _)| checkpoint).collect();
            let end = "the job ended during the checkpoint";
            open.into_iter().for_each(|checkpoint| self.problem(checkpoint, end.to_owned()));
        }
        self.input(now, Input::RankFailed { rank: id });
        self.replays_end_without(id);
        if !finishing {
            self.finish(id);
        }
        if self.all(|rank| rank.ended.is_some()) {
            self.dismiss_spares();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::job::test_world::{NODES, World};
    use rustbtl_coordination::control::{FromNode, FromRank, ToNode};

    /// By this signal, or with this exit code; `ordered` by its daemon.
    fn ends(world: &mut World, rank: u32, status: i32, ordered: bool) {
        let ended = FromNode::Ended { rank: PeerId(rank), status, ordered };
        world.handle(NODES[rank as usize], ended);
        world.handle(NODES[rank as usize], FromNode::GuardianDisconnected { rank: PeerId(rank) });
    }

    const EXIT_0: i32 = 0;
    const EXIT_3: i32 = 3 << 8;

    fn finishing(world: &mut World, rank: u32) {
        world.rank(rank, NODES[rank as usize], FromRank::Finishing {});
    }

    fn may_finish(world: &World, rank: u32) -> bool {
        let is = |message: &&ToNode| {
            matches!(message, ToNode::Rank { message: ToRank::MayFinish {}, .. })
        };
        world.sent(rank).iter().any(is)
    }

    #[test]
    fn a_rank_that_its_daemon_has_ended_is_recovered_when_mpirun_loses_the_daemon() {
        // A program may also handle the signal, and exit.
        for (status, ordered) in
            [(libc::SIGTERM, true), (EXIT_0, true), (EXIT_3, true), (libc::SIGKILL, false)]
        {
            let mut world = World::with_checkpoint();
            ends(&mut world, 1, status, ordered);
            assert_eq!(world.events("set_rollback").len(), 0, "mpirun has said nothing yet");
            world.mpirun("lost b");
            assert_eq!(world.events("node_lost")[0]["ranks"], json!([1]), "{status}");
            assert_eq!(world.events("set_rollback").len(), 1);
            assert_eq!(world.to_mpirun(), Vec::<String>::new());
            world.connects(1, "c", 1);
            assert_eq!(world.events("set_restarted").len(), 1);
            assert_eq!(world.to_mpirun(), ["recovered"]);
        }
    }

    #[test]
    fn without_a_word_of_mpirun_nothing_is_recovered() {
        let mut world = World::with_checkpoint();
        for rank in 0..3 {
            ends(&mut world, rank, libc::SIGTERM, true);
        }
        assert_eq!(world.events("ended").len(), 3);
        assert_eq!(world.events("ended")[0]["ordered"], true);
        let events = ["set_rollback", "job_finished", "not_recovered"];
        assert!(events.into_iter().all(|event| world.events(event).is_empty()));
        assert_eq!(world.to_mpirun(), Vec::<String>::new());
    }

    #[test]
    fn nobody_leaves_mpi_finalize_without_a_rank_that_was_killed_there_or_before() {
        for killed_in_finalize in [false, true] {
            let mut world = World::with_checkpoint();
            finishing(&mut world, 0);
            if killed_in_finalize {
                finishing(&mut world, 1);
            }
            ends(&mut world, 1, libc::SIGTERM, true);
            finishing(&mut world, 2);
            assert!(!may_finish(&world, 0), "{killed_in_finalize}");
            world.mpirun("lost b");
            world.connects(1, "c", 1);
            assert_eq!(world.events("set_restarted").len(), 1);
            world.rank(1, "c", FromRank::Finishing {});
            assert!(may_finish(&world, 0) && may_finish(&world, 1));
        }
    }

    #[test]
    fn a_rank_that_is_ended_after_mpi_finalize_cannot_be_recovered_and_is_no_success() {
        let mut world = World::with_checkpoint();
        (0..3).for_each(|rank| finishing(&mut world, rank));
        ends(&mut world, 0, EXIT_0, false);
        ends(&mut world, 1, libc::SIGTERM, true);
        world.mpirun("lost b");
        let orders = world.to_mpirun();
        assert!(orders.iter().any(|order| order.starts_with("fail node b was lost")), "{orders:?}");
    }

    #[test]
    fn a_node_whose_ranks_have_exited_at_the_end_of_the_job_is_no_loss() {
        let mut world = World::with_checkpoint();
        (0..3).for_each(|rank| finishing(&mut world, rank));
        ends(&mut world, 1, EXIT_0, false);
        world.mpirun("lost b");
        assert_eq!(world.events("node_lost")[0]["ranks"], json!([]));
        assert_eq!(world.to_mpirun(), ["recovered"]);
    }

    #[test]
    fn a_rank_that_has_exited_before_the_end_of_the_job_runs_again_if_its_daemon_could_not_say() {
        let mut world = World::with_checkpoint();
        ends(&mut world, 1, EXIT_3, false);
        world.mpirun("lost b");
        assert_eq!(world.events("node_lost")[0]["ranks"], json!([1]));
        assert_eq!(world.events("set_rollback").len(), 1);
    }

    #[test]
    fn mpirun_ends_the_job_for_a_guardian_that_has_reported_the_end_of_its_rank() {
        let mut world = World::with_checkpoint();
        ends(&mut world, 1, libc::SIGKILL, false);
        world.mpirun("guardian 1");
        assert_eq!(world.to_mpirun(), ["stock 1"]);
    }

    #[test]
    fn another_coordinator_recovers_a_rank_that_its_daemon_has_ended() {
        let mut world = World::with_checkpoint();
        ends(&mut world, 1, libc::SIGTERM, true);
        let mut world = world.failover();
        world.connects(0, "a", 0);
        world.connects(2, "c", 0);
        world.mpirun("lost b");
        assert_eq!(world.events("node_lost")[0]["ranks"], json!([1]));
        assert_eq!(world.events("set_rollback").len(), 1);
    }

    #[test]
    fn who_fails_meanwhile_is_rolled_back_and_does_not_wait_for_answers_of_a_killed_rank() {
        let mut world = World::with_checkpoint();
        ends(&mut world, 1, libc::SIGTERM, true);
        world.fails(2, "c", 0);
        assert_eq!(world.events("fence")[0]["asked"], 1);
        world.mpirun("lost b");
        world.hello(2, "c", 1);
        world.connects(1, "c", 2);
        world.rank(2, "c", FromRank::Ready {});
        assert_eq!(world.events("set_restarted").len(), 2);
        assert_eq!(world.to_mpirun().last().map(String::as_str), Some("recovered"));
    }

    #[test]
    fn the_job_ends_if_mpirun_never_says_what_became_of_the_daemon() {
        let mut world = World::with_checkpoint();
        ends(&mut world, 1, libc::SIGTERM, true);
        world.job.tick(world.now);
        world.job.tick(world.now + 60_000);
        world.poll();
        let orders = world.to_mpirun();
        assert!(orders[0].starts_with("fail rank 1 on b was ended by its daemon"), "{orders:?}");
    }
}
