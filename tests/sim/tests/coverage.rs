//! The seeds really meet what they are for.

use rustbtl_sim::checkpoints::PHASES;
use rustbtl_sim::options::{Options, Tier};
use rustbtl_sim::run::run;

#[test]
fn seeds_meet_what_they_are_for() {
    let mut total = [0; 10];
    let mut steps_max = 0;
    for seed in 1_000_000..1_000_300 {
        for tier in [Tier::Resets, Tier::Failures] {
            let report = run(&Options::of(tier, seed));
            steps_max = steps_max.max(report.steps);
            for (total, happened) in total.iter_mut().zip(report.faults) {
                *total += u64::from(happened);
            }
            for c in report.counters {
                total[3] += c.resent_messages;
                total[4] += c.suppressed_messages;
                total[5] += c.stale_frames;
                total[6] += c.unexpected_messages;
                total[7] += c.rendezvous_messages;
            }
            total[8] += report.trimmed as u64;
            total[9] += report.placed_directly;
        }
    }
    eprintln!(
        "resets, failures, checkpoints, resent, suppressed, stale, unexpected, rendezvous, \
         trimmed, placed directly: {total:?}; longest run {steps_max} steps"
    );
    assert!(total.iter().all(|&count| count > 50), "{total:?}");
}

#[test]
fn seeds_of_checkpoints_meet_what_they_are_for() {
    let mut complete = [0; 2];
    let mut aborted_in = [0; 8];
    let mut other = [0; 14];
    for seed in 1_000_000..1_001_000 {
        let report = run(&Options::of(Tier::Checkpoints, seed));
        let checkpoints = report.checkpoints;
        let acknowledged = report.acknowledged as u64;
        let of_suspended = if checkpoints.suspended[0] > 0 { acknowledged } else { 0 };
        let and_failed = if report.faults[1] > 0 { acknowledged } else { 0 };
        (0..2).for_each(|at| complete[at] += checkpoints.complete[at]);
        (0..8).for_each(|at| aborted_in[at] += checkpoints.aborted_in[at]);
        let [counted, counted_open] = checkpoints.counted;
        let [suspended, resumed, failed_suspended] = checkpoints.suspended;
        for (total, count) in other.iter_mut().zip([
            checkpoints.restarts,
            checkpoints.held_frames,
            checkpoints.flushes,
            checkpoints.entered_late,
            checkpoints.trimmed,
            checkpoints.open_sends,
            counted,
            counted_open,
            acknowledged,
            and_failed,
            suspended,
            resumed,
            failed_suspended,
            of_suspended,
        ]) {
            *total += count;
        }
    }
    eprintln!(
        "complete set and global checkpoints: {complete:?}; aborts in {PHASES:?} and outside: \
         {aborted_in:?}; restarts, held frames, flushes, late entries, trimmed, open sends, \
         snapshots after counts without and with a rendezvous, acknowledged messages, those of \
         jobs in which something failed, suspensions of logging, resumptions, failures of \
         suspended sets, acknowledged messages of jobs with suspensions: {other:?}"
    );
    assert!(complete.iter().all(|&count| count > 300), "{complete:?}");
    assert!(aborted_in.iter().all(|&count| count > 2), "{aborted_in:?} {PHASES:?}");
    assert!(other.iter().all(|&count| count > 50), "{other:?}");
}

#[test]
fn seeds_of_replay_meet_what_they_are_for() {
    let mut all = [0; 9];
    for seed in 1_000_000..1_000_600 {
        let report = run(&Options::of(Tier::Replay, seed));
        let d = report.determinants;
        let [set_checkpoints, global_checkpoints] = report.checkpoints.complete;
        for (total, count) in all.iter_mut().zip([
            d.replays,
            d.forced,
            d.lost,
            d.refused,
            d.differed,
            d.failed_again,
            d.waited,
            set_checkpoints,
            global_checkpoints,
        ]) {
            *total += count;
        }
    }
    eprintln!(
        "replays, outcomes forced, sets whose outcomes were lost, batches refused, sends that \
         nobody had seen and that differed, failures before replay was complete, frames that \
         waited at the gate, checkpoints of sets and of all: {all:?}"
    );
    assert!(all.iter().all(|&count| count > 20), "{all:?}");
}

#[test]
fn seeds_of_piggyback_meet_what_they_are_for() {
    let mut all = [0; 12];
    for seed in 1_000_000..1_000_600 {
        let report = run(&Options::of(Tier::Piggyback, seed));
        let d = report.determinants;
        let [set_checkpoints, global_checkpoints] = report.checkpoints.complete;
        let [late_frames, failed_while_asked, waited, named, asked_for, ..] = d.met;
        for (total, count) in all.iter_mut().zip([
            d.replays,
            d.differed,
            d.piggybacked,
            d.refused_piggybacks,
            d.alone,
            late_frames,
            failed_while_asked,
            waited,
            named,
            asked_for,
            set_checkpoints,
            global_checkpoints,
        ]) {
            *total += count;
        }
    }
    eprintln!(
        "replays, sends that nobody had seen and that differed, frames of piggybacked \
         determinants, of them refused, frames that needed none, of failed sets, sets that \
         failed while they were asked, snapshots that had to wait, looks at places without \
         content that had to wait, such places when a fence asked, checkpoints of sets and of \
         all: {all:?}"
    );
    assert!(all.iter().all(|&count| count > 20), "{all:?}");
}

#[test]
fn seeds_of_fences_meet_frames_that_are_read_after_the_answer() {
    let [mut late, mut refused, mut asked_for] = [0; 3];
    for seed in 0..400 {
        let d = run(&Options::of(Tier::Fences, seed)).determinants;
        late += d.met[0];
        refused += d.refused_piggybacks;
        asked_for += d.met[4];
    }
    eprintln!("frames of failed sets {late}, refused {refused}, contents asked for {asked_for}");
    assert!(late > 100 && refused > 50 && asked_for > 100, "{late} {refused} {asked_for}");
}
