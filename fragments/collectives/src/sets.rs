//! The sets that the members of a communicator are of, and the tree between them.

/// The members of a communicator by set. Sets are counted in the order of their lowest ranks,
/// members of a set in the order of their ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sets {
    /// Of each rank: its set, and which of its members it is.
    places: Box<[(u32, u32)]>,
    members: Box<[Box<[u32]>]>,
}

impl Sets {
    /// `of`: by rank, what tells sets apart.
    pub fn new(of: &[u32]) -> Self {
        let mut names: Vec<u32> = Vec::new();
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut places = Vec::with_capacity(of.len());
        for (rank, name) in (0..).zip(of) {
            let set = names.iter().position(|known| known == name).unwrap_or(names.len());
            if set == names.len() {
                names.push(*name);
                members.push(Vec::new());
            }
            places.push((set as u32, members[set].len() as u32));
            members[set].push(rank);
        }
        Self { places: places.into(), members: members.into_iter().map(Into::into).collect() }
    }

    /// How many sets.
    pub fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// The set of a member.
    pub fn of(&self, rank: u32) -> u32 {
        self.places.get(rank as usize).map_or(0, |place| place.0)
    }

    /// Which one of the members of its set it is.
    pub fn place(&self, rank: u32) -> u32 {
        self.places.get(rank as usize).map_or(0, |place| place.1)
    }

    /// The ranks of a set.
    pub fn members(&self, set: u32) -> &[u32] {
        self.members.get(set as usize).map_or(&[], |ranks| ranks)
    }

    /// Members of the largest set.
    pub fn largest(&self) -> usize {
        self.members.iter().map(|ranks| ranks.len()).max().unwrap_or(0)
    }

    /// Is what is folded set by set folded in the order of ranks?
    pub fn keep_order(&self) -> bool {
        self.members.iter().flatten().copied().eq(0..self.places.len() as u32)
    }

    /// Who stands for a set in a call with this root: the root, else the lowest rank.
    pub fn stands_for(&self, set: u32, root: u32) -> u32 {
        if self.of(root) == set { root } else { self.members(set).first().copied().unwrap_or(0) }
    }
}

/// Between whom data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From all sets to all.
    All,
    /// From all sets to this one.
    To(u32),
    /// From this one to all.
    From(u32),
}

/// Where what comes from another set has its place in the fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// `received op own`
    Left,
    /// `own op received`
    Right,
    /// Nothing is folded: it takes the place of what is here.
    Instead,
}

/// What who stands for a set does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// Send what it has to this set.
    Send(u32),
    /// Wait for what this set sends, and fold it.
    Take(u32, Side),
}

/// Sets next to each other: `from..to`.
type Span = (u32, u32);

/// The moves of a set, in their order. Sets are halved again and again, the left half one larger
/// where they are odd: this tree of halves depends on the number of sets only, so every way folds
/// alike (K7).
#[derive(Clone, Debug)]
pub struct Moves {
    way: Way,
    count: u32,
    me: u32,
    /// The span whose turn it is, by how often the whole was halved; counts down where data is
    /// collected.
    depth: u32,
    /// Within that turn.
    turn: u32,
}

impl Moves {
    /// Of one of so many sets.
    pub fn new(way: Way, count: u32, me: u32) -> Self {
        let mut moves = Self { way, count, me, depth: 0, turn: 0 };
        if !matches!(way, Way::From(_)) {
            while moves.span(moves.depth).is_some() {
                moves.depth += 1;
            }
        }
        moves
    }

    /// The own half of the whole, halved so often, as long as it has two sets.
    fn span(&self, depth: u32) -> Option<Span> {
        let (mut from, mut to) = (0, self.count);
        for _ in 0..depth {
            let middle = middle((from, to));
            (from, to) = if self.me < middle { (from, middle) } else { (middle, to) };
            if to - from < 2 {
                return None;
            }
        }
        (to - from > 1).then_some((from, to))
    }

    fn exchange(&mut self, span @ (from, to): Span) -> Option<Move> {
        let middle = middle(span);
        let (left, right) = (middle - from, to - middle);
        let turn = self.turn;
        self.turn += 1;
        if self.me < middle {
            let at = self.me - from;
            // The one that is too many in the left half gets what its neighbour gets.
            let partner = middle + at.min(right - 1);
            return match turn {
                0 if at < right => Some(Move::Send(partner)),
                0 | 1 if turn == 1 || at >= right => {
                    self.turn = 2;
                    Some(Move::Take(partner, Side::Right))
                }
                _ => None,
            };
        }
        let at = self.me - middle;
        match turn {
            0 => Some(Move::Send(from + at)),
            1 if left > right && at == right - 1 => Some(Move::Send(middle - 1)),
            1 | 2 if turn == 1 || (left > right && at == right - 1) => {
                self.turn = 3;
                Some(Move::Take(from + at, Side::Left))
            }
            _ => None,
        }
    }

    /// `root`: of the tree; the span's is it, or its first set.
    fn in_tree(&mut self, span: Span, root: u32, collects: bool) -> Option<Move> {
        if self.turn > 0 {
            return None;
        }
        self.turn = 1;
        let middle = middle(span);
        let first = |(from, to): Span| if (from..to).contains(&root) { root } else { from };
        let (left, right) = (first((span.0, middle)), first((middle, span.1)));
        let (head, other) = if first(span) == left { (left, right) } else { (right, left) };
        let side = if other == right { Side::Right } else { Side::Left };
        match (self.me == head, self.me == other) {
            (true, _) if collects => Some(Move::Take(other, side)),
            (_, true) if collects => Some(Move::Send(head)),
            (true, _) => Some(Move::Send(other)),
            (_, true) => Some(Move::Take(head, Side::Instead)),
            _ => None,
        }
    }
}

fn middle((from, to): Span) -> u32 {
    from + (to - from).div_ceil(2)
}

impl Iterator for Moves {
    type Item = Move;

    fn next(&mut self) -> Option<Move> {
        loop {
            let depth = match self.way {
                Way::From(_) => self.depth,
                _ => self.depth.checked_sub(1)?,
            };
            let span = self.span(depth)?;
            let found = match self.way {
                Way::All => self.exchange(span),
                Way::To(root) => self.in_tree(span, root, true),
                Way::From(root) => self.in_tree(span, root, false),
            };
            if found.is_some() {
                return found;
            }
            self.turn = 0;
            self.depth = if matches!(self.way, Way::From(_)) { depth + 1 } else { depth };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, VecDeque};

    /// What each of so many sets has in the end, as a term; panics if somebody waits for ever.
    fn terms(way: Way, count: u32) -> Vec<String> {
        let mut terms: Vec<String> = (0..count).map(|set| set.to_string()).collect();
        let mut moves: Vec<_> =
            (0..count).map(|set| Moves::new(way, count, set).peekable()).collect();
        let mut mail: BTreeMap<(u32, u32), VecDeque<String>> = BTreeMap::new();
        loop {
            let mut idle = true;
            for me in 0..count {
                let at = me as usize;
                while let Some(&next) = moves[at].peek() {
                    match next {
                        Move::Send(to) => {
                            mail.entry((me, to)).or_default().push_back(terms[at].clone());
                        }
                        Move::Take(from, side) => {
                            let came = mail.get_mut(&(from, me)).and_then(VecDeque::pop_front);
                            let Some(came) = came else { break };
                            let own = &terms[at];
                            terms[at] = match side {
                                Side::Left => format!("({came} {own})"),
                                Side::Right => format!("({own} {came})"),
                                Side::Instead => came,
                            };
                        }
                    }
                    moves[at].next();
                    idle = false;
                }
            }
            if idle {
                break;
            }
        }
        assert!(moves.iter_mut().all(|moves| moves.next().is_none()), "{way:?} of {count}");
        assert!(mail.values().all(VecDeque::is_empty), "K8: nothing is left over");
        terms
    }

    #[test]
    fn every_way_folds_alike_whatever_the_root() {
        assert_eq!(terms(Way::All, 3)[2], "((0 1) 2)");
        assert_eq!(terms(Way::All, 4)[1], "((0 1) (2 3))");
        assert_eq!(terms(Way::All, 5)[3], "(((0 1) 2) (3 4))");
        for count in 1..40 {
            let all = terms(Way::All, count);
            assert!(all.iter().all(|term| *term == all[0]), "{all:?}");
            for root in 0..count {
                assert_eq!(terms(Way::To(root), count)[root as usize], all[0]);
                let given = terms(Way::From(root), count);
                assert!(given.iter().all(|term| *term == root.to_string()), "{given:?}");
            }
        }
    }

    #[test]
    fn nobody_has_more_turns_than_the_tree_is_high() {
        for count in 2..200u32 {
            let high = count.next_power_of_two().trailing_zeros() as usize;
            for me in 0..count {
                for way in [Way::All, Way::To(count / 3), Way::From(count / 3)] {
                    let moves = Moves::new(way, count, me);
                    let takes = moves.filter(|next| matches!(next, Move::Take(..))).count();
                    assert!(takes <= high, "{way:?} of {count}: {me} waits {takes} times");
                }
            }
        }
    }

    #[test]
    fn sets_are_counted_by_their_lowest_ranks() {
        let sets = Sets::new(&[7, 7, 2, 7, 2, 9]);
        assert_eq!((sets.count(), sets.largest(), sets.keep_order()), (3, 3, false));
        assert_eq!((sets.members(0), sets.members(1)), ([0, 1, 3].as_slice(), [2, 4].as_slice()));
        assert_eq!((sets.of(4), sets.place(4)), (1, 1));
        assert_eq!((sets.stands_for(0, 3), sets.stands_for(1, 3)), (3, 2));
        assert!(Sets::new(&[4, 4, 1, 0, 0]).keep_order());
        assert!(!Sets::new(&[4, 1, 4]).keep_order());
    }
}
