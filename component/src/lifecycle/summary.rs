//! The table at the end: sums over all ranks, printed by rank 0.

use crate::engine::shared::Shared;
use crate::ffi::operation::Op;
use crate::ffi::table::{DONE, ON_STACK, Operation, PENDING, STATE_PENDING};
use crate::lifecycle::report;
use crate::mpi::point_to_point::{receive, send, wait_for};
use rustbtl_fragments::ids::{CommId, CommRank};

/// A tag that no part of Open MPI uses.
const TAG: i32 = -0x5242_5400;

/// As it travels: the counters, in the order of `report::counters`.
type Row = [u64; report::COUNTERS];

fn operation(row: &mut Row) -> Operation {
    Operation {
        state: STATE_PENDING,
        start: row.as_mut_ptr().cast(),
        bytes: size_of::<Row>() as u64,
        convertor: core::ptr::null_mut(),
        id: 0,
        received: 0,
        source: 0,
        tag: 0,
        outcome: 0,
        kind: ON_STACK,
    }
}

/// The operation as the engine knows it.
fn op(operation: &mut Operation) -> Op {
    // SAFETY: it stays where it is, untouched, until `finish` has returned.
    unsafe { Op::new(operation) }.expect("a reference is not null")
}

/// Wait, also with threads (only one is left in MPI_Finalize).
fn finish(op: Op, outcome: i32) -> bool {
    let mut outcome = outcome;
    while outcome == PENDING {
        outcome = wait_for(op);
    }
    outcome == DONE
}

/// Gather the rows of all ranks of the world at its rank 0, which prints them.
pub fn summary(shared: &'static Shared, comm: u32) {
    let comm = CommId(comm);
    let (mut row, me, size, policy) = {
        let driver = shared.enter();
        let row = report::counters(&driver).map(|(_, value)| value);
        let peers = &driver.host.peers;
        (row, peers.rank(), peers.size(), driver.host.policy_text.clone())
    };
    if me != 0 {
        let mut operation = operation(&mut row);
        let op = op(&mut operation);
        finish(op, send(op, comm, CommRank(0), TAG, false));
        return;
    }
    let mut sum = row;
    for rank in 1..size {
        let mut other = Row::default();
        let mut operation = operation(&mut other);
        let op = op(&mut operation);
        if finish(op, receive(op, comm, rank as i32, TAG)) {
            for (total, part) in sum.iter_mut().zip(other) {
                *total += part;
            }
        }
    }
    print(&sum, size, &policy);
}

fn print(sum: &Row, size: u32, policy: &str) {
    let [
        im,
        ib,
        om,
        ob,
        rim,
        rib,
        rom,
        rob,
        eager,
        rendezvous,
        unexpected,
        lm,
        lb,
        peak,
        _,
        ns,
        spill,
        ..,
    ] = *sum;
    eprintln!(
        "\
vprotocol correlated: {size} ranks, sets {policy}
                      messages            bytes
  sent internal   {im:>12} {ib:>16}
  sent outgoing   {om:>12} {ob:>16}
  recv internal   {rim:>12} {rib:>16}
  recv ingoing    {rom:>12} {rob:>16}
  payload log     {lm:>12} {lb:>16}   (peaks add up to {peak}, spilled {spill})
  eager {eager}, rendezvous {rendezvous}, unexpected {unexpected}; {:.3} s in the engine",
        ns as f64 * 1e-9
    );
}
