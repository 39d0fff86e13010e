//! Random calls inside a set: what each member has, and must get.

use rustbtl_collectives::plan::*;
use rustbtl_seeds::{Prng, mix};
use std::ops::Range;

/// Element of folds: neither commutative nor associative.
pub fn fold(a: u64, b: u64) -> u64 {
    mix(a.wrapping_mul(31), b)
}

pub fn element(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Where blocks vary: where they lie in what a member gives, and in what it gets.
#[derive(Clone, Default)]
pub struct Blocks {
    pub gives: Vec<Range<usize>>,
    pub gets: Vec<Range<usize>>,
}

/// A call, and what each member has and must get.
pub struct Case {
    pub call: Call,
    pub from: Vec<Vec<u8>>,
    pub into: Vec<Vec<u8>>,
    pub want: Vec<Vec<u8>>,
    pub blocks: Vec<Blocks>,
}

/// Calls that are too long are others'.
pub fn draw(random: &mut Prng, size: u32) -> Case {
    loop {
        let case = draw_any(random, size);
        if Plan::new(case.call).is_some() {
            return case;
        }
    }
}

pub fn draw_any(random: &mut Prng, size: u32) -> Case {
    let kind = random.pick(&Kind::ALL);
    let root = random.below(size as usize) as u32;
    let count = match random.below(8) {
        0 => 0,
        1..4 => random.from_to(1, 6),
        4..6 => random.from_to(1, 1200),
        6 => random.from_to(1000, 9000),
        _ => random.from_to(8000, 65_000),
    };
    if kind.varies() {
        return draw_varying(random, Call { kind, size, root, bytes: count * 8, element: 8 });
    }
    let (bytes, n) = (if kind == Kind::Barrier { 0 } else { count * 8 }, size as usize);
    let call = Call { kind, size, root, bytes, element: if kind.folds() { 8 } else { 1 } };
    let block = bytes as usize;
    let gives = match kind {
        Kind::Alltoall | Kind::Scatter | Kind::ReduceScatterBlock => n * block,
        _ => block,
    };
    let gets = match kind {
        Kind::Allgather | Kind::Alltoall | Kind::Gather => n * block,
        _ => block,
    };
    let from: Vec<_> = (0..n).map(|_| fill(random, gives)).collect();
    let into: Vec<_> = (0..n).map(|_| fill(random, gets)).collect();
    let piece = |w: usize, at: usize| from[w][at * block..(at + 1) * block].to_vec();
    let folded = |members: Range<usize>, at: usize| -> Option<Vec<u8>> {
        let mut members = members.rev();
        let mut result = piece(members.next()?, at);
        for w in members {
            let next = piece(w, at);
            for at in (0..block).step_by(8) {
                let folded = fold(element(&next, at), element(&result, at));
                result[at..at + 8].copy_from_slice(&folded.to_le_bytes());
            }
        }
        Some(result)
    };
    let want = (0..n).map(|me| {
        let is_root = me == root as usize;
        let all: Option<Vec<u8>> = match kind {
            Kind::Barrier => None,
            Kind::Bcast if is_root => None,
            Kind::Bcast => Some(piece(root as usize, 0)),
            Kind::Reduce | Kind::Gather if !is_root => None,
            Kind::Reduce | Kind::Allreduce => folded(0..n, 0),
            Kind::Allgather | Kind::Gather => Some((0..n).flat_map(|w| piece(w, 0)).collect()),
            Kind::Alltoall => Some((0..n).flat_map(|w| piece(w, me)).collect()),
            Kind::Scatter => Some(piece(root as usize, me)),
            Kind::ReduceScatterBlock => folded(0..n, me),
            Kind::Scan => folded(0..me + 1, 0),
            Kind::Exscan => folded(0..me, 0),
            _ => unreachable!("its blocks vary"),
        };
        all.unwrap_or_else(|| into[me].clone())
    });
    let want = want.collect();
    Case { call, from, into, want, blocks: vec![Blocks::default(); n] }
}

pub fn fill(random: &mut Prng, length: usize) -> Vec<u8> {
    let mut all: Vec<u8> = Vec::with_capacity(length + 8);
    while all.len() < length {
        all.extend_from_slice(&random.bits().to_le_bytes());
    }
    all.truncate(length);
    all
}

/// Blocks of up to `call.bytes`, with gaps between them.
pub fn draw_varying(random: &mut Prng, mut call: Call) -> Case {
    let (n, root, kind) = (call.size as usize, call.root as usize, call.kind);
    let most = (call.bytes / 8) as usize;
    let mut draw = || if random.chance(20) { 0 } else { random.below(most + 1) * 8 };
    // What one gives another, as long as everybody is concerned.
    let mut lengths: Vec<Vec<usize>> = (0..n).map(|_| (0..n).map(|_| draw()).collect()).collect();
    for w in 0..n {
        for r in 0..n {
            lengths[w][r] = match kind {
                Kind::Alltoallv => lengths[w][r],
                Kind::Gatherv | Kind::Allgatherv => lengths[w][0],
                _ => lengths[0][r],
            };
        }
    }
    call.bytes = lengths.iter().flatten().copied().max().unwrap_or(0) as u64;
    let lay = |random: &mut Prng, lengths: Vec<usize>| -> Vec<Range<usize>> {
        let mut at = 0;
        let block = |length: usize| {
            let start = at + if kind.folds() { 0 } else { random.below(3) * 8 };
            at = start + length;
            start..at
        };
        lengths.into_iter().map(block).collect()
    };
    let mut blocks = Vec::new();
    for (me, row) in lengths.iter().enumerate() {
        let column: Vec<usize> = lengths.iter().map(|row| row[me]).collect();
        let gives = match kind {
            Kind::Gatherv | Kind::Allgatherv => vec![row[0]],
            Kind::Scatterv if me != root => Vec::new(),
            _ => row.clone(),
        };
        let gets = match kind {
            Kind::Gatherv if me != root => Vec::new(),
            Kind::Scatterv | Kind::ReduceScatter => vec![lengths[root][me]],
            _ => column,
        };
        blocks.push(Blocks { gives: lay(random, gives), gets: lay(random, gets) });
    }
    let end = |blocks: &[Range<usize>]| blocks.last().map_or(0, |block| block.end);
    let from: Vec<_> = blocks.iter().map(|blocks| fill(random, end(&blocks.gives))).collect();
    let into: Vec<_> = blocks.iter().map(|blocks| fill(random, end(&blocks.gets))).collect();
    let mut want = into.clone();
    for me in 0..n {
        let given = |w: usize| {
            let all = &blocks[w].gives;
            from[w][all[if all.len() == n { me } else { 0 }].clone()].to_vec()
        };
        if kind == Kind::ReduceScatter {
            let mut result = given(n - 1);
            for w in (0..n - 1).rev() {
                let next = given(w);
                for at in (0..result.len()).step_by(8) {
                    let folded = fold(element(&next, at), element(&result, at));
                    result[at..at + 8].copy_from_slice(&folded.to_le_bytes());
                }
            }
            want[me] = result;
        } else if kind == Kind::Scatterv {
            want[me][blocks[me].gets[0].clone()].copy_from_slice(&given(root));
        } else {
            for (w, place) in blocks[me].gets.iter().enumerate() {
                want[me][place.clone()].copy_from_slice(&given(w));
            }
        }
    }
    Case { call, from, into, want, blocks }
}
