//! Is the program in the middle of a burst of nonblocking sends? Then small messages to other nodes
//! may be gathered: the next call of MPI, which pushes them out, is not far.
//!
//! A program that computes after its last send must not find that message still here when it comes
//! back. So nothing is gathered before many sends in a row were followed by another call at once,
//! nothing is held for long while the burst goes on, and a program that came back late pays: it has
//! to send one message for each 4 µs that others were held. Over the run of a program, all that
//! gathering ever delays is less than 4 µs a send, and one computation.

/// Ticks of the processor between a send and the next call that are still "at once": some 15 µs.
const SOON_TICKS: u64 = 40_000;
/// No message is held longer than this while further sends follow: some 40 µs.
const HELD_TICKS: u64 = 100_000;
/// Sends in a row that were followed by another call at once before anything is gathered.
const NEEDED: u32 = 128;
/// Ticks of delay that a send pays for: some 4 µs, half of what a send that is pushed out takes.
const PAID_TICKS: u64 = 10_000;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    /// When the last nonblocking send returned; 0: another call has come since.
    sent: u64,
    /// When the first message was held that has not been pushed out.
    held: u64,
    /// Sends in a row that were followed by another call at once.
    row: u32,
    /// Sends to come before anything is gathered again.
    debt: u64,
}

impl Burst {
    /// A nonblocking send is about to return.
    #[inline]
    pub fn sent(&mut self, now: u64) {
        self.sent = now;
    }

    /// Was there a nonblocking send after which no other call has come?
    #[inline]
    pub fn is_open(&self) -> bool {
        self.sent != 0
    }

    /// Another call has begun. `holds`: a message was held until now.
    pub fn call(&mut self, now: u64, holds: bool) {
        if self.sent == 0 {
            return;
        }
        let pause = now.wrapping_sub(self.sent);
        if pause < SOON_TICKS {
            self.row = self.row.saturating_add(1);
            self.debt = self.debt.saturating_sub(1);
        } else {
            if holds {
                self.debt = self.debt.saturating_add(pause / PAID_TICKS);
            }
            self.row = 0;
        }
        self.sent = 0;
    }

    /// May a message be held now, until another call, which is to be expected at once? `first`:
    /// no other one is held.
    #[inline]
    pub fn may_hold(&mut self, now: u64, first: bool) -> bool {
        if self.row < NEEDED || self.debt > 0 {
            return false;
        }
        if first {
            self.held = now;
        }
        now.wrapping_sub(self.held) < HELD_TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends until it gathers; how many.
    fn until_it_gathers(burst: &mut Burst, now: &mut u64) -> u64 {
        for sends in 0.. {
            if burst.may_hold(*now, true) {
                return sends;
            }
            burst.sent(*now);
            *now += 1_000;
            burst.call(*now, false);
        }
        unreachable!()
    }

    #[test]
    fn a_program_that_computes_between_sends_is_never_gathered() {
        let (mut burst, mut now) = (Burst::default(), 1);
        for k in 0..100_000u64 {
            assert!(!burst.may_hold(now, true));
            burst.sent(now);
            // Six sends, then work: a halo exchange.
            now += if k % 6 == 5 { 10_000_000 } else { 500 };
            burst.call(now, false);
        }
    }

    #[test]
    fn who_was_late_pays_a_send_for_each_4_microseconds() {
        let (mut burst, mut now) = (Burst::default(), 1);
        assert_eq!(until_it_gathers(&mut burst, &mut now), u64::from(NEEDED));
        burst.sent(now);
        now += 1_000_000 * PAID_TICKS;
        burst.call(now, true);
        assert!(!burst.may_hold(now, true));
        assert_eq!(until_it_gathers(&mut burst, &mut now), 1_000_000);
    }

    #[test]
    fn nothing_is_held_for_long_while_sends_follow() {
        let (mut burst, mut now) = (Burst::default(), 1);
        until_it_gathers(&mut burst, &mut now);
        let start = now;
        assert!(burst.may_hold(now, true));
        while burst.may_hold(now, false) {
            burst.sent(now);
            now += SOON_TICKS - 1;
            burst.call(now, true);
        }
        assert!(now - start < HELD_TICKS + SOON_TICKS);
    }
}
