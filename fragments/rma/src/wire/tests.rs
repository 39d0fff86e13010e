//! Golden bytes, and what arbitrary bytes may not do.

use super::*;
use crate::layout::Block;
use proptest::prelude::*;

fn bytes_of(operation: &Operation<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    operation.encode(&mut out).expect("describable");
    assert_eq!(Operation::decode(&out).as_ref(), Ok(operation));
    out
}

fn place(displacement: i64, layout: Layout, first: u64, bytes: u64) -> Place {
    Place { displacement, layout, part: Part { first, bytes } }
}

#[test]
fn the_format_does_not_change_by_accident() {
    let put = Action::Put { place: place(5, Layout::bytes(3), 0, 3), data: b"abc" };
    let put = Operation { epoch: Epoch::Fence(2), number: 0, action: put };
    assert_eq!(
        bytes_of(&put),
        [
            &[1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..],
            &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
            &[1, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
            b"abc",
        ]
        .concat()
    );
    let block = Block { displacement: -8, stride: 32, length: 2, repeats: 3 };
    let layout =
        Layout::Described { primitive: Primitive::I32, count: 1, extent: 96, blocks: vec![block] };
    let action = Action::GetAccumulate { op: Op::NoOp, place: place(-1, layout, 8, 16), data: b"" };
    let fetch = Operation { epoch: Epoch::Access(1), number: 7, action };
    assert_eq!(
        bytes_of(&fetch),
        [
            &[4, 2, 2, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..],
            &[255; 8],
            &[8, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0],
            &[2, 4, 0, 0, 1, 0, 0, 0, 96, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            &[248, 255, 255, 255, 255, 255, 255, 255, 32, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 3, 0, 0, 0],
        ]
        .concat()
    );
    let swap = Action::CompareAndSwap {
        displacement: 1,
        primitive: Primitive::I16,
        compare: &[1, 2],
        new: &[3, 4],
    };
    let swap = Operation { epoch: Epoch::Passive, number: 1, action: swap };
    assert_eq!(
        bytes_of(&swap),
        [
            &[5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
        ]
        .concat()
    );
    let control = [
        (Action::Lock { exclusive: true, wants_grant: false }, Epoch::Passive, 0, [6, 0, 1]),
        (Action::Lock { exclusive: false, wants_grant: true }, Epoch::Passive, 9, [6, 0, 2]),
        (Action::Unlock, Epoch::Passive, 9, [7, 0, 0]),
        (Action::Flush, Epoch::Passive, 9, [8, 0, 0]),
        (Action::Complete, Epoch::Access(3), 0, [9, 2, 0]),
    ];
    for (action, epoch, number, head) in control {
        let bytes = bytes_of(&Operation { epoch, number, action });
        assert_eq!((&bytes[..3], bytes.len()), (&head[..], 16));
        assert_eq!(u32::from(bytes[4]), number);
    }
    let replies = [
        (Answer::Data(b"xy"), None, &[1, 0, 0, 0, 4, 0, 0, 0, b'x', b'y'][..]),
        (Answer::Done, Some(RmaError::Range), &[2, 5, 0, 0, 4, 0, 0, 0]),
        (Answer::Granted, None, &[3, 0, 0, 0, 4, 0, 0, 0]),
    ];
    for (answer, error, expected) in replies {
        let reply = Reply { number: 4, error, answer };
        let mut out = Vec::new();
        reply.encode(&mut out);
        assert_eq!((&out[..], Reply::decode(&out)), (expected, Ok(reply)));
    }
}

#[test]
fn operations_that_cannot_be_are_not_encoded() {
    let mut out = Vec::new();
    let mut refused = |action| {
        let operation = Operation { epoch: Epoch::Passive, number: 0, action };
        assert_eq!(operation.encode(&mut out), Err(RmaError::Type));
    };
    refused(Action::Put { place: place(0, Layout::bytes(3), 0, 3), data: b"ab" });
    let large = PART_BYTES_MAX + 1;
    refused(Action::Put { place: place(0, Layout::bytes(large), 0, large), data: b"ab" });
    refused(Action::CompareAndSwap {
        displacement: 0,
        primitive: Primitive::I32,
        compare: &[0; 4],
        new: &[0; 8],
    });
}

proptest! {
    /// Whatever decodes is what it says, and takes no more memory than its bytes.
    #[test]
    fn arbitrary_bytes_decode_to_what_they_are_or_not_at_all(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        kind in 0u8..11,
        small in any::<bool>(),
    ) {
        if small {
            // Plausible ones: most bytes are 0, so that more than the first check is reached.
            for (at, byte) in bytes.iter_mut().enumerate() {
                if at > 2 && *byte > 40 {
                    *byte = 0;
                }
            }
        }
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(operation) = Operation::decode(&bytes) {
            let mut again = Vec::new();
            prop_assert_eq!(operation.encode(&mut again), Ok(()));
            prop_assert_eq!(&again, &bytes);
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            let mut again = Vec::new();
            reply.encode(&mut again);
            prop_assert_eq!(&again, &bytes);
        }
    }

    /// One byte of a sound message is changed: no panic, and nothing that is encoded otherwise.
    #[test]
    fn damaged_operations_are_refused_or_other_operations(at in 0usize..140, to in any::<u8>()) {
        let block = Block { displacement: -8, stride: 32, length: 2, repeats: 3 };
        let layout = Layout::Described {
            primitive: Primitive::ShortInt,
            count: 2,
            extent: 96,
            blocks: vec![block],
        };
        let data = vec![7; 36];
        let place = place(1, layout, 36, 36);
        let action = Action::Accumulate { op: Op::MaxLoc, place, data: &data };
        let mut bytes = bytes_of(&Operation { epoch: Epoch::Fence(1), number: 0, action });
        prop_assert_eq!(bytes.len(), 124);
        if at < bytes.len() {
            bytes[at] = to;
        }
        if let Ok(operation) = Operation::decode(&bytes) {
            let mut again = Vec::new();
            prop_assert_eq!(operation.encode(&mut again), Ok(()));
            prop_assert_eq!(again, bytes);
        }
    }
}
