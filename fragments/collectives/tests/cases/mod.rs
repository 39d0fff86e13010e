//! Random calls over several sets, and what MPI and the tree between sets say of them.

use rustbtl_collectives::plan::{Call, Kind};
use rustbtl_collectives::sets::Sets;
use rustbtl_collectives::shape::{At, Place};
use rustbtl_seeds::{Prng, mix};

/// What a member gives, and what it must have.
pub struct OfMember {
    pub own: Vec<u8>,
    pub result: Vec<u8>,
    /// That the result begins with.
    pub want: Vec<u8>,
    pub alias: Option<(Place, At)>,
}

pub struct Case {
    pub call: Call,
    pub lengths: Vec<u64>,
    /// Where blocks lie in a result.
    pub blocks: Vec<u64>,
    pub of: Vec<OfMember>,
}

/// Neither commutative nor associative: every other order gives something else.
pub fn folded(left: &[u8], right: &[u8]) -> Vec<u8> {
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)).collect()
    };
    let both = words(left).into_iter().zip(words(right));
    both.flat_map(|(a, b)| mix(a.wrapping_mul(31), b).to_le_bytes()).collect()
}

/// The tree between sets, once more.
fn tree(of_sets: &[Vec<u8>]) -> Vec<u8> {
    match of_sets {
        [one] => one.clone(),
        all => {
            let (left, right) = all.split_at(all.len().div_ceil(2));
            folded(&tree(left), &tree(right))
        }
    }
}

/// What all sets before one have, along the same tree.
fn before(of_sets: &[Vec<u8>], set: usize) -> Option<Vec<u8>> {
    let (left, right) = of_sets.split_at(of_sets.len().div_ceil(2));
    if right.is_empty() {
        return None;
    }
    let Some(at) = set.checked_sub(left.len()) else { return before(left, set) };
    let left = tree(left);
    Some(before(right, at).map_or(left.clone(), |rest| folded(&left, &rest)))
}

fn in_order(all: impl DoubleEndedIterator<Item = Vec<u8>>) -> Option<Vec<u8>> {
    all.rev().reduce(|right, left| folded(&left, &right))
}

const KINDS: [Kind; 13] = [
    Kind::Barrier,
    Kind::Bcast,
    Kind::Reduce,
    Kind::Allreduce,
    Kind::Allgather,
    Kind::Allgatherv,
    Kind::Gather,
    Kind::Scatter,
    Kind::Alltoall,
    Kind::Scan,
    Kind::Exscan,
    Kind::ReduceScatterBlock,
    Kind::ReduceScatter,
];

/// Words of a block, or of all that is folded.
fn words(random: &mut Prng, most: u64) -> u64 {
    let words = match random.below(6) {
        0..3 => random.from_to(1, 6),
        3..5 => random.from_to(1, 1200),
        _ => random.from_to(1000, 8192),
    };
    words.min(most)
}

pub fn draw(random: &mut Prng, sets: &Sets) -> Case {
    let size = sets.size();
    let blocks = u64::from(size);
    let kind = loop {
        let kind = random.pick(&KINDS);
        if sets.keep_order() || !matches!(kind, Kind::Scan | Kind::Exscan) {
            break kind;
        }
    };
    let most = match kind {
        Kind::Barrier => 0,
        Kind::Alltoall => 2048 / (blocks * sets.largest() as u64),
        Kind::Allgather | Kind::Allgatherv | Kind::Gather => 2048 / blocks,
        Kind::Bcast | Kind::Reduce | Kind::Allreduce | Kind::Scan | Kind::Exscan => 8192,
        _ => 8192 / blocks,
    };
    let root = random.below(size as usize) as u32;
    let mut bytes = words(random, most) * 8;
    let mut lengths = Vec::new();
    if kind.varies() {
        lengths = (0..size).map(|_| random.from_to(0, bytes / 8) * 8).collect();
        lengths[random.below(size as usize)] = bytes;
        bytes = lengths.iter().copied().max().unwrap_or(0);
    }
    let length = |rank: u32| lengths.get(rank as usize).copied().unwrap_or(bytes);
    // Where they vary, in another order, with gaps.
    let place = |rank: u32| match lengths.is_empty() {
        true => u64::from(rank) * bytes,
        false => (rank + 1..size).map(|rank| length(rank) + 8).sum(),
    };
    let places: Vec<u64> = (0..size).map(place).collect();
    let gives = |rank: u32| match kind {
        Kind::Scatter if rank != root => 0,
        Kind::Bcast => 0,
        Kind::Scatter | Kind::Alltoall | Kind::ReduceScatterBlock => blocks * bytes,
        Kind::ReduceScatter => lengths.iter().sum(),
        _ => length(rank),
    };
    let mut random_bytes = |bytes: u64| -> Vec<u8> {
        (0..bytes / 8).flat_map(|_| random.bits().to_le_bytes()).collect()
    };
    let own: Vec<Vec<u8>> = (0..size).map(|rank| random_bytes(gives(rank))).collect();
    let spread = random_bytes(if kind == Kind::Bcast { bytes } else { 0 });
    let in_place = random.chance(30);
    let want = wanted(sets, kind, root, &own, &spread, (bytes, &lengths), &places);
    let of = (0..).zip(own).zip(want).map(|((rank, own), want)| {
        let mut of = OfMember { own, result: vec![0xEE; want.len()], want, alias: None };
        if kind == Kind::Bcast {
            of.result.fill(if rank == root { 0 } else { 0xEE });
            if rank == root {
                of.result.clone_from(&spread);
            }
        }
        if in_place {
            put_in_place(&mut of, kind, rank, root, &places);
        }
        of
    });
    let of = of.collect();
    Case {
        call: Call { kind, size, root, bytes, element: if kind.folds() { 8 } else { 1 } },
        lengths,
        blocks: places,
        of,
    }
}

/// As MPI_IN_PLACE has it.
fn put_in_place(of: &mut OfMember, kind: Kind, rank: u32, root: u32, places: &[u64]) {
    let at = match kind {
        Kind::Allgather | Kind::Allgatherv => places[rank as usize],
        Kind::Gather if rank == root => places[rank as usize],
        Kind::Scatter if rank == root => {
            let at = places[rank as usize];
            of.alias = Some((Place::Result, At(Place::Own, at)));
            // It is there already.
            of.want.clear();
            return;
        }
        Kind::Reduce if rank == root => 0,
        Kind::Allreduce | Kind::Scan | Kind::Exscan | Kind::Alltoall => 0,
        Kind::ReduceScatterBlock | Kind::ReduceScatter => 0,
        _ => return,
    };
    let end = at as usize + of.own.len();
    of.result.resize(of.result.len().max(end), 0xEE);
    of.result[at as usize..end].copy_from_slice(&of.own);
    if kind == Kind::Exscan && of.want.iter().all(|&byte| byte == 0xEE) {
        // The first one has no result.
        of.want.clone_from(&of.own);
    }
    of.own.clear();
    of.alias = Some((Place::Own, At(Place::Result, at)));
}

/// By rank.
fn wanted(
    sets: &Sets,
    kind: Kind,
    root: u32,
    own: &[Vec<u8>],
    spread: &[u8],
    (bytes, lengths): (u64, &[u64]),
    places: &[u64],
) -> Vec<Vec<u8>> {
    let size = own.len() as u32;
    let b = bytes as usize;
    let members = |set| sets.members(set).iter().map(|&rank| own[rank as usize].clone());
    let of_sets: Vec<Vec<u8>> = match kind.folds() {
        true => (0..sets.count()).filter_map(|set| in_order(members(set))).collect(),
        false => Vec::new(),
    };
    let all = if kind.folds() { tree(&of_sets) } else { Vec::new() };
    let placed = || {
        let end = places.iter().zip(own).map(|(&at, own)| at as usize + own.len()).max();
        let mut result = vec![0xEE; end.unwrap_or(0)];
        for (&at, own) in places.iter().zip(own) {
            result[at as usize..at as usize + own.len()].copy_from_slice(own);
        }
        result
    };
    let prefix = |me: u32, with_own: bool| {
        let (set, place) = (sets.of(me), sets.place(me) as usize);
        let before = before(&of_sets, set as usize);
        let mut ranks: Vec<Vec<u8>> = members(set).take(place + usize::from(with_own)).collect();
        if let (Some(first), Some(before)) = (ranks.first_mut(), &before) {
            *first = folded(before, first);
        }
        in_order(ranks.into_iter()).or(before).unwrap_or(vec![0xEE; b])
    };
    let want = (0..size).map(|me| match kind {
        Kind::Bcast => spread.to_vec(),
        Kind::Reduce if me == root => all.clone(),
        Kind::Allreduce => all.clone(),
        Kind::Allgather | Kind::Allgatherv => placed(),
        Kind::Gather if me == root => placed(),
        Kind::Scatter => own[root as usize][me as usize * b..][..b].to_vec(),
        Kind::Alltoall => own.iter().flat_map(|own| own[me as usize * b..][..b].to_vec()).collect(),
        Kind::Scan => prefix(me, true),
        Kind::Exscan => prefix(me, false),
        Kind::ReduceScatterBlock => all[me as usize * b..][..b].to_vec(),
        Kind::ReduceScatter => {
            let at: u64 = lengths[..me as usize].iter().sum();
            all[at as usize..][..lengths[me as usize] as usize].to_vec()
        }
        _ => Vec::new(),
    });
    want.collect()
}
