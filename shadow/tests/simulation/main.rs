//! Simulation of jobs under shadows: traffic of every kind, checkpoints at any moment, after which
//! they go on, make all objects again, or are restored where the adapters are others. Planted bugs
//! are found.

mod faults;
mod process;
mod program;
mod world;

use process::Bug;
use program::Program;
use rustbtl_seeds::{Prng, all_caught, fails, run_seeds};
use rustbtl_shadow::{Old, Tallies, postponed};
use std::cell::RefCell;
use std::rc::Rc;
use world::World;

const STEPS: usize = 3000;
const DRAIN_STEPS_MAX: usize = 20_000;

#[derive(Debug, Default)]
struct Report {
    checkpoints: usize,
    postponed: usize,
    captures: usize,
    markers: usize,
    messages: u64,
}

struct Job {
    world: Rc<RefCell<World>>,
    programs: Vec<Program>,
    prng: Prng,
    bug: Option<Bug>,
    report: Report,
}

impl Job {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut prng = Prng::new(seed);
        let nodes = prng.between(2, 4);
        let world = Rc::new(RefCell::new(World::new(prng.fork(1), nodes)));
        let program = |node| Program::new(&world, node, prng.fork(2 + node as u64), bug);
        let programs = (0..nodes).map(program).collect();
        Self { world, programs, prng, bug, report: Report::default() }
    }

    fn step(&mut self, produces: bool) {
        if self.prng.chance(50) {
            self.world.borrow_mut().step();
            return;
        }
        let at = self.prng.below(self.programs.len());
        if !self.programs[at].is_connected() && self.prng.chance(20) {
            let others: Vec<_> = (0..self.programs.len()).filter(|&other| other != at).collect();
            let peer = self.prng.pick(&others);
            let card = self.programs[peer].card(at);
            self.programs[at].connect(peer, card);
        }
        self.programs[at].act(produces);
    }

    fn tallies(&self) -> Tallies {
        let tallies = self.programs.iter().flat_map(|program| program.shadow.tallies());
        tallies.map(|tally| (tally.qpn, tally)).collect()
    }

    /// False: not now.
    fn drain(&mut self) -> bool {
        if postponed(&self.tallies()).is_some() {
            self.report.postponed += 1;
            return false;
        }
        for step in 0.. {
            assert!(step < DRAIN_STEPS_MAX, "the drain does not end");
            for _ in 0..self.prng.below(8) {
                self.world.borrow_mut().step();
            }
            if self.bug == Some(Bug::OpenGate) {
                let at = self.prng.below(self.programs.len());
                self.programs[at].act(true);
            }
            let blind = self.bug == Some(Bug::NoTallies);
            let all = if blind { Tallies::new() } else { self.tallies() };
            let mut is_over = true;
            for program in &mut self.programs {
                is_over &= program.shadow.drain(&all).expect("a drain");
            }
            if is_over {
                break;
            }
        }
        for program in &self.programs {
            program.shadow.check_drained();
        }
        self.world.borrow().check_quiet();
        true
    }

    fn checkpoint(&mut self) -> bool {
        if self.bug != Some(Bug::NoDrain) && !self.drain() {
            return false;
        }
        self.report.checkpoints += 1;
        let mut old = match self.prng.below(3) {
            0 => return true,
            1 => Old::Destroy,
            _ => Old::Abandon,
        };
        if old == Old::Abandon {
            (0..self.programs.len()).for_each(|node| self.world.borrow_mut().restart(node));
        }
        if self.bug == Some(Bug::Destroyed) {
            old = Old::Destroy;
        }
        for program in &mut self.programs {
            program.shadow.make(old).expect("objects");
        }
        for program in &mut self.programs {
            program.shadow.connect().expect("connections");
            program.shadow.check();
        }
        true
    }

    fn run(mut self) -> Report {
        for _ in 0..STEPS {
            self.step(true);
            if self.prng.below(200) == 0 {
                self.checkpoint();
            }
        }
        for step in 0.. {
            self.step(false);
            if step % 64 == 0 && self.is_complete() {
                break;
            }
            assert!(step < 40 * STEPS, "something is lost: {:?}", self.counts());
        }
        assert!(self.drain(), "all are connected");
        let programs = &self.programs;
        self.report.captures = programs.iter().map(|it| it.shadow.host.captures).sum();
        self.report.markers = programs.iter().map(|it| it.shadow.host.markers).sum();
        let connections = programs.iter().flat_map(|it| &it.connections);
        self.report.messages = connections.map(|it| it.got).sum();
        self.report
    }

    fn counts(&self) -> Vec<([u64; 6], [u64; 6])> {
        let mut counts = Vec::new();
        for (node, program) in self.programs.iter().enumerate() {
            for peer in program.connections.iter().map(|it| it.peer) {
                counts.push((program.counts(peer), self.programs[peer].counts(node)));
            }
        }
        counts
    }

    fn is_complete(&self) -> bool {
        self.counts().iter().all(|(mine, theirs)| {
            let [sent, _, ring, _, atomics, _] = mine;
            let [_, got, _, ring_got, _, counter] = theirs;
            (sent, ring, atomics) == (got, ring_got, counter)
        })
    }
}

#[test]
fn jobs_notice_nothing_of_checkpoints_and_restarts() {
    let mut all = Report::default();
    run_seeds(
        300,
        "-p rustbtl-shadow --test simulation",
        |seed| Job::new(seed, None).run(),
        |report| {
            all.checkpoints += report.checkpoints;
            all.postponed += report.postponed;
            all.captures += report.captures;
            all.markers += report.markers;
            all.messages += report.messages;
        },
    );
    eprintln!("{all:?}");
    if !rustbtl_seeds::is_one_seed() {
        let Report { checkpoints, postponed, captures, markers, messages } = all;
        let seen = [checkpoints, postponed, captures, markers, messages as usize];
        assert!(seen.iter().all(|&count| count > 50), "something was not tried: {seen:?}");
    }
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        Bug::OldNames,
        Bug::NamesOfBefore,
        Bug::NoDrain,
        Bug::NoTallies,
        Bug::OpenGate,
        Bug::Destroyed,
        Bug::Torn,
        Bug::SharedGid,
    ];
    let plan = bugs.map(|bug| (bug, 0, 40));
    all_caught(plan, |bug, seed| fails(|| Job::new(seed, Some(bug)).run()));
}
