//! Operations through shared memory inside a set: who took which ticket of a window's word.
//!
//! Where processes of a set change a window's memory themselves, everything whose order matters
//! (atomics, accumulates, locks) is done under one word for each window and target: whoever acts
//! takes the next ticket. The set is rolled back as a whole, with the word; what is recorded is
//! which process took which tickets, and a replay hands them out in the same way.
//!
//! * **K1.** A ticket is recorded in the order of the set before the word is released. So what is
//!   stable of a word is a beginning of its order, whoever recorded it.
//! * **K2.** A ticket that is recorded is taken by the process that took it before, and by nobody
//!   else.
//! * **K3.** Nobody takes a ticket that is not recorded before the last of the word that is; which
//!   one that is must be known to all of the set ([`frontiers`]).

use crate::ids::{CommRank, ContextId};
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, VecDeque};

/// The word of a target's window.
pub type Word = (ContextId, CommRank);

/// Tickets of a word that one process took in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Which word.
    pub word: Word,
    /// The first ticket.
    pub first: u64,
    /// How many; at least 1.
    pub count: u64,
}

/// What a process takes, and what it has to take again.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tickets {
    runs: Vec<Taken>,
    replay: BTreeMap<Word, Replayed>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Replayed {
    own: VecDeque<(u64, u64)>,
    frontier: u64,
}

/// The first ticket of each word that is not recorded, from the determinants of **all** processes
/// of a set.
pub fn frontiers<'a>(record: impl IntoIterator<Item = &'a (PeerId, Taken)>) -> BTreeMap<Word, u64> {
    let mut frontiers = BTreeMap::new();
    for (_, taken) in record {
        let frontier = frontiers.entry(taken.word).or_insert(0);
        *frontier = taken.first.saturating_add(taken.count).max(*frontier);
    }
    frontiers
}

impl Tickets {
    /// May this process take the word's next ticket, `next`? It holds the word and asks; if not, it
    /// releases the word and asks again later.
    pub fn may_take(&self, word: Word, next: u64) -> bool {
        let Some(replayed) = self.replay.get(&word) else { return true };
        match replayed.own.front() {
            Some(&(first, _)) => first == next,
            None => next >= replayed.frontier,
        }
    }

    /// It was taken. True: it is new, and has to be recorded before the word is released (K1).
    pub fn take(&mut self, word: Word, ticket: u64) -> bool {
        if let Some(replayed) = self.replay.get_mut(&word) {
            match replayed.own.front_mut() {
                Some((first, count)) => {
                    *first += 1;
                    *count -= 1;
                    if *count == 0 {
                        replayed.own.pop_front();
                    }
                    return false;
                }
                None => {
                    self.replay.remove(&word);
                }
            }
        }
        match self.runs.last_mut() {
            Some(run) if run.word == word && run.first + run.count == ticket => run.count += 1,
            _ => self.runs.push(Taken { word, first: ticket, count: 1 }),
        }
        true
    }

    /// New ones, to be recorded. A run that is taken ends.
    pub fn take_recorded(&mut self) -> Vec<Taken> {
        core::mem::take(&mut self.runs)
    }

    /// The set was rolled back: these are the own tickets since its checkpoint, and what
    /// [`frontiers`] says of those of all.
    pub fn begin_replay(
        &mut self,
        own: impl IntoIterator<Item = Taken>,
        frontiers: &BTreeMap<Word, u64>,
    ) {
        self.runs.clear();
        self.replay = frontiers
            .iter()
            .map(|(&word, &frontier)| (word, Replayed { own: VecDeque::new(), frontier }))
            .collect();
        for taken in own.into_iter().filter(|taken| taken.count > 0) {
            let replayed = self.replay.entry(taken.word).or_default();
            replayed.own.push_back((taken.first, taken.count));
        }
    }

    /// Has everything been taken again that was recorded?
    pub fn is_record_taken(&self) -> bool {
        self.replay.values().all(|replayed| replayed.own.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORD: Word = (ContextId(9), CommRank(2));

    /// Two words, three processes: each acts on words as its program says. The order is recorded;
    /// some of its end is lost; the replay repeats all that was kept.
    fn run(
        programs: &[Vec<usize>],
        schedule: &mut dyn FnMut(usize) -> usize,
        tickets: &mut [Tickets],
        record: &mut Vec<(PeerId, Taken)>,
    ) -> [Vec<usize>; 2] {
        let words = [WORD, (ContextId(9), CommRank(0))];
        let mut order = [Vec::new(), Vec::new()];
        let mut at = vec![0; programs.len()];
        let mut idle = 0;
        while at.iter().zip(programs).any(|(&at, program)| at < program.len()) {
            let who = schedule(programs.len());
            idle += 1;
            assert!(idle < 10_000, "stuck");
            let Some(&which) = programs[who].get(at[who]) else { continue };
            let next = order[which].len() as u64;
            if !tickets[who].may_take(words[which], next) {
                continue;
            }
            idle = 0;
            if tickets[who].take(words[which], next) {
                let new = tickets[who].take_recorded();
                record.extend(new.into_iter().map(|run| (PeerId(who as u32), run)));
            }
            order[which].push(who);
            at[who] += 1;
        }
        order
    }

    proptest! {
        #[test]
        fn what_is_recorded_is_repeated(
            programs in prop::collection::vec(prop::collection::vec(0usize..2, 0..20), 3),
            seed: u64, kept in 0usize..60,
        ) {
            let mut state = seed;
            let mut schedule = |end: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                (state >> 33) as usize % end
            };
            let mut record = Vec::new();
            let mut tickets = vec![Tickets::default(); 3];
            let before = run(&programs, &mut schedule, &mut tickets, &mut record);
            record.truncate(kept);
            let frontiers = frontiers(&record);
            for (who, tickets) in (0u32..).zip(&mut tickets) {
                let own = record.iter().filter(|(of, _)| of.0 == who).map(|&(_, run)| run);
                tickets.begin_replay(own, &frontiers);
            }
            let known = [WORD, (ContextId(9), CommRank(0))].map(|word| {
                frontiers.get(&word).copied().unwrap_or(0) as usize
            });
            let mut again = record.clone();
            let after = run(&programs, &mut schedule, &mut tickets, &mut again);
            for which in 0..2 {
                let known = known[which];
                prop_assert_eq!(&after[which][..known], &before[which][..known]);
            }
            prop_assert!(tickets.iter().all(Tickets::is_record_taken));
            prop_assert_eq!(again.iter().map(|(_, run)| run.count).sum::<u64>() as usize,
                programs.iter().map(Vec::len).sum::<usize>());
        }
    }

    #[test]
    fn rows_of_tickets_are_one_run() {
        let mut tickets = Tickets::default();
        for ticket in [4, 5, 6, 9] {
            assert!(tickets.may_take(WORD, ticket) && tickets.take(WORD, ticket));
        }
        let run = |first, count| Taken { word: WORD, first, count };
        assert_eq!(tickets.take_recorded(), [run(4, 3), run(9, 1)]);
        tickets.begin_replay([run(4, 2)], &BTreeMap::from([(WORD, 9)]));
        assert!(!tickets.may_take(WORD, 3) && tickets.may_take(WORD, 4));
        assert!(!tickets.take(WORD, 4) && !tickets.take(WORD, 5));
        assert!(tickets.is_record_taken() && !tickets.may_take(WORD, 8), "others have to");
        assert!(tickets.may_take(WORD, 9) && tickets.take(WORD, 9));
        assert!(tickets.may_take(WORD, 20), "from here on it is live");
    }
}
