//! When the progress thread looks after a program, and when it goes to sleep for good: a machine
//! without a clock.
//!
//! The program is left alone while it looks for messages by itself (its polls are counted). Each
//! wake-up of this thread takes a processor from a rank where all are in use; there it comes
//! seldom, and the more seldom the longer the program keeps coming back. A program that leaves MPI
//! right after it was seen there is noticed after two pauses: 10 ms at most (docs/adr/0015).

use std::time::Duration;

/// Between two looks at a program that is in MPI, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(400)];
/// The same where no processor is idle.
const PAUSE_FULL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];
/// So many pauses in which no send was detached, and the thread goes to sleep: to wake it costs the
/// program a system call, which is not for each of many messages.
const LINGERS: u32 = 20;
/// The same where no processor is idle.
const LINGERS_FULL: u32 = 1;

/// How long a blocking send waits for its receiver's request before it is detached, where no
/// processor is idle: at first, at least and at most.
const PATIENCE_NS: [u64; 3] = [2_000_000, 500_000, 16_000_000];

/// What the thread does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing, for so long.
    Pause(Duration),
    /// Sleep until a send is detached.
    Sleep,
    /// Poll in the program's place.
    Poll,
}

/// What the program has done so far.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// A send is detached now.
    pub detached: bool,
    /// How often sends were.
    pub detaches: usize,
    /// How often it has polled.
    pub polls: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Pace {
    /// Polls of the program when it was looked after last.
    seen: Option<usize>,
    /// How often the pause was doubled.
    doubled: u32,
    /// How often sends were detached then.
    detaches: usize,
    /// Pauses in which none was.
    quiet: u32,
    /// One was when it looked last, and it has left it to the program.
    waited: bool,
    patience_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        let patience_ns = PATIENCE_NS[0];
        Self { seen: None, doubled: 0, detaches: 0, quiet: 0, waited: false, patience_ns }
    }
}

impl Pace {
    /// How long a blocking send should wait before it is detached. A program that was back in MPI
    /// before its receiver asked has won nothing by that, and the thread was awake for nothing.
    pub fn patience_ns(&self) -> u64 {
        self.patience_ns
    }

    /// The thread is awake. `idle`: a processor is.
    pub fn next(&mut self, idle: bool, program: Program) -> Step {
        let Program { detached, detaches, polls } = program;
        let ([first, most], lingers) =
            if idle { (PAUSE, LINGERS) } else { (PAUSE_FULL, LINGERS_FULL) };
        let others = core::mem::replace(&mut self.detaches, detaches) != detaches;
        if !detached {
            // One is gone, without this thread.
            if core::mem::take(&mut self.waited) | others {
                self.patience_ns = (2 * self.patience_ns).min(PATIENCE_NS[2]);
            }
            self.quiet = if others { 0 } else { self.quiet + 1 };
            if self.quiet < lingers {
                return Step::Pause(most);
            }
            (self.seen, self.quiet) = (None, 0);
            return Step::Sleep;
        }
        self.quiet = 0;
        if self.seen.replace(polls) == Some(polls) {
            (self.doubled, self.waited, self.patience_ns) = (0, false, PATIENCE_NS[1]);
            return Step::Poll;
        }
        let pause = (first * (1 << self.doubled)).min(most);
        self.doubled += u32::from(pause < most);
        self.waited = true;
        Step::Pause(pause)
    }

    /// It has polled, and the program's polls are so many now.
    pub fn polled(&mut self, polls: usize) {
        self.seen = Some(polls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Program = Program { detached: false, detaches: 1, polls: 9 };

    fn pause(step: Step) -> Duration {
        if let Step::Pause(pause) = step { pause } else { panic!("{step:?}") }
    }

    fn detached(polls: usize) -> Program {
        Program { detached: true, detaches: 1, polls }
    }

    #[test]
    fn a_program_that_comes_back_is_looked_after_more_seldom() {
        let (mut pace, mut polls) = (Pace::default(), 0);
        let mut next = || {
            polls += 1;
            pause(pace.next(false, detached(polls))).as_millis()
        };
        assert_eq!([next(), next(), next(), next(), next()], [1, 2, 4, 5, 5]);
        // It sleeps in between, and knows the program when it wakes up.
        assert_eq!(pace.next(false, QUIET), Step::Sleep);
        assert_eq!(pause(pace.next(false, detached(9))).as_millis(), 5);
        assert_eq!(pace.next(false, detached(9)), Step::Poll, "it computes");
        pace.polled(10);
        assert_eq!(pace.next(false, detached(10)), Step::Poll);
        assert_eq!(pause(pace.next(false, detached(11))).as_millis(), 1, "it was away for long");
    }

    #[test]
    fn a_program_that_leaves_is_noticed_within_ten_milliseconds() {
        for idle in [false, true] {
            for before in 0..20 {
                let mut pace = Pace::default();
                (0..before).for_each(|polls| {
                    pause(pace.next(idle, detached(polls)));
                });
                // Its last call is right after the thread has looked.
                let mut waited = pause(pace.next(idle, detached(100)));
                waited += pause(pace.next(idle, detached(101)));
                assert_eq!(pace.next(idle, detached(101)), Step::Poll);
                assert!(waited <= Duration::from_millis(10), "{waited:?}");
            }
        }
    }

    #[test]
    fn it_sleeps_for_good_only_while_no_send_is_detached() {
        let mut pace = Pace::default();
        for polls in 0..1000 {
            assert_ne!(pace.next(polls % 3 == 0, detached(polls / 2)), Step::Sleep, "T1");
        }
        for _ in 1..LINGERS {
            assert_eq!(pause(pace.next(true, QUIET)), PAUSE[1]);
        }
        assert_eq!(pace.next(true, QUIET), Step::Sleep);
    }

    #[test]
    fn blocking_sends_are_detached_soon_where_the_program_computes_then() {
        let mut pace = Pace::default();
        let mut after = |program| {
            pace.next(false, program);
            pace.patience_ns()
        };
        for detaches in 1..6 {
            after(Program { detached: true, detaches, polls: detaches });
            after(Program { detaches, ..QUIET });
        }
        assert_eq!(after(Program { detaches: 5, ..QUIET }), PATIENCE_NS[2], "always back in MPI");
        after(detached(50));
        assert_eq!(after(detached(50)), PATIENCE_NS[1], "it computes");
    }

    #[test]
    fn it_stays_awake_for_a_program_that_detaches_many() {
        let mut pace = Pace::default();
        for detaches in 1..100 {
            let between = Program { detaches, ..QUIET };
            assert_eq!(pause(pace.next(false, between)), PAUSE_FULL[1]);
        }
        assert_eq!(pace.next(false, Program { detaches: 99, ..QUIET }), Step::Sleep);
    }
}
