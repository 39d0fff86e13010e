//! One process's share in what is piggybacked: the order that its set shares, what it names and
//! keeps, and what goes to the coordinator.

use crate::options::Planted;
use rustbtl_coordination::determinants::{
    Determinant, Numbered, Piggybacked, PiggybackedPlaces, piggyback,
};
use rustbtl_fragments::host::PiggybackContent;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::send_gate::{Marks, Recorded};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// A slot takes an entry of so many bytes: longer ones are not piggybacked.
const SLOT_BYTES: usize = 24;

/// What is in a place of a set's order.
pub(crate) enum Slot {
    /// What it recorded itself, as `piggyback::append` writes it.
    Own(Vec<u8>),
    /// What was piggybacked to it, or named.
    Of(PiggybackedPlaces),
}

/// What the processes of a set share in one incarnation.
pub struct Shared {
    pub(crate) set: u32,
    pub(crate) incarnation: Incarnation,
    pub(crate) recorded: u64,
    pub(crate) stable: u64,
    pub(crate) slots: BTreeMap<u64, Slot>,
}

/// What goes to the coordinator.
#[derive(Clone)]
pub enum Item {
    /// Own: number, place.
    Own(u64, u64, Determinant),
    /// The place of what was piggybacked.
    Piggybacked(u64, Vec<u8>),
    /// The same without its content.
    Named(u64, PiggybackedPlaces),
    /// What was named to here.
    Name(u64, PiggybackedPlaces),
}

/// One process's share.
pub struct PiggybackShare {
    pub(crate) shared: Rc<RefCell<Shared>>,
    /// Recorded, not sent.
    pub(crate) outbox: VecDeque<Item>,
    /// What was only named to the coordinator.
    pub(crate) named: Vec<(u64, Vec<u8>)>,
    /// Sets whose incarnations before these are over.
    pub(crate) fences: BTreeMap<u32, Incarnation>,
    /// Of an incarnation of a set everything before this place is stored here.
    pub(crate) known: BTreeMap<(u32, Incarnation), u64>,
    /// The same, or was named to here.
    pub(crate) named_here: BTreeMap<(u32, Incarnation), u64>,
    pub(crate) planted: Option<Planted>,
    /// The sets that have what was named to here last.
    pub(crate) holders: [u32; 2],
    pub(crate) met_names: u64,
}

impl PiggybackShare {
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
        piggyback::append(&mut entry, PeerId(rank as u32), &numbered);
        if entry.len() <= SLOT_BYTES {
            shared.slots.insert(at, Slot::Own(entry));
        }
        self.outbox.push_back(Item::Own(numbered.number, at, numbered.determinant));
    }

    /// See `Host::piggyback`; `to`: the receiver's set.
    pub fn append_entries(
        &self,
        to: (u32, Incarnation),
        (from, covered): (u64, u64),
        made: u64,
        out: &mut Vec<u8>,
    ) -> PiggybackContent {
        let shared = self.shared.borrow();
        let settled = |place: u64| place.max(shared.stable);
        let (mut first, news) = (settled(from), settled(from.max(covered)));
        if news >= made || (news..made).any(|at| !shared.slots.contains_key(&at)) {
            return PiggybackContent::Unavailable;
        }
        let of = |places: &PiggybackedPlaces| (places.set.0, places.incarnation);
        let third = |slot: &Slot| matches!(slot, Slot::Of(places) if of(places) != to);
        let own = |slot: &Slot| matches!(slot, Slot::Own(_));
        let forgets = |planted| self.planted == Some(planted);
        let has = |what: &dyn Fn(&Slot) -> bool| (news..made).any(|at| what(&shared.slots[&at]));
        let has_own = has(&own) && !forgets(Planted::PiggybackForgotten);
        let has_third = has(&third) && !forgets(Planted::NamesForgotten);
        match (has_own, has_third) {
            (false, false) => return PiggybackContent::OfReceiver,
            (false, true) => first = news,
            (true, _) if forgets(Planted::PlacesLeftOut) => {
                let others = |at: &u64| shared.slots.get(at).is_some_and(|slot| !own(slot));
                first += (first..made).take_while(others).count() as u64;
            }
            (true, _) => {}
        }
        piggyback::begin(out, SetId(shared.set), shared.incarnation, first);
        for at in first..made {
            match shared.slots.get(&at) {
                Some(Slot::Own(entry)) => out.extend_from_slice(entry),
                Some(Slot::Of(places)) => piggyback::append_received(out, places),
                None => {
                    out.clear();
                    return PiggybackContent::Unavailable;
                }
            }
        }
        match has_own || forgets(Planted::PlacesAfterNamesOnly) {
            true => PiggybackContent::Appended,
            false => PiggybackContent::Names,
        }
    }

    /// See `Host::on_piggyback`; None: it is of an incarnation that is over.
    pub fn accept(&mut self, bytes: &[u8]) -> Option<()> {
        let Ok(piggybacked) = Piggybacked::decode(bytes) else {
            panic!("what is piggybacked does not decode")
        };
        let (set, upto) = (piggybacked.set.0, piggybacked.upto());
        let over = self.fences.get(&set).is_some_and(|before| piggybacked.incarnation < *before);
        if over && self.planted != Some(Planted::FenceForgotten) {
            return None;
        }
        if !piggybacked.has_own() {
            let shared = self.shared.borrow();
            let own = (SetId(shared.set), shared.incarnation);
            drop(shared);
            let is_third = |places: &&PiggybackedPlaces| (places.set, places.incarnation) != own;
            let third = piggybacked.received().filter(is_third);
            third.for_each(|places| self.accept_name(set, *places));
            return Some(());
        }
        let known = self.known.entry((set, piggybacked.incarnation)).or_default();
        if upto <= *known || self.planted == Some(Planted::PiggybackNotStored) {
            return Some(());
        }
        *known = upto;
        let at = self.take_place(piggybacked.places());
        self.outbox.push_back(Item::Piggybacked(at, bytes.to_vec()));
        Some(())
    }

    /// It depends on what a third set had piggybacked to the sender.
    fn accept_name(&mut self, sender: u32, places: PiggybackedPlaces) {
        let named = (places.set.0, places.incarnation);
        let known = self.named_here.get(&named).is_some_and(|known| *known >= places.upto);
        self.holders = [places.set.0, sender];
        self.met_names += u64::from(!known);
        if !known && self.planted != Some(Planted::NamesNotStored) {
            let at = self.take_place(places);
            self.outbox.push_back(Item::Name(at, places));
        }
    }

    /// The next place of the set's order holds these.
    fn take_place(&mut self, places: PiggybackedPlaces) -> u64 {
        let named = self.named_here.entry((places.set.0, places.incarnation)).or_default();
        *named = places.upto.max(*named);
        let mut shared = self.shared.borrow_mut();
        let at = shared.recorded;
        shared.recorded += 1;
        shared.slots.insert(at, Slot::Of(places));
        at
    }

    /// What is sent to the coordinator now. Of what was piggybacked only places are `named`, or
    /// everything is sent that is not known to be stable.
    pub(crate) fn flush(&mut self, named: bool) -> Vec<Item> {
        let mut items = Vec::new();
        let stable = self.shared.borrow().stable;
        if !named {
            let before = core::mem::take(&mut self.named);
            let before = before.into_iter().filter(|(at, _)| *at >= stable);
            items.extend(before.map(|(at, bytes)| Item::Piggybacked(at, bytes)));
        }
        for item in self.outbox.drain(..) {
            match item {
                Item::Piggybacked(at, bytes) if named => {
                    let Ok(piggybacked) = Piggybacked::decode(&bytes) else {
                        panic!("it was read before")
                    };
                    items.push(Item::Named(at, piggybacked.places()));
                    self.named.push((at, bytes));
                }
                item => items.push(item),
            }
        }
        items
    }
}
