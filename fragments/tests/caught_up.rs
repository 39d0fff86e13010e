//! What a process knows of whether its past is repeated, and what only its peer knows
//! (docs/adr/0016): a global line asks both.

#[path = "../benches/null/mod.rs"]
#[allow(dead_code)]
mod null;

use null::Null;
use rustbtl_fragments::engine::{Engine, Mode, Sent, Side};
use rustbtl_fragments::ids::{CommId, CommRank, ContextId, Incarnation, PeerId, SetId};

const GOES_BACK: PeerId = PeerId(0);
const SURVIVES: PeerId = PeerId(1);
const AGAIN: Incarnation = Incarnation(1);

/// Two processes of two sets; the first goes back to a line without traffic.
struct Job {
    back: Engine<Null>,
    survivor: Engine<Null>,
    hosts: [Null; 2],
    comm: CommId,
}

impl Job {
    /// It had sent two messages after the line, and is restored now.
    fn new() -> Self {
        let mut comm = CommId(0);
        let [line, survivor] = [GOES_BACK, SURVIVES].map(|me| {
            let mut engine = Engine::new(me, SetId(me.0 + 1), Incarnation(0));
            comm = engine.add_comm(ContextId(0), CommRank(me.0), 2, 0);
            engine
        });
        let hosts = [Null::new(), Null::new()];
        let mut job = Self { back: line.clone(), survivor, hosts, comm };
        for _ in 0..2 {
            job.send();
            job.reach_survivor();
        }
        job.back = line;
        job.back.restarted(AGAIN);
        job
    }

    fn send(&mut self) {
        let (engine, host) = (&mut self.back, &mut self.hosts[0]);
        let sent = engine.send(host, self.comm, CommRank(1), 3, Mode::Standard, 0, 0, 0);
        assert_eq!(sent, Ok(SendOutcome::Complete));
    }

    fn reach_survivor(&mut self) {
        let frame = self.hosts[0].frame.clone();
        assert_eq!(self.survivor.on_frame(&mut self.hosts[1], GOES_BACK, &frame), Ok(()));
    }

    /// The survivor's account, which it makes when it reads the card.
    fn account(&mut self) {
        self.survivor.peer_up(&mut self.hosts[1], GOES_BACK, AGAIN);
        let frame = self.hosts[1].frame.clone();
        assert_eq!(self.back.on_frame(&mut self.hosts[0], SURVIVES, &frame), Ok(()));
    }

    fn caught_up(&self) -> [bool; 2] {
        [self.back.has_caught_up(), self.survivor.has_caught_up()]
    }
}

#[test]
fn until_all_is_sent_again_one_of_the_two_knows() {
    let mut job = Job::new();
    job.survivor.peer_up(&mut job.hosts[1], GOES_BACK, AGAIN);
    assert_eq!(job.caught_up(), [true, false], "who went back knows of nobody");
    job.account();
    assert_eq!(job.caught_up(), [false, false]);
    job.reach_survivor();
    assert_eq!(job.caught_up(), [false, true], "the channel is repaired, the past not repeated");
    job.send();
    assert_eq!(job.caught_up(), [false, true], "one of two");
    job.send();
    assert_eq!(job.caught_up(), [true, true]);
    assert_eq!(job.back.counters().suppressed_messages, 2);
}

/// Step 2 of the proof: who tells his account before his picture knows the peer in it.
#[test]
fn an_account_that_is_made_while_a_global_line_is_taken_does_not_leave() {
    let mut job = Job::new();
    job.back.hold(Side::Outgoing);
    job.hosts[0].frame.clear();
    let picture = job.back.clone();
    job.account();
    assert!(picture.has_caught_up() && job.hosts[0].frame.is_empty());
    assert!(!job.survivor.has_caught_up(), "it refuses");
    job.back.release(&mut job.hosts[0], Side::Outgoing);
    job.reach_survivor();
    assert!(job.survivor.has_caught_up());
}

/// Nothing of such a channel can be behind: connections break, and lines are taken all the same.
#[test]
fn a_lost_channel_between_two_that_never_went_back_is_not_asked_for() {
    let mut job = Job::new();
    job.survivor.peer_down(&mut job.hosts[1], GOES_BACK);
    assert!(job.survivor.has_caught_up());
    job.survivor.peer_up(&mut job.hosts[1], GOES_BACK, AGAIN);
    job.survivor.peer_down(&mut job.hosts[1], GOES_BACK);
    assert!(!job.survivor.has_caught_up(), "it has gone back since");
}
