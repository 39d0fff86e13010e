//! Determinants of a simulated job: rings of sets, keepers, what is on its way between them, and
//! sets that come back and replay.

use crate::image::Image;
use crate::options::{Options, Planted};
use crate::world::World;
use rustbtl_coordination::determinants::{
    Ack, Batch, DeterminantLog, DeterminantReplica, ReplicaId, Numbered, Record, choose,
};
use rustbtl_fragments::ids::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Something between a set and a keeper.
enum Mail {
    Batch(ReplicaId, Vec<u8>),
    Ack(Ack),
}

/// What happened, for coverage.
#[derive(Clone, Copy, Default, Debug)]
pub struct DeterminantReport {
    /// Sets that came back and had something to replay.
    pub replays: u64,
    /// Determinants that were forced.
    pub forced: u64,
    /// Sets whose determinants were lost: the job fell back to its last global line.
    pub lost: u64,
    /// Batches that were refused.
    pub refused: u64,
    /// Sends that were not the same when they were executed again, and nobody had seen the first.
    pub differed: u64,
    /// Deaths of sets that had not caught up.
    pub died_again: u64,
    /// Questions of the engine whether a frame may leave that were answered no.
    pub waited: u64,
    /// Frames of determinants that went with messages.
    pub carried: u64,
    /// Of them: refused, since the life that they were of was over.
    pub refused_carried: u64,
    /// See [`crate::carrying::Carrying::met`].
    pub met: [u64; 3],
}

/// See the module's documentation.
pub struct Determinants {
    on: bool,
    shippers: BTreeMap<u32, Rc<RefCell<DeterminantLog>>>,
    keepers: BTreeMap<u32, DeterminantReplica>,
    starts: BTreeMap<u32, u64>,
    mail: BTreeMap<(u32, u32), VecDeque<Mail>>,
    /// Batches of dead incarnations that are long on their way.
    ghosts: Vec<((u32, u32), Mail)>,
    forced: BTreeMap<u32, Vec<Record>>,
    /// What happened.
    pub report: DeterminantReport,
}

/// Small batches, so that sets die between two of them.
const BATCH: usize = 3;

impl Determinants {
    /// Nothing is recorded.
    pub fn new(options: &Options) -> Self {
        Self {
            on: options.determinants,
            shippers: BTreeMap::new(),
            keepers: BTreeMap::new(),
            starts: BTreeMap::new(),
            mail: BTreeMap::new(),
            ghosts: Vec::new(),
            forced: BTreeMap::new(),
            report: DeterminantReport::default(),
        }
    }
}

impl World {
    /// Agents start, and know of the sets that they keep.
    pub fn first_keepers(&mut self) {
        if !self.determinants.on {
            return;
        }
        if self.shared.options.carrying {
            return self.first_orders();
        }
        self.determinants.mail.clear();
        self.determinants.ghosts.clear();
        self.determinants.shippers.clear();
        for set in self.sets() {
            self.start_keeper(set);
        }
        for set in self.sets() {
            self.start_shipper(set, Vec::new());
            self.choose_keepers(set);
            while self.ship(set) {}
        }
        let pairs: Vec<(u32, u32)> = self.determinants.mail.keys().copied().collect();
        for pair in pairs.into_iter().cycle().take(1000) {
            self.carry_mail(pair);
        }
    }

    fn start_keeper(&mut self, set: u32) {
        let start = self.determinants.starts.entry(set).or_default();
        *start += 1;
        let id = ReplicaId { set: SetId(set), start: *start };
        self.determinants.keepers.insert(set, DeterminantReplica::new(id));
    }

    fn start_shipper(&mut self, set: u32, past: Vec<(PeerId, Numbered)>) {
        let members = self.members(set);
        let incarnation = Incarnation(self.net.borrow().incarnations[members[0]]);
        let copies = self.shared.options.copies.min(self.sets().len() - 1);
        let shipper = DeterminantLog::new(SetId(set), incarnation, past, copies, BATCH);
        let shipper = Rc::new(RefCell::new(shipper));
        for rank in members {
            self.processes[rank].host.shipper = Some(Rc::clone(&shipper));
        }
        self.determinants.shippers.insert(set, shipper);
    }

    /// A set keeps those keepers that live, and takes the next ones after it for the others.
    fn choose_keepers(&mut self, set: u32) {
        let Some(shipper) = self.determinants.shippers.get(&set).cloned() else { return };
        let copies = self.shared.options.copies.min(self.sets().len() - 1);
        let all = self.sets();
        let alive = |id: &ReplicaId| {
            self.determinants.keepers.get(&id.set.0).is_some_and(|keeper| keeper.id() == *id)
        };
        let mut chosen: Vec<ReplicaId> = shipper.borrow().keepers().filter(alive).collect();
        let at = all.iter().position(|other| *other == set).unwrap_or(0);
        for turn in 1..all.len() {
            let other = all[(at + turn) % all.len()];
            let Some(keeper) = self.determinants.keepers.get(&other) else { continue };
            if chosen.len() < copies && !chosen.contains(&keeper.id()) {
                chosen.push(keeper.id());
            }
        }
        chosen.truncate(copies);
        shipper.borrow_mut().set_keepers(&chosen);
    }

    fn ship(&mut self, set: u32) -> bool {
        let Some(shipper) = self.determinants.shippers.get(&set) else { return false };
        let Some((to, batch)) = shipper.borrow_mut().poll_output() else { return false };
        let mail = self.determinants.mail.entry((set, to.set.0)).or_default();
        mail.push_back(Mail::Batch(to, batch.encode()));
        true
    }

    /// The oldest mail between two sets arrives.
    fn carry_mail(&mut self, (from, to): (u32, u32)) {
        let mail = self.determinants.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        self.receive_mail((from, to), mail);
    }

    fn receive_mail(&mut self, (from, to): (u32, u32), mail: Option<Mail>) {
        let planted = self.shared.options.planted;
        match mail {
            Some(Mail::Batch(id, bytes)) => {
                let Ok(mut batch) = Batch::decode(&bytes) else {
                    panic!("a batch does not decode")
                };
                if planted == Some(Planted::StaleIncarnationAccepted) {
                    let first = self.members(from)[0];
                    batch.incarnation = Incarnation(self.net.borrow().incarnations[first]);
                }
                let keeper = self.determinants.keepers.get_mut(&to);
                let Some(keeper) = keeper.filter(|keeper| keeper.id() == id) else { return };
                match keeper.on_batch(batch) {
                    Ok(ack) => {
                        let mail = self.determinants.mail.entry((to, from)).or_default();
                        mail.push_back(Mail::Ack(ack));
                    }
                    Err(_) => self.determinants.report.refused += 1,
                }
            }
            Some(Mail::Ack(mut ack)) => {
                let Some(shipper) = self.determinants.shippers.get(&to) else { return };
                if planted == Some(Planted::StaleIncarnationAccepted) {
                    let first = self.members(to)[0];
                    ack.incarnation = Incarnation(self.net.borrow().incarnations[first]);
                }
                shipper.borrow_mut().on_ack(&ack);
            }
            None => {}
        }
    }

    /// Maybe something about determinants. True: that was this step.
    pub fn determinant_step(&mut self) -> bool {
        if !self.determinants.on || !self.prng.chance(self.shared.options.shipping) {
            return false;
        }
        let sets = self.sets();
        let (set, other) = (self.prng.pick(&sets), self.prng.pick(&sets));
        match self.prng.below(8) {
            _ if self.shared.options.carrying => self.carrying_step(),
            0..3 => {
                let alive = !self.faults.is_dead(set);
                let _ = alive && self.ship(set);
            }
            3..6 => self.carry_mail((set, other)),
            6 if !self.determinants.ghosts.is_empty() => {
                let at = self.prng.below(self.determinants.ghosts.len());
                let (pair, mail) = self.determinants.ghosts.swap_remove(at);
                self.receive_mail(pair, Some(mail));
            }
            6 => self.carry_mail((set, other)),
            _ if !self.faults.is_dead(set) => self.choose_keepers(set),
            _ => {}
        }
        if self.prng.chance(20) {
            for rank in 0..self.processes.len() {
                self.processes[rank].host.record_late();
            }
        }
        true
    }

    /// A set has died, and what its agent kept with it.
    pub fn determinants_lost(&mut self, set: u32) {
        let behind = self.lines.is_behind(set);
        let determinants = &mut self.determinants;
        if !determinants.on {
            return;
        }
        determinants.keepers.remove(&set);
        determinants.report.died_again += u64::from(behind);
        for ((_, to), mail) in &mut determinants.mail {
            // Batches on their way to others may still arrive; what is for it is lost.
            if *to == set && !self.shared.options.ghosts {
                mail.clear();
            }
        }
        for rank in self.members(set) {
            self.processes[rank].host.late.clear();
        }
        if self.shared.options.carrying {
            self.carrying_lost(set);
        }
    }

    /// What the keepers have of a dead set. None: it is lost.
    pub fn fetch_determinants(&mut self, set: u32, line: Incarnation) -> bool {
        if !self.determinants.on {
            return true;
        }
        if self.shared.options.carrying {
            let records = self.past_of(set);
            self.determinants.forced.insert(set, records);
            return true;
        }
        let Some(shipper) = self.determinants.shippers.get(&set) else { return false };
        let copies = self.shared.options.copies.min(self.sets().len() - 1);
        let keepers: Vec<ReplicaId> = shipper.borrow().keepers().collect();
        let none: &[Record] = &[];
        let alone = (copies == 0).then_some(Some((line, none)));
        let kept = keepers.iter().map(|id| {
            let keeper = self.determinants.keepers.get(&id.set.0);
            keeper.filter(|keeper| keeper.id() == *id)?.fetch(SetId(set))
        });
        let best = choose(line, kept.chain(alone));
        match best {
            Some(records) => {
                self.determinants.forced.insert(set, records);
                true
            }
            None => {
                self.determinants.report.lost += 1;
                false
            }
        }
    }

    /// The set is restored, its channels to others are reported down: it replays.
    pub fn begin_replay(&mut self, set: u32) {
        if !self.determinants.on {
            return;
        }
        let records = self.determinants.forced.remove(&set).unwrap_or_default();
        let past = records.iter().map(|r| (r.rank, r.numbered.clone())).collect();
        if self.shared.options.carrying {
            self.start_order(set, past);
        } else {
            self.keep_again(set, past);
        }
        self.replay(set, &records);
    }

    fn keep_again(&mut self, set: u32, past: Vec<(PeerId, Numbered)>) {
        self.start_keeper(set);
        for (pair, mail) in &mut self.determinants.mail {
            if pair.0 == set {
                let old = mail.drain(..).map(|mail| (*pair, mail));
                self.determinants.ghosts.extend(old);
            }
        }
        self.start_shipper(set, past);
        self.choose_keepers(set);
    }

    fn replay(&mut self, set: u32, records: &[Record]) {
        let before = self.determinants.report.forced;
        for rank in self.members(set) {
            let mine = records.iter().filter(|record| record.rank.0 as usize == rank);
            let mut mine: Vec<Numbered> = mine.map(|record| record.numbered.clone()).collect();
            if self.shared.options.planted == Some(Planted::RunMiscounted) {
                mine.iter_mut().for_each(miscount);
            }
            if self.shared.options.planted == Some(Planted::DatesForOneCall) {
                mine.iter_mut().for_each(shorten);
            }
            let process = &mut self.processes[rank];
            let clock = process.host.memory.decisions.clock();
            let forced = match process.host.memory.decisions.restored(&mine) {
                Ok(forced) => forced,
                Err(gap) => panic!("{rank}: determinant {gap} is missing after {clock}"),
            };
            self.determinants.report.forced += process.host.memory.decisions.clock() - clock;
            process.program.matching.begin_replay(rank, &forced);
            process.engine.begin_replay(&mut process.host, &forced);
            process.settle(&mut self.shared);
        }
        self.determinants.report.replays += u64::from(self.determinants.report.forced > before);
    }

    /// All processes of a set did again what they had done.
    pub fn has_replayed(&self, set: u32) -> bool {
        self.members(set).into_iter().all(|rank| self.has_caught_up(rank))
    }

    /// Has it repeated its past, as far as it knows itself?
    pub fn has_caught_up(&self, rank: usize) -> bool {
        let process = &self.processes[rank];
        !process.host.memory.decisions.has_past() && process.engine.is_replay_complete()
    }

    /// The oldest line that a set may go back to: what is before is not needed any more.
    pub fn cover_determinants(&mut self, set: u32, images: &BTreeMap<usize, Image>) {
        if !self.determinants.on {
            return;
        }
        let clocks = self.clocks_of(set, images);
        if self.shared.options.carrying {
            return self.cover_order(set, &clocks);
        }
        if let Some(shipper) = self.determinants.shippers.get(&set) {
            shipper.borrow_mut().covered(&clocks);
        }
        for keeper in self.determinants.keepers.values_mut() {
            keeper.covered(SetId(set), &clocks);
        }
    }

    /// The whole job starts again.
    pub fn restart_determinants(&mut self) {
        if !self.determinants.on {
            return;
        }
        for process in &mut self.processes {
            process.host.late.clear();
            let forced = process.host.memory.decisions.restored(&[]);
            assert!(forced.is_ok(), "nothing is forced");
        }
        self.first_keepers();
        for rank in 0..self.processes.len() {
            self.processes[rank].maybe_end_replay(&mut self.shared);
        }
    }
}

fn shorten(numbered: &mut Numbered) {
    use rustbtl_coordination::determinants::Determinant;
    if let Determinant::Date(date) = &mut numbered.determinant {
        date.calls = 1;
    }
}

fn miscount(numbered: &mut Numbered) {
    use rustbtl_coordination::determinants::Determinant;
    if let Determinant::Nothing { count, .. } = &mut numbered.determinant
        && *count > 1
    {
        *count -= 1;
    }
}
