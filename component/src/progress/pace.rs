//! When the progress thread looks after a program, and when it goes to sleep for good: a machine
//! without a clock.
//!
//! The program is left alone while it comes back to MPI by itself (its calls are counted). Each
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
    /// How often it was in MPI.
    pub calls: usize,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Pace {
    /// Calls of the program when it was looked after last.
    seen: Option<usize>,
    /// How often the pause was doubled.
    doubled: u32,
    /// How often sends were detached then.
    detaches: usize,
    /// Pauses in which none was.
    quiet: u32,
}

impl Pace {
    /// The thread is awake. `idle`: a processor is.
    pub fn next(&mut self, idle: bool, program: Program) -> Step {
        let Program { detached, detaches, calls } = program;
        let ([first, most], lingers) =
            if idle { (PAUSE, LINGERS) } else { (PAUSE_FULL, LINGERS_FULL) };
        let others = core::mem::replace(&mut self.detaches, detaches) != detaches;
        if !detached {
            self.quiet = if others { 0 } else { self.quiet + 1 };
            if self.quiet < lingers {
                return Step::Pause(most);
            }
            (self.seen, self.quiet) = (None, 0);
            return Step::Sleep;
        }
        self.quiet = 0;
        if self.seen.replace(calls) == Some(calls) {
            self.doubled = 0;
            return Step::Poll;
        }
        let pause = (first * (1 << self.doubled)).min(most);
        self.doubled += u32::from(pause < most);
        Step::Pause(pause)
    }

    /// It has polled, and the program's calls are so many now.
    pub fn polled(&mut self, calls: usize) {
        self.seen = Some(calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Program = Program { detached: false, detaches: 1, calls: 9 };

    fn pause(step: Step) -> Duration {
        if let Step::Pause(pause) = step { pause } else { panic!("{step:?}") }
    }

    fn detached(calls: usize) -> Program {
        Program { detached: true, detaches: 1, calls }
    }

    #[test]
    fn a_program_that_comes_back_is_looked_after_more_seldom() {
        let (mut pace, mut calls) = (Pace::default(), 0);
        let mut next = || {
            calls += 1;
            pause(pace.next(false, detached(calls))).as_millis()
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
                (0..before).for_each(|calls| {
                    pause(pace.next(idle, detached(calls)));
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
        for calls in 0..1000 {
            assert_ne!(pace.next(calls % 3 == 0, detached(calls / 2)), Step::Sleep, "T1");
        }
        for _ in 1..LINGERS {
            assert_eq!(pause(pace.next(true, QUIET)), PAUSE[1]);
        }
        assert_eq!(pace.next(true, QUIET), Step::Sleep);
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
