//! Whatever comes, nothing outside of a window or of attached memory is touched.

use proptest::prelude::*;
use rustbtl_rma::arithmetic::ALL_OPS;
use rustbtl_rma::batch::append;
use rustbtl_rma::ids::{CommRank, ContextId};
use rustbtl_rma::layout::{Block, Layout};
use rustbtl_rma::machine::{Limits, Output, Rma};
use rustbtl_rma::memory::{Memory, Part};
use rustbtl_rma::primitive::ALL;
use rustbtl_rma::window::{Extent, Flavor, Setup};
use rustbtl_rma::wire::{Action, Epoch, Operation, Place};

const WINDOW: ContextId = ContextId(1);
const BASE: u64 = 500;
const BYTES: usize = 300;

/// The window; reading or writing elsewhere panics.
struct Fenced(Vec<u8>);

impl Memory for Fenced {
    fn read(&self, address: u64, into: &mut [u8]) {
        let at = address.checked_sub(BASE).expect("below the window") as usize;
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }
    fn write(&mut self, address: u64, from: &[u8]) {
        let at = address.checked_sub(BASE).expect("below the window") as usize;
        self.0[at..at + from.len()].copy_from_slice(from);
    }
}

fn target(flavor: Flavor) -> Rma {
    let mut machine = Rma::new(Limits { part_bytes_max: 64 });
    let bytes = if flavor == Flavor::Dynamic { 0 } else { BYTES as u64 };
    let extents = vec![Extent { bytes, unit: 1 }; 2];
    let setup = Setup { flavor, me: CommRank(0), base: BASE, extents, no_locks: false };
    machine.create(WINDOW, setup).expect("new");
    if flavor == Flavor::Dynamic {
        machine.attach(WINDOW, BASE, 200).expect("free");
        machine.attach(WINDOW, BASE + 200, 100).expect("free");
    }
    machine
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -40i64..340, 1 => any::<i64>(), 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

fn layout() -> impl Strategy<Value = Layout> {
    let primitive = prop::sample::select(&ALL[..]);
    let size = prop_oneof![4 => 1u32..6, 1 => any::<u32>().prop_map(|size| size.max(1))];
    let block = (number(), number(), size.clone(), size.clone()).prop_map(
        |(displacement, stride, length, repeats)| Block { displacement, stride, length, repeats },
    );
    let blocks = prop::collection::vec(block, 1..4);
    let plain = (primitive.clone(), 0u64..40)
        .prop_map(|(primitive, count)| Layout::Contiguous { primitive, count });
    let described =
        (primitive, size, number(), blocks).prop_map(|(primitive, count, extent, blocks)| {
            Layout::Described { primitive, count, extent, blocks }
        });
    prop_oneof![plain, described]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn nothing_outside_of_a_window_is_touched(
        displacement in prop_oneof![3 => 0i64..350, 2 => 480i64..820, 1 => number()],
        layout in layout(),
        first in 0u64..20,
        count in 0u64..20,
        which in 0usize..4,
        op in prop::sample::select(&ALL_OPS[..]),
        dynamic: bool,
    ) {
        let size = layout.primitive().size() as u64;
        let part = Part { first: first * size, bytes: count * size };
        let data = vec![3; part.bytes as usize];
        let place = Place { displacement, layout, part };
        let sent: &[u8] = if op == rustbtl_rma::arithmetic::Op::NoOp { &[] } else { &data };
        let action = match which {
            0 => Action::Put { place, data: &data },
            1 => Action::Get { place },
            2 => Action::Accumulate { op, place, data: sent },
            _ => Action::GetAccumulate { op, place, data: sent },
        };
        let number = u32::from(action.is_replied());
        let mut message = Vec::new();
        let operation = Operation { epoch: Epoch::Passive, number, action };
        if append(&operation, &mut message).is_ok() {
            let mut machine = target(if dynamic { Flavor::Dynamic } else { Flavor::Create });
            let mut memory = Fenced(vec![0; BYTES]);
            // Parts beyond the layout do not decode.
            if machine.on_operation(WINDOW, CommRank(1), message).is_ok() {
                prop_assert_eq!(machine.progress(&mut memory), Ok(()));
                machine.check();
                let replies = core::iter::from_fn(|| machine.poll_output()).count();
                prop_assert_eq!(replies, number as usize);
                prop_assert_eq!(machine.kept(), (0, 0));
            }
        }
    }

    #[test]
    fn arbitrary_messages_are_harmless(
        bytes in prop::collection::vec(
            prop_oneof![4 => Just(0u8), 3 => 0u8..12, 1 => any::<u8>()],
            0..90,
        ),
        replaying: bool,
    ) {
        let mut machine = target(Flavor::Create);
        if replaying {
            machine.begin_replay([]).expect("nothing is missing");
        }
        let mut memory = Fenced(vec![0; BYTES]);
        let _ = machine.on_operation(WINDOW, CommRank(1), bytes.clone());
        let framed = [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
        let _ = machine.on_operation(WINDOW, CommRank(1), framed);
        let _ = machine.on_reply(WINDOW, CommRank(1), &bytes);
        let _ = machine.progress(&mut memory);
        while let Some(output) = machine.poll_output() {
            let to_sender = matches!(output, Output::Send { to: CommRank(1), .. });
            prop_assert!(to_sender, "{:?}", output);
        }
    }
}
