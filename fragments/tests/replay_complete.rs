//! What a process knows of its replay being complete, and what only its peer knows (docs/adr/0016):
//! a global checkpoint asks both.

#[path = "../benches/null/mod.rs"]
#[allow(dead_code)]
mod null;

use null::Null;
use rustbtl_fragments::engine::{Engine, Mode, SendOutcome, Side};
use rustbtl_fragments::ids::{CommId, CommRank, ContextId, Incarnation, PeerId, SetId};

const ROLLED_BACK: PeerId = PeerId(0);
const SURVIVES: PeerId = PeerId(1);
const RESTARTED: Incarnation = Incarnation(1);

/// Two processes of two sets; the first is rolled back to a checkpoint without traffic.
struct Job {
    rolled_back: Engine<Null>,
    survivor: Engine<Null>,
    hosts: [Null; 2],
    comm: CommId,
}

impl Job {
    /// It had sent two messages after the checkpoint, and is restored now.
    fn new() -> Self {
        let mut comm = CommId(0);
        let [checkpoint, survivor] = [ROLLED_BACK, SURVIVES].map(|me| {
            let mut engine = Engine::new(me, SetId(me.0 + 1), Incarnation(0));
            comm = engine.add_comm(ContextId(0), CommRank(me.0), 2, 0);
            engine
        });
        let hosts = [Null::new(), Null::new()];
        let mut job = Self { rolled_back: checkpoint.clone(), survivor, hosts, comm };
        for _ in 0..2 {
            job.send();
            job.reach_survivor();
        }
        job.rolled_back = checkpoint;
        job.rolled_back.restarted(RESTARTED);
        job
    }

    fn send(&mut self) {
        let (engine, host) = (&mut self.rolled_back, &mut self.hosts[0]);
        let sent = engine.send(host, self.comm, CommRank(1), 3, Mode::Standard, 0, 0, 0);
        assert_eq!(sent, Ok(SendOutcome::Complete));
    }

    fn reach_survivor(&mut self) {
        let frame = self.hosts[0].frame.clone();
        assert_eq!(self.survivor.on_frame(&mut self.hosts[1], ROLLED_BACK, &frame), Ok(()));
    }

    /// The survivor's received vector, which it sends when it reads the new endpoint.
    fn send_received_vector(&mut self) {
        self.survivor.peer_up(&mut self.hosts[1], ROLLED_BACK, RESTARTED);
        let frame = self.hosts[1].frame.clone();
        assert_eq!(self.rolled_back.on_frame(&mut self.hosts[0], SURVIVES, &frame), Ok(()));
    }

    fn is_complete(&self) -> [bool; 2] {
        [self.rolled_back.is_replay_complete(), self.survivor.is_replay_complete()]
    }
}

#[test]
fn until_all_is_repeated_one_of_the_two_knows() {
    let mut job = Job::new();
    job.survivor.peer_up(&mut job.hosts[1], ROLLED_BACK, RESTARTED);
    assert_eq!(job.is_complete(), [true, false], "the rolled-back process knows no peer");
    job.send_received_vector();
    assert_eq!(job.is_complete(), [false, false]);
    job.reach_survivor();
    assert_eq!(job.is_complete(), [false, true], "the channel is repaired, the sends not repeated");
    job.send();
    assert_eq!(job.is_complete(), [false, true], "one of two");
    job.send();
    assert_eq!(job.is_complete(), [true, true]);
    assert_eq!(job.rolled_back.counters().suppressed_messages, 2);
}

/// Step 2 of the proof: a process that sends its received vector before its snapshot knows the peer
/// in it.
#[test]
fn a_received_vector_is_held_while_a_global_checkpoint_is_taken() {
    let mut job = Job::new();
    job.rolled_back.hold(Side::Outgoing);
    job.hosts[0].frame.clear();
    let snapshot = job.rolled_back.clone();
    job.send_received_vector();
    assert!(snapshot.is_replay_complete() && job.hosts[0].frame.is_empty());
    assert!(!job.survivor.is_replay_complete(), "it refuses");
    job.rolled_back.release(&mut job.hosts[0], Side::Outgoing);
    job.reach_survivor();
    assert!(job.survivor.is_replay_complete());
}

/// No replay can be incomplete on such a channel: connections break, and checkpoints are taken all
/// the same.
#[test]
fn a_lost_channel_between_two_that_were_never_rolled_back_is_no_obstacle() {
    let mut job = Job::new();
    job.survivor.peer_down(&mut job.hosts[1], ROLLED_BACK);
    assert!(job.survivor.is_replay_complete());
    job.survivor.peer_up(&mut job.hosts[1], ROLLED_BACK, RESTARTED);
    job.survivor.peer_down(&mut job.hosts[1], ROLLED_BACK);
    assert!(!job.survivor.is_replay_complete(), "it was rolled back since");
}
