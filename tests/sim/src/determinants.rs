//! Determinants of a simulated job: logs of sets, replicas, what is on its way between them, and
//! sets that are restarted and replay.

use crate::image::Image;
use crate::options::{Options, Planted};
use crate::world::World;
use rustbtl_coordination::determinants::{
    BatchAck, DeterminantBatch, DeterminantLog, DeterminantRecord, DeterminantReplica, Numbered,
    ReplicaId, choose_history,
};
use rustbtl_fragments::ids::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Something between a set and a replica.
enum Mail {
    DeterminantBatch(ReplicaId, Vec<u8>),
    BatchAck(BatchAck),
}

/// What happened, for coverage.
#[derive(Clone, Copy, Default, Debug)]
pub struct DeterminantReport {
    /// Sets that were restarted and had something to replay.
    pub replays: u64,
    /// Determinants that were forced.
    pub forced: u64,
    /// Sets whose determinants were lost: a global rollback followed.
    pub lost: u64,
    /// Batches that were refused.
    pub refused: u64,
    /// Sends that were not the same when they were executed again, and nobody had seen the first.
    pub differed: u64,
    /// Failures of sets whose replay was not complete.
    pub failed_again: u64,
    /// Frames that had to wait for determinants to be stable.
    pub waited: u64,
    /// Frames of piggybacked determinants.
    pub piggybacked: u64,
    /// Of them: refused, since the incarnation that they were of was over.
    pub refused_piggybacks: u64,
    /// Frames that went without one: their receiver had what they depended on.
    pub alone: u64,
    /// See [`crate::piggyback::PiggybackWorld::met`].
    pub met: [u64; 8],
}

/// See the module's documentation.
pub struct Determinants {
    on: bool,
    logs: BTreeMap<u32, Rc<RefCell<DeterminantLog>>>,
    replicas: BTreeMap<u32, DeterminantReplica>,
    starts: BTreeMap<u32, u64>,
    mail: BTreeMap<(u32, u32), VecDeque<Mail>>,
    /// Batches of failed incarnations that are long on their way.
    ghosts: Vec<((u32, u32), Mail)>,
    forced: BTreeMap<u32, Vec<DeterminantRecord>>,
    /// What happened.
    pub report: DeterminantReport,
}

/// Small batches, so that sets fail between two of them.
const BATCH: usize = 3;

impl Determinants {
    /// Nothing is recorded.
    pub fn new(options: &Options) -> Self {
        Self {
            on: options.determinants,
            logs: BTreeMap::new(),
            replicas: BTreeMap::new(),
            starts: BTreeMap::new(),
            mail: BTreeMap::new(),
            ghosts: Vec::new(),
            forced: BTreeMap::new(),
            report: DeterminantReport::default(),
        }
    }
}

impl World {
    /// Agents start, and know of the sets that they are replicas of.
    pub fn first_replicas(&mut self) {
        if !self.determinants.on {
            return;
        }
        if self.shared.options.piggyback {
            return self.first_orders();
        }
        self.determinants.mail.clear();
        self.determinants.ghosts.clear();
        self.determinants.logs.clear();
        for set in self.sets() {
            self.start_replica(set);
        }
        for set in self.sets() {
            self.start_log(set, Vec::new());
            self.choose_replicas(set);
            while self.send_batch(set) {}
        }
        let pairs: Vec<(u32, u32)> = self.determinants.mail.keys().copied().collect();
        for pair in pairs.into_iter().cycle().take(1000) {
            self.deliver_mail(pair);
        }
    }

    fn start_replica(&mut self, set: u32) {
        let start = self.determinants.starts.entry(set).or_default();
        *start += 1;
        let id = ReplicaId { set: SetId(set), start: *start };
        self.determinants.replicas.insert(set, DeterminantReplica::new(id));
    }

    fn start_log(&mut self, set: u32, past: Vec<(PeerId, Numbered)>) {
        let members = self.members(set);
        let incarnation = Incarnation(self.net.borrow().incarnations[members[0]]);
        let copies = self.shared.options.copies.min(self.sets().len() - 1);
        let log = DeterminantLog::new(SetId(set), incarnation, past, copies, BATCH);
        let log = Rc::new(RefCell::new(log));
        for rank in members {
            self.processes[rank].host.log = Some(Rc::clone(&log));
        }
        self.determinants.logs.insert(set, log);
    }

    /// A set keeps those replicas that run, and takes the next ones after it for the others.
    fn choose_replicas(&mut self, set: u32) {
        let Some(log) = self.determinants.logs.get(&set).cloned() else { return };
        let copies = self.shared.options.copies.min(self.sets().len() - 1);
        let all = self.sets();
        let alive = |id: &ReplicaId| {
            self.determinants.replicas.get(&id.set.0).is_some_and(|replica| replica.id() == *id)
        };
        let mut chosen: Vec<ReplicaId> = log.borrow().replicas().filter(alive).collect();
        let at = all.iter().position(|other| *other == set).unwrap_or(0);
        for turn in 1..all.len() {
            let other = all[(at + turn) % all.len()];
            let Some(replica) = self.determinants.replicas.get(&other) else { continue };
            if chosen.len() < copies && !chosen.contains(&replica.id()) {
                chosen.push(replica.id());
            }
        }
        chosen.truncate(copies);
        log.borrow_mut().set_replicas(&chosen);
    }

    fn send_batch(&mut self, set: u32) -> bool {
        let Some(log) = self.determinants.logs.get(&set) else { return false };
        let Some((to, batch)) = log.borrow_mut().poll_output() else { return false };
        let mail = self.determinants.mail.entry((set, to.set.0)).or_default();
        mail.push_back(Mail::DeterminantBatch(to, batch.encode()));
        true
    }

    /// The oldest mail between two sets arrives.
    fn deliver_mail(&mut self, (from, to): (u32, u32)) {
        let mail = self.determinants.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        self.receive_mail((from, to), mail);
    }

    fn receive_mail(&mut self, (from, to): (u32, u32), mail: Option<Mail>) {
        let planted = self.shared.options.planted;
        match mail {
            Some(Mail::DeterminantBatch(id, bytes)) => {
                let Ok(mut batch) = DeterminantBatch::decode(&bytes) else {
                    panic!("a batch does not decode")
                };
                if planted == Some(Planted::StaleIncarnationAccepted) {
                    let first = self.members(from)[0];
                    batch.incarnation = Incarnation(self.net.borrow().incarnations[first]);
                }
                let replica = self.determinants.replicas.get_mut(&to);
                let Some(replica) = replica.filter(|replica| replica.id() == id) else { return };
                match replica.on_batch(batch) {
                    Ok(ack) => {
                        let mail = self.determinants.mail.entry((to, from)).or_default();
                        mail.push_back(Mail::BatchAck(ack));
                    }
                    Err(_) => self.determinants.report.refused += 1,
                }
            }
            Some(Mail::BatchAck(mut ack)) => {
                let Some(log) = self.determinants.logs.get(&to) else { return };
                if planted == Some(Planted::StaleIncarnationAccepted) {
                    let first = self.members(to)[0];
                    ack.incarnation = Incarnation(self.net.borrow().incarnations[first]);
                }
                log.borrow_mut().on_ack(&ack);
            }
            None => {}
        }
    }

    /// Maybe something about determinants. True: that was this step.
    pub fn determinant_step(&mut self) -> bool {
        if !self.determinants.on || !self.prng.chance(self.shared.options.determinant_rate) {
            return false;
        }
        let sets = self.sets();
        let (set, other) = (self.prng.pick(&sets), self.prng.pick(&sets));
        match self.prng.below(8) {
            _ if self.shared.options.piggyback => self.piggyback_step(),
            0..3 => {
                let alive = !self.faults.has_failed(set);
                let _ = alive && self.send_batch(set);
            }
            3..6 => self.deliver_mail((set, other)),
            6 if !self.determinants.ghosts.is_empty() => {
                let at = self.prng.below(self.determinants.ghosts.len());
                let (pair, mail) = self.determinants.ghosts.swap_remove(at);
                self.receive_mail(pair, Some(mail));
            }
            6 => self.deliver_mail((set, other)),
            _ if !self.faults.has_failed(set) => self.choose_replicas(set),
            _ => {}
        }
        if self.prng.chance(20) {
            for rank in 0..self.processes.len() {
                self.processes[rank].host.record_late();
            }
        }
        true
    }

    /// A set has failed, and with it what its agent stored.
    pub fn determinants_lost(&mut self, set: u32) {
        let replaying = self.checkpoints.is_replaying(set);
        self.window_replay_is_void(Some(set));
        let determinants = &mut self.determinants;
        if !determinants.on {
            return;
        }
        determinants.replicas.remove(&set);
        determinants.report.failed_again += u64::from(replaying);
        for ((_, to), mail) in &mut determinants.mail {
            // Batches on their way to others may still arrive; what is for it is lost.
            if *to == set && !self.shared.options.ghosts {
                mail.clear();
            }
        }
        for rank in self.members(set) {
            self.processes[rank].host.late.clear();
        }
        if self.shared.options.piggyback {
            self.piggyback_lost(set);
        }
    }

    /// What the replicas have of a failed set. None: it is lost.
    pub fn fetch_determinants(&mut self, set: u32, checkpoint: Incarnation) -> bool {
        if !self.determinants.on {
            return true;
        }
        if self.shared.options.piggyback {
            let records = self.past_of(set);
            self.determinants.forced.insert(set, records);
            return true;
        }
        let Some(log) = self.determinants.logs.get(&set) else { return false };
        let copies = self.shared.options.copies.min(self.sets().len() - 1);
        let replicas: Vec<ReplicaId> = log.borrow().replicas().collect();
        let none: &[DeterminantRecord] = &[];
        let alone = (copies == 0).then_some(Some((checkpoint, none)));
        let kept = replicas.iter().map(|id| {
            let replica = self.determinants.replicas.get(&id.set.0);
            replica.filter(|replica| replica.id() == *id)?.fetch(SetId(set))
        });
        let best = choose_history(checkpoint, kept.chain(alone));
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
        if self.shared.options.piggyback {
            self.start_order(set, past);
        } else {
            self.replicate_again(set, past);
        }
        self.replay(set, &records);
    }

    fn replicate_again(&mut self, set: u32, past: Vec<(PeerId, Numbered)>) {
        self.start_replica(set);
        for (pair, mail) in &mut self.determinants.mail {
            if pair.0 == set {
                let old = mail.drain(..).map(|mail| (*pair, mail));
                self.determinants.ghosts.extend(old);
            }
        }
        self.start_log(set, past);
        self.choose_replicas(set);
    }

    fn replay(&mut self, set: u32, records: &[DeterminantRecord]) {
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
            if self.shared.options.planted == Some(Planted::ReadingsForgotten) {
                mine.iter_mut().for_each(forget_a_reading);
            }
            let process = &mut self.processes[rank];
            if self.shared.options.planted == Some(Planted::DrawnAnew) {
                process.host.memory.random.seed([99; 32]);
            }
            let clock = process.host.memory.decisions.clock();
            let forced = match process.host.memory.decisions.restored(&mine) {
                Ok(forced) => forced,
                Err(gap) => panic!("{rank}: determinant {gap} is missing after {clock}"),
            };
            self.determinants.report.forced += process.host.memory.decisions.clock() - clock;
            for message in process.program.matching.begin_replay(rank, &forced) {
                self.shared.book.note_match(&message);
            }
            process.replay_windows(self.shared.options.planted);
            process.engine.begin_replay(&mut process.host, &forced);
            process.settle(&mut self.shared);
        }
        self.window_replay_begins(set);
        self.determinants.report.replays += u64::from(self.determinants.report.forced > before);
    }

    /// All processes of a set have replayed what they had done.
    pub fn has_replayed(&self, set: u32) -> bool {
        self.members(set).into_iter().all(|rank| self.has_completed_replay(rank))
    }

    /// Has it completed its replay, as far as it knows itself?
    pub fn has_completed_replay(&self, rank: usize) -> bool {
        self.processes[rank].is_through()
    }

    /// The oldest checkpoint that a set may be rolled back to: what is before is not needed any
    /// more.
    pub fn cover_determinants(&mut self, set: u32, images: &BTreeMap<usize, Image>) {
        if !self.determinants.on {
            return;
        }
        let clocks = self.clocks_of(set, images);
        if self.shared.options.piggyback {
            return self.cover_order(set, &clocks);
        }
        if let Some(log) = self.determinants.logs.get(&set) {
            log.borrow_mut().trim(&clocks);
        }
        for replica in self.determinants.replicas.values_mut() {
            replica.trim(SetId(set), &clocks);
        }
    }

    /// The whole job is restarted.
    pub fn restart_determinants(&mut self) {
        if !self.determinants.on {
            return;
        }
        for process in &mut self.processes {
            process.host.late.clear();
            let forced = process.host.memory.decisions.restored(&[]);
            assert!(forced.is_ok(), "nothing is forced");
            process.forget_window_replay();
        }
        self.window_replay_is_void(None);
        self.first_replicas();
        for rank in 0..self.processes.len() {
            self.processes[rank].maybe_end_replay(&mut self.shared);
        }
    }
}

fn shorten(numbered: &mut Numbered) {
    use rustbtl_coordination::determinants::Determinant;
    if let Determinant::ProgramTime(date) = &mut numbered.determinant {
        date.calls = 1;
    }
}

fn forget_a_reading(numbered: &mut Numbered) {
    use rustbtl_coordination::determinants::Determinant;
    if let Determinant::Readings(readings) = &mut numbered.determinant {
        **readings = readings.shortened();
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
