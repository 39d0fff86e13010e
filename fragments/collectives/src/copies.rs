//! Of a call over several sets: what a member copies, beside the steps of its set and what it sends
//! (K10).

use crate::over_sets::SetsHost;
use crate::plan::Kind;
use crate::shape::{At, Place, Shape};

/// Before anything else.
pub fn start<H: SetsHost>(shape: &Shape, host: &mut H) {
    let (own, stands) = (At(Place::Own, 0), shape.stands_for_set());
    match shape.kind {
        Kind::Allgather | Kind::Gather if stands => {
            let at = shape.start(shape.set) + u64::from(shape.place_in_set()) * shape.bytes;
            host.copy(own, At(shape.place(), at), shape.bytes);
        }
        Kind::Allgatherv => {
            let at = if stands { shape.start(shape.set) } else { 0 };
            host.copy(own, At(Place::Stage, at), shape.length(shape.me));
        }
        Kind::Scatter if shape.me == shape.root && !shape.ordered() => arrange(shape, host),
        Kind::Alltoall => {
            if !shape.ordered() {
                arrange(shape, host);
            }
            if stands {
                host.copy(shape.arranged(), At(Place::Other, 0), shape.row());
            }
        }
        // Nobody is in its set with whom it folds.
        kind if kind.folds() && shape.size() == 1 => {
            host.copy(own, At(shape.place(), 0), shape.total);
        }
        _ => {}
    }
}

/// Own blocks, from the order of ranks to that of sets.
fn arrange<H: SetsHost>(shape: &Shape, host: &mut H) {
    for (at, rank) in (0..).zip(shape.sets.ranks()) {
        let from = At(Place::Own, shape.start_of_rank(rank));
        host.copy(from, At(Place::Stage, at * shape.bytes), shape.bytes);
    }
}

/// When who stands for a set has what its members have put.
pub fn collected<H: SetsHost>(shape: &Shape, host: &mut H) {
    match shape.kind {
        Kind::Allgatherv => {
            let mut at = shape.start(shape.set);
            for (place, &rank) in (0..).zip(shape.members()) {
                let bytes = shape.length(rank);
                if place > 0 {
                    let from = At(Place::Other, place * shape.bytes);
                    host.copy(from, At(Place::Stage, at), bytes);
                }
                at += bytes;
            }
        }
        Kind::Alltoall => {
            // From rows to what is for each set.
            let (size, row) = (u64::from(shape.size()), shape.row());
            for set in 0..shape.sets.count() {
                let start = shape.start(set);
                let bytes = shape.start(set + 1) - start;
                for place in 0..size {
                    let into = At(Place::Stage, start * size + place * bytes);
                    host.copy(At(Place::Other, place * row + start), into, bytes);
                }
            }
            let own = shape.start(shape.set) * size;
            let bytes = size * size * shape.bytes;
            host.copy(At(Place::Stage, own), At(Place::Other, own), bytes);
        }
        _ => {}
    }
}

/// Does [`settle`] change what was sent?
pub fn changes_sent(shape: &Shape) -> bool {
    matches!(shape.kind, Kind::Alltoall | Kind::Scan | Kind::Exscan)
}

/// When who stands for a set has had its answers.
pub fn settle<H: SetsHost>(shape: &Shape, host: &mut H) {
    let (own, result) = (At(Place::Own, 0), At(Place::Result, 0));
    let (stage, other) = (At(Place::Stage, 0), At(Place::Other, 0));
    match shape.kind {
        Kind::Scatter => {
            let from = match shape.me == shape.root {
                true => At(Place::Own, shape.start_of_rank(shape.me)),
                false => At(shape.place(), shape.start(shape.set)),
            };
            host.copy(from, result, shape.bytes);
        }
        Kind::ReduceScatterBlock | Kind::ReduceScatter => {
            let of = |rank| At(Place::Stage, shape.start_of_rank(rank));
            if shape.scattered().0 == Place::Other {
                for (place, &rank) in (0..).zip(shape.members()) {
                    let into = At(Place::Other, place * shape.bytes);
                    host.copy(of(rank), into, shape.length(rank));
                }
            }
            host.copy(of(shape.me), result, shape.length(shape.me));
        }
        Kind::Alltoall => {
            // From what is of each set to columns.
            let (size, row, block) = (u64::from(shape.size()), shape.row(), shape.bytes);
            for (rank, place) in (0..u64::from(shape.sets.size()))
                .flat_map(|rank| (0..size).map(move |place| (rank, place)))
            {
                let from = At(Place::Other, (rank * size + place) * block);
                host.copy(from, At(Place::Stage, place * row + rank * block), block);
            }
            if shape.ordered() {
                host.copy(stage, result, row);
            }
        }
        Kind::Scan | Kind::Exscan => {
            if shape.set > 0 {
                host.fold(other, own, stage, shape.bytes);
            }
            match shape.kind {
                Kind::Exscan if shape.set > 0 => host.copy(other, result, shape.bytes),
                Kind::Scan if shape.size() == 1 => {
                    host.copy(shape.first(), result, shape.bytes);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

/// When nobody is awaited any more.
pub fn end<H: SetsHost>(shape: &Shape, host: &mut H) {
    let gives = match shape.kind {
        Kind::Allgather | Kind::Allgatherv => shape.place() == Place::Stage,
        Kind::Gather => shape.me == shape.root && shape.place() == Place::Stage,
        Kind::Alltoall => !shape.ordered(),
        _ => false,
    };
    if gives {
        let mut at = 0;
        for rank in shape.sets.ranks() {
            let bytes = shape.length(rank);
            host.give(At(Place::Stage, at), rank, bytes);
            at += bytes;
        }
    }
    if shape.kind == Kind::ReduceScatter && !shape.stands_for_set() {
        host.copy(At(Place::Stage, 0), At(Place::Result, 0), shape.length(shape.me));
    }
}
