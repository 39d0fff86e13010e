//! The drain of verbs over all ranks of a job: programs that post, connections that are made and
//! fail, checkpoints that are given up at any moment, messages between ranks and coordinator that
//! take their time; ranks that are suspended for long, coordinators that are lost in the middle of
//! a drain or of a restore, ranks that are killed, and all are rolled back to their last checkpoint
//! and connect again. Planted bugs must be found.

use rustbtl_coordination::verbs_drain::{
    CONNECTED, Exchange, Input, Kept, MADE, Output, Phase, VerbsDrain,
};
use rustbtl_fragments::ids::PeerId;
use std::collections::VecDeque;

/// What is wrong in the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// The gate is said to be closed while somebody is inside.
    GateIsNotClosed,
    /// The coordinator does not wait for the last rank.
    OneTooEarly,
    /// A rank that is through opens its gate.
    OpensEarly,
    /// Connections that are being made are drained.
    NeverPostponed,
    /// That a connection has failed is told nobody.
    FailureNotTold,
    /// The coordinator takes parts of a checkpoint that was given up for those of the next.
    StepsOnly,
    /// A coordinator does not forget what was given before a rollback.
    RollbackRemembers,
    /// A guardian drops what its rank has given to a restore when the rank is through.
    KeptTooShort,
    /// A checkpoint that was open when the coordinator was lost is given up nowhere.
    LossNotTold,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

#[derive(Clone)]
enum Order {
    Begin(u64),
    Release(u64),
    All(u64, u32, Vec<Vec<u8>>),
}

#[derive(Default)]
struct Rank {
    drain: VerbsDrain,
    closed: bool,
    wants_close: bool,
    /// The next rank cannot receive from this one yet.
    making: bool,
    /// The connection to the next rank has failed.
    broken: bool,
    /// Posted to the next rank, ever; and arrived from the one before.
    posted: u8,
    arrived: u8,
    /// What all have posted, as this rank knows it.
    tallies: Vec<Vec<u8>>,
    /// What it has told last.
    told: Vec<u8>,
    up: VecDeque<(u64, u32, Vec<u8>)>,
    down: VecDeque<Order>,
    drained: Option<u64>,
    /// Suspended for so many of its turns.
    stopped: usize,
    /// The checkpoint that it is being restored from, and which step it has given.
    restoring: Option<(u64, u32)>,
    /// The guardian's: the open checkpoint, and parts for another coordinator.
    open: Option<u64>,
    kept: Kept,
}

/// What an image has of a rank.
#[derive(Clone)]
struct Image {
    drain: VerbsDrain,
    posted: u8,
    arrived: u8,
    making: bool,
    broken: bool,
    tallies: Vec<Vec<u8>>,
    told: Vec<u8>,
}

struct World {
    bug: Bug,
    random: Random,
    /// Checkpoints are given up at any moment.
    aborts: bool,
    ranks: Vec<Rank>,
    exchange: Exchange,
    checkpoint: u64,
    taken: usize,
    postponed: usize,
    /// Ranks are suspended and killed, coordinators are lost.
    faults: bool,
    /// Of the last checkpoint that was taken, and its number.
    images: Option<(u64, Vec<Image>)>,
    /// Rollbacks so far: names of before are of no use.
    epoch: u8,
    /// Coordinators lost while a checkpoint was open, and while ranks were being restored.
    lost: [usize; 2],
}

impl World {
    fn new(seed: u64, bug: Bug) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let count = 2 + random.below(4);
        let (ranks, exchange) =
            ((0..count).map(|_| Rank::default()).collect(), Exchange::default());
        let (aborts, checkpoint, taken, postponed) = (seed.is_multiple_of(2), 0, 0, 0);
        let (faults, images, epoch, lost) = (seed.is_multiple_of(3), None, 0, [0; 2]);
        Self {
            bug,
            random,
            aborts,
            ranks,
            exchange,
            checkpoint,
            taken,
            postponed,
            faults,
            images,
            epoch,
            lost,
        }
    }

    fn under_way(&self, from: usize) -> u8 {
        let to = (from + 1) % self.ranks.len();
        if self.ranks[from].broken {
            return 0;
        }
        self.ranks[from].posted.wrapping_sub(self.ranks[to].arrived)
    }

    /// Posted, being made, broken.
    fn tally(&self, at: usize) -> Vec<u8> {
        let rank = &self.ranks[at];
        vec![rank.posted, rank.making.into(), rank.broken.into()]
    }

    fn input(&mut self, at: usize, input: Input) -> Result<(), String> {
        self.ranks[at].drain.handle(input);
        self.ranks[at].drain.check();
        while let Some(output) = self.ranks[at].drain.poll_output() {
            match output {
                Output::Close => self.ranks[at].wants_close = true,
                Output::Open => {
                    self.ranks[at].wants_close = false;
                    self.ranks[at].closed = false;
                }
                Output::Send { checkpoint, step, part } => {
                    self.ranks[at].up.push_back((checkpoint, step, part));
                }
                Output::Drain => {}
                Output::Drained { checkpoint } => {
                    self.ranks[at].drained = Some(checkpoint);
                    if checkpoint != self.checkpoint {
                        // It was given up, and whoever knows goes on.
                        continue;
                    }
                    if let Some(from) = (0..self.ranks.len()).find(|&from| self.under_way(from) > 0)
                    {
                        return Err(format!("D3: rank {from}'s requests are under way"));
                    }
                    if let Some(open) = self.ranks.iter().position(|rank| !rank.closed) {
                        return Err(format!("D3: the gate of rank {open} is open"));
                    }
                    if self.bug == Bug::OpensEarly {
                        self.ranks[at].closed = false;
                    }
                }
            }
        }
        Ok(())
    }

    /// The program of a rank, if its gate lets it.
    fn program(&mut self, at: usize) {
        if self.ranks[at].closed || self.ranks[at].restoring.is_some() {
            return;
        }
        let count = self.under_way(at);
        match self.random.below(20) {
            0 if count == 0 && !self.ranks[at].broken => self.ranks[at].making = true,
            1..4 => self.ranks[at].making = false,
            _ if count < 5 && !self.ranks[at].broken => {
                self.ranks[at].posted = self.ranks[at].posted.wrapping_add(1);
            }
            _ => {}
        }
    }

    /// The adapter: a request arrives, or a connection fails.
    fn adapter(&mut self, at: usize) {
        if self.ranks[at].making || self.under_way(at) == 0 {
            return;
        }
        let to = (at + 1) % self.ranks.len();
        if self.random.below(300) == 0 {
            self.ranks[at].broken = true;
        } else if self.random.below(3) == 0 {
            self.ranks[to].arrived = self.ranks[to].arrived.wrapping_add(1);
        }
    }

    /// The program of a rank is suspended, or one is killed, or the coordinator.
    fn fault(&mut self) {
        let at = self.random.below(self.ranks.len());
        match self.random.below(4000) {
            0..4 => self.ranks[at].stopped = 200,
            4..10 => self.lose_coordinator(),
            10..12 if self.images.is_some() => self.roll_back(),
            _ => {}
        }
    }

    /// Another one takes over. Guardians have passed on some of what the one before has ordered,
    /// give up what is open, and repeat what they keep.
    fn lose_coordinator(&mut self) {
        self.lost[0] += usize::from(self.checkpoint % 2 == 1);
        self.lost[1] += usize::from(self.ranks.iter().any(|rank| rank.restoring.is_some()));
        self.exchange = Exchange::default();
        self.checkpoint += self.checkpoint % 2;
        for rank in &mut self.ranks {
            rank.down.truncate(self.random.below(rank.down.len() + 1));
            rank.up.clear();
            let mut open = rank.open;
            for order in &rank.down {
                match order {
                    Order::Begin(checkpoint) => open = Some(*checkpoint),
                    Order::Release(_) => open = None,
                    Order::All(..) => {}
                }
            }
            if self.bug != Bug::LossNotTold {
                rank.down.extend(open.map(Order::Release));
            }
            let kept = rank.kept.iter();
            rank.up.extend(kept.map(|(checkpoint, step, part)| (checkpoint, step, part.to_vec())));
        }
    }

    /// A rank was killed: all are restored.
    fn roll_back(&mut self) {
        let Some((checkpoint, images)) = self.images.clone() else { return };
        self.checkpoint += self.checkpoint % 2;
        self.epoch = self.epoch.wrapping_add(1);
        if self.bug != Bug::RollbackRemembers {
            self.exchange = Exchange::default();
        }
        for (at, image) in images.into_iter().enumerate() {
            let Image { drain, posted, arrived, making, broken, tallies, told } = image;
            let names = vec![at as u8, self.epoch];
            let (mut kept, mut up) = (Kept::default(), VecDeque::new());
            kept.give((checkpoint, MADE), &names);
            up.push_back((checkpoint, MADE, names));
            let (closed, restoring) = (true, Some((checkpoint, MADE)));
            let was = Rank { drain, closed, posted, arrived, making, broken, ..Rank::default() };
            self.ranks[at] = Rank { tallies, told, restoring, kept, up, ..was };
        }
    }

    /// Parts of a step that follows a restore.
    fn restored(&mut self, at: usize, of: (u64, u32), all: Vec<Vec<u8>>) -> Result<(), String> {
        if self.ranks[at].restoring != Some(of) {
            return Ok(());
        }
        let (checkpoint, step) = of;
        if step == MADE {
            let names = (0..self.ranks.len()).map(|at| vec![at as u8, self.epoch]);
            if !names.eq(all) {
                return Err("names of another time, or not of all".into());
            }
            let rank = &mut self.ranks[at];
            rank.restoring = Some((checkpoint, CONNECTED));
            rank.up.push_back((checkpoint, CONNECTED, Vec::new()));
            rank.kept.give((checkpoint, CONNECTED), &[]);
            return Ok(());
        }
        let is_connected = |rank: &Rank| rank.restoring.is_none_or(|(_, step)| step == CONNECTED);
        if !self.ranks.iter().all(is_connected) {
            return Err("a gate opens before all are connected".into());
        }
        self.ranks[at].restoring = None;
        if self.bug == Bug::KeptTooShort {
            self.ranks[at].kept.forget();
        }
        self.input(at, Input::Release { checkpoint })
    }

    fn take_images(&mut self) {
        let image = |rank: &Rank| Image {
            drain: rank.drain.clone(),
            posted: rank.posted,
            arrived: rank.arrived,
            making: rank.making,
            broken: rank.broken,
            tallies: rank.tallies.clone(),
            told: rank.told.clone(),
        };
        self.images = Some((self.checkpoint, self.ranks.iter().map(image).collect()));
    }

    /// The driver of a rank.
    fn driver(&mut self, at: usize) -> Result<(), String> {
        if self.ranks[at].wants_close && self.random.below(3) == 0 {
            self.ranks[at].wants_close = false;
            self.ranks[at].closed = self.bug != Bug::GateIsNotClosed;
            let tallies = self.tally(at);
            self.ranks[at].told.clone_from(&tallies);
            self.input(at, Input::Closed { tallies })?;
        }
        match self.ranks[at].drain.phase() {
            Phase::Pausing if self.random.below(5) == 0 => self.input(at, Input::Later)?,
            Phase::Draining => {
                let tallies = self.tally(at);
                if tallies != self.ranks[at].told && self.bug != Bug::FailureNotTold {
                    self.ranks[at].told.clone_from(&tallies);
                    self.input(at, Input::Changed { tallies })?;
                }
                let count = self.ranks.len();
                let before = &self.ranks[at].tallies[(at + count - 1) % count];
                let awaited = before[2] == 0 && before[0] != self.ranks[at].arrived;
                if self.under_way(at) == 0 && !awaited {
                    self.input(at, Input::Over)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn coordinator(&mut self) -> Result<(), String> {
        let count = self.ranks.len();
        let at = self.random.below(count);
        if let Some((mut checkpoint, step, part)) = self.ranks[at].up.pop_front() {
            if self.bug == Bug::StepsOnly {
                checkpoint = self.checkpoint;
            }
            let ranks = count - usize::from(self.bug == Bug::OneTooEarly && step % 2 == 1);
            let most = (ranks, 1000);
            let all = self.exchange.give((checkpoint, step), PeerId(at as u32), part, most);
            let all = all.unwrap_or(None).map(|all| all.values().cloned().collect::<Vec<_>>());
            self.exchange.check();
            for rank in self.ranks.iter_mut().filter(|_| all.is_some()) {
                let all = all.clone().unwrap_or_default();
                rank.down.push_back(Order::All(checkpoint, step, all));
            }
        }
        let open = self.ranks.iter().all(|rank| rank.drained == Some(self.checkpoint));
        let aborted = self.aborts && self.random.below(150) == 0;
        if self.checkpoint % 2 == 1 && (open || aborted) {
            self.taken += usize::from(open);
            if open {
                self.take_images();
            }
            let checkpoint = self.checkpoint;
            self.exchange.forget(checkpoint);
            assert_eq!(self.exchange.bytes(), 0, "E5");
            self.checkpoint += 1;
            self.ranks.iter_mut().for_each(|rank| rank.down.push_back(Order::Release(checkpoint)));
        } else if self.checkpoint.is_multiple_of(2)
            && self.random.below(10) == 0
            && self.ranks.iter().all(|rank| rank.restoring.is_none())
        {
            let is_over = |rank: &Rank| rank.down.is_empty();
            if self.ranks.iter().all(is_over) && self.ranks.iter().any(|rank| rank.closed) {
                return Err("D5: no checkpoint is open, and a gate is closed".into());
            }
            self.checkpoint += 1;
            let checkpoint = self.checkpoint;
            self.ranks.iter_mut().for_each(|rank| rank.down.push_back(Order::Begin(checkpoint)));
        }
        Ok(())
    }

    fn receive(&mut self, at: usize) -> Result<(), String> {
        match self.ranks[at].down.pop_front() {
            None => Ok(()),
            Some(Order::Begin(checkpoint)) => {
                self.ranks[at].open = Some(checkpoint);
                self.ranks[at].kept.forget();
                self.input(at, Input::Begin { checkpoint })
            }
            Some(Order::Release(checkpoint)) => {
                self.ranks[at].open = None;
                self.input(at, Input::Release { checkpoint })
            }
            Some(Order::All(checkpoint, step, all)) if step >= MADE => {
                self.restored(at, (checkpoint, step), all)
            }
            Some(Order::All(checkpoint, step, all)) => {
                let postponed = step % 2 == 0
                    && self.bug != Bug::NeverPostponed
                    && all.iter().any(|tally| tally.len() == 3 && tally[1] == 1);
                self.postponed += usize::from(postponed);
                if step % 2 == 0 {
                    self.ranks[at].tallies = all;
                }
                self.input(at, Input::All { checkpoint, step, postponed })
            }
        }
    }

    fn turns(&mut self, turns: usize) -> Result<(), String> {
        for _ in 0..turns {
            let at = self.random.below(self.ranks.len());
            let what = self.random.below(5);
            if self.ranks[at].stopped > 0 && matches!(what, 0 | 2 | 4) {
                self.ranks[at].stopped -= 1;
                continue;
            }
            match what {
                0 => self.program(at),
                1 => self.adapter(at),
                2 => self.driver(at)?,
                3 => self.coordinator()?,
                _ => self.receive(at)?,
            }
            if self.faults {
                self.fault();
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        self.turns(15_000)?;
        if core::mem::take(&mut self.faults) {
            // Whatever has happened: the job goes on.
            let before = self.taken;
            self.aborts = false;
            self.turns(10_000)?;
            if self.taken == before {
                return Err("after faults no checkpoint is taken any more".into());
            }
        }
        // D5, and liveness: without faults a checkpoint comes to its end.
        for rank in &self.ranks {
            if rank.drain.phase() == Phase::Idle && rank.closed {
                return Err("D5: the gate is closed outside of a drain".into());
            }
        }
        let least = if self.aborts { 1 } else { 4 };
        match self.taken {
            taken if taken < least => Err(format!("only {taken} checkpoints were taken")),
            _ => Ok(()),
        }
    }
}

#[test]
fn d1_to_d5_hold_whatever_happens() {
    let (mut taken, mut postponed, mut rollbacks, mut lost) = (0, 0, 0, [0; 2]);
    for seed in 1..300 {
        let mut world = World::new(seed, Bug::None);
        let outcome = world.run();
        assert_eq!(outcome, Ok(()), "seed {seed}");
        (taken, postponed) = (taken + world.taken, postponed + world.postponed);
        rollbacks += usize::from(world.epoch);
        lost = [0, 1].map(|at| lost[at] + world.lost[at]);
    }
    assert!(taken > 1500 && postponed > 300, "{taken} taken, {postponed} postponed");
    let [open, restoring] = lost;
    assert!(rollbacks > 100 && open > 300 && restoring > 50, "{rollbacks} {lost:?}");
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        Bug::GateIsNotClosed,
        Bug::OneTooEarly,
        Bug::OpensEarly,
        Bug::NeverPostponed,
        Bug::FailureNotTold,
        Bug::StepsOnly,
        Bug::RollbackRemembers,
        Bug::KeptTooShort,
        Bug::LossNotTold,
    ];
    for bug in bugs {
        let found = (1..400).any(|seed| {
            let run = || World::new(seed, bug).run().is_err();
            std::panic::catch_unwind(run).unwrap_or(true)
        });
        assert!(found, "{bug:?} is not found");
    }
}
