//! Determinants: format, one process's decisions, log and replicas.

use proptest::prelude::*;
use rustbtl_coordination::determinants::*;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::send_gate::Recorded;
use std::collections::BTreeMap;

fn receive_name() -> impl Strategy<Value = ReceiveName> {
    (any::<u32>(), 0..=i32::MAX, any::<u64>()).prop_map(|(context, lane, number)| ReceiveName {
        context,
        lane: -lane,
        number,
    })
}

fn message_name() -> impl Strategy<Value = MessageName> {
    (any::<u32>(), any::<u64>(), receive_name()).prop_map(|(from, sequence, receive)| {
        let ReceiveName { context, lane, .. } = receive;
        MessageName { from: PeerId(from), context, lane, sequence: MessageSeq(sequence) }
    })
}

fn call() -> impl Strategy<Value = NondetCall> {
    let calls = [
        CallKind::Test,
        CallKind::TestSome,
        CallKind::WaitAny,
        CallKind::Probe,
        CallKind::Claim,
        CallKind::Cancel,
        CallKind::File,
    ];
    (prop::sample::select(calls.to_vec()), any::<u64>())
        .prop_map(|(call, shape)| NondetCall { kind: call, arguments: shape })
}

fn determinant() -> impl Strategy<Value = Determinant> {
    let outcome = prop_oneof![
        Just(Outcome::Done),
        prop::collection::vec(any::<u32>(), 0..5).prop_map(Outcome::Requests),
        message_name().prop_map(Outcome::Message),
        receive_name().prop_map(|receive| Outcome::Cancelled(Some(receive))),
        Just(Outcome::Cancelled(None)),
        any::<u64>().prop_map(Outcome::Value),
    ];
    prop_oneof![
        (receive_name(), message_name()).prop_map(|(receive, message)| {
            let ReceiveName { context, lane, .. } = receive;
            Determinant::Matched { receive, message: MessageName { context, lane, ..message } }
        }),
        (call(), 1u64.., any::<u64>()).prop_map(|(first, count, hash)| Determinant::Nothing {
            first,
            count,
            hash
        }),
        (call(), outcome).prop_map(|(call, outcome)| Determinant::Outcome { call, outcome }),
        any::<[u64; 3]>().prop_map(|[call, calls, seconds]| Determinant::ProgramTime(
            TimeReading { call, calls, seconds }
        )),
        readings().prop_map(|those| Determinant::Readings(Box::new(those))),
        applied_run().prop_map(Determinant::Applied),
        prop::collection::vec((any::<u32>(), any::<u64>(), applied_run()), 1..8).prop_map(|runs| {
            let direct = |(target, first, run)| DirectRun { target: PeerId(target), first, run };
            Determinant::AppliedGroup(runs.into_iter().map(direct).collect())
        }),
    ]
}

fn applied_run() -> impl Strategy<Value = AppliedRun> {
    (any::<[u32; 2]>(), 1u64.., any::<u64>()).prop_map(|([window, source], count, tick)| {
        let (window, source) = (ContextId(window), CommRank(source));
        AppliedRun { window, source, count, tick }
    })
}

fn readings() -> impl Strategy<Value = Readings> {
    let steps = prop::collection::vec(prop_oneof![0u64..3000, any::<u64>()], 1..30);
    (0..CLOCKS as u8, steps).prop_map(|(number, steps)| {
        let (mut clock, mut now) = (ClockReadings::default(), 0u64);
        for step in steps {
            now = now.saturating_add(step);
            clock.read(number, now, Ticks { now, per_us: 1 });
        }
        clock.close(number)[1].expect("it was read")
    })
}

proptest! {
    #[test]
    fn determinants_decode_as_they_were(all in prop::collection::vec(determinant(), 0..20)) {
        let mut bytes = Vec::new();
        all.iter().for_each(|one| encode(one, &mut bytes));
        let mut rest = bytes.as_slice();
        for one in &all {
            prop_assert_eq!(&decode(&mut rest).unwrap(), one);
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn batches_decode_as_they_were(
        all in prop::collection::vec((0u64..9, any::<u32>(), any::<u64>(), determinant()), 0..20),
        from in 0u64..1 << 60,
    ) {
        let mut at = from;
        let records = all.into_iter().map(|(skip, rank, number, determinant)| {
            at += skip + 1;
            let numbered = Numbered { number, determinant };
            DeterminantRecord { at: at - 1, rank: PeerId(rank), numbered }
        });
        let records: Vec<DeterminantRecord> = records.collect();
        let (set, incarnation) = (SetId(3), Incarnation(7));
        let batch = DeterminantBatch { set, incarnation, from, upto: at, inherits: 5, records };
        prop_assert_eq!(DeterminantBatch::decode(&batch.encode()).unwrap(), batch);
    }

    #[test]
    fn dates_of_any_past_do_not_decrease(
        kept in prop::collection::vec(any::<[u64; 3]>(), 0..10),
        small in prop::collection::vec([0u64..60, 0u64..9, 0u64..200], 0..30),
    ) {
        let mut dates = ProgramTime::default();
        let all = small.into_iter().chain(kept);
        dates.restored(all.map(|[call, calls, seconds]| TimeReading { call, calls, seconds }));
        let given: Vec<u64> = (0..100).map(|now| dates.read(now).0).collect();
        prop_assert!(given.is_sorted(), "{:?}", given);
    }

    #[test]
    fn readings_of_any_past_do_not_decrease(kept in prop::collection::vec(readings(), 0..10)) {
        let mut clock = ClockReadings::default();
        clock.restored();
        kept.into_iter().for_each(|readings| clock.force(readings));
        let read = |now| clock.read(0, now, Ticks { now: 0, per_us: 0 }).0;
        let given: Vec<u64> = (0..200).map(read).collect();
        prop_assert!(given.is_sorted(), "{:?}", given);
    }

    #[test]
    fn bytes_from_nowhere_give_errors_and_no_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && decode(&mut rest).is_ok() {}
        let _ = DeterminantBatch::decode(&bytes);
        let mut named = b"Dtm1".to_vec();
        named.extend(bytes);
        let _ = DeterminantBatch::decode(&named);
    }
}

#[test]
fn the_format_is_fixed() {
    let receive = ReceiveName { context: 300, lane: -2, number: 5 };
    let name = MessageName { from: PeerId(7), context: 300, lane: -2, sequence: MessageSeq(200) };
    let call = NondetCall::requests(CallKind::TestAny, 4);
    let mut bytes = Vec::new();
    encode(&Determinant::Matched { receive, message: name }, &mut bytes);
    encode(&Determinant::Nothing { first: call, count: 130, hash: 0x0102 }, &mut bytes);
    let outcome = Outcome::Requests(vec![3]);
    encode(&Determinant::Outcome { call, outcome }, &mut bytes);
    let call = NondetCall::requests(CallKind::Cancel, 1);
    encode(&Determinant::Outcome { call, outcome: Outcome::Cancelled(Some(receive)) }, &mut bytes);
    encode(&Determinant::ProgramTime(TimeReading { call: 3, calls: 4, seconds: 200 }), &mut bytes);
    let mut decisions = ReplayDecisions::default();
    for now_ns in [300_000, 300_500, 300_500, 301_000] {
        decisions.read_clock(1, now_ns, Ticks { now: 0, per_us: 0 });
    }
    encode(&decisions.take_recorded().unwrap().determinant, &mut bytes);
    let golden = [
        1, 0xAC, 2, 2, 5, 7, 0xC8, 1, // a match
        2, 3, 4, 0x82, 1, 2, 1, 0, 0, 0, 0, 0, 0, // a run
        4, 3, 4, 1, 3, // testany gave 3
        6, 9, 1, 0xAC, 2, 2, 5, // a cancel in time
        9, 3, 4, 0xC8, 1, // a date
        10, 1, 0, 0xE0, 0xA7, 0x12, 6, 0, 0xE9, 7, 1, 0xE8, 7, // readings of clock 1
    ];
    assert_eq!(bytes, golden);
    let run = AppliedRun { window: ContextId(0x1_0003), source: CommRank(2), count: 300, tick: 9 };
    bytes.clear();
    encode(&Determinant::Applied(run), &mut bytes);
    assert_eq!(bytes, [11, 0x83, 0x80, 4, 2, 0xAC, 2, 9], "operations on a window");
    assert_eq!(decode(&mut &[11u8, 3, 2, 0, 9][..]), Err(CodecError::Range), "no operation");
    bytes.clear();
    let direct = DirectRun { target: PeerId(5), first: 200, run };
    encode(&Determinant::AppliedGroup(vec![direct]), &mut bytes);
    let golden = [12, 1, 5, 0xC8, 1, 0x83, 0x80, 4, 2, 0xAC, 2, 9];
    assert_eq!(bytes, golden, "direct operations on windows");
    assert_eq!(decode(&mut &[12u8, 0][..]), Err(CodecError::Short), "of nobody");
    assert_eq!(decode(&mut &[12u8, 0xFF, 0x7F, 5][..]), Err(CodecError::Short));
    assert_eq!(decode(&mut &[9u8, 3, 4, 0xC8][..]), Err(CodecError::Short));
    assert_eq!(decode(&mut &[99u8, 0][..]), Err(CodecError::Kind(99)));
    assert_eq!(decode(&mut &[4u8, 3, 4, 200, 1][..]), Err(CodecError::Short));
}

#[test]
fn operations_on_windows_are_numbered_and_given_back() {
    let run = |source, tick| AppliedRun {
        window: ContextId(3),
        source: CommRank(source),
        count: 2,
        tick,
    };
    let mut decisions = ReplayDecisions::default();
    decisions.applied(run(1, 5));
    decisions.record_outcome(test_of(1), Outcome::Done).unwrap();
    decisions.applied(run(2, 0));
    let kept = recorded(&mut decisions);
    assert_eq!(kept.iter().map(|one| one.number).collect::<Vec<_>>(), [0, 1, 2]);
    let mut again = ReplayDecisions::default();
    again.restored(&kept).unwrap();
    assert_eq!(again.take_applied(), [run(1, 5), run(2, 0)].map(PastRun::Own));
    assert_eq!(again.take_applied(), []);
    assert_eq!(again.clock(), 3);
    assert_eq!(again.decide(test_of(1)), Ok(ReplayDecision::Await(Outcome::Done)));
    let lost = ReplayDecisions::default().restored(&kept[1..]);
    assert_eq!(lost.err(), Some(0), "one of them is lost");
    // Of direct accesses others have recorded some; those have no number here.
    let direct = |first| DirectRun { target: PeerId(4), first, run: run(1, 6) };
    let applied = |tick| Determinant::Applied(run(1, tick));
    let mut decisions = ReplayDecisions::default();
    decisions.applied(run(1, 5));
    decisions.applied_directly(vec![direct(2), direct(4)]);
    decisions.applied_directly(Vec::new());
    let mut kept = recorded(&mut decisions);
    let before = [Determinant::AppliedGroup(vec![direct(2), direct(4)]), applied(5)];
    let numbered = |(number, determinant)| Numbered { number, determinant };
    assert_eq!(kept, (0..).zip(before).map(numbered).collect::<Vec<_>>(), "before what is pending");
    let determinant = Determinant::AppliedGroup(vec![direct(6)]);
    kept.insert(1, Numbered { number: OF_ANOTHER, determinant });
    let mut again = ReplayDecisions::default();
    again.restored(&kept).unwrap();
    let expected = [
        PastRun::Direct(direct(2)),
        PastRun::Direct(direct(4)),
        PastRun::Direct(direct(6)),
        PastRun::Own(run(1, 5)),
    ];
    assert_eq!((&again.take_applied()[..], again.clock()), (&expected[..], 2));
}

fn test_of(requests: u32) -> NondetCall {
    NondetCall::requests(CallKind::Test, requests)
}

fn recorded(decisions: &mut ReplayDecisions) -> Vec<Numbered> {
    core::iter::from_fn(|| decisions.take_recorded()).collect()
}

#[test]
fn d2_a_million_failed_tests_are_one_determinant_recorded_before_what_follows() {
    let mut decisions = ReplayDecisions::default();
    for _ in 0..1_000_000 {
        assert_eq!(decisions.decide(test_of(1)), Ok(ReplayDecision::Execute));
        decisions.record_nothing(test_of(1));
    }
    assert_eq!(recorded(&mut decisions), []);
    assert!(decisions.has_run());
    decisions.before_action().unwrap();
    let all = recorded(&mut decisions);
    let [one] = all.as_slice() else { panic!("{all:?}") };
    assert!(matches!(one.determinant, Determinant::Nothing { count: 1_000_000, .. }), "{one:?}");
    assert_eq!(decisions.clock(), 1);
}

/// What a program did: tests that fail, one that succeeds, a send, more that fail.
fn past() -> Vec<Numbered> {
    let mut decisions = ReplayDecisions::default();
    decisions.record_nothing(test_of(1));
    decisions.record_nothing(test_of(2));
    decisions.record_outcome(test_of(1), Outcome::Done).unwrap();
    decisions.record_nothing(test_of(3));
    decisions.before_action().unwrap();
    recorded(&mut decisions)
}

#[test]
fn replay_gives_what_was_recorded_and_then_the_process_is_live() {
    let past = past();
    let mut replaying = ReplayDecisions::default();
    replaying.restored(&past).unwrap();
    assert_eq!(replaying.decide(test_of(1)), Ok(ReplayDecision::ReportNothing));
    assert_eq!(replaying.decide(test_of(2)), Ok(ReplayDecision::ReportNothing));
    assert_eq!(replaying.decide(test_of(1)), Ok(ReplayDecision::Await(Outcome::Done)));
    replaying.record_outcome(test_of(1), Outcome::Done).unwrap();
    assert_eq!(replaying.decide(test_of(3)), Ok(ReplayDecision::ReportNothing));
    assert!(!replaying.has_outcomes_to_replay());
    replaying.before_action().unwrap();
    assert_eq!(replaying.decide(test_of(1)), Ok(ReplayDecision::Execute));
    assert_eq!((recorded(&mut replaying), replaying.clock()), (vec![], past.len() as u64));
}

#[test]
fn d3_a_divergence_names_both_sides_and_changes_nothing() {
    let past = past();
    let mut replaying = ReplayDecisions::default();
    replaying.restored(&past).unwrap();
    let before = format!("{replaying:?}");
    let error = replaying.decide(test_of(9)).unwrap_err();
    assert_eq!(error.number, 0);
    let text = error.to_string();
    assert!(text.contains("2 questions") && text.contains("0x9"), "{text}");
    assert_eq!(format!("{replaying:?}"), before);
    // The run is left too early, then continued in another way.
    assert_eq!(replaying.decide(test_of(1)), Ok(ReplayDecision::ReportNothing));
    assert!(replaying.before_action().unwrap_err().now.contains("a send"));
    assert!(replaying.decide(test_of(3)).is_err());
    assert_eq!(replaying.decide(test_of(2)), Ok(ReplayDecision::ReportNothing));
    assert!(replaying.decide(NondetCall::requests(CallKind::TestAny, 1)).is_err());
}

/// A program that reads the date in a run of failed tests, and after it.
fn dated(decisions: &mut ReplayDecisions, now: [u64; 3]) -> Vec<u64> {
    let mut given = Vec::new();
    for now in &now[..2] {
        if decisions.decide(test_of(1)) == Ok(ReplayDecision::Execute) {
            decisions.record_nothing(test_of(1));
        }
        given.push(decisions.program_time(*now));
    }
    decisions.before_action().unwrap();
    given.push(decisions.program_time(now[2]));
    given
}

#[test]
fn d4_dates_have_numbers_and_no_place_among_nondeterministic_calls() {
    let mut decisions = ReplayDecisions::default();
    assert_eq!(dated(&mut decisions, [70, 71, 72]), [70, 71, 72]);
    let past = recorded(&mut decisions);
    let numbers: Vec<u64> = past.iter().map(|numbered| numbered.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert!(matches!(past[2].determinant, Determinant::Nothing { count: 2, .. }), "{past:?}");
    let mut replaying = ReplayDecisions::default();
    replaying.restored(&past).unwrap();
    assert!(replaying.has_outcomes_to_replay());
    assert_eq!(dated(&mut replaying, [90; 3]), [70, 71, 72]);
    assert!(!replaying.has_outcomes_to_replay());
    assert_eq!((replaying.program_time(90), recorded(&mut replaying)[0].number), (90, 4));
    // A date that is lost is a gap like any other.
    assert_eq!(ReplayDecisions::default().restored(&past[1..]), Err(0));
}

#[test]
fn d4_a_program_that_reads_the_date_no_more_has_no_outcomes_left() {
    let mut decisions = ReplayDecisions::default();
    assert!((70..80).all(|now| decisions.program_time(now) == now));
    let past = recorded(&mut decisions);
    let mut replaying = ReplayDecisions::default();
    replaying.restored(&past).unwrap();
    assert!(!replaying.has_outcomes_to_replay() && replaying.clock() == 10);
    assert_eq!(replaying.decide(test_of(1)), Ok(ReplayDecision::Execute));
    replaying.record_outcome(test_of(1), Outcome::Done).unwrap();
    // Nor does one diverge that reads it more often.
    let given: Vec<u64> = (0..11).map(|_| replaying.program_time(95)).collect();
    assert_eq!(given, (70..80).chain([95]).collect::<Vec<u64>>());
}

#[test]
fn a_snapshot_taken_inside_a_run_goes_on_inside_it() {
    let mut decisions = ReplayDecisions::default();
    (0..3).for_each(|_| decisions.record_nothing(test_of(1)));
    let mut snapshot = decisions.clone();
    (0..2).for_each(|_| decisions.record_nothing(test_of(1)));
    decisions.before_action().unwrap();
    snapshot.restored(&recorded(&mut decisions)).unwrap();
    for _ in 0..2 {
        assert!(snapshot.has_outcomes_to_replay());
        assert_eq!(snapshot.decide(test_of(1)), Ok(ReplayDecision::ReportNothing));
    }
    assert!(!snapshot.has_outcomes_to_replay());
    assert_eq!(snapshot.decide(test_of(1)), Ok(ReplayDecision::Execute));
}

#[test]
fn d1_a_gap_is_reported() {
    let mut past = past();
    past.remove(1);
    assert_eq!(ReplayDecisions::default().restored(&past), Err(1));
}

fn log(incarnation: u16, past: Vec<DeterminantRecord>) -> DeterminantLog {
    let past = past.into_iter().map(|record| (record.rank, record.numbered));
    DeterminantLog::new(SetId(0), Incarnation(incarnation), past, 1, 2)
}

fn note(log: &mut DeterminantLog, number: u64) {
    let determinant = Determinant::Outcome { call: test_of(1), outcome: Outcome::Done };
    log.record(PeerId(0), Numbered { number, determinant });
}

fn id(start: u64) -> ReplicaId {
    ReplicaId { set: SetId(4), start }
}

fn deliver(log: &mut DeterminantLog, replica: &mut DeterminantReplica) -> bool {
    let Some((to, batch)) = log.poll_output() else { return false };
    assert_eq!(to, replica.id());
    let ack = replica.on_batch(batch).unwrap();
    log.on_ack(&ack);
    true
}

#[test]
fn s1_stable_is_what_every_replica_has_acknowledged() {
    let (mut log, mut replica) = (log(0, vec![]), DeterminantReplica::new(id(1)));
    assert!(log.marks().permit_now().is_some(), "nothing is recorded");
    (0..5).for_each(|number| note(&mut log, number));
    assert!(log.marks().permit_now().is_none(), "no replica");
    log.set_replicas(&[id(1)]);
    assert!(deliver(&mut log, &mut replica));
    assert_eq!((log.marks().stable, log.marks().recorded), (2, Recorded(5)));
    while deliver(&mut log, &mut replica) {}
    assert!(log.marks().permit_now().is_some());
    // Another start of the agent has forgotten everything.
    log.set_replicas(&[id(2)]);
    assert!(log.marks().permit_now().is_none());
}

#[test]
fn s3_acknowledgements_of_an_earlier_incarnation_change_nothing() {
    let (mut log, mut replica) = (log(3, vec![]), DeterminantReplica::new(id(1)));
    log.set_replicas(&[id(1)]);
    note(&mut log, 0);
    let (_, batch) = log.poll_output().unwrap();
    let ack = replica.on_batch(batch).unwrap();
    for wrong in [
        BatchAck { incarnation: Incarnation(2), ..ack },
        BatchAck { replica: id(9), ..ack },
        BatchAck { set: SetId(8), ..ack },
    ] {
        assert!(!log.on_ack(&wrong) && log.marks().permit_now().is_none());
    }
    assert!(log.on_ack(&ack) && log.marks().permit_now().is_some());
}

#[test]
fn k1_until_the_new_incarnation_has_sent_all_that_it_inherited_the_old_one_counts() {
    let (mut first, mut replica) = (log(0, vec![]), DeterminantReplica::new(id(1)));
    assert_eq!(replica.fetch(SetId(0)), None);
    first.set_replicas(&[id(1)]);
    (0..5).for_each(|number| note(&mut first, number));
    while deliver(&mut first, &mut replica) {}
    let kept = replica.fetch(SetId(0)).unwrap().1.to_vec();
    let mut second = log(1, kept.clone());
    note(&mut second, 5);
    second.set_replicas(&[id(1)]);
    assert!(deliver(&mut second, &mut replica));
    assert_eq!(replica.fetch(SetId(0)).unwrap().1, kept, "2 of 6 are not all");
    while deliver(&mut second, &mut replica) {}
    assert_eq!(replica.fetch(SetId(0)).unwrap().1.len(), 6);
    note(&mut first, 9);
    let (_, late) = first.poll_output().unwrap();
    assert_eq!(replica.on_batch(late), Err(BatchRefused::Stale { known: Incarnation(1) }), "K2");
}

#[test]
fn a_batch_that_was_lost_is_noticed_and_sent_again() {
    let (mut log, mut replica) = (log(0, vec![]), DeterminantReplica::new(id(1)));
    log.set_replicas(&[id(1)]);
    (0..6).for_each(|number| note(&mut log, number));
    let _lost = log.poll_output().unwrap();
    let (_, second) = log.poll_output().unwrap();
    assert_eq!(replica.on_batch(second), Err(BatchRefused::Gap { upto: 0 }));
    log.resend(id(1));
    while deliver(&mut log, &mut replica) {}
    assert_eq!(replica.fetch(SetId(0)).unwrap().1.len(), 6);
    assert!(log.marks().permit_now().is_some());
}

#[test]
fn what_a_checkpoint_covers_is_dropped_at_both_ends_and_counts_as_sent() {
    let (mut log, mut replica) = (log(0, vec![]), DeterminantReplica::new(id(1)));
    log.set_replicas(&[id(1)]);
    (0..6).for_each(|number| note(&mut log, number));
    deliver(&mut log, &mut replica);
    let clocks = BTreeMap::from([(PeerId(0), 4)]);
    log.trim(&clocks);
    replica.trim(SetId(0), &clocks);
    assert_eq!(log.held(), 2);
    while deliver(&mut log, &mut replica) {}
    let numbers = replica.fetch(SetId(0)).unwrap().1.iter().map(|record| record.numbered.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [4, 5]);
    assert!(log.marks().permit_now().is_some());
}

#[test]
fn a_log_that_is_older_than_the_checkpoint_is_empty() {
    let (mut log, mut replica) = (log(2, vec![]), DeterminantReplica::new(id(1)));
    log.set_replicas(&[id(1)]);
    note(&mut log, 0);
    while deliver(&mut log, &mut replica) {}
    let candidates = || [None, replica.fetch(SetId(0))];
    assert_eq!(choose_history(Incarnation(2), candidates()).unwrap().len(), 1);
    assert_eq!(choose_history(Incarnation(3), candidates()), Some(vec![]));
    assert_eq!(choose_history(Incarnation(0), [None]), None);
}
