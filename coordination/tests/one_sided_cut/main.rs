//! Cuts through accesses to memory (Butelle and Coti 2018) in one thread: random programs that put
//! and get, random schedules and checkpoints from a seed; what the paper's table I and its
//! comparison say; restarts from the snapshots. Bugs that are planted must be found.
//!
//!     cargo test -p rustbtl-coordination --test one_sided_cut
//!     RUSTBTL_SIM_SEEDS=100000 cargo test -p rustbtl-coordination --test one_sided_cut restart
//!     RUSTBTL_SIM_SEED=53 cargo test -p rustbtl-coordination --test one_sided_cut restart

mod world;

use rustbtl_coordination::one_sided_cut::CutMethod::{
    Delay, DoubleBarrier, PartialDoubleBarrier, PeekAndGet, Vanilla,
};
use rustbtl_coordination::one_sided_cut::*;
use rustbtl_fragments::ids::PeerId;
use rustbtl_seeds::{Prng, all_caught, fails, is_one_seed, run_seeds};
use world::{Planted, Report, World};

/// All that are right.
const METHODS: [CutMethod; 4] = [Delay, PeekAndGet, DoubleBarrier, PartialDoubleBarrier];

fn run(seed: u64, method: CutMethod, planted: Option<Planted>, restarts: u64) -> Report {
    let mut prng = Prng::new(seed);
    let n = prng.between(2, 5);
    let accesses = prng.from_to(1, 12);
    let waves = prng.from_to(1, 4);
    let mut world = World::new(n, method, accesses, seed, planted);
    world.run(&mut prng, waves, restarts);
    let report = world.report;
    assert_eq!(report.waves, waves, "not every checkpoint came to its end");
    if method != Vanilla {
        world.must_be_whole();
    }
    if planted.is_some() && restarts == 0 {
        assert_eq!(report.crosses, 0, "{method:?}: data crosses");
        assert!(method == Delay || report.overlaps == 0, "{method:?}: an access overlaps");
    }
    report
}

/// Over these seeds, together.
fn sum_of(seeds: u64, method: CutMethod) -> Report {
    let mut sum = Report::default();
    for seed in 0..seeds {
        sum.add(&run(seed, method, None, 0));
    }
    sum
}

/// The paper's table I: which cuts are free of accesses that overlap them, and that cross them.
/// "No" is shown by accesses that do, "yes" by none in as many runs.
#[test]
fn their_table_of_consistency_is_reproduced() {
    let table = [
        (Vanilla, false, false),
        (Delay, false, true),
        (PeekAndGet, true, true),
        (DoubleBarrier, true, true),
        (PartialDoubleBarrier, true, true),
    ];
    for (method, no_overlap, no_cross) in table {
        let sum = sum_of(2000, method);
        eprintln!("{method:?}: {sum:?}");
        assert_eq!(sum.overlaps == 0, no_overlap, "{method:?}: overlap");
        assert_eq!(sum.crosses == 0, no_cross, "{method:?}: cross");
    }
}

/// Their comparison of costs: n(n − 1) markers; as many again; two for each pair of processes whose
/// get the first wave meets; two for each look.
#[test]
fn their_numbers_of_messages_are_reproduced() {
    for n in 2..=8 {
        let pairs = (n * (n - 1)) as u64;
        for method in [Vanilla, Delay, PeekAndGet, DoubleBarrier, PartialDoubleBarrier] {
            let mut world = World::new(n, method, 0, 1, None);
            world.run(&mut Prng::new(n as u64), 3, 0);
            let report = world.report;
            assert_eq!(report.markers, 3 * pairs, "{method:?}, {n} processes");
            let second = if method == DoubleBarrier { 3 * pairs } else { 0 };
            assert_eq!(report.second, second, "{method:?}, {n} processes");
            assert_eq!((report.flushes, report.peeks), (0, 0), "{method:?}, {n} processes");
        }
    }
    let sum = sum_of(2000, PartialDoubleBarrier);
    assert!(sum.open_pairs > 100, "{sum:?}");
    assert_eq!(sum.flushes, 2 * sum.open_pairs, "two for each get that the wave meets");
}

/// The worst case of the partial barrier: each process has gets open from each other, several from
/// the same; one question for a pair is enough.
#[test]
fn several_gets_from_one_process_are_one_question() {
    for n in [2, 3, 5] {
        let mut world = World::new(n, PartialDoubleBarrier, 0, 1, None);
        for at in 0..n {
            for other in (0..n).filter(|&other| other != at) {
                for id in 0..3 {
                    let to = PeerId(other as u32);
                    let id = id * 100 + (at * n + other) as u64;
                    world.hand_in(at, Input::Access(Access { to, id, is_get: true }));
                }
            }
        }
        // Markers come before data, since all begin at once.
        world.begin(0);
        for at in 1..n {
            world.hand_in(at, Input::Begin { wave: 1 });
        }
        world.run(&mut Prng::new(3), 1, 0);
        let report = world.report;
        let pairs = (n * (n - 1)) as u64;
        assert_eq!(report.markers, pairs);
        assert_eq!(report.flushes, 2 * report.open_pairs);
        assert!(report.flushes <= 2 * pairs, "one question for a pair: {report:?}");
        assert_eq!((report.overlaps, report.crosses), (0, 0), "{report:?}");
    }
}

/// From its snapshots a job goes on, with each access made once; with the delay, because what the
/// adapter has not answered is in them (the paper's last remark).
#[test]
fn a_restarted_job_makes_each_access_once() {
    let mut sums = [Report::default(); METHODS.len()];
    let again = "-p rustbtl-coordination --test one_sided_cut restart";
    let all = |seed| METHODS.map(|method| run(seed, method, None, 3));
    run_seeds(3000, again, all, |reports: [Report; METHODS.len()]| {
        for (sum, report) in sums.iter_mut().zip(&reports) {
            sum.add(report);
        }
    });
    eprintln!("{sums:?}");
    if !is_one_seed() {
        assert!(sums.iter().all(|sum| sum.restarts > 1000), "{sums:?}");
        assert!(sums[0].delayed > 100 && sums[1].peeks > 1000, "{sums:?}");
        assert!(sums[3].open_pairs > 100, "{sums:?}");
    }
}

/// A job that is restarted from cuts by markers alone waits for data that was on its way, or gets
/// it twice.
#[test]
fn markers_alone_are_not_enough() {
    let lost = |seed| {
        fails(|| {
            let mut prng = Prng::new(seed);
            let mut world = World::new(3, Vanilla, 8, seed, None);
            world.run(&mut prng, 3, 2);
            world.must_be_whole();
        })
    };
    all_caught([("vanilla", 0, 200)], |_, seed| lost(seed));
}

/// Each is found at the seed where it was found last, or at another.
#[test]
fn planted_bugs_are_found() {
    use Planted::*;
    let plan = [
        (GoesOnEarly, Delay, 5),
        (GoesOnEarly, DoubleBarrier, 2),
        (GoesOnEarly, PartialDoubleBarrier, 1),
        (OutOfOrder, DoubleBarrier, 1),
        (OutOfOrder, PartialDoubleBarrier, 0),
        (LazyAdapter, DoubleBarrier, 0),
        (LazyAdapter, PartialDoubleBarrier, 0),
        (CompleteEarly, PeekAndGet, 0),
        (CompleteEarly, PartialDoubleBarrier, 1),
    ];
    let finds = |(planted, method), seed| fails(|| run(seed, method, Some(planted), 0));
    all_caught(plan.map(|(planted, method, last)| ((planted, method), last, 500)), finds);
    let restarted = |planted, seed| fails(|| run(seed, Delay, Some(planted), 3));
    all_caught([(AdapterNotInImage, 1, 500)], restarted);
}

/// What breaks the protocol is refused, and changes nothing.
#[test]
fn errors() {
    let all = [PeerId(0), PeerId(1), PeerId(2)];
    let mut machine = OneSidedCut::new(PeerId(0), &all, PartialDoubleBarrier);
    let frame = |from, frame| Input::Frame { from: PeerId(from), frame };
    let stranger = frame(9, CutFrame::Marker { wave: 1 });
    assert_eq!(machine.handle(stranger), Err(CutError::NotMember(PeerId(9))));
    assert_eq!(machine.handle(Input::Data { from: PeerId(1) }), Err(CutError::NoSuchGet));
    let state = CutFrame::State { id: 4, checkpointing: false };
    assert_eq!(machine.handle(frame(1, state)), Err(CutError::NoSuchGet));
    assert_eq!(machine.handle(Input::Resume { wave: 1 }), Err(CutError::NoSnapshot));
    assert_eq!(machine.handle(Input::Restored), Err(CutError::NoSnapshot));
    assert_eq!((machine.wave(), machine.poll_output()), (None, None));

    machine.handle(Input::Begin { wave: 5 }).unwrap();
    assert_eq!(machine.handle(Input::Begin { wave: 6 }), Err(CutError::NotOver(5)));
    assert_eq!(machine.handle(Input::Resume { wave: 5 }), Err(CutError::NoSnapshot));
    for from in [1, 2] {
        machine.handle(frame(from, CutFrame::Marker { wave: 5 })).unwrap();
    }
    machine.handle(Input::Resume { wave: 5 }).unwrap();
    while machine.poll_output().is_some() {}
    // B7: what is left of it changes nothing.
    machine.handle(frame(1, CutFrame::Marker { wave: 5 })).unwrap();
    machine.handle(Input::Begin { wave: 4 }).unwrap();
    machine.handle(Input::Resume { wave: 5 }).unwrap();
    assert_eq!((machine.wave(), machine.poll_output()), (None, None));
    // A newer checkpoint says that all have their snapshot of this one.
    machine.handle(Input::Begin { wave: 7 }).unwrap();
    for from in [1, 2] {
        machine.handle(frame(from, CutFrame::Marker { wave: 7 })).unwrap();
    }
    machine.handle(frame(2, CutFrame::Marker { wave: 8 })).unwrap();
    assert_eq!(machine.wave(), Some(8));
}
