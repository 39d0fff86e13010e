//! The dates of one process: what its first thread gets from time(), in whole seconds.
//!
//! Source: docs/adr/0014. A call of time() tells the program nothing about other processes, so it
//! takes no part in the order of nondeterministic calls: these calls have an index of their own,
//! and a program that makes more or fewer of them than before gets some date, and does not diverge.
//!
//! Most calls give what the one before gave, and are not recorded. But replay has to know for how
//! long that was so. So a [`TimeReading`] is recorded ahead, for a number of calls: one at first,
//! then for as many as have had it, as long as the second lasts. The number of records is the
//! logarithm of the calls in a second, and replay gives an old date to at most as many calls as
//! have had it before.
//!
//! Invariants:
//! * T1 Dates that are given never decrease.
//! * T2 Every call that is given something is covered by a date that was recorded before: with all
//!   dates kept, each gives again what it gave.
//! * T3 Calls beyond what is kept are given the machine's date: nothing is waited for.

use std::collections::VecDeque;

/// A date that was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeReading {
    /// Index of the first call that it is for.
    pub call: u64,
    /// For so many calls, unless a later one begins among them.
    pub calls: u64,
    /// Since 1970.
    pub seconds: u64,
}

impl TimeReading {
    fn end(&self) -> u64 {
        self.call.saturating_add(self.calls)
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct ProgramTime {
    /// Index of the next call.
    next: u64,
    /// What was given last.
    given: u64,
    /// Index of the first call that was given it.
    since: u64,
    /// What was recorded last covers calls up to this one.
    covered: u64,
    /// Calls before this one are given what is known of them.
    known: u64,
    /// What was recorded in an earlier incarnation for calls to come, in their order.
    past: VecDeque<TimeReading>,
}

impl ProgramTime {
    /// The program asks, and the machine says `now`: what is it given, and what has to be recorded
    /// before it is?
    pub fn read(&mut self, now: u64) -> (u64, Option<TimeReading>) {
        let call = self.next;
        self.next += 1;
        while let Some(&date) = self.past.front().filter(|date| date.call <= call) {
            self.past.pop_front();
            self.note(date);
        }
        if call < self.known || (call < self.covered && now <= self.given) {
            return (self.given, None);
        }
        let seconds = now.max(self.given);
        let had = if seconds == self.given { call - self.since } else { 0 };
        let date = TimeReading { call, calls: had + 1, seconds };
        self.note(date);
        (self.given, Some(date))
    }

    fn note(&mut self, date: TimeReading) {
        if date.seconds > self.given {
            self.given = date.seconds;
            self.since = date.call;
        }
        // Where another second began, what covers the former one covers nothing more.
        self.covered = date.end();
    }

    /// A snapshot is taken when the machine's date is `now`: a process restored from it goes on
    /// from here.
    pub fn before_snapshot(&mut self, now: u64) {
        if self.next < self.known {
            return;
        }
        if now > self.given {
            self.given = now;
            self.since = self.next;
        }
        // Of an incarnation that begins here nothing is known but what is recorded from now on.
        self.covered = self.next;
    }

    /// The process was restored: these were kept, in the order of their calls.
    pub fn restored(&mut self, kept: impl IntoIterator<Item = TimeReading>) {
        self.past.extend(kept);
        self.known = self.past.back().map_or(self.known.max(self.covered), TimeReading::end);
    }

    /// The machine's date from now on: for a job that is to end.
    pub fn give_up(&mut self) {
        self.past.clear();
        self.known = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls the machine's date of each says, and what is recorded.
    fn live(dates: &mut ProgramTime, clock: &[u64]) -> (Vec<u64>, Vec<TimeReading>) {
        let all = clock.iter().map(|&now| dates.read(now));
        let (given, recorded): (Vec<u64>, Vec<Option<TimeReading>>) = all.unzip();
        (given, recorded.into_iter().flatten().collect())
    }

    fn replayed(
        snapshot: &ProgramTime,
        kept: &[TimeReading],
        clock: &[u64],
    ) -> (Vec<u64>, Vec<TimeReading>) {
        let mut dates = snapshot.clone();
        dates.restored(kept.iter().copied());
        live(&mut dates, clock)
    }

    #[test]
    fn the_calls_of_a_second_need_the_logarithm_of_their_number() {
        let mut dates = ProgramTime::default();
        let clock: Vec<u64> = (0..3_000_000).map(|call| 100 + call / 1_000_000).collect();
        let (given, recorded) = live(&mut dates, &clock);
        assert_eq!(given, clock);
        assert!((60..=63).contains(&recorded.len()), "{}", recorded.len());
        let first = |call, calls| TimeReading { call, calls, seconds: 100 };
        assert_eq!(recorded[..4], [first(0, 1), first(1, 2), first(3, 4), first(7, 8)]);
        assert_eq!(recorded.iter().filter(|date| date.calls == 1).count(), 3);
    }

    #[test]
    fn t2_every_call_gives_what_it_gave_before_wherever_the_past_ends() {
        let snapshot = ProgramTime::default();
        let clock: Vec<u64> = (0u64..200).map(|call| 50 + call * call / 900).collect();
        let (given, recorded) = live(&mut snapshot.clone(), &clock);
        assert_eq!(given, clock);
        for kept in 0..=recorded.len() {
            let (kept, lost) = recorded.split_at(kept);
            // The first call of which nothing is known.
            let seen = lost.first().map_or(clock.len(), |date| date.call as usize);
            let (second, more) = replayed(&snapshot, kept, &[900; 300]);
            assert_eq!(second[..seen], clock[..seen], "with {} dates", kept.len());
            // T3: no more calls have an old date than had it in the second that was the last.
            let last = second[..seen]
                .last()
                .map_or(0, |last| clock[..seen].iter().filter(|date| *date == last).count());
            assert!(second[seen + last..].iter().all(|&date| date == 900));
            assert!(second.is_sorted() && more[0].seconds == 900 && more[0].calls == 1);
            // The third incarnation has what both have recorded.
            let (third, _) = replayed(&snapshot, &[kept, &more].concat(), &[7777; 300]);
            assert_eq!(third, second);
        }
    }

    #[test]
    fn t1_dates_do_not_decrease_when_the_clock_does() {
        let mut dates = ProgramTime::default();
        assert_eq!(live(&mut dates, &[70, 60, 69, 71, 10]).0, [70, 70, 70, 71, 71]);
        let snapshot = dates.clone();
        assert_eq!(replayed(&snapshot, &[], &[3, 3, 72]).0, [71, 71, 72]);
        // Times that were read before anything was recorded count.
        let mut dates = ProgramTime::default();
        dates.before_snapshot(500);
        assert_eq!(replayed(&dates, &[], &[400, 501]).0, [500, 501]);
    }

    #[test]
    fn a_snapshot_leaves_no_calls_over() {
        let mut dates = ProgramTime::default();
        live(&mut dates, &[5; 100]);
        dates.before_snapshot(5);
        let (given, recorded) = replayed(&dates, &[], &[6, 6]);
        assert_eq!((given, recorded.len()), (vec![6, 6], 2));
        // A process that did not call again notes that its next call gave the same.
        let (given, recorded) = live(&mut dates, &[5, 5, 5]);
        assert_eq!((given, recorded.len()), (vec![5; 3], 1));
        assert_eq!(recorded[0].call, 100);
    }

    #[test]
    fn a_snapshot_in_the_middle_of_replay_goes_on_there() {
        let clock = [1, 1, 2, 3, 3, 3, 4];
        let (given, recorded) = live(&mut ProgramTime::default(), &clock);
        let mut snapshot = ProgramTime::default();
        snapshot.restored(recorded);
        live(&mut snapshot, &[9; 3]);
        snapshot.before_snapshot(9);
        assert_eq!(replayed(&snapshot, &[], &[9; 5]).0, [&given[3..], &[9]].concat());
    }

    #[test]
    fn more_or_fewer_calls_get_dates_that_do_not_decrease() {
        let (_, recorded) = live(&mut ProgramTime::default(), &[1, 2, 3, 4]);
        // It asks no more: nothing is left to wait for, as nobody asks for it.
        let (fewer, _) = replayed(&ProgramTime::default(), &recorded, &[9]);
        assert_eq!(fewer, [1]);
        let (more, _) = replayed(&ProgramTime::default(), &recorded, &[9; 6]);
        assert_eq!(more, [1, 2, 3, 4, 9, 9]);
        let mut ends = ProgramTime::default();
        ends.restored(recorded);
        ends.give_up();
        assert_eq!(live(&mut ends, &[9]).0, [9]);
    }

    #[test]
    fn numbers_from_nowhere_do_no_harm() {
        let most = TimeReading { call: u64::MAX, calls: u64::MAX, seconds: u64::MAX };
        assert_eq!(replayed(&ProgramTime::default(), &[most], &[5]).0, [0]);
        let first = TimeReading { call: 0, calls: u64::MAX, seconds: u64::MAX };
        assert_eq!(replayed(&ProgramTime::default(), &[first, most], &[5, 6]).0, [u64::MAX; 2]);
    }
}
