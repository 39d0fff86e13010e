//! A put or accumulate that joins a message leaves the machine as the long way does, in all it
//! knows, and sends the same bytes.

use proptest::prelude::*;
use rustbtl_rma::arithmetic::Op;
use rustbtl_rma::ids::{CommRank, ContextId};
use rustbtl_rma::layout::Layout;
use rustbtl_rma::machine::{FenceAssert, FenceStep, Limits, LockMode, Nobody, Output, Quick, Rma};
use rustbtl_rma::machine::{Kind, QUICK_BYTES_MAX};
use rustbtl_rma::primitive::{ALL, Primitive};
use rustbtl_rma::window::{Extent, Flavor, Setup};

const WINDOW: ContextId = ContextId(1);
const BYTES: u64 = 4096;
const RANKS: u32 = 3;

#[derive(Clone, Debug)]
struct Operation {
    to: u32,
    at: i64,
    primitive: Primitive,
    count: usize,
    op: Option<Op>,
    /// The long way, in either machine.
    is_long: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opened {
    LockAll,
    Lock,
    Fence,
    Start,
    Nothing,
}

fn operation() -> impl Strategy<Value = Operation> {
    let at = prop_oneof![8 => 0i64..1000, 1 => 4000i64..4200, 1 => any::<i64>()];
    let count = prop_oneof![8 => 0usize..9, 1 => 100usize..300];
    let op = prop_oneof![
        3 => Just(None),
        1 => prop::sample::select(vec![Op::Sum, Op::Replace, Op::NoOp, Op::BitAnd]).prop_map(Some)
    ];
    let primitive = prop::sample::select(&ALL[..]);
    // Mostly to one, so that messages have others to join.
    let to = prop_oneof![6 => Just(1), 2 => Just(2), 1 => Just(0), 1 => Just(9)];
    (to, at, primitive, count, op, prop::bool::weighted(0.2)).prop_map(
        |(to, at, primitive, count, op, is_long)| Operation {
            to,
            at,
            primitive,
            count,
            op,
            is_long,
        },
    )
}

fn machine(flavor: Flavor, opened: Opened) -> Rma {
    let mut machine = Rma::new(Limits { part_bytes_max: 512 });
    let extents = vec![Extent { bytes: BYTES, unit: 1 }; RANKS as usize];
    let setup = Setup { flavor, me: CommRank(0), base: 1 << 20, extents, no_locks: false };
    machine.create(WINDOW, setup).expect("new");
    let targets = [CommRank(1), CommRank(2)];
    match opened {
        Opened::LockAll => {
            machine.lock_all(WINDOW, LockMode::Deferred).expect("nothing is open");
        }
        Opened::Lock => {
            let (mode, exclusive) = (LockMode::Deferred, true);
            machine.lock(WINDOW, targets[0], exclusive, mode).expect("nothing is open");
        }
        Opened::Fence => {
            let assert = FenceAssert { no_precede: true, no_succeed: false };
            assert_eq!(machine.fence(WINDOW, assert), Ok(FenceStep::Over));
        }
        Opened::Start => machine.start(WINDOW, &targets).expect("nothing is open"),
        Opened::Nothing => {}
    }
    machine
}

fn sent(machine: &mut Rma) -> Vec<Output> {
    core::iter::from_fn(|| machine.poll_output()).collect()
}

fn the_long_way(machine: &mut Rma, operation: &Operation, data: &[u8]) {
    machine.action_on_window();
    let Operation { to, at, primitive, count, op, .. } = *operation;
    let layout = Layout::Contiguous { primitive, count: count as u64 };
    let kind = op.map_or(Kind::Put, Kind::Accumulate);
    let data = if op == Some(Op::NoOp) { &[][..] } else { data };
    // What is refused has changed nothing but the count.
    let _ = machine.access(&mut Nobody, WINDOW, CommRank(to), at, &layout, kind, data);
}

/// Did it join a message?
fn the_short_way(machine: &mut Rma, operation: &Operation, data: &[u8]) -> bool {
    let Operation { to, at, primitive, op, .. } = *operation;
    let quick = match op {
        None => Quick::Put(data),
        Some(op) => Quick::Combine { op, data, found: None },
    };
    machine.quick_gather((WINDOW, CommRank(to), at), primitive, &quick)
}

proptest! {
    #[test]
    fn which_way_was_gone_cannot_be_told(
        is_dynamic in any::<bool>(),
        opened in prop::sample::select(vec![
            Opened::LockAll, Opened::LockAll, Opened::Lock, Opened::Fence, Opened::Start,
            Opened::Nothing,
        ]),
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        let flavor = if is_dynamic { Flavor::Dynamic } else { Flavor::Create };
        let mut one = machine(flavor, opened);
        let mut other = one.clone();
        for (operation, number) in operations.iter().zip(0u8..) {
            let data = vec![number; operation.count * operation.primitive.size()];
            the_long_way(&mut one, operation, &data);
            if operation.is_long || !the_short_way(&mut other, operation, &data) {
                the_long_way(&mut other, operation, &data);
            }
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(sent(&mut one), sent(&mut other));
        }
        one.send_batches();
        other.send_batches();
        prop_assert_eq!(sent(&mut one), sent(&mut other));
        other.check();
    }
}

#[test]
fn the_first_begins_a_message_and_others_join_it_until_it_is_full() {
    let mut machine = machine(Flavor::Create, Opened::LockAll);
    let of = (WINDOW, CommRank(1), 8);
    let word = [1; 8];
    let put = || Quick::Put(&word);
    assert!(!machine.quick_gather(of, Primitive::U64, &put()), "nothing is there to join");
    let layout = Layout::Contiguous { primitive: Primitive::U64, count: 1 };
    machine.put(WINDOW, CommRank(1), 8, &layout, &word).expect("an epoch");
    let joined = (0..1000).take_while(|_| machine.quick_gather(of, Primitive::U64, &put())).count();
    assert!((10..1000).contains(&joined), "{joined}");
    assert_eq!(sent(&mut machine), [], "the long way sends it");
    let others = [
        Quick::Get(&mut [0; 8]),
        Quick::Swap { compare: &word, new: &word, found: &mut [0; 8] },
        Quick::Combine { op: Op::Sum, data: &word, found: Some(&mut [0; QUICK_BYTES_MAX][..8]) },
        Quick::Put(&word[..7]),
    ];
    machine.send_batches();
    machine.put(WINDOW, CommRank(1), 8, &layout, &word).expect("an epoch");
    for other in &others {
        assert!(!machine.quick_gather(of, Primitive::U64, other), "{other:?}");
    }
}
