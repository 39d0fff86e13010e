//! Calls of MPI, one by one: what they return, what they keep, what they send.

use rustbtl_rma::arithmetic::Op;
use rustbtl_rma::error::RmaError;
use rustbtl_rma::ids::{CommRank, ContextId, OperationId, Tick};
use rustbtl_rma::layout::Layout;
use rustbtl_rma::machine::{
    Fault, FenceAssert, FenceStep, Lane, Limits, LockMode, Output, Rma, Wait,
};
use rustbtl_rma::memory::Memory;
use rustbtl_rma::primitive::Primitive;
use rustbtl_rma::record::{Applied, Past, Recorded};
use rustbtl_rma::window::{Extent, Flavor, Setup};
use std::collections::BTreeMap;

const WINDOW: ContextId = ContextId(3);
const BASE: u64 = 1000;
const BYTES: u64 = 64;
const FENCE: FenceAssert = FenceAssert { no_precede: false, no_succeed: false };
const FIRST_FENCE: FenceAssert = FenceAssert { no_precede: true, no_succeed: false };

struct Plain(Vec<u8>);

impl Memory for Plain {
    fn read(&self, address: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0[(address - BASE) as usize..][..into.len()]);
    }
    fn write(&mut self, address: u64, from: &[u8]) {
        self.0[(address - BASE) as usize..][..from.len()].copy_from_slice(from);
    }
}

/// Processes with a window each; messages arrive when `settle` is called.
struct Job {
    machines: Vec<Rma>,
    memory: Vec<Plain>,
    data: BTreeMap<(usize, OperationId), Vec<u8>>,
    completed: Vec<(usize, OperationId, Option<RmaError>)>,
    messages: usize,
}

fn rank(number: usize) -> CommRank {
    CommRank(number as u32)
}

impl Job {
    fn new(ranks: usize, flavor: Flavor, no_locks: bool) -> Self {
        let machine = |me| {
            let mut machine = Rma::new(Limits { part_bytes_max: 32 });
            let extents = vec![Extent { bytes: BYTES, unit: 1 }; ranks];
            let setup = Setup { flavor, me: rank(me), base: BASE, extents, no_locks };
            machine.create(WINDOW, setup).expect("new");
            machine
        };
        Self {
            machines: (0..ranks).map(machine).collect(),
            memory: (0..ranks).map(|_| Plain(vec![0; BYTES as usize])).collect(),
            data: BTreeMap::new(),
            completed: Vec::new(),
            messages: 0,
        }
    }

    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for from in 0..self.machines.len() {
                self.machines[from].progress(&mut self.memory[from]).expect("no fault");
                self.machines[from].check();
                while let Some(output) = self.machines[from].poll_output() {
                    moved = true;
                    self.carry_out(from, output);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn carry_out(&mut self, from: usize, output: Output) {
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
            Output::Data { operation, first, data } => {
                let all = self.data.entry((from, operation)).or_default();
                assert_eq!(all.len() as u64, first);
                all.extend(data);
            }
            Output::Completed { operation, error } => self.completed.push((from, operation, error)),
        }
    }

    /// In a message of its own, but for what was issued before.
    fn put(&mut self, from: usize, to: usize, at: i64, data: &[u8]) -> Result<(), RmaError> {
        let put = self.put_batched(from, to, at, data);
        self.machines[from].send_batch(WINDOW, rank(to));
        put
    }

    fn put_batched(
        &mut self,
        from: usize,
        to: usize,
        at: i64,
        data: &[u8],
    ) -> Result<(), RmaError> {
        let layout = Layout::bytes(data.len() as u64);
        self.machines[from].put(WINDOW, rank(to), at, &layout, data)
    }

    fn ends(&mut self, of: usize, wait: &Wait) -> Option<Result<(), RmaError>> {
        self.settle();
        self.machines[of].poll(wait)
    }

    /// All come to a fence; its result at each.
    fn fence(&mut self, assert: FenceAssert) -> Vec<Result<(), RmaError>> {
        let ranks = self.machines.len();
        let mut sums = vec![0; ranks];
        for machine in &mut self.machines {
            match machine.fence(WINDOW, assert).expect("allowed") {
                FenceStep::Over => {}
                FenceStep::Count(counts) => {
                    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                }
            }
        }
        if assert.no_precede {
            return vec![Ok(()); ranks];
        }
        let wait = |(machine, sum): (&mut Rma, u64)| {
            machine.fence_counted(WINDOW, sum, assert, None).expect("under way")
        };
        let waits: Vec<_> = self.machines.iter_mut().zip(sums).map(wait).collect();
        self.settle();
        let machines = self.machines.iter_mut().zip(&waits);
        machines.map(|(machine, wait)| machine.poll(wait).expect("over")).collect()
    }

    fn lock(&mut self, from: usize, to: usize, exclusive: bool, mode: LockMode) -> Wait {
        self.machines[from].lock(WINDOW, rank(to), exclusive, mode).expect("no epoch")
    }

    fn unlock(&mut self, from: usize, to: usize) -> Wait {
        self.machines[from].unlock(WINDOW, rank(to)).expect("locked")
    }
}

/// What is wrong is refused, and changes nothing.
fn refused<T: PartialEq + std::fmt::Debug>(
    job: &mut Job,
    expected: RmaError,
    call: impl FnOnce(&mut Rma) -> Result<T, RmaError>,
) {
    let before = job.machines[0].clone();
    assert_eq!(call(&mut job.machines[0]), Err(expected));
    assert!(job.machines[0] == before, "changed by what was refused");
}

#[test]
fn outside_of_an_epoch_everything_is_refused() {
    use RmaError::Sync;
    let mut job = Job::new(2, Flavor::Create, false);
    let to = rank(1);
    let one = Layout::bytes(1);
    refused(&mut job, Sync, |m| m.put(WINDOW, to, 0, &one, &[1]));
    refused(&mut job, Sync, |m| m.get(WINDOW, to, 0, &one));
    refused(&mut job, Sync, |m| m.accumulate(WINDOW, to, 0, &one, Op::BitAnd, &[1]));
    refused(&mut job, Sync, |m| m.get_accumulate(WINDOW, to, 0, &one, Op::NoOp, &[]));
    refused(&mut job, Sync, |m| m.compare_and_swap(WINDOW, to, 0, Primitive::Byte, &[1], &[2]));
    refused(&mut job, Sync, |m| m.unlock(WINDOW, to));
    refused(&mut job, Sync, |m| m.unlock_all(WINDOW));
    refused(&mut job, Sync, |m| m.flush(WINDOW, Some(to)));
    refused(&mut job, Sync, |m| m.flush(WINDOW, None));
    refused(&mut job, RmaError::Rank, |m| m.flush(WINDOW, Some(rank(2))));
    refused(&mut job, Sync, |m| m.flush_local(WINDOW, None));
    refused(&mut job, Sync, |m| m.complete(WINDOW));
    refused(&mut job, Sync, |m| m.wait(WINDOW));
    refused(&mut job, Sync, |m| m.fence_counted(WINDOW, 0, FENCE, None));
    refused(&mut job, RmaError::Window, |m| m.sync(ContextId(4)));
    refused(&mut job, RmaError::Flavor, |m| m.attach(WINDOW, 0, 8));
    assert_eq!(job.machines[0].sync(WINDOW), Ok(()));
    assert_eq!(job.machines[0].free(WINDOW), Ok(()));
}

#[test]
fn epochs_do_not_mix() {
    use RmaError::{Conflict, Rank, Sync};
    let (to, one) = (rank(1), Layout::bytes(1));
    // A fence without operations may have been the last; with them it is not.
    let mut job = Job::new(2, Flavor::Create, false);
    job.fence(FIRST_FENCE);
    let wait = job.lock(0, 1, false, LockMode::Deferred);
    assert_eq!(job.ends(0, &wait), Some(Ok(())));
    refused(&mut job, Sync, |m| m.lock(WINDOW, to, false, LockMode::Deferred));
    refused(&mut job, Sync, |m| m.lock_all(WINDOW, LockMode::Deferred));
    refused(&mut job, Sync, |m| m.fence(WINDOW, FENCE));
    refused(&mut job, Sync, |m| m.start(WINDOW, &[to]));
    refused(&mut job, Sync, |m| m.may_free(WINDOW));
    refused(&mut job, Sync, |m| m.flush(WINDOW, Some(rank(0))));
    refused(&mut job, Sync, |m| m.put(WINDOW, rank(0), 0, &one, &[1]));
    let wait = job.unlock(0, 1);
    assert_eq!(job.ends(0, &wait), Some(Ok(())));

    let mut job = Job::new(2, Flavor::Create, false);
    job.fence(FIRST_FENCE);
    job.put(0, 1, 0, &[1]).expect("in the fence's epoch");
    refused(&mut job, Sync, |m| m.lock(WINDOW, to, false, LockMode::NoCheck));
    refused(&mut job, Sync, |m| m.start(WINDOW, &[to]));
    refused(&mut job, Sync, |m| m.post(WINDOW, &[to]));
    refused(&mut job, Sync, |m| m.fence(WINDOW, FIRST_FENCE));
    refused(&mut job, Sync, |m| m.free(WINDOW));

    let mut job = Job::new(2, Flavor::Create, false);
    job.machines[0].post(WINDOW, &[to]).expect("not exposed");
    refused(&mut job, Sync, |m| m.post(WINDOW, &[to]));
    refused(&mut job, Sync, |m| m.fence(WINDOW, FENCE));
    refused(&mut job, Conflict, |m| m.lock(WINDOW, rank(0), false, LockMode::Granted));
    refused(&mut job, Rank, |m| m.start(WINDOW, &[rank(2)]));
    job.machines[0].start(WINDOW, &[to]).expect("not started");
    refused(&mut job, Sync, |m| m.start(WINDOW, &[to]));
    refused(&mut job, Sync, |m| m.put(WINDOW, rank(0), 0, &one, &[1]));

    let mut job = Job::new(2, Flavor::Create, true);
    refused(&mut job, Sync, |m| m.lock(WINDOW, to, false, LockMode::NoCheck));
    refused(&mut job, Sync, |m| m.lock_all(WINDOW, LockMode::NoCheck));
}

#[test]
fn operations_that_do_not_fit_are_refused() {
    let mut job = Job::new(2, Flavor::Create, false);
    job.fence(FIRST_FENCE);
    let to = rank(1);
    let ints = |count| Layout::Contiguous { primitive: Primitive::I32, count };
    refused(&mut job, RmaError::Rank, |m| m.get(WINDOW, rank(2), 0, &ints(1)));
    refused(&mut job, RmaError::Range, |m| m.get(WINDOW, to, 61, &ints(1)));
    refused(&mut job, RmaError::Range, |m| m.put(WINDOW, to, -1, &ints(1), &[0; 4]));
    refused(&mut job, RmaError::Type, |m| m.put(WINDOW, to, 0, &ints(1), &[0; 5]));
    refused(&mut job, RmaError::Op, |m| m.accumulate(WINDOW, to, 0, &ints(1), Op::MaxLoc, &[0; 4]));
    refused(&mut job, RmaError::Type, |m| {
        m.compare_and_swap(WINDOW, to, 0, Primitive::I32, &[0; 4], &[0; 8])
    });
    let nothing = job.machines[0].get(WINDOW, to, 60, &ints(0)).expect("no data");
    job.settle();
    assert_eq!((&job.completed[..], job.messages), (&[(0, nothing, None)][..], 0));
}

#[test]
fn errors_of_dynamic_windows_are_returned_by_the_next_synchronization() {
    let mut job = Job::new(2, Flavor::Dynamic, false);
    let at = BASE as i64;
    job.machines[1].attach(WINDOW, BASE, 8).expect("free");
    job.fence(FIRST_FENCE);
    job.put(0, 1, at, &[1, 2]).expect("attached");
    assert_eq!(job.fence(FENCE), [Ok(()), Ok(())]);
    job.put(0, 1, at + 7, &[1, 2]).expect("only the target knows");
    assert_eq!(job.fence(FENCE), [Err(RmaError::Range), Ok(())]);
    assert_eq!(job.fence(FENCE), [Ok(()), Ok(())], "once");

    job.machines[1].post(WINDOW, &[rank(0)]).expect("closed");
    job.machines[0].start(WINDOW, &[rank(1)]).expect("closed");
    job.put(0, 1, at + 8, &[3]).expect("only the target knows");
    let (complete, wait) = (
        job.machines[0].complete(WINDOW).expect("started"),
        job.machines[1].wait(WINDOW).expect("posted"),
    );
    assert_eq!(job.ends(0, &complete), Some(Err(RmaError::Range)));
    assert_eq!(job.ends(1, &wait), Some(Ok(())));

    job.lock(0, 1, true, LockMode::Deferred);
    let get = job.machines[0].get(WINDOW, rank(1), at + 5, &Layout::bytes(4)).expect("locked");
    let flush = job.machines[0].flush(WINDOW, Some(rank(1))).expect("locked");
    assert_eq!(job.ends(0, &flush), Some(Err(RmaError::Range)));
    assert_eq!(job.completed, [(0, get, Some(RmaError::Range))]);
    job.put(0, 1, 5, &[1]).expect("only the target knows");
    let unlock = job.unlock(0, 1);
    assert_eq!(job.ends(0, &unlock), Some(Err(RmaError::Range)));
    assert_eq!(job.memory[1].0[..9], [1, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(job.machines[1].detach(WINDOW, BASE + 1), Err(RmaError::Attach));
    assert!(job.machines[1].detach(WINDOW, BASE).is_ok());
}

#[test]
fn what_follows_a_lock_waits_for_it_at_the_target() {
    let mut job = Job::new(3, Flavor::Create, false);
    let granted = job.lock(0, 2, true, LockMode::Granted);
    assert_eq!(job.ends(0, &granted), Some(Ok(())));
    let deferred = job.lock(1, 2, true, LockMode::Deferred);
    job.put(1, 2, 0, &[7]).expect("locked");
    let unlock = job.unlock(1, 2);
    assert_eq!(job.ends(1, &deferred), Some(Ok(())), "nobody waits for the grant");
    assert_eq!((job.ends(1, &unlock), job.memory[2].0[0]), (None, 0));
    assert_eq!(job.machines[2].kept().0, 2, "the lock and the put; the unlock");
    job.put(0, 2, 0, &[5]).expect("locked");
    let first = job.unlock(0, 2);
    assert_eq!((job.ends(0, &first), job.ends(1, &unlock)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!((job.memory[2].0[0], job.machines[2].kept()), (7, (0, 0)));
    // Shared locks are held together; an exclusive one in between is not overtaken.
    let waits = [(0, false), (1, true), (2, false)]
        .map(|(from, exclusive)| job.lock(from, 2, exclusive, LockMode::Granted));
    let ends: Vec<_> = (0..3).map(|of| job.ends(of, &waits[of])).collect();
    assert_eq!(ends, [Some(Ok(())), None, None]);
    let unlock = job.unlock(0, 2);
    assert_eq!((job.ends(0, &unlock), job.ends(1, &waits[1])), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(job.ends(2, &waits[2]), None);
    let unlock = job.unlock(1, 2);
    assert_eq!((job.ends(1, &unlock), job.ends(2, &waits[2])), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(job.machines[2].free(WINDOW), Err(RmaError::Sync), "still locked");
}

#[test]
fn operations_that_are_early_wait_for_the_targets_epoch() {
    let mut job = Job::new(2, Flavor::Create, false);
    assert_eq!(job.machines[0].fence(WINDOW, FIRST_FENCE), Ok(FenceStep::Over));
    job.put(0, 1, 0, &[1]).expect("after the fence");
    job.settle();
    assert_eq!((job.memory[1].0[0], job.machines[1].kept().0), (0, 1));
    assert_eq!(job.machines[1].fence(WINDOW, FIRST_FENCE), Ok(FenceStep::Over));
    job.settle();
    assert_eq!((job.memory[1].0[0], job.machines[1].kept().0), (1, 0));
    assert_eq!(job.fence(FENCE), [Ok(()), Ok(())]);
    // Two access epochs before the first post.
    for value in [2, 3] {
        job.machines[0].start(WINDOW, &[rank(1)]).expect("closed");
        job.put(0, 1, 0, &[value]).expect("started");
        let complete = job.machines[0].complete(WINDOW).expect("started");
        assert_eq!(job.ends(0, &complete), Some(Ok(())), "puts were copied");
    }
    for value in [2, 3] {
        assert_ne!(job.memory[1].0[0], value);
        job.machines[1].post(WINDOW, &[rank(0)]).expect("closed");
        let wait = job.machines[1].wait(WINDOW).expect("posted");
        assert_eq!((job.ends(1, &wait), job.memory[1].0[0]), (Some(Ok(())), value));
    }
}

#[test]
fn large_operations_travel_in_parts_and_complete_once() {
    let mut job = Job::new(2, Flavor::Create, false);
    let sent: Vec<u8> = (1..=60).collect();
    let wait = job.machines[0].lock_all(WINDOW, LockMode::Deferred).expect("closed");
    assert_eq!((job.ends(0, &wait), job.messages), (Some(Ok(())), 0), "no lock before its use");
    job.put_batched(0, 1, 2, &sent).expect("locked");
    let get = job.machines[0].get(WINDOW, rank(1), 2, &Layout::bytes(60)).expect("locked");
    let local = job.machines[0].flush_local(WINDOW, None).expect("locked");
    assert_eq!(job.ends(0, &local), Some(Ok(())));
    assert_eq!((&job.data[&(0, get)], &job.completed[..]), (&sent, &[(0, get, None)][..]));
    assert_eq!(job.messages, 1 + 1 + 2, "lock and parts of the put; of the get; of its data");
    let ints = Layout::Contiguous { primitive: Primitive::DoubleInt, count: 3 };
    let data = [[0u8; 8].as_slice(), &[9, 0, 0, 0]].concat().repeat(3);
    let fetch = job.machines[0]
        .get_accumulate(WINDOW, rank(1), 0, &ints, Op::Replace, &data)
        .expect("locked");
    let unlock = job.machines[0].unlock_all(WINDOW).expect("locked");
    assert_eq!(job.ends(0, &unlock), Some(Ok(())));
    assert_eq!(job.data[&(0, fetch)].len(), 36);
    assert_eq!(job.memory[1].0[8..16], [9, 0, 0, 0, 11, 12, 13, 14], "padding stays");
}

#[test]
fn operations_share_a_message_until_it_is_full_or_somebody_waits() {
    let mut job = Job::new(2, Flavor::Create, false);
    job.lock(0, 1, true, LockMode::NoCheck);
    for at in 0..2 {
        job.put_batched(0, 1, at, &[7]).expect("locked");
        job.settle();
        assert_eq!((job.messages, job.memory[1].0[0]), (0, 0), "nobody waits");
    }
    let flush = job.machines[0].flush(WINDOW, Some(rank(1))).expect("locked");
    assert_eq!((job.ends(0, &flush), job.messages), (Some(Ok(())), 1 + 1), "it, and its reply");
    assert_eq!(job.memory[1].0[..2], [7, 7]);
    let get = job.machines[0].get(WINDOW, rank(1), 0, &Layout::bytes(2)).expect("locked");
    job.settle();
    assert_eq!(job.messages, 2);
    job.machines[0].send_batch(WINDOW, rank(1));
    job.settle();
    assert_eq!((job.messages, &job.data[&(0, get)]), (2 + 2, &vec![7, 7]), "its request");
    for _ in 0..10 {
        job.put_batched(0, 1, 0, &[8; 30]).expect("locked");
    }
    job.settle();
    assert!((7..14).contains(&job.messages), "full: {} messages", job.messages);
    let unlock = job.unlock(0, 1);
    assert_eq!(job.ends(0, &unlock), Some(Ok(())));

    // A fence waits for all.
    let mut job = Job::new(2, Flavor::Create, false);
    job.fence(FIRST_FENCE);
    job.put_batched(0, 1, 0, &[9]).expect("a fence is open");
    assert_eq!((&job.fence(FENCE)[..], job.memory[1].0[0]), (&[Ok(()), Ok(())][..], 9));
}

#[test]
fn a_flush_asks_only_what_no_reply_has_shown() {
    let mut job = Job::new(2, Flavor::Create, false);
    job.lock(0, 1, false, LockMode::NoCheck);
    let flush = job.machines[0].flush(WINDOW, None).expect("locked");
    assert_eq!((job.ends(0, &flush), job.messages), (Some(Ok(())), 0));
    job.put(0, 1, 0, &[1]).expect("locked");
    let flush = job.machines[0].flush(WINDOW, None).expect("locked");
    assert_eq!((job.machines[0].poll(&flush), job.ends(0, &flush)), (None, Some(Ok(()))));
    assert_eq!(job.messages, 3);
    let unlock = job.unlock(0, 1);
    assert_eq!((job.ends(0, &unlock), job.messages), (Some(Ok(())), 3));
}

/// A message of one operation without data, whose first bytes are these.
fn message(begin: &[u8]) -> Vec<u8> {
    let mut message = vec![16, 0, 0, 0];
    message.extend_from_slice(begin);
    message.resize(20, 0);
    message
}

#[test]
fn broken_protocols_are_faults_and_change_nothing() {
    let mut job = Job::new(2, Flavor::Create, false);
    let before = job.machines[0].clone();
    let machine = &mut job.machines[0];
    let done = [2, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(machine.on_operation(WINDOW, rank(1), vec![9; 3]), Err(Fault::Malformed));
    let flush = message(&[8, 0, 0, 0, 1]);
    assert_eq!(machine.on_operation(WINDOW, rank(2), flush), Err(Fault::UnknownRank));
    assert_eq!(machine.on_reply(WINDOW, rank(1), &done), Err(Fault::UnexpectedReply));
    assert_eq!(machine.on_reply(WINDOW, rank(1), &[0; 8]), Err(Fault::Malformed));
    assert!(*machine == before);
    let unlock = message(&[7, 0, 0, 0, 1]);
    machine.on_operation(WINDOW, rank(1), unlock).expect("sound");
    assert_eq!(machine.progress(&mut job.memory[0]), Err(Fault::NotLocked));
    assert_eq!(machine.progress(&mut job.memory[0]), Err(Fault::NotLocked), "for good");

    // The fuzzer found it: who holds a lock waited for itself.
    let machine = &mut job.machines[1];
    let lock = message(&[6]);
    for _ in 0..2 {
        machine.on_operation(WINDOW, rank(0), lock.clone()).expect("sound");
    }
    assert_eq!(machine.progress(&mut job.memory[1]), Err(Fault::LockedTwice));
    machine.check();
}

#[test]
fn messages_for_a_window_that_is_not_made_yet_are_kept() {
    let mut job = Job::new(2, Flavor::Create, false);
    job.lock(0, 1, false, LockMode::NoCheck);
    job.put(0, 1, 0, &[4]).expect("locked");
    let mut late = Rma::new(Limits { part_bytes_max: 32 });
    while let Some(output) = job.machines[0].poll_output() {
        let Output::Send { window, message, .. } = output else { panic!("{output:?}") };
        late.on_operation(window, rank(0), message).expect("kept");
    }
    assert_eq!(late.kept().0, 1);
    let extents = vec![Extent { bytes: BYTES, unit: 1 }; 2];
    let (me, base, flavor) = (rank(1), BASE, Flavor::Create);
    late.create(WINDOW, Setup { flavor, me, base, extents, no_locks: false }).expect("new");
    late.progress(&mut job.memory[1]).expect("no fault");
    assert_eq!((late.kept().0, job.memory[1].0[0]), (0, 4));
}

#[test]
fn a_replay_applies_in_the_recorded_order_not_before_its_time_and_nothing_else() {
    let mut job = Job::new(3, Flavor::Create, false);
    let run =
        |source, tick| Applied { window: WINDOW, source: rank(source), count: 1, tick: Tick(tick) };
    let record = [run(1, 2), run(0, 3)].map(Past::Own);
    job.machines[2].begin_replay(record).expect("nothing is missing");
    for (from, value) in [(0, 10), (1, 11)] {
        job.lock(from, 2, false, LockMode::NoCheck);
        job.put(from, 2, 0, &[value]).expect("locked");
    }
    job.put(0, 2, 1, &[12]).expect("locked");
    let seen = |job: &mut Job| {
        job.settle();
        (job.memory[2].0[0], job.memory[2].0[1], job.machines[2].holds_completions())
    };
    assert_eq!(seen(&mut job), (0, 0, false), "before the program's second action");
    job.machines[2].action();
    assert!(job.machines[2].holds_completions(), "its time has come");
    assert_eq!(seen(&mut job), (11, 0, false));
    assert!(!job.machines[2].end_replay(), "the record is not applied");
    job.machines[2].action();
    assert_eq!(seen(&mut job), (10, 0, false));
    job.machines[2].action();
    assert_eq!(seen(&mut job), (10, 0, false), "not recorded: withheld");
    assert!(!job.machines[2].has_recorded() && job.machines[2].end_replay());
    assert_eq!(seen(&mut job), (10, 12, false));
    assert_eq!(job.machines[2].take_recorded(), [Recorded::Own(run(0, 4))]);
}

#[test]
fn a_record_that_does_not_fit_is_a_divergence() {
    let mut job = Job::new(2, Flavor::Create, false);
    let by_epoch = Applied { window: WINDOW, source: rank(0), count: 1, tick: Tick::BY_EPOCH };
    let record = [Past::Own(by_epoch)];
    job.machines[1].begin_replay(record).expect("nothing is missing");
    job.lock(0, 1, false, LockMode::NoCheck);
    job.put(0, 1, 0, &[1]).expect("locked");
    let Some(Output::Send { message, .. }) = job.machines[0].poll_output() else { panic!("sent") };
    job.machines[1].on_operation(WINDOW, rank(0), message).expect("sound");
    let progress = job.machines[1].progress(&mut job.memory[1]);
    assert_eq!((progress, job.memory[1].0[0]), (Err(Fault::Diverged), 0));
}

/// Two hold a shared lock each and want the other one's; two wait in front of them for an exclusive
/// one, each at one of these. So it is when two of four call MPI_Win_lock_all.
#[test]
fn a_ring_of_those_who_wait_for_locks_is_broken() {
    let mut job = Job::new(4, Flavor::Create, false);
    let ask = |job: &mut Job, from: usize, to, exclusive| {
        let wait = job.lock(from, to, exclusive, LockMode::Granted);
        (job.ends(from, &wait), wait)
    };
    for (holder, target) in [(0, 0), (2, 1)] {
        assert_eq!(ask(&mut job, holder, target, false).0, Some(Ok(())));
    }
    let [one, other] = [(1, 0), (3, 1)].map(|(from, to)| ask(&mut job, from, to, true));
    let [first, second] = [(0, 1), (2, 0)].map(|(from, to)| ask(&mut job, from, to, false));
    assert!([&one, &other, &first, &second].iter().all(|(ended, _)| ended.is_none()));
    for _ in 0..2 {
        job.machines.iter_mut().for_each(Rma::locks_stood);
    }
    assert_eq!((job.ends(0, &first.1), job.ends(2, &second.1)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!((job.ends(1, &one.1), job.ends(3, &other.1)), (None, None));
    for (holder, target) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
        job.machines[holder].unlock(WINDOW, rank(target)).expect("locked");
    }
    assert_eq!((job.ends(1, &one.1), job.ends(3, &other.1)), (Some(Ok(())), Some(Ok(()))));
}
