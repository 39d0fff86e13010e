//! The sets that the members of a communicator are of, and the tree between them.

/// The members of a communicator by set. Sets are counted in the order of their lowest ranks,
/// members of a set in the order of their ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sets {
    /// Of each rank: its set, and which of its members it is.
    places: Box<[(u32, u32)]>,
    members: Box<[Box<[u32]>]>,
    /// Members of the sets before each one, and of all.
    before: Box<[u32]>,
    in_order: bool,
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
        let mut before = vec![0];
        for ranks in &members {
            before.push(before[before.len() - 1] + ranks.len() as u32);
        }
        let in_order = members.iter().flatten().copied().eq(0..of.len() as u32);
        let members = members.into_iter().map(Into::into).collect();
        Self { places: places.into(), members, before: before.into(), in_order }
    }

    /// Members of all sets.
    pub fn size(&self) -> u32 {
        self.places.len() as u32
    }

    /// Members of the sets before this one.
    pub fn before(&self, set: u32) -> u32 {
        self.before.get(set as usize).copied().unwrap_or(self.size())
    }

    /// All ranks in the order of sets.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.members.iter().flatten().copied()
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

    /// Is the order of sets that of ranks?
    pub fn keep_order(&self) -> bool {
        self.in_order
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
    /// From each to all after it.
    After,
    /// From each to each something else.
    Pairs,
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

/// What who stands for a set does. The span: the sets whose data it is where data is collected, for
/// which it is where it is spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// Send what it has to this set.
    Send(u32, Span),
    /// Wait for what this set sends, and fold it.
    Take(u32, Span, Side),
}

/// Sets next to each other: `from..to`.
pub type Span = (u32, u32);

/// Of a half of all sets the other one; `None`: it is less than a half.
pub fn other_half(count: u32, half: Span) -> Option<Span> {
    let (left, right) = ((0, middle((0, count))), (middle((0, count)), count));
    (half == left).then_some(right).or((half == right).then_some(left))
}

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
        if !matches!(way, Way::From(_) | Way::Pairs) {
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

    /// `back`: does what the right half has go to the left one, too?
    fn exchange(&mut self, span @ (from, to): Span, back: bool) -> Option<Move> {
        let middle = middle(span);
        let (left, right) = (middle - from, to - middle);
        let (of_left, of_right) = ((from, middle), (middle, to));
        let turn = self.turn;
        self.turn += 1;
        if self.me < middle {
            let at = self.me - from;
            // The one that is too many in the left half gets what its neighbour gets.
            let partner = middle + at.min(right - 1);
            return match turn {
                0 if at < right => Some(Move::Send(partner, of_left)),
                0 | 1 if back && (turn == 1 || at >= right) => {
                    self.turn = 2;
                    Some(Move::Take(partner, of_right, Side::Right))
                }
                _ => None,
            };
        }
        let at = self.me - middle;
        let sends_twice = left > right && at == right - 1;
        match turn {
            0 if back => Some(Move::Send(from + at, of_right)),
            1 if back && sends_twice => Some(Move::Send(middle - 1, of_right)),
            0..3 if turn == if back { 1 + u32::from(sends_twice) } else { 0 } => {
                self.turn = 3;
                Some(Move::Take(from + at, of_left, Side::Left))
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
        let (left, right) = ((span.0, middle), (middle, span.1));
        let first = |(from, to): Span| if (from..to).contains(&root) { root } else { from };
        let is_left = first(span) == first(left);
        let (head, half) = if is_left { (first(left), right) } else { (first(right), left) };
        let (other, side) = (first(half), if is_left { Side::Right } else { Side::Left });
        match (self.me == head, self.me == other) {
            (true, _) if collects => Some(Move::Take(other, half, side)),
            (_, true) if collects => Some(Move::Send(head, half)),
            (true, _) => Some(Move::Send(other, half)),
            (_, true) => Some(Move::Take(head, half, Side::Instead)),
            _ => None,
        }
    }

    /// All are sent before one is waited for.
    fn pair(&mut self) -> Option<Move> {
        let (others, turn) = (self.count - 1, self.turn);
        self.turn += 1;
        if turn < others {
            let to = (self.me + 1 + turn) % self.count;
            return Some(Move::Send(to, (to, to + 1)));
        }
        let from = |turn: u32| (self.me + self.count - 1 - (turn - others)) % self.count;
        let from = (turn < 2 * others).then(|| from(turn))?;
        Some(Move::Take(from, (from, from + 1), Side::Instead))
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
                Way::Pairs => return self.pair(),
                Way::From(_) => self.depth,
                _ => self.depth.checked_sub(1)?,
            };
            let span = self.span(depth)?;
            let found = match self.way {
                Way::All => self.exchange(span, true),
                // Nobody is after the right half.
                Way::After => self.exchange(span, depth > 0),
                Way::To(root) => self.in_tree(span, root, true),
                Way::From(root) => self.in_tree(span, root, false),
                Way::Pairs => None,
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

    /// What each of so many sets has in the end, as a term, and what was folded of those before it;
    /// panics if somebody waits for ever.
    fn terms_and_before(way: Way, count: u32) -> Vec<(String, String)> {
        let mut terms: Vec<(String, String)> =
            (0..count).map(|set| (set.to_string(), String::new())).collect();
        let mut moves: Vec<_> =
            (0..count).map(|set| Moves::new(way, count, set).peekable()).collect();
        let mut mail: BTreeMap<(u32, u32), VecDeque<String>> = BTreeMap::new();
        loop {
            let mut idle = true;
            for me in 0..count {
                let (own, before) = &mut terms[me as usize];
                while let Some(&next) = moves[me as usize].peek() {
                    match next {
                        Move::Send(to, span) => {
                            if !matches!(way, Way::From(_) | Way::Pairs) {
                                assert_eq!(spread(own), span, "{own}");
                            }
                            mail.entry((me, to)).or_default().push_back(own.clone());
                        }
                        Move::Take(from, span, side) => {
                            let came = mail.get_mut(&(from, me)).and_then(VecDeque::pop_front);
                            let Some(came) = came else { break };
                            if side != Side::Instead {
                                assert_eq!(spread(&came), span, "{came}");
                            }
                            match side {
                                Side::Left if before.is_empty() => before.clone_from(&came),
                                Side::Left => *before = format!("({came} {before})"),
                                _ => {}
                            }
                            *own = match side {
                                Side::Left => format!("({came} {own})"),
                                Side::Right => format!("({own} {came})"),
                                Side::Instead if way == Way::Pairs => format!("{own} {came}"),
                                Side::Instead => came,
                            };
                        }
                    }
                    moves[me as usize].next();
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

    fn terms(way: Way, count: u32) -> Vec<String> {
        terms_and_before(way, count).into_iter().map(|(term, _)| term).collect()
    }

    fn sets_in(term: &str) -> Vec<u32> {
        let words = term.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        words.map(|word| word.parse().unwrap()).collect()
    }

    /// The sets in a term, which follow each other.
    fn spread(term: &str) -> Span {
        let sets = sets_in(term);
        let span = (sets[0], sets[0] + sets.len() as u32);
        assert!((span.0..span.1).eq(sets), "{term}");
        span
    }

    #[test]
    fn those_before_each_set_are_folded_in_their_order() {
        let before = |count, set: u32| terms_and_before(Way::After, count)[set as usize].1.clone();
        assert_eq!((before(2, 0), before(2, 1)), (String::new(), "0".into()));
        assert_eq!((before(3, 1), before(3, 2)), ("0".into(), "(0 1)".into()));
        assert_eq!(before(7, 6), "(((0 1) (2 3)) (4 5))");
        for count in 1..40 {
            for (set, (_, before)) in (0..).zip(terms_and_before(Way::After, count)) {
                assert!(sets_in(&before).into_iter().eq(0..set), "{set} of {count}: {before}");
            }
        }
    }

    #[test]
    fn a_half_has_another_one() {
        assert_eq!((other_half(5, (0, 3)), other_half(5, (3, 5))), (Some((3, 5)), Some((0, 3))));
        assert_eq!((other_half(5, (0, 2)), other_half(4, (2, 3))), (None, None));
    }

    #[test]
    fn each_pair_exchanges_once() {
        for count in 1..20 {
            for (me, term) in (0..count).zip(terms(Way::Pairs, count)) {
                // What is sent is what is had at first.
                let mut sets = sets_in(&term);
                assert_eq!(sets[0], me);
                sets.sort_unstable();
                assert!((0..count).eq(sets), "{me} of {count}: {term}");
            }
        }
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
                for way in [Way::All, Way::After, Way::To(count / 3), Way::From(count / 3)] {
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
        assert_eq!((sets.size(), sets.before(1), sets.before(3)), (6, 3, 6));
        assert!(sets.ranks().eq([0, 1, 3, 2, 4, 5]));
        assert_eq!((sets.stands_for(0, 3), sets.stands_for(1, 3)), (3, 2));
        assert!(Sets::new(&[4, 4, 1, 0, 0]).keep_order());
        assert!(!Sets::new(&[4, 1, 4]).keep_order());
    }
}
