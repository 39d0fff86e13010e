//! The machine of one process's lines: many of them in a random world of their own (no engine), the
//! cost of a line, each error, and what is written down of a line step by step.

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
    /// (process, line): has a picture, is over; what it answered.
    frozen: BTreeSet<(usize, u64)>,
    resumed: BTreeMap<(usize, u64), bool>,
    entered: BTreeSet<(usize, u64)>,
    answers: Vec<(usize, Answer)>,
    sent: BTreeMap<usize, Vec<CheckpointFrame>>,
    stopped: BTreeSet<usize>,
    /// Lines that somebody aborted: they promise nothing.
    void: BTreeSet<u64>,
    /// What a set counts in, and how often it did in a line.
    words: [Count; 3],
    counts: BTreeMap<(usize, u64), usize>,
}

impl World {
    fn new(n: usize, way: Way) -> Self {
        let ids: Vec<PeerId> = (0..n as u32).map(|rank| PeerId(rank * 3)).collect();
        let machine = |&me| {
            let mut machine = Quiescence::new(me, &ids);
            machine.go(way);
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
            Output::Enter { line } => assert!(self.entered.insert((at, line)), "S1: entered once"),
            Output::Send { to, frame } => {
                self.sent.entry(at).or_default().push(frame);
                self.wires.entry((at, to.0 as usize / 3)).or_default().push_back(frame);
            }
            Output::Come { line, station, open } => {
                *self.counts.entry((at, line)).or_default() += 1;
                let word = &mut self.words[station as usize];
                *word = word.come(line, open).unwrap_or(*word);
            }
            Output::Freeze { line } => {
                for (other, machine) in self.machines.iter().enumerate() {
                    let phase = machine.phase().filter(|(of, _)| *of == line);
                    let there = phase.is_some_and(|(_, phase)| phase >= Phase::FirstBarrier)
                        || phase.is_some() && machine.way() == Way::Counts && !machine.wants_left();
                    let over = self.resumed.contains_key(&(other, line));
                    let fine = there && !over || self.void.contains(&line);
                    assert!(fine, "{at} freezes line {line}, {other} is in {phase:?}");
                }
                self.freezing.insert(at, line);
            }
            Output::Answer(answer) => self.answers.push((at, answer)),
            Output::Resume { line, frozen } => {
                self.freezing.remove(&at);
                assert!(self.entered.contains(&(at, line)), "S1: resumed after it was entered");
                assert_eq!(self.resumed.insert((at, line), frozen), None, "S1: resumed once");
                assert_eq!(frozen, self.frozen.contains(&(at, line)));
                let all = (0..self.machines.len()).all(|other| {
                    self.frozen.contains(&(other, line))
                        || self.resumed.contains_key(&(other, line))
                });
                assert!(all || self.void.contains(&line), "{at} goes on before all are frozen");
            }
        }
    }

    /// One step of whatever can happen, picked by `draw`. False: nothing can.
    fn step(&mut self, draw: usize, twice: bool) -> bool {
        let mut steps: Vec<(u8, usize, usize)> = Vec::new();
        steps
            .extend(self.wires.iter().filter(|(_, w)| !w.is_empty()).map(|(&(a, b), _)| (0, a, b)));
        let wants = |(_, machine): &(usize, &Quiescence)| machine.wants_rendezvous_silence();
        steps.extend(self.machines.iter().enumerate().filter(wants).map(|(at, _)| (1, at, 0)));
        steps.extend(self.freezing.keys().map(|&at| (2, at, 0)));
        for (at, machine) in self.machines.iter().enumerate() {
            let met = machine.awaits().and_then(|(line, station)| {
                self.words[station as usize].met(line, self.machines.len())
            });
            steps.extend(machine.wants_left().then_some((3, at, 0)));
            steps.extend(met.map(|open| (4, at, usize::from(open))));
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
                let told: BTreeSet<usize> =
                    (0..draw % 3).map(|more| (a + 1 + (draw >> 4) + more) % n).collect();
                let told = told.into_iter().filter(|&to| to != a);
                let told = told.map(|to| PeerId(to as u32 * 3)).collect();
                self.hand_in(a, Input::RendezvousQuiescent { told });
            }
            3 => self.hand_in(a, Input::Left { open: draw % 5 == 4 }),
            4 => {
                let (line, station) = self.machines[a].awaits().unwrap();
                self.hand_in(a, Input::Met { line, station, open: b == 1 });
            }
            _ => {
                let Some(line) = self.freezing.remove(&a) else { return true };
                self.frozen.insert((a, line));
                self.hand_in(a, Input::Frozen { line });
            }
        }
        true
    }
}

fn ways() -> impl Strategy<Value = Way> {
    prop_oneof![Just(Way::Frames), Just(Way::Counts)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Lines one after the other, each ordered at some processes and noticed by token at others, in
    /// any order of events: all freeze, nobody before all are silent, nobody goes on before all
    /// are frozen; frames that come twice change nothing.
    #[test]
    fn lines_end_with_a_picture_of_everybody(
        n in 1usize..14,
        global in any::<bool>(),
        way in ways(),
        draws in prop::collection::vec(any::<usize>(), 60..300),
    ) {
        let mut world = World::new(n, way);
        let mut draws = draws.into_iter().cycle();
        for line in [3, 4, 9] {
            let scope = if global { Scope::Global } else { Scope::Set };
            if global {
                (0..n).for_each(|at| world.hand_in(at, Input::StopOutgoing { line }));
                prop_assert_eq!(world.stopped.len(), n);
            }
            let mut late: Vec<usize> = (0..n).collect();
            while !late.is_empty() || world.machines.iter().any(Quiescence::is_active) {
                let draw = draws.next().unwrap();
                if draw % 7 == 0 && !late.is_empty() {
                    let at = late.swap_remove(draw / 7 % late.len());
                    world.hand_in(at, Input::Begin { line, scope });
                } else if !world.step(draw / 7, draw % 29 == 1) && late.is_empty() {
                    // Nothing moves: all wait for the coordinator.
                    prop_assert!(global);
                    let waits = Some((line, Phase::AwaitResume));
                    prop_assert!(world.machines.iter().all(|machine| machine.phase() == waits));
                    (0..n).for_each(|at| world.hand_in(at, Input::Resume { line }));
                }
            }
            prop_assert!((0..n).all(|at| world.resumed.get(&(at, line)) == Some(&true)));
            let frozen = |(_, answer): &&(usize, Answer)| *answer == Answer::Frozen { line };
            prop_assert_eq!(world.answers.iter().filter(frozen).count(), n);
            prop_assert!(world.stopped.is_empty());
        }
    }

    /// A line that is aborted while it is in any state leaves nobody in it, and the next one is
    /// taken as if it had not been, whatever of the old one is still under way.
    #[test]
    fn aborted_lines_leave_nobody_behind(
        n in 1usize..10,
        before in 0usize..200,
        way in ways(),
        draws in prop::collection::vec(any::<usize>(), 60..300),
    ) {
        let mut world = World::new(n, way);
        let mut draws = draws.into_iter().cycle();
        world.void.insert(1);
        world.hand_in(0, Input::Begin { line: 1, scope: Scope::Set });
        for _ in 0..before {
            world.step(draws.next().unwrap(), false);
        }
        let mut order: Vec<usize> = (0..n).collect();
        while !order.is_empty() {
            let at = order.swap_remove(draws.next().unwrap() % order.len());
            world.hand_in(at, Input::Abort { line: 1 });
            prop_assert!(!world.machines[at].is_active());
            for _ in 0..draws.next().unwrap() % 4 {
                world.step(draws.next().unwrap(), false);
            }
        }
        prop_assert!(world.machines.iter().all(|machine| !machine.is_active()));
        (0..n).for_each(|at| world.hand_in(at, Input::Begin { line: 2, scope: Scope::Set }));
        while world.step(draws.next().unwrap(), false) {}
        prop_assert!((0..n).all(|at| world.resumed.get(&(at, 2)) == Some(&true)));
    }

    /// Orders of a newer line reach processes that are still in an older one.
    #[test]
    fn a_newer_line_supersedes_an_older_one(
        n in 2usize..8,
        before in 0usize..60,
        draws in prop::collection::vec(any::<usize>(), 60..300),
    ) {
        let mut world = World::new(n, Way::Frames);
        let mut draws = draws.into_iter().cycle();
        world.void.insert(1);
        world.hand_in(n - 1, Input::Begin { line: 1, scope: Scope::Set });
        (0..before).for_each(|_| { world.step(draws.next().unwrap(), false); });
        world.hand_in(0, Input::Begin { line: 2, scope: Scope::Set });
        while world.step(draws.next().unwrap(), false) {}
        prop_assert!((0..n).all(|at| world.resumed.get(&(at, 2)) == Some(&true)));
        prop_assert!(world.machines.iter().all(|machine| machine.last_line() == Some(2)));
    }
}

/// Tokens, barrier frames: what DESIGN.md says a line costs, for every size of a node.
#[test]
fn cost_of_a_line() {
    for n in 1..=48usize {
        let mut world = World::new(n, Way::Frames);
        world.hand_in(0, Input::Begin { line: 1, scope: Scope::Set });
        let mut rounds = 0;
        loop {
            // Nobody is told `Done`.
            let wants = world.machines.iter().position(Quiescence::wants_rendezvous_silence);
            if let Some(at) = wants {
                world.hand_in(at, Input::RendezvousQuiescent { told: Vec::new() });
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
            let of = |kind: fn(&CheckpointStep) -> bool| sent.iter().filter(|f| kind(&f.what)).count();
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
fn cost_of_a_line_that_is_counted() {
    for n in 2..=48usize {
        for (open, want) in [(false, 2), (true, 3)] {
            let mut world = World::new(n, Way::Counts);
            (0..n).for_each(|at| world.hand_in(at, Input::Begin { line: 1, scope: Scope::Set }));
            for at in 0..n {
                world.hand_in(at, Input::Left { open: open && at == n / 2 });
            }
            while world.step(0, false) {}
            assert!((0..n).all(|at| world.resumed.get(&(at, 1)) == Some(&true)));
            assert!((0..n).all(|at| world.counts[&(at, 1)] == want), "C4: {n}");
            assert!(world.sent.is_empty());
        }
    }
}

fn text(machine: &mut Quiescence) -> String {
    let mut out = String::new();
    while let Some(output) = machine.poll_output() {
        let piece = match output {
            Output::Send { to, frame: CheckpointFrame { what, .. } } => match what {
                CheckpointStep::Token { .. } => format!("token>{to}"),
                CheckpointStep::Flush => format!("flush>{to}"),
                CheckpointStep::Flushed => format!("flushed>{to}"),
                CheckpointStep::Barrier { second, round } => {
                    format!("barrier{}.{round}>{to}", 1 + u8::from(second))
                }
            },
            Output::Answer(Answer::Stopped { line }) => format!("stopped {line}"),
            Output::Answer(Answer::Frozen { line }) => format!("frozen {line}"),
            Output::Answer(Answer::Failed { line, why }) => format!("failed {line} {why:?}"),
            Output::Resume { line, frozen } => format!("resume {line} {frozen}"),
            Output::Enter { line } => format!("enter {line}"),
            Output::Come { station, open, .. } => format!("come {station:?} {open}"),
            Output::Freeze { line } => format!("freeze {line}"),
            Output::HoldOutgoing => "hold".to_owned(),
            Output::ReleaseOutgoing => "release".to_owned(),
        };
        out += if out.is_empty() { "" } else { ", " };
        out += &piece;
    }
    out
}

fn frame(from: u32, line: u64, what: CheckpointStep) -> Input {
    Input::Frame { from: PeerId(from), frame: CheckpointFrame { checkpoint: line, what } }
}

fn token(from: u32, line: u64) -> Input {
    frame(from, line, CheckpointStep::Token { global: false })
}

fn barrier(from: u32, line: u64, second: bool, round: u8) -> Input {
    frame(from, line, CheckpointStep::Barrier { second, round })
}

/// An input, and what comes of it.
type Step = (Input, &'static str);

/// Inputs and what comes of them, for process 1 of {0, 1, 2}.
fn transcript(steps: &[Step]) -> Quiescence {
    transcript_of(Way::Frames, steps)
}

fn transcript_of(way: Way, steps: &[Step]) -> Quiescence {
    let mut machine = Quiescence::new(PeerId(1), &[PeerId(2), PeerId(0), PeerId(1)]);
    machine.go(way);
    for (at, (input, want)) in steps.iter().enumerate() {
        machine.handle(input.clone()).unwrap_or_else(|error| panic!("step {at}: {error}"));
        machine.check();
        assert_eq!(text(&mut machine), *want, "step {at}: {input:?}");
    }
    machine
}

fn silent(told: &[u32]) -> Input {
    Input::RendezvousQuiescent { told: told.iter().copied().map(PeerId).collect() }
}

#[test]
fn a_set_line_step_by_step() {
    transcript(&[
        (token(2, 7), "enter 7, token>0, token>2"),
        (Input::Begin { line: 7, scope: Scope::Set }, ""),
        (token(2, 7), ""),
        (frame(2, 7, CheckpointStep::Flush), "flushed>2"),
        (token(0, 7), ""),
        (silent(&[0]), "flush>0"),
        (barrier(2, 7, false, 1), ""),
        (frame(0, 7, CheckpointStep::Flushed), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 7, false, 0), "freeze 7"),
        (barrier(0, 7, true, 0), ""),
        (Input::Frozen { line: 7 }, "frozen 7, barrier2.0>2, barrier2.1>0"),
        (barrier(2, 7, true, 1), "resume 7 true"),
        (barrier(2, 7, true, 1), ""),
        (token(0, 7), ""),
        (token(0, 6), ""),
        (Input::Abort { line: 7 }, ""),
        (Input::Frozen { line: 7 }, ""),
    ]);
}

#[test]
fn a_global_line_step_by_step() {
    let global = CheckpointStep::Token { global: true };
    transcript(&[
        (Input::StopOutgoing { line: 7 }, "hold, stopped 7"),
        (Input::StopOutgoing { line: 7 }, ""),
        (frame(0, 7, global), "enter 7, token>0, token>2"),
        (frame(2, 7, global), ""),
        (silent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 7, false, 0), ""),
        (Input::Resume { line: 7 }, ""),
        (barrier(2, 7, false, 1), "freeze 7"),
        (Input::Frozen { line: 7 }, "frozen 7"),
        (Input::Resume { line: 6 }, ""),
        (Input::Resume { line: 7 }, "resume 7 true, release"),
        (Input::Resume { line: 7 }, ""),
    ]);
    // Somebody who was not stopped must not take part: it may have sent to other sets since.
    transcript(&[(frame(0, 7, global), "failed 7 NotStopped"), (frame(2, 7, global), "")]);
}

fn met(line: u64, station: Station, open: bool) -> Input {
    Input::Met { line, station, open }
}

#[test]
fn counted_lines_step_by_step() {
    use Station::{Left, Pictured, Silent};
    transcript_of(
        Way::Counts,
        &[
            (Input::Begin { line: 7, scope: Scope::Set }, "enter 7"),
            (Input::Left { open: true }, "come Left true"),
            (Input::Begin { line: 7, scope: Scope::Set }, ""),
            (met(7, Left, true), ""),
            (silent(&[0]), "come Silent false"),
            (met(7, Silent, false), "freeze 7"),
            (not_frozen(Refusal::SnapshotMemory), "failed 7 SnapshotMemory, come Pictured false"),
            (met(7, Pictured, false), "resume 7 false"),
            (met(7, Pictured, false), ""),
            (Input::StopOutgoing { line: 8 }, "hold, stopped 8"),
            (Input::Begin { line: 8, scope: Scope::Global }, "enter 8"),
            (Input::Left { open: false }, "come Left false"),
            (met(8, Left, false), "freeze 8"),
            (Input::Frozen { line: 8 }, "frozen 8"),
            (Input::Resume { line: 8 }, "resume 8 true, release"),
            (Input::Begin { line: 9, scope: Scope::Set }, "enter 9"),
            (Input::Left { open: false }, "come Left false"),
            (Input::Abort { line: 9 }, "resume 9 false"),
            (token(0, 9), ""),
        ],
    );
    let left = (Input::Left { open: false }, "come Left false");
    let entered = (Input::Begin { line: 7, scope: Scope::Set }, "enter 7");
    let cases: [(&[Step], Input, QuiescenceError); 4] = [
        (&[], token(0, 1), QuiescenceError::OtherWay(PeerId(0))),
        (&[entered], met(7, Left, true), QuiescenceError::NotAsked("a count that is complete")),
        (
            &[(Input::Begin { line: 7, scope: Scope::Set }, "enter 7"), left],
            met(7, Silent, true),
            QuiescenceError::NotAsked("a count that is complete"),
        ),
        (&[], Input::Left { open: false }, QuiescenceError::NotAsked("that all has left")),
    ];
    for (steps, input, want) in cases {
        let mut machine = transcript_of(Way::Counts, steps);
        let before = format!("{machine:?}");
        assert_eq!(machine.handle(input), Err(want));
        assert_eq!(format!("{machine:?}"), before, "{want}");
    }
}

#[test]
fn a_set_of_one_needs_nobody() {
    let mut machine = Quiescence::new(PeerId(4), &[PeerId(4)]);
    let mut step = |input, want| {
        machine.handle(input).unwrap();
        assert_eq!(text(&mut machine), want);
    };
    step(Input::Begin { line: 1, scope: Scope::Set }, "enter 1");
    step(Input::RendezvousQuiescent { told: Vec::new() }, "freeze 1");
    step(Input::Frozen { line: 1 }, "frozen 1, resume 1 true");
    step(Input::StopOutgoing { line: 2 }, "hold, stopped 2");
    step(Input::Begin { line: 2, scope: Scope::Global }, "enter 2");
    step(Input::RendezvousQuiescent { told: Vec::new() }, "freeze 2");
    step(Input::Frozen { line: 2 }, "frozen 2");
    step(Input::Resume { line: 2 }, "resume 2 true, release");
}

fn not_frozen(why: Refusal) -> Input {
    Input::NotFrozen { line: 7, why }
}

#[test]
fn a_picture_that_cannot_be_taken_keeps_nobody_waiting() {
    transcript(&[
        (Input::Begin { line: 7, scope: Scope::Set }, "enter 7, token>0, token>2"),
        (token(0, 7), ""),
        (token(2, 7), ""),
        (silent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(2, 7, false, 1), ""),
        (barrier(0, 7, false, 0), "freeze 7"),
        (
            not_frozen(Refusal::SnapshotMemory),
            "failed 7 SnapshotMemory, barrier2.0>2, barrier2.1>0",
        ),
        (barrier(0, 7, true, 0), ""),
        (barrier(2, 7, true, 1), "resume 7 false"),
    ]);
}

#[test]
fn aborts_before_entry_and_in_a_picture() {
    transcript(&[
        (Input::Abort { line: 7 }, ""),
        (token(0, 7), ""),
        (Input::Begin { line: 7, scope: Scope::Set }, ""),
        (Input::StopOutgoing { line: 8 }, "hold, stopped 8"),
        (Input::Abort { line: 8 }, "release"),
        (Input::Begin { line: 9, scope: Scope::Set }, "enter 9, token>0, token>2"),
        (token(0, 10), "resume 9 false, enter 10, token>0, token>2"),
        (Input::Abort { line: 9 }, ""),
        (Input::Abort { line: 12 }, "resume 10 false"),
        (token(2, 11), ""),
    ]);
}

#[test]
fn a_process_that_finishes_takes_its_line_to_the_end_and_no_other() {
    let machine = transcript(&[
        (Input::Begin { line: 1, scope: Scope::Set }, "enter 1, token>0, token>2"),
        (Input::Finish, ""),
        (token(0, 1), ""),
        (token(2, 1), ""),
        (silent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 1, false, 0), ""),
        (barrier(2, 1, false, 1), "freeze 1"),
        (Input::Frozen { line: 1 }, "frozen 1, barrier2.0>2, barrier2.1>0"),
        (barrier(0, 1, true, 0), ""),
        (barrier(2, 1, true, 1), "resume 1 true"),
        (token(2, 2), "failed 2 Finishing"),
        (Input::Begin { line: 2, scope: Scope::Set }, ""),
        (Input::StopOutgoing { line: 3 }, "failed 3 Finishing"),
    ]);
    assert!(machine.has_finished());
    let machine = transcript(&[
        (Input::StopOutgoing { line: 1 }, "hold, stopped 1"),
        (Input::Finish, "release, failed 1 Finishing"),
        (token(0, 1), ""),
    ]);
    assert!(machine.has_finished());
}

#[test]
fn a_restored_process_is_out_of_its_line() {
    let mut machine = transcript(&[
        (Input::StopOutgoing { line: 7 }, "hold, stopped 7"),
        (frame(0, 7, CheckpointStep::Token { global: true }), "enter 7, token>0, token>2"),
        (frame(2, 7, CheckpointStep::Token { global: true }), ""),
        (silent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 7, false, 0), ""),
        (barrier(2, 7, false, 1), "freeze 7"),
    ]);
    machine.handle(Input::Restored).unwrap();
    assert_eq!(text(&mut machine), "resume 7 true");
    assert!(!machine.is_active() && machine.last_line() == Some(7));
    machine.handle(Input::StopOutgoing { line: 8 }).unwrap();
    assert_eq!(text(&mut machine), "hold, stopped 8");
}

#[test]
fn a_broken_protocol_is_named_and_changes_nothing() {
    let entered = [(Input::Begin { line: 7, scope: Scope::Set }, "enter 7, token>0, token>2")];
    let flush = |line| frame(0, line, CheckpointStep::Flush);
    let cases: [(&[Step], Input, QuiescenceError); 9] = [
        (&[], token(5, 1), QuiescenceError::Stranger(PeerId(5))),
        (&[], token(1, 1), QuiescenceError::Stranger(PeerId(1))),
        (&[], flush(1), QuiescenceError::TooEarly(CheckpointFrame { checkpoint: 1, what: CheckpointStep::Flush })),
        (
            &entered,
            flush(8),
            QuiescenceError::TooEarly(CheckpointFrame { checkpoint: 8, what: CheckpointStep::Flush }),
        ),
        (&entered, barrier(0, 7, false, 2), QuiescenceError::Round(2)),
        (&entered, silent(&[]), QuiescenceError::NotAsked("rendezvous silence")),
        (&entered, silent(&[9]), QuiescenceError::Stranger(PeerId(9))),
        (&entered, Input::Frozen { line: 7 }, QuiescenceError::NotAsked("a picture")),
        (&entered, Input::Restored, QuiescenceError::NotAsked("a restored process")),
    ];
    for (steps, input, want) in cases {
        let mut machine = transcript(steps);
        let before = format!("{machine:?}");
        assert_eq!(machine.handle(input), Err(want));
        assert_eq!(format!("{machine:?}"), before, "{want}");
    }
}
