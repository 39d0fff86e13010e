//! Piggybacked determinants (docs/adr/0019): orders that sets share, a coordinator that never
//! fails, what is on its way between them, and fences around sets that have failed.

use crate::image::Image;
use crate::network::is;
use crate::options::Planted;
use crate::piggyback_share::{Item, PiggybackShare, Shared};
use crate::world::World;
use rustbtl_coordination::determinants::{
    Availability, DeterminantLog, DeterminantRecord, Fence, Numbered, Piggybacked,
    PiggybackedPlaces, Received, SetOrder, find_orphan,
};
use rustbtl_fragments::ids::*;
use rustbtl_fragments::wire::{FrameType, HEADER_BYTES};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// A rank's answer to a fence: of which set, before which incarnation, and how far its own had
/// recorded.
type Answer = (u32, Incarnation, Incarnation, u64);

/// See the module's documentation.
#[derive(Default)]
pub struct PiggybackWorld {
    orders: BTreeMap<u32, SetOrder>,
    fences: BTreeMap<u32, Fence>,
    /// Of each rank, in which incarnation of its set.
    mail: BTreeMap<usize, VecDeque<(Incarnation, Item)>>,
    /// Answers go another way.
    answers: BTreeMap<usize, VecDeque<Answer>>,
    /// To each set: what is stable.
    stable: BTreeMap<u32, VecDeque<(Incarnation, u64)>>,
    /// Processes that do not accept piggybacked determinants yet.
    not_accepting: BTreeSet<usize>,
    /// How far their sets had recorded when snapshots were taken.
    snapshots: BTreeMap<(usize, u64), (Incarnation, u64)>,
    /// Frames of failed sets that piggybacked something, sets that failed while they were asked,
    /// snapshots that had to wait, places that were only named and waited for another set, contents
    /// of such places that a fence asked for, names of what third sets had recorded, orphans when
    /// fences could not be complete, and when an order was that of a later incarnation.
    pub met: [u64; 8],
    /// Somebody depends on what is lost.
    orphan: bool,
}

impl World {
    fn piggyback(&self) -> bool {
        self.shared.options.piggyback
    }

    /// Ranks that know of something that is not stable, for messages.
    pub(crate) fn describe_orders(&self) -> String {
        let of = |(rank, process): (usize, &crate::process::Process)| {
            let share = process.host.share.as_ref()?;
            let marks = share.marks();
            let order = self.piggyback.orders.get(&self.shared.options.sets[rank])?;
            let mail = self.piggyback.mail.get(&rank).map_or(0, VecDeque::len);
            let (recorded, stable, next) = (marks.recorded.0, marks.stable, order.next());
            (recorded != stable).then(|| {
                format!(
                    "{rank}: recorded {recorded} stable {stable}, of its order {next} in {:?}, to \
                     send {}, on its way {mail}\n",
                    order.incarnation(),
                    share.outbox.len(),
                )
            })
        };
        self.processes.iter().enumerate().filter_map(of).collect()
    }

    /// The job begins, or is restarted.
    pub fn first_orders(&mut self) {
        let met = self.piggyback.met;
        self.piggyback = PiggybackWorld { met, ..PiggybackWorld::default() };
        for set in self.sets() {
            self.start_order(set, Vec::new());
        }
    }

    /// A set begins an incarnation in which it replays this.
    pub fn start_order(&mut self, set: u32, past: Vec<(PeerId, Numbered)>) {
        let members = self.members(set);
        let incarnation = Incarnation(self.net.borrow().incarnations[members[0]]);
        let recorded = past.len() as u64;
        let log = DeterminantLog::new(SetId(set), incarnation, past, 0, 1);
        let order = match self.piggyback.orders.get(&set) {
            Some(before) => before.succeed(incarnation, log),
            None => SetOrder::new(incarnation, log),
        };
        self.piggyback.orders.insert(set, order);
        self.piggyback.fences.remove(&set);
        self.piggyback.stable.insert(set, VecDeque::from([(incarnation, recorded)]));
        let slots = BTreeMap::new();
        let shared = Shared { set, incarnation, recorded, stable: 0, slots };
        let shared = Rc::new(RefCell::new(shared));
        for rank in members {
            let before = self.processes[rank].host.share.take();
            self.piggyback.met[5] += before.map_or(0, |before| before.met_names);
            self.processes[rank].host.share = Some(PiggybackShare {
                shared: Rc::clone(&shared),
                outbox: VecDeque::new(),
                named: Vec::new(),
                fences: BTreeMap::new(),
                known: BTreeMap::new(),
                named_here: BTreeMap::new(),
                planted: self.shared.options.planted,
                holders: [set; 2],
                met_names: 0,
            });
            self.piggyback.not_accepting.insert(rank);
        }
    }

    /// One step of what is on its way.
    pub fn piggyback_step(&mut self) {
        let rank = self.prng.below(self.processes.len());
        let set = self.shared.options.sets[rank];
        let alive = !self.faults.has_failed(set);
        match self.prng.below(8) {
            // Most often nobody waits, and only places are named.
            0 | 1 if alive => {
                let named = self.prng.chance(75);
                self.flush_share(rank, named);
            }
            2 | 3 => self.coordinator_reads(rank),
            4 => {
                let mail = self.piggyback.stable.get_mut(&set).and_then(VecDeque::pop_front);
                if let Some((incarnation, upto)) = mail.filter(|_| alive)
                    && let Some(share) = &self.processes[rank].host.share
                {
                    let mut shared = share.shared.borrow_mut();
                    if shared.incarnation == incarnation {
                        shared.stable = shared.stable.max(upto);
                    }
                }
            }
            5 if alive => self.answer_fence(rank),
            6 => {
                let answer = self.piggyback.answers.get_mut(&rank).and_then(VecDeque::pop_front);
                if let Some((of, before, incarnation, upto)) = answer
                    && let Some(fence) = self.piggyback.fences.get_mut(&of)
                {
                    fence.answered(PeerId(rank as u32), before, incarnation, upto);
                }
            }
            _ if alive && self.piggyback.not_accepting.remove(&rank) => {
                let process = &mut self.processes[rank];
                process.engine.accept_piggyback(&mut process.host);
                process.settle(&mut self.shared);
            }
            _ => {}
        }
    }

    fn flush_share(&mut self, rank: usize, named: bool) -> usize {
        let Some(share) = &mut self.processes[rank].host.share else { return 0 };
        let incarnation = share.shared.borrow().incarnation;
        let before = share.named.len();
        let items = share.flush(named).into_iter().map(|item| (incarnation, item));
        self.piggyback.mail.entry(rank).or_default().extend(items);
        before
    }

    fn coordinator_reads(&mut self, rank: usize) {
        let mail = self.piggyback.mail.get_mut(&rank).and_then(VecDeque::pop_front);
        let Some((incarnation, item)) = mail else { return };
        let set = self.shared.options.sets[rank];
        let orders = &mut self.piggyback.orders;
        if orders[&set].incarnation() != incarnation {
            return;
        }
        match item {
            Item::Own(number, at, determinant) => {
                let Some(order) = orders.get_mut(&set) else { return };
                order.add_recorded(PeerId(rank as u32), number, [(at, determinant)]);
            }
            Item::Piggybacked(at, bytes) => {
                let Ok(piggybacked) = Piggybacked::decode(&bytes) else {
                    panic!("it was read before")
                };
                if let Some(order) = orders.get_mut(&set) {
                    order.add_received(at, piggybacked);
                }
            }
            Item::Named(at, places) => {
                if let Some(order) = orders.get_mut(&set) {
                    order.add_received_places(at, places);
                }
            }
            Item::Name(at, places) => {
                if let Some(order) = orders.get_mut(&set) {
                    order.add_received_name(at, places);
                }
            }
        }
        // What one order has got may be all that a place of another waits for.
        while self.merge_due() {}
        self.send_stable(set);
    }

    /// A next place of some order counts, if there is one that waits for nothing else.
    fn merge_due(&mut self) -> bool {
        for set in self.piggyback.orders.keys().copied().collect::<Vec<_>>() {
            let order = self.piggyback.orders.get_mut(&set);
            let Some((at, received)) = order.and_then(SetOrder::next_received) else { continue };
            match received {
                Received::Content(piggybacked) => self.merge(set, at, piggybacked),
                Received::Places(places) | Received::Name(places) => {
                    match self.availability(&places) {
                        Availability::Here => self.place_counts(set, at),
                        Availability::NotYet => {
                            self.piggyback.met[3] += 1;
                            continue;
                        }
                        // Nothing of it that is behind is replayed.
                        Availability::Lost if self.faults.has_failed(set) => continue,
                        Availability::Lost => {
                            self.piggyback.met[7] += u64::from(!self.piggyback.orphan);
                            self.piggyback.orphan = true;
                            continue;
                        }
                    }
                }
            }
            return true;
        }
        false
    }

    /// Is what these places hold in the order of the set that they are of?
    fn availability(&self, places: &PiggybackedPlaces) -> Availability {
        let order = &self.piggyback.orders[&places.set.0];
        let is_over = places.incarnation < order.incarnation();
        match self.shared.options.planted {
            Some(Planted::NamedPlacesCount) => Availability::Here,
            Some(Planted::LostPlacesCount) if is_over => Availability::Here,
            _ => order.availability(places),
        }
    }

    /// Does anybody depend on what only sets had that have failed?
    pub fn has_orphan(&mut self) -> bool {
        if !self.piggyback() {
            return false;
        }
        let orders = self.piggyback.orders.iter().map(|(&set, order)| (SetId(set), order));
        let fences = self.piggyback.fences.iter().map(|(&set, fence)| (SetId(set), fence));
        if find_orphan(&orders.collect(), &fences.collect()).is_some() {
            self.piggyback.met[6] += u64::from(!self.piggyback.orphan);
            self.piggyback.orphan = true;
        }
        self.piggyback.orphan
    }

    fn place_counts(&mut self, set: u32, at: u64) {
        if let Some(order) = self.piggyback.orders.get_mut(&set) {
            order.skip(at);
        }
        self.send_stable(set);
    }

    /// What was piggybacked to a set goes into the order of the set that it is of.
    fn merge(&mut self, set: u32, at: u64, piggybacked: Piggybacked) {
        let (of, planted) = (piggybacked.set.0, self.shared.options.planted);
        if planted != Some(Planted::PiggybackUnmerged)
            && let Some(order) = self.piggyback.orders.get_mut(&of)
        {
            let (from, is_its) = (piggybacked.from, order.incarnation() == piggybacked.incarnation);
            assert!(!is_its || order.has_no_gap_before(from), "C4: {of} before {from}");
            order.add_piggybacked(piggybacked);
        }
        if matches!(planted, Some(Planted::PiggybackUnmerged | Planted::ContentCounts)) {
            self.place_counts(set, at);
        }
        self.send_stable(of);
    }

    fn send_stable(&mut self, set: u32) {
        let order = &self.piggyback.orders[&set];
        let stable = (order.incarnation(), order.next());
        let mail = self.piggyback.stable.entry(set).or_default();
        if mail.back() != Some(&stable) {
            mail.push_back(stable);
        }
    }

    /// The checkpoint thread reads `Fence`.
    fn answer_fence(&mut self, rank: usize) {
        let asks =
            |(_, fence): &(&u32, &Fence)| fence.missing().any(|missing| missing.0 as usize == rank);
        let asking: Vec<(u32, Incarnation)> =
            self.piggyback.fences.iter().filter(asks).map(|(&set, f)| (set, f.before())).collect();
        let Some(share) = &mut self.processes[rank].host.share else { return };
        if asking.is_empty() {
            return;
        }
        for (of, before) in asking {
            share.fences.insert(of, before);
            let shared = share.shared.borrow();
            let answer = (of, before, shared.incarnation, shared.recorded);
            self.piggyback.answers.entry(rank).or_default().push_back(answer);
        }
        // The failed set does not send any more what is in places that were named.
        self.piggyback.met[4] += self.flush_share(rank, false) as u64;
    }

    /// A set whose frames are just bringing determinants to others.
    fn who_sends_determinants(&self) -> Option<u32> {
        let mut net = self.net.borrow_mut();
        let ranks = self.processes.len();
        let full = |frame: &Vec<u8>| is(frame, FrameType::Piggyback) && frame.len() > HEADER_BYTES;
        let mut sends =
            |from: usize| (0..ranks).any(|to| net.wire(from, to).frames.iter().any(full));
        let rank = (0..ranks).find(|&rank| sends(rank));
        rank.map(|rank| self.shared.options.sets[rank])
    }

    /// A set that runs and is one of two that have what somebody depends on.
    fn holder(&self) -> Option<u32> {
        let alive = |set: &u32| !self.faults.has_failed(*set);
        let of = |process: &crate::process::Process| {
            let share = process.host.share.as_ref()?;
            let set = share.shared.borrow().set;
            let holders = share.holders.into_iter().filter(|&holder| holder != set);
            alive(&set).then(|| holders.rev().find(alive)).flatten()
        };
        self.processes.iter().find_map(of)
    }

    /// Percent of opportunities for a failure that are taken: sets that fail together are what one
    /// hop is for, late frames are what fences are for.
    pub fn failure_rate(&self) -> u32 {
        match self.piggyback() {
            true if !self.faults.failed.is_empty() => 50,
            true if self.who_sends_determinants().is_some() => self.faults.rate.max(20),
            _ => self.faults.rate,
        }
    }

    /// A set, if possible one whose late frames are of use.
    pub fn who_fails(&mut self) -> u32 {
        let any = self.prng.pick(&self.shared.options.sets);
        if !self.piggyback() || self.prng.chance(30) {
            return any;
        }
        if !self.shared.options.all_record() {
            return self.holder().unwrap_or(any);
        }
        self.who_sends_determinants().unwrap_or(any)
    }

    /// A set has failed.
    pub fn piggyback_lost(&mut self, set: u32) {
        let members = self.members(set);
        for fence in self.piggyback.fences.values_mut() {
            let asked = |rank: PeerId| members.contains(&(rank.0 as usize));
            self.piggyback.met[1] += u64::from(fence.missing().any(asked));
            fence.set_failed(SetId(set));
        }
        for &rank in &members {
            if let Some(share) = &mut self.processes[rank].host.share {
                share.outbox.clear();
                share.named.clear();
            }
            // What it has sent may still arrive, or a part of it.
            if let Some(mail) = self.piggyback.mail.get_mut(&rank)
                && self.prng.chance(50)
            {
                let left = self.prng.below(mail.len() + 1);
                mail.truncate(left);
            }
            self.piggyback.not_accepting.remove(&rank);
        }
        // What it had accepted it has seen no more; its checkpoint has (`Image::seen`).
        self.shared.book.accepted.retain(|stream, _| !members.contains(&stream.2));
        self.piggyback.snapshots.retain(|(rank, _), _| !members.contains(rank));
        let incarnations = self.net.borrow().incarnations.clone();
        let sets = &self.shared.options.sets;
        let asked = (0..sets.len()).filter(|&rank| !self.faults.has_failed(sets[rank]));
        let asked = asked
            .map(|rank| (PeerId(rank as u32), SetId(sets[rank]), Incarnation(incarnations[rank])));
        let before = Incarnation(incarnations[members[0]] + 1);
        self.piggyback.fences.insert(set, Fence::new(before, asked));
        for rank in 0..self.processes.len() {
            // Checkpoint threads are quick.
            if !self.faults.has_failed(self.shared.options.sets[rank]) && self.prng.chance(40) {
                self.answer_fence(rank);
            }
        }
    }

    /// Is everything here that others have of it?
    pub fn is_fenced(&self, set: u32) -> bool {
        if !self.piggyback() || self.shared.options.planted == Some(Planted::FenceSkipped) {
            return true;
        }
        let next = |set: SetId, incarnation| {
            let order = self.piggyback.orders.get(&set.0)?;
            (order.incarnation() == incarnation).then(|| order.next())
        };
        let ignores = self.shared.options.planted == Some(Planted::OrphansIgnored);
        let is_complete = |fence: &Fence| match ignores {
            true => fence.missing().next().is_none(),
            false => fence.is_complete(next),
        };
        self.piggyback.fences.get(&set).is_none_or(is_complete)
    }

    /// What a failed set has to replay.
    pub fn past_of(&self, set: u32) -> Vec<DeterminantRecord> {
        self.piggyback.orders[&set].history().cloned().collect()
    }

    /// Its oldest checkpoint is a younger one now.
    pub fn cover_order(&mut self, set: u32, clocks: &BTreeMap<PeerId, u64>) {
        if let Some(order) = self.piggyback.orders.get_mut(&set) {
            order.log_mut().trim(clocks);
        }
    }

    /// A snapshot is taken.
    pub fn before_snapshot(&mut self, rank: usize, checkpoint: u64) {
        if let Some(share) = &self.processes[rank].host.share {
            let shared = share.shared.borrow();
            let upto = (shared.incarnation, shared.recorded);
            self.piggyback.snapshots.insert((rank, checkpoint), upto);
        }
    }

    /// Is everything stable that the snapshot depends on?
    pub fn is_snapshot_stable(&mut self, rank: usize, checkpoint: u64) -> bool {
        let Some(&(incarnation, upto)) = self.piggyback.snapshots.get(&(rank, checkpoint)) else {
            return true;
        };
        let order = &self.piggyback.orders[&self.shared.options.sets[rank]];
        let stable = order.incarnation() == incarnation && order.next() >= upto;
        self.piggyback.met[2] += u64::from(!stable);
        stable || self.shared.options.planted == Some(Planted::SnapshotUnstable)
    }

    /// Clocks of a checkpoint, for [`Self::cover_order`].
    pub fn clocks_of(&self, set: u32, images: &BTreeMap<usize, Image>) -> BTreeMap<PeerId, u64> {
        let of_set = images.iter().filter(|(rank, _)| self.shared.options.sets[**rank] == set);
        of_set.map(|(rank, image)| (PeerId(*rank as u32), image.clock())).collect()
    }
}
