//! Determinants that go with messages (docs/adr/0019): orders that sets share, a coordinator that
//! never dies, what is on its way between them, and fences around sets that have died.

use crate::image::Image;
use crate::network::is;
use crate::options::Planted;
use crate::world::World;
use rustbtl_coordination::determinants::{
    Carried, Determinant, DeterminantLog, Fence, Numbered, Order, Record, carried,
};
use rustbtl_fragments::send_gate::{Marks, Recorded};
use rustbtl_fragments::ids::*;
use rustbtl_fragments::wire::{FrameType, HEADER_BYTES};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// A slot takes an entry of so many bytes: longer ones are not carried.
const SLOT_BYTES: usize = 24;

/// What is in a place of a set's order.
enum Slot {
    /// What it recorded itself, as `carried::append` writes it.
    Own(Vec<u8>),
    /// What was carried to it, of that set.
    Of(u32),
}

/// What the processes of a set share in one life.
pub struct Shared {
    set: u32,
    incarnation: Incarnation,
    recorded: u64,
    stable: u64,
    slots: BTreeMap<u64, Slot>,
}

/// What goes to the coordinator.
#[derive(Clone)]
pub enum Item {
    /// Own: number, place.
    Own(u64, u64, Determinant),
    /// The place of what was carried.
    Carried(u64, Vec<u8>),
}

/// One process's share.
pub struct Carrier {
    shared: Rc<RefCell<Shared>>,
    /// Recorded, not shipped.
    outbox: VecDeque<Item>,
    /// Sets whose lives before these are over.
    fences: BTreeMap<u32, Incarnation>,
    /// Of a life of a set everything before this place is kept here.
    known: BTreeMap<(u32, Incarnation), u64>,
    planted: Option<Planted>,
}

impl Carrier {
    /// For the gate.
    pub fn marks(&self) -> Marks {
        let shared = self.shared.borrow();
        Marks { recorded: Recorded(shared.recorded), stable: shared.stable }
    }

    /// This process has recorded something.
    pub fn record(&mut self, rank: usize, numbered: Numbered) {
        let mut shared = self.shared.borrow_mut();
        let at = shared.recorded;
        shared.recorded += 1;
        let mut entry = Vec::new();
        carried::append(&mut entry, PeerId(rank as u32), &numbered);
        if entry.len() <= SLOT_BYTES {
            shared.slots.insert(at, Slot::Own(entry));
        }
        self.outbox.push_back(Item::Own(numbered.number, at, numbered.determinant));
    }

    /// See `Host::piggyback`; `to`: the receiver's set.
    pub fn carry(&self, to: u32, from: u64, made: u64, out: &mut Vec<u8>) -> bool {
        let shared = self.shared.borrow();
        let first = from.max(shared.stable);
        carried::begin(out, SetId(shared.set), shared.incarnation, first);
        for at in first..made {
            match shared.slots.get(&at) {
                Some(Slot::Own(entry)) => out.extend_from_slice(entry),
                Some(Slot::Of(set)) if *set == to => out.push(carried::BLANK),
                Some(Slot::Of(_)) if self.planted == Some(Planted::CarriedOn) => {
                    out.push(carried::BLANK);
                }
                _ => {
                    out.clear();
                    return false;
                }
            }
        }
        first < made
    }

    /// See `Host::on_piggyback`; None: it is of a life that is over.
    pub fn carried(&mut self, bytes: &[u8]) -> Option<()> {
        let Ok(carried) = Carried::decode(bytes) else { panic!("what is carried does not decode") };
        let (set, upto) = (carried.set.0, carried.upto());
        let over = self.fences.get(&set).is_some_and(|before| carried.incarnation < *before);
        if over && self.planted != Some(Planted::FenceForgotten) {
            return None;
        }
        let known = self.known.entry((set, carried.incarnation)).or_default();
        if upto <= *known || self.planted == Some(Planted::CarriedNotKept) {
            return Some(());
        }
        *known = upto;
        let mut shared = self.shared.borrow_mut();
        let at = shared.recorded;
        shared.recorded += 1;
        shared.slots.insert(at, Slot::Of(set));
        self.outbox.push_back(Item::Carried(at, bytes.to_vec()));
        Some(())
    }
}

/// What a rank says of a fence: of which set, before which life, and how far its own had recorded.
type Answer = (u32, Incarnation, Incarnation, u64);

/// See the module's documentation.
#[derive(Default)]
pub struct Carrying {
    orders: BTreeMap<u32, Order>,
    fences: BTreeMap<u32, Fence>,
    /// Of each rank, in which life of its set.
    mail: BTreeMap<usize, VecDeque<(Incarnation, Item)>>,
    /// Answers go another way.
    answers: BTreeMap<usize, VecDeque<Answer>>,
    /// To each set: what is stable.
    stable: BTreeMap<u32, VecDeque<(Incarnation, u64)>>,
    /// Processes that have not said yet that they keep what comes.
    unsaid: BTreeSet<usize>,
    /// How far their sets had recorded when pictures were taken.
    pictured: BTreeMap<(usize, u64), (Incarnation, u64)>,
    /// Frames of dead sets that carried something, sets that died while they were asked, pictures
    /// that had to wait.
    pub met: [u64; 3],
}

impl World {
    fn carrying(&self) -> bool {
        self.shared.options.carrying
    }

    /// The job begins, or begins anew.
    pub fn first_orders(&mut self) {
        let met = self.carrying.met;
        self.carrying = Carrying { met, ..Carrying::default() };
        for set in self.sets() {
            self.start_order(set, Vec::new());
        }
    }

    /// A set begins a life in which it repeats this.
    pub fn start_order(&mut self, set: u32, past: Vec<(PeerId, Numbered)>) {
        let members = self.members(set);
        let incarnation = Incarnation(self.net.borrow().incarnations[members[0]]);
        let recorded = past.len() as u64;
        let shipper = DeterminantLog::new(SetId(set), incarnation, past, 0, 1);
        self.carrying.orders.insert(set, Order::new(incarnation, shipper));
        self.carrying.fences.remove(&set);
        self.carrying.stable.insert(set, VecDeque::from([(incarnation, recorded)]));
        let slots = BTreeMap::new();
        let shared = Shared { set, incarnation, recorded, stable: 0, slots };
        let shared = Rc::new(RefCell::new(shared));
        for rank in members {
            self.processes[rank].host.carrier = Some(Carrier {
                shared: Rc::clone(&shared),
                outbox: VecDeque::new(),
                fences: BTreeMap::new(),
                known: BTreeMap::new(),
                planted: self.shared.options.planted,
            });
            self.carrying.unsaid.insert(rank);
        }
    }

    /// One step of what is on its way.
    pub fn carrying_step(&mut self) {
        let rank = self.prng.below(self.processes.len());
        let set = self.shared.options.sets[rank];
        let alive = !self.faults.is_dead(set);
        match self.prng.below(8) {
            0 | 1 if alive => {
                let Some(carrier) = &mut self.processes[rank].host.carrier else { return };
                let incarnation = carrier.shared.borrow().incarnation;
                let items = carrier.outbox.drain(..).map(|item| (incarnation, item));
                self.carrying.mail.entry(rank).or_default().extend(items);
            }
            2 | 3 => self.coordinator_reads(rank),
            4 => {
                let mail = self.carrying.stable.get_mut(&set).and_then(VecDeque::pop_front);
                if let Some((incarnation, upto)) = mail.filter(|_| alive)
                    && let Some(carrier) = &self.processes[rank].host.carrier
                {
                    let mut shared = carrier.shared.borrow_mut();
                    if shared.incarnation == incarnation {
                        shared.stable = shared.stable.max(upto);
                    }
                }
            }
            5 if alive => self.answer_fence(rank),
            6 => {
                let answer = self.carrying.answers.get_mut(&rank).and_then(VecDeque::pop_front);
                if let Some((of, before, incarnation, upto)) = answer
                    && let Some(fence) = self.carrying.fences.get_mut(&of)
                {
                    fence.answered(PeerId(rank as u32), before, incarnation, upto);
                }
            }
            _ if alive && self.carrying.unsaid.remove(&rank) => {
                let process = &mut self.processes[rank];
                process.engine.accept_piggyback(&mut process.host);
                process.settle(&mut self.shared);
            }
            _ => {}
        }
    }

    fn coordinator_reads(&mut self, rank: usize) {
        let mail = self.carrying.mail.get_mut(&rank).and_then(VecDeque::pop_front);
        let Some((incarnation, item)) = mail else { return };
        let set = self.shared.options.sets[rank];
        let orders = &mut self.carrying.orders;
        if orders[&set].incarnation() != incarnation {
            return;
        }
        match item {
            Item::Own(number, at, determinant) => {
                let Some(order) = orders.get_mut(&set) else { return };
                order.recorded(PeerId(rank as u32), number, [(at, determinant)]);
            }
            Item::Carried(at, bytes) => {
                let Ok(carried) = Carried::decode(&bytes) else { panic!("it was read before") };
                if let Some(order) = orders.get_mut(&set) {
                    order.brought(at, carried);
                }
            }
        }
        // What one order has got may be all that a place of another waits for.
        while let Some((set, at, carried)) = self.due() {
            self.merge(set, at, carried);
        }
        self.tell_stable(set);
    }

    fn due(&mut self) -> Option<(u32, u64, Carried)> {
        self.carrying.orders.iter_mut().find_map(|(&set, order)| {
            let (at, carried) = order.due()?;
            Some((set, at, carried))
        })
    }

    /// What was carried to a set goes into the order of the set that it is of; then its place
    /// counts.
    fn merge(&mut self, set: u32, at: u64, carried: Carried) {
        let of = carried.set.0;
        if self.shared.options.planted != Some(Planted::CarriedUnmerged)
            && let Some(order) = self.carrying.orders.get_mut(&of)
        {
            order.carried(carried);
        }
        if let Some(order) = self.carrying.orders.get_mut(&set) {
            order.blank(at);
        }
        self.tell_stable(of);
        self.tell_stable(set);
    }

    fn tell_stable(&mut self, set: u32) {
        let order = &self.carrying.orders[&set];
        let told = (order.incarnation(), order.next());
        let mail = self.carrying.stable.entry(set).or_default();
        if mail.back() != Some(&told) {
            mail.push_back(told);
        }
    }

    /// The checkpoint thread reads `Fence`.
    fn answer_fence(&mut self, rank: usize) {
        let asks =
            |(_, fence): &(&u32, &Fence)| fence.missing().any(|missing| missing.0 as usize == rank);
        let asking: Vec<(u32, Incarnation)> =
            self.carrying.fences.iter().filter(asks).map(|(&set, f)| (set, f.before())).collect();
        let Some(carrier) = &mut self.processes[rank].host.carrier else { return };
        for (of, before) in asking {
            carrier.fences.insert(of, before);
            let shared = carrier.shared.borrow();
            let answer = (of, before, shared.incarnation, shared.recorded);
            self.carrying.answers.entry(rank).or_default().push_back(answer);
        }
    }

    /// A set whose frames are just bringing determinants to others.
    fn who_brings(&self) -> Option<u32> {
        let mut net = self.net.borrow_mut();
        let ranks = self.processes.len();
        let full = |frame: &Vec<u8>| is(frame, FrameType::Piggyback) && frame.len() > HEADER_BYTES;
        let mut brings =
            |from: usize| (0..ranks).any(|to| net.wire(from, to).frames.iter().any(full));
        let rank = (0..ranks).find(|&rank| brings(rank));
        rank.map(|rank| self.shared.options.sets[rank])
    }

    /// Percent of opportunities for a death that are taken: sets that fall together are what one
    /// hop is for, last words what fences are for.
    pub fn death_rate(&self) -> u32 {
        match self.carrying() {
            true if !self.faults.dead.is_empty() => 50,
            true if self.who_brings().is_some() => self.faults.rate.max(20),
            _ => self.faults.rate,
        }
    }

    /// A set, if possible one whose last words are of use.
    pub fn who_dies(&mut self) -> u32 {
        let any = self.prng.pick(&self.shared.options.sets);
        if !self.carrying() || self.prng.chance(30) {
            return any;
        }
        self.who_brings().unwrap_or(any)
    }

    /// A set has died.
    pub fn carrying_lost(&mut self, set: u32) {
        let members = self.members(set);
        for fence in self.carrying.fences.values_mut() {
            let asked = |rank: PeerId| members.contains(&(rank.0 as usize));
            self.carrying.met[1] += u64::from(fence.missing().any(asked));
            fence.fallen(SetId(set));
        }
        for &rank in &members {
            if let Some(carrier) = &mut self.processes[rank].host.carrier {
                carrier.outbox.clear();
            }
            // What it has said may still arrive, or a part of it.
            if let Some(mail) = self.carrying.mail.get_mut(&rank)
                && self.prng.chance(50)
            {
                let left = self.prng.below(mail.len() + 1);
                mail.truncate(left);
            }
            self.carrying.unsaid.remove(&rank);
        }
        // What it had accepted it has seen no more; its line has (`Image::seen`).
        self.shared.book.accepted.retain(|stream, _| !members.contains(&stream.2));
        self.carrying.pictured.retain(|(rank, _), _| !members.contains(rank));
        let incarnations = self.net.borrow().incarnations.clone();
        let sets = &self.shared.options.sets;
        let asked = (0..sets.len()).filter(|&rank| !self.faults.is_dead(sets[rank]));
        let asked = asked
            .map(|rank| (PeerId(rank as u32), SetId(sets[rank]), Incarnation(incarnations[rank])));
        let before = Incarnation(incarnations[members[0]] + 1);
        self.carrying.fences.insert(set, Fence::new(before, asked));
        for rank in 0..self.processes.len() {
            // Checkpoint threads are quick.
            if !self.faults.is_dead(self.shared.options.sets[rank]) && self.prng.chance(40) {
                self.answer_fence(rank);
            }
        }
    }

    /// Is everything here that others have of it?
    pub fn is_fenced(&self, set: u32) -> bool {
        if !self.carrying() || self.shared.options.planted == Some(Planted::FenceSkipped) {
            return true;
        }
        let next = |set: SetId, incarnation| {
            let order = self.carrying.orders.get(&set.0)?;
            (order.incarnation() == incarnation).then(|| order.next())
        };
        self.carrying.fences.get(&set).is_none_or(|fence| fence.is_complete(next))
    }

    /// What a dead set has to repeat.
    pub fn past_of(&self, set: u32) -> Vec<Record> {
        self.carrying.orders[&set].past().cloned().collect()
    }

    /// Its oldest line is a younger one now.
    pub fn cover_order(&mut self, set: u32, clocks: &BTreeMap<PeerId, u64>) {
        if let Some(order) = self.carrying.orders.get_mut(&set) {
            order.shipper_mut().covered(clocks);
        }
    }

    /// A picture is taken.
    pub fn pictured(&mut self, rank: usize, line: u64) {
        if let Some(carrier) = &self.processes[rank].host.carrier {
            let shared = carrier.shared.borrow();
            let upto = (shared.incarnation, shared.recorded);
            self.carrying.pictured.insert((rank, line), upto);
        }
    }

    /// Is everything stable that the picture depends on?
    pub fn is_picture_stable(&mut self, rank: usize, line: u64) -> bool {
        let Some(&(incarnation, upto)) = self.carrying.pictured.get(&(rank, line)) else {
            return true;
        };
        let order = &self.carrying.orders[&self.shared.options.sets[rank]];
        let stable = order.incarnation() == incarnation && order.next() >= upto;
        self.carrying.met[2] += u64::from(!stable);
        stable || self.shared.options.planted == Some(Planted::PicturedUnstable)
    }

    /// Clocks of a line, for [`Self::cover_order`].
    pub fn clocks_of(&self, set: u32, images: &BTreeMap<usize, Image>) -> BTreeMap<PeerId, u64> {
        let of_set = images.iter().filter(|(rank, _)| self.shared.options.sets[**rank] == set);
        of_set.map(|(rank, image)| (PeerId(*rank as u32), image.clock())).collect()
    }
}
