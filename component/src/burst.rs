//! Is the program in the middle of a burst of nonblocking sends? Then small messages to other nodes
//! may be gathered: the next call of MPI, which pushes them out, is not far.
//!
//! A program that computes after its last send must not find that message still here when it comes
//! back: so nothing is gathered until many sends in a row were followed by another call at once,
//! and a program that has proved this wrong has to show four times as many the next time.

/// Ticks of the processor between a send and the next call that are still "at once": some 15 µs.
const SOON_TICKS: u64 = 40_000;
/// Sends in a row that were followed by another call at once before anything is gathered.
const NEEDED: u32 = 128;
const NEEDED_MAX: u32 = 1 << 20;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// When the last nonblocking send returned; 0: another call has come since.
    sent: u64,
    soon: u32,
    needed: u32,
}

impl Default for Burst {
    fn default() -> Self {
        Self { sent: 0, soon: 0, needed: NEEDED }
    }
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

    /// Another call has come.
    pub fn call(&mut self, now: u64) {
        if self.sent == 0 {
            return;
        }
        if now.wrapping_sub(self.sent) < SOON_TICKS {
            self.soon = self.soon.saturating_add(1);
        } else {
            if self.goes_on() {
                self.needed = (4 * self.needed).min(NEEDED_MAX);
            }
            self.soon = 0;
        }
        self.sent = 0;
    }

    /// Another call is to be expected at once.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.soon >= self.needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends until it gathers; how many.
    fn until_it_gathers(burst: &mut Burst, now: &mut u64) -> u32 {
        for sends in 0.. {
            if burst.goes_on() {
                return sends;
            }
            burst.sent(*now);
            *now += 1_000;
            burst.call(*now);
        }
        unreachable!()
    }

    #[test]
    fn a_program_that_computes_between_sends_is_never_gathered() {
        let (mut burst, mut now) = (Burst::default(), 1);
        for k in 0..100_000u64 {
            assert!(!burst.goes_on());
            burst.sent(now);
            // Six sends, then work: a halo exchange.
            now += if k % 6 == 5 { 10_000_000 } else { 500 };
            burst.call(now);
        }
    }

    #[test]
    fn who_has_proved_it_wrong_must_show_four_times_as_much() {
        let (mut burst, mut now) = (Burst::default(), 1);
        assert_eq!(until_it_gathers(&mut burst, &mut now), NEEDED);
        burst.sent(now);
        now += SOON_TICKS;
        burst.call(now);
        assert!(!burst.goes_on());
        assert_eq!(until_it_gathers(&mut burst, &mut now), 4 * NEEDED);
    }
}
