//! Programs by name: the figures of the paper, the program that its algorithm does not finish, and
//! others that the drain has to get right. Each under many schedules.
//!
//! Sources: Xu and Cooperman 2024, figures 2 and 3, sections 4.2.5 and 4.3; docs/adr/0038.

use crate::program::{Kind, Op, Program};
use crate::world::{Options, Planted, Report, World};
use rustbtl_coordination::collective_clock::*;
use rustbtl_coordination::control::{CheckpointId, ClockTarget, FromClock, Hindrance, ToClock};
use rustbtl_coordination::quiescence::CheckpointRefusal;
use rustbtl_fragments::ids::PeerId;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A barrier on `comm`; `call` names it.
fn barrier(comm: usize, call: u64) -> Op {
    Op::Collective { comm, call, kind: Kind::All, root: 0 }
}

/// These calls of each rank; all schedules that 300 seeds draw, checkpoints included.
fn always_drains(program: &Program) -> Report {
    let expected = crate::undisturbed(program);
    let mut sum = Report::default();
    for seed in 0..300 {
        let options =
            Options { planted: None, checkpoints: 3, aborts: 0, idup_counts: true, timeout: None };
        let mut world = World::new(program.clone(), seed, options);
        assert_eq!(world.run(), expected, "seed {seed}");
        assert_eq!(world.given_up, [], "seed {seed}");
        sum.add(&world.report);
    }
    assert!(sum.snapshots > 100, "{sum:?}");
    sum
}

/// Does any of these schedules end otherwise than without checkpoints?
fn is_found(program: &Program, planted: Planted) -> bool {
    let expected = crate::undisturbed(program);
    (0..300).any(|seed| {
        let options = Options {
            planted: Some(planted),
            checkpoints: 3,
            aborts: 0,
            idup_counts: true,
            timeout: None,
        };
        let mut world = World::new(program.clone(), seed, options);
        catch_unwind(AssertUnwindSafe(|| world.run())).map_or(true, |seen| seen != expected)
    })
}

/// P2 has visited N2 of {1, 2}, P1 is in N3 already: P2 goes on until it is there.
#[test]
fn figure_2a_a_rank_goes_on_to_where_another_is() {
    let mut program = Program::new(3, &[&[0, 1, 2], &[1, 2]]);
    program.ranks[0] = vec![barrier(0, 1)];
    program.ranks[1] = vec![barrier(0, 1), barrier(1, 2), barrier(1, 3)];
    program.ranks[2] = vec![barrier(0, 1), barrier(1, 2), Op::Compute { steps: 20 }, barrier(1, 3)];
    assert!(always_drains(&program).raises > 0);
}

/// On its way to N3 P2 has to visit N5, which depends on N4: P4 has to go on as well.
#[test]
fn figure_2b_targets_are_raised_on_the_way_to_targets() {
    let mut program = Program::new(5, &[&[1, 2], &[2, 4], &[3, 4]]);
    program.ranks[1] = vec![barrier(0, 3)];
    program.ranks[2] = vec![Op::Compute { steps: 9 }, barrier(1, 5), barrier(0, 3)];
    program.ranks[3] = vec![barrier(2, 4)];
    program.ranks[4] = vec![Op::Compute { steps: 9 }, barrier(2, 4), barrier(1, 5)];
    assert!(always_drains(&program).raises > 0);
    assert!(is_found(&program, Planted::TargetNotRaised));
}

/// Groups {1, 2}, {2, 3}, {3, 4, 5}, {5, 6} with targets of their own.
fn figure_3(three: &[Op], four: &[Op], five: &[Op]) -> Program {
    let mut program = Program::new(7, &[&[1, 2], &[2, 3], &[3, 4, 5], &[5, 6]]);
    let calls =
        |comm: usize, count: u64| (0..count).map(move |at| barrier(comm, 100 * comm as u64 + at));
    program.ranks[1] = calls(0, 5).collect();
    program.ranks[2] = calls(0, 5).chain(calls(1, 7)).collect();
    program.ranks[3] = calls(1, 6).chain(calls(2, 2)).chain(three.iter().copied()).collect();
    program.ranks[4] = calls(2, 2).chain(four.iter().copied()).collect();
    program.ranks[5] = calls(2, 2).chain(calls(3, 3)).chain(five.iter().copied()).collect();
    program.ranks[6] = calls(3, 3).collect();
    program
}

#[test]
fn figure_3a_each_group_has_its_target() {
    let program = figure_3(&[barrier(1, 106)], &[], &[]);
    assert!(always_drains(&program).stops > 0);
}

/// Rank 3, on its way to 7 of {2, 3}, enters the third of {3, 4, 5}: 4 and 5 have to follow, and 5
/// takes 6 with it into the fourth of {5, 6}.
#[test]
fn figure_3b_a_rank_that_has_reached_its_targets_starts_again() {
    let five = [barrier(3, 303), barrier(2, 202)];
    let mut program = figure_3(&[barrier(2, 202), barrier(1, 106)], &[barrier(2, 202)], &five);
    program.ranks[6].push(barrier(3, 303));
    assert!(always_drains(&program).raises > 0);
    assert!(is_found(&program, Planted::TargetNotRaised));
}

/// Ranks 0 and 3 call Barrier on {0, 3}, then 0 sends to 1; rank 1 receives, then calls Barrier on
/// {1, 2}, where rank 2 is when the checkpoint is ordered.
fn waits_for_a_stopped_rank() -> Program {
    let mut program = Program::new(4, &[&[0, 3], &[1, 2]]);
    program.ranks[0] = vec![barrier(0, 1), Op::Send { to: 1, synchronous: false }];
    program.ranks[1] = vec![Op::Receive { from: 0 }, barrier(1, 2)];
    program.ranks[2] = vec![barrier(1, 2)];
    program.ranks[3] = vec![barrier(0, 1)];
    program
}

/// The paper's algorithm waits for ever here (section 4.2.5 looks at other cases only).
#[test]
fn who_waits_for_a_stopped_rank_has_it_go_on() {
    let program = waits_for_a_stopped_rank();
    assert!(always_drains(&program).lifts > 0);
    assert!(is_found(&program, Planted::LiftForgotten));
    assert!(is_found(&program, Planted::WaitsNotReported));
}

/// The same over two ranks that wait for each other in a row, and with a receive from anybody.
#[test]
fn stops_are_lifted_through_ranks_that_wait_themselves() {
    let mut program = Program::new(5, &[&[0, 3], &[1, 2]]);
    program.ranks[0] = vec![barrier(0, 1), Op::Send { to: 4, synchronous: true }];
    program.ranks[1] = vec![Op::ReceiveAny, barrier(1, 2)];
    program.ranks[2] = vec![barrier(1, 2)];
    program.ranks[3] = vec![barrier(0, 1)];
    program.ranks[4] = vec![Op::Receive { from: 0 }, Op::SendAny { to: 1 }];
    assert!(always_drains(&program).lifts > 0);
}

/// Section 4.3.1: nonblocking ones count when they are started, several at once.
#[test]
fn section_4_3_nonblocking_collectives_count_when_they_are_started() {
    let start = |comm, call| Op::Start { comm, call, kind: Kind::FromRoot, root: 0 };
    let mut program = Program::new(3, &[&[0, 1, 2], &[0, 1]]);
    let waits = [Op::Wait { call: 1 }, Op::Wait { call: 2 }, Op::Wait { call: 3 }];
    let starts = [start(0, 1), start(0, 2), start(1, 3)];
    program.ranks[0] = [&starts[..], &[Op::Compute { steps: 9 }], &waits[..]].concat();
    program.ranks[1] = [&[Op::Compute { steps: 9 }], &starts[..], &waits[..]].concat();
    program.ranks[2] = [&starts[..2], &[Op::Compute { steps: 9 }], &waits[..2]].concat();
    always_drains(&program);
}

/// Section 4.3.2: whoever has started all of them and tests none is drained when they are complete.
#[test]
fn section_4_3_started_ones_are_completed_though_nobody_tests_them() {
    let mut program = Program::new(2, &[&[0, 1]]);
    let start = Op::Start { comm: 0, call: 1, kind: Kind::All, root: 0 };
    for rank in &mut program.ranks {
        *rank = vec![start, Op::Compute { steps: 60 }, Op::Wait { call: 1 }];
    }
    always_drains(&program);
    assert!(is_found(&program, Planted::NonblockingNotCompleted));
}

/// Nonblocking collectives of different communicators may be started in any order, also where the
/// communicators are similar. With one number for the group, as in the paper, both ranks are at
/// the target, and both collectives are half done.
#[test]
fn similar_communicators_may_be_used_in_another_order_by_each_rank() {
    let start = |comm, root| Op::Start { comm, call: comm as u64, kind: Kind::FromRoot, root };
    let wait = |comm| Op::Wait { call: comm };
    let mut program = Program::new(2, &[&[0, 1], &[0, 1]]);
    program.ranks[0] = vec![start(0, 0), Op::Compute { steps: 9 }, start(1, 1), wait(0), wait(1)];
    program.ranks[1] = vec![start(1, 1), Op::Compute { steps: 9 }, start(0, 0), wait(0), wait(1)];
    always_drains(&program);
    assert!(is_found(&program, Planted::SharedBySimilar));
}

/// MPI_Comm_idup starts its second stage from progress, where nobody may stop. If it counts as a
/// whole it is waited for.
#[test]
fn stages_that_progress_starts_are_waited_for() {
    let mut program = Program::new(3, &[&[0, 1, 2]]);
    program.comms.push(crate::program::Comm { members: vec![0, 1, 2], context: 1, is_old: false });
    let made = [Op::Idup { parent: 0, call: 1, comm: 1 }, Op::Compute { steps: 9 }];
    for rank in &mut program.ranks {
        *rank = [&made[..], &[Op::Wait { call: 1 }, barrier(1, 2)]].concat();
    }
    always_drains(&program);
}

/// A rank that computes while others are in a collective: the drain is given up in time, all go on.
#[test]
fn a_rank_that_computes_for_long_is_named() {
    let ids = [PeerId(0), PeerId(1)];
    let mut clocks = ids.map(CollectiveClock::new);
    let handles = clocks.each_mut().map(|clock| clock.register(&ids, 0).unwrap());
    assert_eq!(clocks[0].enter(handles[0], Call::Program), Entry::Go);
    let mut drain = CollectiveDrain::new(&ids, 1000);
    drain.handle(5, DrainInput::Begin { checkpoint: 1 }).unwrap();
    exchange(&mut drain, &mut clocks);
    assert_eq!(drain.next_deadline(), Some(1005));
    drain.handle(1004, DrainInput::Tick).unwrap();
    assert_eq!(drain.poll_output(), None);
    drain.handle(1005, DrainInput::Tick).unwrap();
    let reason = DrainFailure::Timeout(PeerId(1), Hindrance::BelowTarget);
    assert_eq!(drain.poll_output(), Some(DrainOutput::GiveUp { checkpoint: 1, reason }));
    assert_eq!(
        reason.to_string(),
        "rank 1 did not come in time to a collective that other ranks are in"
    );
    clocks.iter_mut().for_each(|clock| clock.handle(Input::Release { checkpoint: 1 }).unwrap());
    assert!(clocks.iter().all(|clock| !clock.is_draining()));
    assert_eq!(clocks[1].enter(handles[1], Call::Program), Entry::Go);
}

/// Deliver all messages until there are none.
fn exchange(drain: &mut CollectiveDrain, clocks: &mut [CollectiveClock]) -> Vec<DrainOutput> {
    let mut others = Vec::new();
    loop {
        let mut moved = false;
        while let Some(output) = drain.poll_output() {
            moved = true;
            match output {
                DrainOutput::Send { rank, message } => {
                    clocks[rank.0 as usize].handle(Input::Order(message)).unwrap();
                }
                other => others.push(other),
            }
        }
        for (at, clock) in clocks.iter_mut().enumerate() {
            let rank = PeerId(at as u32);
            while let Some(output) = clock.poll_output() {
                moved = true;
                let input = match output {
                    Output::Send(message) => DrainInput::Message { rank, message },
                    Output::Refuse { checkpoint, refusal } => {
                        DrainInput::Refused { rank, checkpoint, refusal }
                    }
                    Output::Go { .. } => continue,
                };
                drain.handle(10, input).unwrap();
            }
        }
        if !moved {
            return others;
        }
    }
}

#[test]
fn a_rank_in_mpi_finalize_refuses_and_is_never_stopped() {
    let ids = [PeerId(0), PeerId(1)];
    let mut clocks = ids.map(CollectiveClock::new);
    let handle = clocks[1].register(&ids, 0).unwrap();
    clocks[1].handle(Input::Finish).unwrap();
    let mut drain = CollectiveDrain::new(&ids, 1000);
    drain.handle(0, DrainInput::Begin { checkpoint: 4 }).unwrap();
    let reason = DrainFailure::Refused(PeerId(1), CheckpointRefusal::Finishing);
    let given_up = DrainOutput::GiveUp { checkpoint: 4, reason };
    assert_eq!(exchange(&mut drain, &mut clocks), [given_up]);
    assert_eq!(clocks[1].enter(handle, Call::Program), Entry::Go);
}

/// A rank has said that it is drained, then progress starts a collective in which others are: that
/// alone says that it is not, before it says so itself (found by seed 1409).
#[test]
fn a_collective_that_begins_revokes_what_its_rank_has_said() {
    let ids = [PeerId(0), PeerId(1)];
    let mut clocks = ids.map(CollectiveClock::new);
    let handles = clocks.each_mut().map(|clock| clock.register(&ids, 0).unwrap());
    assert_eq!(clocks[0].enter(handles[0], Call::Nested), Entry::Go);
    let mut drain = CollectiveDrain::new(&ids, 1000);
    drain.handle(0, DrainInput::Begin { checkpoint: 1 }).unwrap();
    let checkpoint = CheckpointId(1);
    let order = || Input::Order(ToClock::Drain { checkpoint });
    let mut say = |clock: &mut CollectiveClock, rank, count| {
        for _ in 0..count {
            let Some(Output::Send(message)) = clock.poll_output() else { panic!("says nothing") };
            drain.handle(0, DrainInput::Message { rank: PeerId(rank), message }).unwrap();
        }
        std::iter::from_fn(|| drain.poll_output()).last()
    };
    clocks[1].handle(order()).unwrap();
    say(&mut clocks[1], 1, 2);
    assert_eq!(clocks[1].enter(handles[1], Call::Nested), Entry::Go);
    say(&mut clocks[1], 1, 1);
    clocks[0].handle(order()).unwrap();
    clocks[0].leave();
    assert_eq!(say(&mut clocks[0], 0, 3), None, "rank 1 is in it");
    clocks[1].leave();
    assert_eq!(say(&mut clocks[1], 1, 2), Some(DrainOutput::Drained { checkpoint: 1 }));
}

/// Two threads are stopped; a lift of one lets those before it go, a raised target all.
#[test]
fn several_threads_are_stopped_and_go_on_in_their_order() {
    let ids = [PeerId(0), PeerId(1)];
    let mut clock = CollectiveClock::new(ids[0]);
    let handles = [1, 2, 3].map(|context| clock.register(&ids, context).unwrap());
    let checkpoint = CheckpointId(1);
    clock.handle(Input::Order(ToClock::Drain { checkpoint })).unwrap();
    let stops = handles.map(|handle| clock.enter(handle, Call::Program));
    assert_eq!(stops, [1, 2, 3].map(Entry::Stop));
    let go = |clock: &mut CollectiveClock| {
        let outputs = std::iter::from_fn(|| clock.poll_output());
        outputs.filter(|output| matches!(output, Output::Go { .. })).collect::<Vec<_>>()
    };
    clock.handle(Input::Order(ToClock::Lift { checkpoint, stop: 2 })).unwrap();
    assert_eq!(go(&mut clock), [Output::Go { stop: 2 }]);
    assert_eq!(handles.map(|handle| clock.sequence(handle)), [1, 1, 0]);
    assert_eq!((clock.group_sequence(handles[2]), clock.wants_progress()), (2, true));
    let targets = vec![ClockTarget { clock: handles[1].0, target: 5 }];
    clock.handle(Input::Order(ToClock::Raise { checkpoint, targets })).unwrap();
    assert_eq!(go(&mut clock), [Output::Go { stop: 3 }]);
    clock.check();
    let wrong = vec![ClockTarget { clock: 9, target: 5 }];
    let wrong = clock.handle(Input::Order(ToClock::Raise { checkpoint, targets: wrong }));
    assert_eq!(wrong, Err(ClockError::Clock(9)));
    assert_eq!(
        CollectiveClock::new(PeerId(7)).register(&ids, 0),
        Err(ClockError::NotMember(PeerId(7)))
    );
}

/// What a clock says that makes no sense is refused, and changes nothing.
#[test]
fn the_coordinator_refuses_nonsense() {
    let ids = [PeerId(0), PeerId(1)];
    let mut clocks = ids.map(CollectiveClock::new);
    clocks.iter_mut().for_each(|clock| assert!(clock.register(&ids, 0).is_ok()));
    let mut drain = CollectiveDrain::new(&ids, 1000);
    drain.handle(0, DrainInput::Begin { checkpoint: 1 }).unwrap();
    let checkpoint = CheckpointId(1);
    let say = |drain: &mut CollectiveDrain, rank, message| {
        drain.handle(0, DrainInput::Message { rank: PeerId(rank), message })
    };
    let raised = |clock| FromClock::Raised { checkpoint, clock, sequence: 1 };
    assert_eq!(say(&mut drain, 0, raised(0)), Err(ClockError::TooEarly(PeerId(0))));
    assert_eq!(say(&mut drain, 5, raised(0)), Err(ClockError::Rank(PeerId(5))));
    clocks[0].handle(Input::Order(ToClock::Drain { checkpoint })).unwrap();
    let Some(Output::Send(counters)) = clocks[0].poll_output() else { panic!("no counters") };
    assert_eq!(say(&mut drain, 0, counters.clone()), Ok(()));
    assert_eq!(say(&mut drain, 0, counters.clone()), Err(ClockError::Clock(0)));
    assert_eq!(say(&mut drain, 0, raised(3)), Err(ClockError::Clock(3)));
    let state = |orders| FromClock::State {
        checkpoint,
        orders,
        hindrance: Hindrance::None,
        stop: 0,
        waits_for: vec![],
    };
    assert_eq!(say(&mut drain, 0, state(2)), Err(ClockError::Orders(PeerId(0))));
    let FromClock::Counters { counters, .. } = counters else { panic!("no counters") };
    let mut none = counters.clone();
    none[0].members.0.clear();
    let wrong = FromClock::Counters { checkpoint, counters: none };
    assert_eq!(say(&mut drain, 1, wrong), Err(ClockError::Members));
    drain.check();
    // Processes of another job take part in nothing.
    let mut foreign = counters;
    foreign[0].members.0[0].count = 9;
    foreign[0].sequence = 1;
    let message = FromClock::Counters { checkpoint, counters: foreign };
    say(&mut drain, 1, message).unwrap();
    let outputs: Vec<_> = std::iter::from_fn(|| drain.poll_output()).collect();
    let reason = DrainFailure::OtherJob(PeerId(1), 8);
    assert_eq!(outputs.last(), Some(&DrainOutput::GiveUp { checkpoint: 1, reason }));
}

/// The example of DESIGN.md: what it costs while there is no checkpoint, and what is kept.
#[test]
fn a_collective_costs_two_counters_while_there_is_no_drain() {
    let ids = [PeerId(0), PeerId(3)];
    let mut clock = CollectiveClock::new(ids[0]);
    let world = clock.register(&ids, 0).unwrap();
    let dup = clock.register(&[ids[1], ids[0]], 1).unwrap();
    for _ in 0..1000 {
        assert_eq!(clock.enter(world, Call::Program), Entry::Go);
        clock.leave();
    }
    assert_eq!(clock.poll_output(), None, "nothing is sent");
    assert_eq!((clock.sequence(world), clock.sequence(dup)), (1000, 0));
    assert_eq!(clock.group(world), clock.group(dup));
    assert_eq!(clock.group_sequence(dup), 1000, "the paper's SEQ is that of the group");
}
