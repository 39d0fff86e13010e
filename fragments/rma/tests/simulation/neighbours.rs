//! What the processes of a set share: areas, and each other's memory.

use crate::cells::Cells;
use rustbtl_rma::direct::{EntryRef, GroupRun, Locked, OwnedArea, SetGroup, TargetArea};
use rustbtl_rma::ids::{ContextId, Tick};
use rustbtl_rma::machine::Neighbourhood;
use std::cell::RefCell;
use std::rc::Rc;

/// Of one set in one incarnation.
pub struct Shared {
    group: SetGroup,
    areas: Vec<OwnedArea>,
    memories: Vec<Cells>,
    /// Recorded, in order.
    pub recorded: RefCell<Vec<Vec<GroupRun>>>,
    /// Who can be accessed directly now: in programs that look at their memory after each call,
    /// those that are in one.
    pub allowed: RefCell<Vec<bool>>,
    /// They do not see what each other's program does (a planted bug).
    old_tick: bool,
}

impl Shared {
    pub fn new(memories: Vec<Cells>, old_tick: bool) -> Self {
        let members = memories.len();
        Self {
            areas: (0..members).map(|_| OwnedArea::new(members)).collect(),
            memories,
            group: SetGroup::default(),
            recorded: RefCell::default(),
            allowed: RefCell::new(vec![true; members]),
            old_tick,
        }
    }

    pub fn area(&self, member: usize) -> TargetArea<'_> {
        self.areas[member].area()
    }

    /// A member's program acts.
    pub fn set_tick(&self, member: usize, tick: Tick) {
        if !self.old_tick {
            self.area(member).set_tick(tick);
        }
    }

    pub fn lock(&self) -> Locked<'_> {
        self.group.lock(|| ())
    }

    /// Record what is not.
    pub fn close_group(&self) {
        if self.group.is_open() {
            self.recorded.borrow_mut().push(self.lock().take());
        }
    }
}

/// As a member sees it. A copy of a process has none: it gets its own.
#[derive(Default)]
pub struct Hood {
    pub shared: Option<Rc<Shared>>,
    pub me: usize,
    /// First rank of the set; its ranks follow each other.
    pub first: usize,
}

impl Clone for Hood {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// For the duration of a call.
pub struct View<'a> {
    pub shared: &'a Shared,
    pub me: usize,
    memories: Vec<Cells>,
}

impl<'a> View<'a> {
    pub fn new(shared: &'a Shared, me: usize) -> Self {
        Self { shared, me, memories: shared.memories.iter().map(Cells::share).collect() }
    }
}

impl<'a> Neighbourhood<'a> for View<'a> {
    type Memory = Cells;
    type Here = Cells;
    fn me(&self) -> usize {
        self.me
    }
    fn group(&self) -> Option<&'a SetGroup> {
        Some(&self.shared.group)
    }
    fn area(&self, neighbour: usize) -> Option<TargetArea<'a>> {
        self.shared.allowed.borrow()[neighbour].then(|| self.shared.area(neighbour))
    }
    fn here(&self, neighbour: usize, _: (ContextId, EntryRef<'a>)) -> Option<Cells> {
        Some(self.memories[neighbour].share())
    }
    fn is_quicker(&self, _: usize, _: (ContextId, EntryRef<'a>), _: u64) -> bool {
        true
    }
    fn memory(&mut self, neighbour: usize, _: (ContextId, EntryRef<'a>)) -> &mut Cells {
        &mut self.memories[neighbour]
    }
    fn give_way(&self) {}
    fn record(&mut self, group: Vec<GroupRun>) {
        self.shared.recorded.borrow_mut().push(group);
    }
}
