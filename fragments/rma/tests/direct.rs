//! Direct accesses, one by one: two neighbours, their areas and their group.

use rustbtl_rma::arithmetic::Op;
use rustbtl_rma::direct::{EntryRef, GroupRun, OwnedArea, READS, SetGroup, TargetArea};
use rustbtl_rma::error::RmaError;
use rustbtl_rma::ids::{CommRank, ContextId, Tick};
use rustbtl_rma::layout::Layout;
use rustbtl_rma::machine::{
    FenceAssert, FenceStep, Kind, Lane, Limits, LockMode, Neighbourhood, Output, Quick, Rma, Wait,
};
use rustbtl_rma::memory::Memory;
use rustbtl_rma::primitive::Primitive;
use rustbtl_rma::record::{Applied, Past, Recorded};
use rustbtl_rma::window::{Extent, Flavor, Setup};
use std::cell::RefCell;
use std::rc::Rc;

const WINDOW: ContextId = ContextId(3);
const BYTES: usize = 64;

/// Memory of a process begins at another address in each.
const fn base(rank: usize) -> u64 {
    1000 * (rank as u64 + 1)
}

#[derive(Clone)]
struct Shared(Rc<RefCell<Vec<u8>>>, u64);

impl Memory for Shared {
    fn read(&self, address: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[(address - self.1) as usize..][..into.len()]);
    }
    fn write(&mut self, address: u64, from: &[u8]) {
        self.0.borrow_mut()[(address - self.1) as usize..][..from.len()].copy_from_slice(from);
    }
}

struct Set {
    areas: Vec<OwnedArea>,
    group: SetGroup,
    machines: Vec<Rma>,
    memory: Vec<Shared>,
    recorded: Vec<Vec<GroupRun>>,
    messages: usize,
    /// The short way is gone where it leads there.
    is_quick: bool,
    quick_calls: usize,
    /// The target begins to poll while it is written to.
    polls_meanwhile: bool,
}

/// The same is done the long way and the short way.
fn both(ranks: usize, test: impl Fn(&mut Set)) {
    for is_quick in [false, true] {
        let mut set = Set::new(ranks);
        set.is_quick = is_quick;
        test(&mut set);
        assert_eq!(set.quick_calls > 0, is_quick);
    }
}

struct Reach<'a> {
    me: usize,
    polls_meanwhile: bool,
    areas: &'a [OwnedArea],
    group: &'a SetGroup,
    memory: Vec<Shared>,
    recorded: &'a mut Vec<Vec<GroupRun>>,
}

impl<'a> Neighbourhood<'a> for Reach<'a> {
    type Memory = Shared;
    type Here = Shared;
    fn me(&self) -> usize {
        self.me
    }
    fn group(&self) -> Option<&'a SetGroup> {
        Some(self.group)
    }
    fn area(&self, neighbour: usize) -> Option<TargetArea<'a>> {
        Some(self.areas[neighbour].area())
    }
    fn memory(&mut self, neighbour: usize, _: (ContextId, EntryRef<'a>)) -> &mut Shared {
        if self.polls_meanwhile {
            self.areas[neighbour].area().set_accepts(READS);
        }
        &mut self.memory[neighbour]
    }
    fn here(&self, neighbour: usize, _: (ContextId, EntryRef<'a>)) -> Option<Shared> {
        Some(self.memory[neighbour].clone())
    }
    fn is_quicker(&self, _: usize, _: (ContextId, EntryRef<'a>), _: u64) -> bool {
        true
    }
    fn give_way(&self) {}
    fn record(&mut self, group: Vec<GroupRun>) {
        self.recorded.push(group);
    }
}

fn rank(number: usize) -> CommRank {
    CommRank(number as u32)
}

impl Set {
    fn new(ranks: usize) -> Self {
        let machine = |me| {
            let mut machine = Rma::new(Limits { part_bytes_max: 32 });
            let extents = vec![Extent { bytes: BYTES as u64, unit: 1 }; ranks];
            let (me, flavor, base) = (rank(me), Flavor::Allocate, base(me));
            let setup = Setup { flavor, me, base, extents, no_locks: false };
            machine.create(WINDOW, setup).expect("new");
            machine
        };
        let memory = |rank| Shared(Rc::new(RefCell::new(vec![0; BYTES])), base(rank));
        let mut set = Self {
            areas: (0..ranks).map(|_| OwnedArea::new(ranks)).collect(),
            group: SetGroup::default(),
            machines: (0..ranks).map(machine).collect(),
            memory: (0..ranks).map(memory).collect(),
            recorded: Vec::new(),
            messages: 0,
            is_quick: false,
            quick_calls: 0,
            polls_meanwhile: false,
        };
        for (machine, area) in set.machines.iter_mut().zip(&set.areas) {
            let locked = set.group.lock(|| ());
            machine.open_area(&locked, &area.area(), |_, rank| Some(rank.0 as usize));
        }
        set
    }

    fn beside<T>(&mut self, me: usize, call: impl FnOnce(&mut Rma, &mut Reach<'_>) -> T) -> T {
        let Self { areas, group, machines, memory, recorded, polls_meanwhile, .. } = self;
        let (memory, polls_meanwhile) = (memory.clone(), *polls_meanwhile);
        let mut reach = Reach { me, polls_meanwhile, areas, group, memory, recorded };
        call(&mut machines[me], &mut reach)
    }

    /// The program of a rank acts.
    fn act(&mut self, me: usize) {
        self.machines[me].action_on_window();
        self.areas[me].area().set_tick(self.machines[me].tick());
    }

    /// The short way, if it is to be tried and leads there.
    fn quickly(&mut self, me: usize, call: impl FnOnce(&mut Rma, &mut Reach<'_>) -> bool) -> bool {
        let done = self.is_quick && self.beside(me, call);
        self.quick_calls += usize::from(done);
        done
    }

    fn quick_access(&mut self, from: usize, to: usize, at: i64, quick: Quick<'_>) -> bool {
        let primitive = Primitive::U8;
        let of = (WINDOW, rank(to), at);
        self.quickly(from, |machine, reach| machine.quick_access(reach, of, primitive, quick))
    }

    fn put(&mut self, from: usize, to: usize, at: i64, data: &[u8]) {
        if self.quick_access(from, to, at, Quick::Put(data)) {
            return;
        }
        let layout = Layout::bytes(data.len() as u64);
        self.act(from);
        let put = self.beside(from, |machine, reach| {
            machine.access(reach, WINDOW, rank(to), at, &layout, Kind::Put, data)
        });
        put.expect("in an epoch");
    }

    /// What it fetched, if that is there at once.
    fn get(&mut self, from: usize, to: usize, at: i64, bytes: u64) -> Option<Vec<u8>> {
        let mut data = vec![0; bytes as usize];
        if self.quick_access(from, to, at, Quick::Get(&mut data)) {
            return Some(data);
        }
        self.act(from);
        let layout = Layout::bytes(bytes);
        let got = self.beside(from, |machine, reach| {
            machine.access(reach, WINDOW, rank(to), at, &layout, Kind::Get, &[])
        });
        got.expect("in an epoch");
        self.machines[from].take_fetched()
    }

    fn fetch_and_add(&mut self, from: usize, to: usize) -> u8 {
        let mut found = [0];
        let quick = Quick::Combine { op: Op::Sum, data: &[1], found: Some(&mut found) };
        if self.quick_access(from, to, 0, quick) {
            return found[0];
        }
        self.act(from);
        let layout = Layout::Contiguous { primitive: Primitive::U8, count: 1 };
        let kind = Kind::GetAccumulate(Op::Sum);
        let got = self.beside(from, |machine, reach| {
            machine.access(reach, WINDOW, rank(to), 0, &layout, kind, &[1])
        });
        got.expect("in an epoch");
        self.machines[from].take_fetched().expect("at once")[0]
    }

    fn lock(&mut self, from: usize, to: usize, exclusive: bool) -> Option<Wait> {
        let target = rank(to);
        if self.quickly(from, |rma, reach| rma.quick_lock(reach, WINDOW, target, exclusive)) {
            return None;
        }
        self.act(from);
        let mode = LockMode::Deferred;
        let lock = self.beside(from, |machine, reach| {
            machine.lock_beside(reach, WINDOW, rank(to), exclusive, mode)
        });
        self.machines[from].send_batches();
        Some(lock.expect("no epoch"))
    }

    fn unlock(&mut self, from: usize, to: usize) -> Option<Wait> {
        let target = rank(to);
        if self.quickly(from, |rma, reach| rma.quick_unlock(reach, WINDOW, target)) {
            return None;
        }
        self.act(from);
        let unlock =
            self.beside(from, |machine, reach| machine.unlock_beside(reach, WINDOW, rank(to)));
        self.machines[from].send_batches();
        Some(unlock.expect("locked"))
    }

    /// `None`: nothing is waited for.
    fn is_over(&mut self, of: usize, wait: Option<&Wait>) -> bool {
        wait.is_none_or(|wait| self.machines[of].poll(wait).is_some())
    }

    fn carry_out(&mut self, from: usize) -> bool {
        let mut moved = false;
        while let Some(output) = self.machines[from].poll_output() {
            moved = true;
            match output {
                Output::Send { window, to, lane, message } => {
                    self.messages += 1;
                    let receiver = &mut self.machines[to.0 as usize];
                    match lane {
                        Lane::Operations => receiver.on_operation(window, rank(from), message),
                        Lane::Replies => receiver.on_reply(window, rank(from), &message),
                    }
                    .expect("sound");
                }
                Output::Data { .. } => {}
                Output::Completed { error, .. } => assert_eq!(error, None),
            }
        }
        moved
    }

    /// Messages arrive and are applied; what is recorded of it.
    fn settle(&mut self) -> Vec<Recorded> {
        let mut recorded = Vec::new();
        loop {
            let mut moved = false;
            for of in 0..self.machines.len() {
                let locked = self.group.lock(|| ());
                let area = self.areas[of].area();
                let own = Some((&locked, &area));
                self.machines[of].progress_beside(&mut self.memory[of], own).expect("no fault");
                recorded.extend(self.machines[of].take_recorded());
                drop(locked);
                self.machines[of].check();
                moved |= self.carry_out(of);
            }
            if !moved {
                return recorded;
            }
        }
    }

    fn group(&self) -> Vec<(usize, u64, u32, u64, u64)> {
        let runs = self.group.lock(|| ()).take();
        let numbers = |(target, run): GroupRun| {
            let Applied { source, count, tick, .. } = run.applied;
            (target, run.first, source.0, count, tick.0)
        };
        runs.into_iter().map(numbers).collect()
    }
}

#[test]
fn what_is_done_directly_is_recorded_as_if_messages_had_brought_it() {
    both(2, |set| {
        assert!(!set.group.is_open());
        let wait = set.lock(0, 1, true);
        assert!(set.is_over(0, wait.as_ref()));
        set.put(0, 1, 3, &[7; 40]);
        assert_eq!(set.get(0, 1, 2, 3), Some(vec![0, 7, 7]));
        let wait = set.unlock(0, 1);
        assert!(set.is_over(0, wait.as_ref()));
        assert_eq!((set.messages, set.memory[1].0.borrow()[42]), (0, 7));
        set.act(1);
        for (from, expected) in [(0, 0), (1, 1)] {
            set.lock(from, 1, false);
            assert_eq!(set.fetch_and_add(from, 1), expected);
            set.unlock(from, 1);
        }
        // A lock, a put in two parts, a get, an unlock; then three operations each. The owner's own
        // actions are those of its program.
        let expected =
            [(1, 0, 0, 5, 1), (1, 5, 0, 3, 2), (1, 8, 1, 1, 3), (1, 9, 1, 1, 4), (1, 10, 1, 1, 5)];
        assert_eq!(set.group(), expected);
        assert!(!set.group.is_open() && set.recorded.is_empty());
    });
}

#[test]
fn a_group_that_is_full_is_recorded_first() {
    both(2, |set| {
        set.lock(0, 1, false);
        for _ in 0..6 {
            set.act(1);
            set.put(0, 1, 0, &[1]);
        }
        assert_eq!(set.recorded.len(), 1);
        assert_eq!((set.recorded[0].len(), set.group().len()), (6, 1));
    });
}

#[test]
fn a_lock_that_is_taken_is_asked_for_by_message_and_nobody_overtakes_who_waits() {
    both(3, |set| {
        let first = set.lock(0, 2, true);
        assert!(set.is_over(0, first.as_ref()) && set.messages == 0);
        // It cannot be had: its owner keeps the question, with what is behind it.
        set.lock(1, 2, true);
        set.put(1, 2, 0, &[5]);
        set.machines[1].send_batches();
        set.settle();
        assert_eq!((set.machines[2].kept().0, set.memory[2].0.borrow()[0]), (2, 0));
        assert!(set.machines[2].has_lock_waiters());
        let wait = set.unlock(0, 2);
        assert!(set.is_over(0, wait.as_ref()), "it was given back directly");
        set.lock(0, 2, true);
        set.put(0, 2, 1, &[6]);
        set.machines[0].send_batches();
        let recorded = set.settle();
        // Rank 1 comes before rank 0, who has come back: it holds the lock, by message.
        assert_eq!(set.memory[2].0.borrow()[..2], [5, 0]);
        let groups = recorded.iter().filter(|one| matches!(one, Recorded::Group(_))).count();
        assert_eq!(groups, 1, "what rank 0 had done comes first: {recorded:?}");
        assert!(matches!(recorded[0], Recorded::Group(_)));
        let wait = set.unlock(1, 2);
        set.settle();
        assert!(set.is_over(1, wait.as_ref()));
        assert_eq!(set.memory[2].0.borrow()[..2], [5, 6]);
    });
}

#[test]
fn what_was_locked_directly_before_an_image_is_given_back_by_message() {
    both(2, |set| {
        set.lock(0, 1, true);
        let area = set.areas[1].area();
        set.machines[1].close_area(&set.group.lock(|| ()), &area);
        let image = set.machines[1].clone();
        // The other goes on.
        let wait = set.unlock(0, 1);
        assert!(!set.is_over(0, wait.as_ref()));
        set.settle();
        assert!(set.is_over(0, wait.as_ref()));
        // In the image it is locked, and one operation is known to have been applied.
        let mut again = image;
        let run = |first| rustbtl_rma::direct::DirectRun {
            first,
            applied: Applied { window: WINDOW, source: rank(0), count: 2, tick: Tick(1) },
        };
        assert!(again.begin_replay([Past::Direct(run(2))]).is_err(), "one is missing");
        assert!(again.begin_replay([Past::Direct(run(0))]).is_ok());
        assert!(!again.is_record_applied(), "the second of the two");
        assert!(again.free(WINDOW).is_err(), "it is locked");
    });
}

#[test]
fn an_epoch_that_is_not_exposed_yet_is_reached_by_message() {
    both(2, |set| {
        let first = FenceAssert { no_precede: true, no_succeed: false };
        assert_eq!(set.machines[0].fence(WINDOW, first), Ok(FenceStep::Over));
        let awaits = |set: &mut Set| {
            set.beside(0, |machine, reach| machine.awaits_exposure(reach, WINDOW, rank(1)))
        };
        assert!(awaits(set));
        assert_eq!(set.machines[1].fence(WINDOW, first), Ok(FenceStep::Over));
        assert!(awaits(set), "it has not said so");
        set.put(0, 1, 0, &[1]);
        set.machines[0].send_batches();
        set.settle();
        assert_eq!((set.messages, set.memory[1].0.borrow()[0]), (1, 1));
        // To where a message has gone others follow, until the epoch ends.
        let area = set.areas[1].area();
        set.machines[1].publish_exposure(WINDOW, &area);
        assert!(!awaits(set));
        set.put(0, 1, 1, &[2]);
        set.machines[0].send_batches();
        assert_eq!(set.memory[1].0.borrow()[1], 0);
        set.settle();
        assert_eq!((set.messages, set.memory[1].0.borrow()[1]), (2, 2));
        // In the other direction all is known. Puts of a fence are not recorded.
        let area = set.areas[0].area();
        set.machines[0].publish_exposure(WINDOW, &area);
        set.put(1, 0, 0, &[9]);
        assert_eq!((set.messages, set.memory[0].0.borrow()[0], set.group.is_open()), (2, 9, false));
    });
}

#[test]
fn who_polls_its_memory_is_written_to_by_message_and_read_directly() {
    both(2, |set| {
        set.lock(0, 1, false);
        set.put(0, 1, 0, &[1]);
        assert_eq!(set.messages, 0);
        // It was written to at this very tick: whether the program has seen it is not known.
        let area = set.areas[1].area();
        assert!(!set.machines[1].polls(&set.group.lock(|| ()), &area));
        set.act(1);
        let area = set.areas[1].area();
        assert!(set.machines[1].polls(&set.group.lock(|| ()), &area), "it is known by now");
        set.put(0, 1, 1, &[2]);
        set.machines[0].send_batches();
        set.carry_out(0);
        assert_eq!((set.messages, set.memory[1].0.borrow()[1]), (1, 0), "in a call of its program");
        set.settle();
        assert_eq!(set.memory[1].0.borrow()[1], 2);
        let wait = set.machines[0].flush(WINDOW, None).expect("passive");
        set.settle();
        assert!(set.is_over(0, Some(&wait)));
        let messages = set.messages;
        assert_eq!((set.get(0, 1, 1, 1), set.messages), (Some(vec![2]), messages));
        // The other way nobody has polled, and nothing was written before it did.
        let area = set.areas[0].area();
        assert!(set.machines[0].polls(&set.group.lock(|| ()), &area));
    });
}

#[test]
fn who_has_written_to_one_that_has_begun_to_poll_meanwhile_is_known() {
    let mut set = Set::new(2);
    set.lock(0, 1, false);
    set.put(0, 1, 0, &[1]);
    assert!(!set.machines[0].take_wrote_late());
    set.polls_meanwhile = true;
    set.get(0, 1, 0, 1);
    assert!(!set.machines[0].take_wrote_late(), "nothing was written");
    set.machines[1].update_accepts(&set.areas[1].area());
    set.put(0, 1, 0, &[2]);
    assert!(set.machines[0].take_wrote_late());
    assert!(!set.machines[0].take_wrote_late(), "once");
    set.put(0, 1, 0, &[3]);
    assert!(!set.machines[0].take_wrote_late(), "by message");
}

#[test]
fn the_short_way_leads_nowhere_without_an_epoch_or_out_of_a_window() {
    both(2, |set| {
        let refused = |set: &mut Set, at: i64| {
            let tick = set.machines[0].tick();
            assert!(!set.quick_access(0, 1, at, Quick::Put(&[1; 4])));
            assert!(!set.quick_access(0, 2, at, Quick::Put(&[1; 4])), "no rank");
            assert_eq!(set.machines[0].tick(), tick, "nothing was counted");
            let layout = Layout::bytes(4);
            set.beside(0, |machine, reach| {
                machine.access(reach, WINDOW, rank(1), at, &layout, Kind::Put, &[1; 4])
            })
        };
        assert_eq!(refused(set, 0), Err(RmaError::Sync));
        for _ in 0..2 {
            set.lock(0, 1, false);
            set.put(0, 1, 60, &[1; 4]);
            for outside in [61, -1, i64::MAX, i64::MIN] {
                assert_eq!(refused(set, outside), Err(RmaError::Range));
            }
            set.unlock(0, 1);
            assert_eq!(refused(set, 0), Err(RmaError::Sync));
            let flushed = set.quickly(0, |rma, _| rma.quick_flush(WINDOW, Some(rank(1))));
            assert!(!flushed, "no epoch");
        }
        assert_eq!(set.messages, 0);
    });
}

#[test]
fn who_sees_what_somebody_has_stored_has_seen_what_is_not_recorded() {
    both(2, |set| {
        let store = |set: &Set, value| set.memory[1].0.borrow_mut()[0] = value;
        set.lock(0, 1, false);
        for value in [0, 0, 0] {
            assert_eq!(set.get(0, 1, 0, 1), Some(vec![value]));
        }
        assert!(!set.machines[0].take_saw_a_store(), "nothing has changed");
        set.put(0, 1, 0, &[4]);
        set.get(0, 1, 0, 1);
        assert!(!set.machines[0].take_saw_a_store(), "it was written by MPI");
        store(set, 5);
        set.machines[0].action();
        set.get(0, 1, 0, 1);
        assert!(!set.machines[0].take_saw_a_store(), "it may have been told");
        store(set, 6);
        set.get(0, 1, 0, 1);
        assert!(set.machines[0].take_saw_a_store());
        assert!(!set.machines[0].take_saw_a_store(), "once");
        store(set, 7);
        set.get(0, 1, 1, 1);
        set.get(0, 1, 0, 1);
        assert!(!set.machines[0].take_saw_a_store(), "another place came between");
    });
}

#[test]
fn in_a_replay_everything_goes_by_messages() {
    both(2, |set| {
        set.lock(0, 1, false);
        set.machines[1].begin_replay([]).expect("nothing is missing");
        let area = set.areas[1].area();
        set.machines[1].update_accepts(&area);
        assert_eq!(set.get(0, 1, 0, 1), None);
        set.machines[0].send_batches();
        set.settle();
        assert_eq!(set.machines[1].kept().0, 1, "it is not recorded: withheld");
        assert!(set.machines[1].end_replay());
        let area = set.areas[1].area();
        set.machines[1].update_accepts(&area);
        set.settle();
        assert_eq!(set.machines[1].kept().0, 0);
        assert_eq!(set.get(0, 1, 0, 1), Some(vec![0]));
        // The other one's own replay counts, too.
        set.machines[0].begin_replay([]).expect("nothing is missing");
        assert_eq!(set.get(0, 1, 0, 1), None);
    });
}
