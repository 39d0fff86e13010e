//! The machine of one process's checkpoints: many of them in a random world of their own (no
//! engine), the cost of a checkpoint, each error, and what is written down of a checkpoint step by
//! step.

use proptest::prelude::*;
use rustbtl_coordination::quiescence::*;
use rustbtl_fragments::checkpoint_frame::{CheckpointFrame, CheckpointStep};
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

type Wire = VecDeque<CheckpointFrame>;

/// Processes of one set, wires in order, and a coordinator that is the test.
struct World {
    machines: Vec<Quiescence>,
    wires: BTreeMap<(usize, usize), Wire>,
    freezing: BTreeMap<usize, u64>,
    /// (process, checkpoint): has a snapshot, is over; what it answered.
    frozen: BTreeSet<(usize, u64)>,
    resumed: BTreeMap<(usize, u64), bool>,
    entered: BTreeSet<(usize, u64)>,
    answers: Vec<(usize, CheckpointAnswer)>,
    sent: BTreeMap<usize, Vec<CheckpointFrame>>,
    stopped: BTreeSet<usize>,
    /// Checkpoints that somebody aborted: they promise nothing.
    void: BTreeSet<u64>,
    /// What a set counts in, and how often it did in a checkpoint.
    words: [PhaseCounter; 3],
    counts: BTreeMap<(usize, u64), usize>,
}

impl World {
    fn new(n: usize, method: QuiesceMethod) -> Self {
        let ids: Vec<PeerId> = (0..n as u32).map(|rank| PeerId(rank * 3)).collect();
        let machine = |&me| {
            let mut machine = Quiescence::new(me, &ids);
            machine.set_method(method);
            machine
        };
        Self {
            machines: ids.iter().map(machine).collect(),
            wires: BTreeMap::new(),
            freezing: BTreeMap::new(),
            frozen: BTreeSet::new(),
            resumed: BTreeMap::new(),
            entered: BTreeSet::new(),
            answers: Vec::new(),
            sent: BTreeMap::new(),
            stopped: BTreeSet::new(),
            void: BTreeSet::new(),
            words: Default::default(),
            counts: BTreeMap::new(),
        }
    }

    fn hand_in(&mut self, at: usize, input: Input) {
        self.machines[at].handle(input.clone()).unwrap_or_else(|e| panic!("{at} {input:?}: {e}"));
        self.machines[at].check();
        while let Some(output) = self.machines[at].poll_output() {
            self.carry_out(at, output);
        }
    }

    fn carry_out(&mut self, at: usize, output: Output) {
        match output {
            Output::HoldOutgoing => assert!(self.stopped.insert(at), "S5: alternate"),
            Output::ReleaseOutgoing => assert!(self.stopped.remove(&at), "S5: alternate"),
            Output::Enter { checkpoint } => {
                assert!(self.entered.insert((at, checkpoint)), "S1: entered once")
            }
            Output::Send { to, frame } => {
                self.sent.entry(at).or_default().push(frame);
                self.wires.entry((at, to.0 as usize / 3)).or_default().push_back(frame);
            }
            Output::Arrive { checkpoint, phase, in_flight } => {
                *self.counts.entry((at, checkpoint)).or_default() += 1;
                let word = &mut self.words[phase as usize];
                *word = word.arrive(checkpoint, in_flight).unwrap_or(*word);
            }
            Output::Freeze { checkpoint } => {
                for (other, machine) in self.machines.iter().enumerate() {
                    let phase = machine.phase().filter(|(of, _)| *of == checkpoint);
                    let there = phase.is_some_and(|(_, phase)| phase >= Phase::FirstBarrier)
                        || phase.is_some()
                            && machine.method() == QuiesceMethod::Counters
                            && !machine.wants_drained();
                    let over = self.resumed.contains_key(&(other, checkpoint));
                    let fine = there && !over || self.void.contains(&checkpoint);
                    assert!(fine, "{at} freezes checkpoint {checkpoint}, {other} is in {phase:?}");
                }
                self.freezing.insert(at, checkpoint);
            }
            Output::Answer(answer) => self.answers.push((at, answer)),
            Output::Resume { checkpoint, frozen } => {
                self.freezing.remove(&at);
                assert!(
                    self.entered.contains(&(at, checkpoint)),
                    "S1: resumed after it was entered"
                );
                assert_eq!(self.resumed.insert((at, checkpoint), frozen), None, "S1: resumed once");
                assert_eq!(frozen, self.frozen.contains(&(at, checkpoint)));
                let all = (0..self.machines.len()).all(|other| {
                    self.frozen.contains(&(other, checkpoint))
                        || self.resumed.contains_key(&(other, checkpoint))
                });
                assert!(
                    all || self.void.contains(&checkpoint),
                    "{at} goes on before all are frozen"
                );
            }
        }
    }

    /// One step of whatever can happen, picked by `draw`. False: nothing can.
    fn step(&mut self, draw: usize, twice: bool) -> bool {
        let mut steps: Vec<(u8, usize, usize)> = Vec::new();
        steps
            .extend(self.wires.iter().filter(|(_, w)| !w.is_empty()).map(|(&(a, b), _)| (0, a, b)));
        let wants = |(_, machine): &(usize, &Quiescence)| machine.wants_rendezvous_quiescence();
        steps.extend(self.machines.iter().enumerate().filter(wants).map(|(at, _)| (1, at, 0)));
        steps.extend(self.freezing.keys().map(|&at| (2, at, 0)));
        for (at, machine) in self.machines.iter().enumerate() {
            let met = machine.awaited_phase().and_then(|(checkpoint, phase)| {
                self.words[phase as usize].all_arrived(checkpoint, self.machines.len())
            });
            steps.extend(machine.wants_drained().then_some((3, at, 0)));
            steps.extend(met.map(|in_flight| (4, at, usize::from(in_flight))));
        }
        let Some(&(what, a, b)) = steps.get(draw % steps.len().max(1)) else { return false };
        match what {
            0 => {
                let wire = self.wires.get_mut(&(a, b)).unwrap();
                let frame = if twice { *wire.front().unwrap() } else { wire.pop_front().unwrap() };
                self.hand_in(b, Input::Frame { from: PeerId(a as u32 * 3), frame });
            }
            1 => {
                let n = self.machines.len();
                let done_recipients: BTreeSet<usize> =
                    (0..draw % 3).map(|more| (a + 1 + (draw >> 4) + more) % n).collect();
                let done_recipients = done_recipients.into_iter().filter(|&to| to != a);
                let done_recipients = done_recipients.map(|to| PeerId(to as u32 * 3)).collect();
                self.hand_in(a, Input::RendezvousQuiescent { done_recipients });
            }
            3 => self.hand_in(a, Input::Drained { in_flight: draw % 5 == 4 }),
            4 => {
                let (checkpoint, phase) = self.machines[a].awaited_phase().unwrap();
                self.hand_in(a, Input::AllArrived { checkpoint, phase, in_flight: b == 1 });
            }
            _ => {
                let Some(checkpoint) = self.freezing.remove(&a) else { return true };
                self.frozen.insert((a, checkpoint));
                self.hand_in(a, Input::Frozen { checkpoint });
            }
        }
        true
    }
}

/// Steps that no checkpoint of so few processes needs.
const STEPS_MAX: usize = 1_000_000;

/// The draws, and behind them others that depend on them. Were they the same again and again, a
/// frame could come twice, or be on its way, for ever.
fn endless(draws: Vec<usize>) -> impl Iterator<Item = usize> {
    let mix = |x: u64| (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let mut state = draws.iter().fold(1, |state, &draw| mix(state ^ draw as u64));
    let more = std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(mix(state) ^ state >> 27) as usize
    });
    draws.into_iter().chain(more).take(STEPS_MAX)
}

fn ways() -> impl Strategy<Value = QuiesceMethod> {
    prop_oneof![Just(QuiesceMethod::Frames), Just(QuiesceMethod::Counters)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Checkpoints one after the other, each ordered at some processes and noticed by token at
    /// others, in any order of events: all freeze, nobody before all are quiescent, nobody goes on
    /// before all are frozen; frames that come twice change nothing.
    #[test]
    fn checkpoints_end_with_a_snapshot_of_everybody(
        n in 1usize..14,
        global in any::<bool>(),
        method in ways(),
        draws in prop::collection::vec(any::<usize>(), 60..300),
    ) {
        let mut world = World::new(n, method);
        let mut draws = endless(draws);
        for checkpoint in [3, 4, 9] {
            let scope = if global { CheckpointScope::Global } else { CheckpointScope::Set };
            if global {
                (0..n).for_each(|at| world.hand_in(at, Input::StopOutgoing { checkpoint }));
                prop_assert_eq!(world.stopped.len(), n);
            }
            let mut late: Vec<usize> = (0..n).collect();
            while !late.is_empty() || world.machines.iter().any(Quiescence::is_active) {
                let draw = draws.next().expect("it ends");
                if draw.is_multiple_of(7) && !late.is_empty() {
                    let at = late.swap_remove(draw / 7 % late.len());
                    world.hand_in(at, Input::Begin { checkpoint, scope });
                } else if !world.step(draw / 7, draw % 29 == 1) && late.is_empty() {
                    // Nothing moves: all wait for the coordinator.
                    prop_assert!(global);
                    let waits = Some((checkpoint, Phase::AwaitResume));
                    prop_assert!(world.machines.iter().all(|machine| machine.phase() == waits));
                    (0..n).for_each(|at| world.hand_in(at, Input::Resume { checkpoint }));
                }
            }
            prop_assert!((0..n).all(|at| world.resumed.get(&(at, checkpoint)) == Some(&true)));
            let wanted = CheckpointAnswer::Frozen { checkpoint };
            let frozen = |(_, answer): &&(usize, CheckpointAnswer)| *answer == wanted;
            prop_assert_eq!(world.answers.iter().filter(frozen).count(), n);
            prop_assert!(world.stopped.is_empty());
        }
    }

    /// A checkpoint that is aborted while it is in any state leaves nobody in it, and the next one
    /// is taken as if it had not been, whatever of the old one is still under way.
    #[test]
    fn aborted_checkpoints_leave_nobody_inside(
        n in 1usize..10,
        before in 0usize..200,
        method in ways(),
        draws in prop::collection::vec(any::<usize>(), 60..300),
    ) {
        let mut world = World::new(n, method);
        let mut draws = endless(draws);
        world.void.insert(1);
        world.hand_in(0, Input::Begin { checkpoint: 1, scope: CheckpointScope::Set });
        for _ in 0..before {
            world.step(draws.next().unwrap(), false);
        }
        let mut order: Vec<usize> = (0..n).collect();
        while !order.is_empty() {
            let at = order.swap_remove(draws.next().unwrap() % order.len());
            world.hand_in(at, Input::Abort { checkpoint: 1 });
            prop_assert!(!world.machines[at].is_active());
            for _ in 0..draws.next().unwrap() % 4 {
                world.step(draws.next().unwrap(), false);
            }
        }
        prop_assert!(world.machines.iter().all(|machine| !machine.is_active()));
        let begin = || Input::Begin { checkpoint: 2, scope: CheckpointScope::Set };
        (0..n).for_each(|at| world.hand_in(at, begin()));
        while world.step(draws.next().unwrap(), false) {}
        prop_assert!((0..n).all(|at| world.resumed.get(&(at, 2)) == Some(&true)));
    }

    /// Orders of a newer checkpoint reach processes that are still in an older one.
    #[test]
    fn a_newer_checkpoint_supersedes_an_older_one(
        n in 2usize..8,
        before in 0usize..60,
        draws in prop::collection::vec(any::<usize>(), 60..300),
    ) {
        let mut world = World::new(n, QuiesceMethod::Frames);
        let mut draws = endless(draws);
        world.void.insert(1);
        world.hand_in(n - 1, Input::Begin { checkpoint: 1, scope: CheckpointScope::Set });
        (0..before).for_each(|_| { world.step(draws.next().unwrap(), false); });
        world.hand_in(0, Input::Begin { checkpoint: 2, scope: CheckpointScope::Set });
        while world.step(draws.next().unwrap(), false) {}
        prop_assert!((0..n).all(|at| world.resumed.get(&(at, 2)) == Some(&true)));
        prop_assert!(world.machines.iter().all(|machine| machine.last_checkpoint() == Some(2)));
    }
}

/// Tokens, barrier frames: what DESIGN.md says a checkpoint costs, for every size of a node.
#[test]
fn cost_of_a_checkpoint() {
    for n in 1..=48usize {
        let mut world = World::new(n, QuiesceMethod::Frames);
        world.hand_in(0, Input::Begin { checkpoint: 1, scope: CheckpointScope::Set });
        let mut rounds = 0;
        loop {
            // Nobody is sent `Done`.
            let wants = world.machines.iter().position(Quiescence::wants_rendezvous_quiescence);
            if let Some(at) = wants {
                world.hand_in(at, Input::RendezvousQuiescent { done_recipients: Vec::new() });
            } else if !world.step(0, false) {
                break;
            }
            rounds += 1;
        }
        assert!(n == 1 || rounds > n);
        // Seven in each round, as far as there are so many others.
        let units = [1, 8, 64].into_iter().take_while(|unit| *unit < n);
        let frames: usize = units.map(|unit| ((n - 1) / unit).min(7)).sum();
        for at in 0..n {
            let sent = world.sent.get(&at).cloned().unwrap_or_default();
            let of =
                |kind: fn(&CheckpointStep) -> bool| sent.iter().filter(|f| kind(&f.what)).count();
            assert_eq!(of(|what| matches!(what, CheckpointStep::Token { .. })), n - 1, "S2: {n}");
            let barrier = of(|what| matches!(what, CheckpointStep::Barrier { .. }));
            assert_eq!(barrier, 2 * frames, "S6: {n}");
            assert_eq!(sent.len(), n - 1 + 2 * frames, "nothing else");
            let bytes = 32 * sent.len();
            assert!(bytes < 10_240 / 4, "{bytes} bytes: far below one message of 10 KB (issue 4)");
        }
    }
}

/// C4, and that nothing is sent.
#[test]
fn cost_of_a_checkpoint_that_is_counted() {
    for n in 2..=48usize {
        for (in_flight, want) in [(false, 2), (true, 3)] {
            let mut world = World::new(n, QuiesceMethod::Counters);
            (0..n).for_each(|at| {
                world.hand_in(at, Input::Begin { checkpoint: 1, scope: CheckpointScope::Set })
            });
            for at in 0..n {
                world.hand_in(at, Input::Drained { in_flight: in_flight && at == n / 2 });
            }
            while world.step(0, false) {}
            assert!((0..n).all(|at| world.resumed.get(&(at, 1)) == Some(&true)));
            assert!((0..n).all(|at| world.counts[&(at, 1)] == want), "C4: {n}");
            assert!(world.sent.is_empty());
        }
    }
}
