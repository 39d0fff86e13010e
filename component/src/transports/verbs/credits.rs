//! How many messages may be under way on a channel: flow control by credits.
//!
//! Each end grants the other a number of messages. Every message carries what its receiver has
//! consumed since the last one; if nothing is sent, an empty message carries it.
//!
//! Invariants:
//! * V1 Of a grant, at most so many messages are sent and not yet consumed at the other end.
//! * V2 The last credit is kept for an empty message. With that, and because credits are returned
//!   when more than half of a grant is owed, two ends that both wait have both been given what the
//!   other owes: whoever owes more than half again has consumed a message that brought a credit.

/// With less than this, more than half of a grant could never be owed: one message may be under
/// way, and it takes two to have credits returned.
pub const GRANT_MIN: u32 = 3;
/// As they are told to the peer.
pub const GRANT_MAX: u32 = u16::MAX as u32;

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credits {
    available: u32,
    owed: u32,
    /// Owed from here on, credits are returned without waiting for a message.
    return_from: u32,
}

impl Credits {
    /// The peer grants `granted` messages, and was granted `grants`.
    pub fn new(granted: u32, grants: u32) -> Self {
        Self { available: granted, owed: 0, return_from: grants / 2 + 1 }
    }

    /// V2: may a message with payload be sent?
    #[inline]
    pub fn may_send(&self) -> bool {
        self.available > 1
    }

    /// Is an empty message due, and possible?
    #[inline]
    pub fn must_return(&self) -> bool {
        self.owed >= self.return_from && self.available > 0
    }

    /// A message is sent: the credits that it carries.
    #[inline]
    pub fn take(&mut self) -> u32 {
        self.available = self.available.saturating_sub(1);
        core::mem::take(&mut self.owed)
    }

    /// The message was not sent after all.
    pub fn put_back(&mut self, carried: u32) {
        self.available += 1;
        self.owed = carried;
    }

    /// A message of the peer has brought so many.
    #[inline]
    pub fn add(&mut self, credits: u32) {
        self.available += credits;
    }

    /// A message of the peer is consumed, and its buffer is posted again.
    #[inline]
    pub fn consumed(&mut self) {
        self.owed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Two ends; every message is a number of credits, and whether it has a payload.
    struct Pair {
        ends: [Credits; 2],
        lines: [VecDeque<(u32, bool)>; 2],
        grant: u32,
    }

    impl Pair {
        fn new(grant: u32) -> Self {
            let end = Credits::new(grant, grant);
            Self { ends: [end; 2], lines: Default::default(), grant }
        }

        fn put(&mut self, from: usize, has_payload: bool) {
            let carried = self.ends[from].take();
            self.lines[from].push_back((carried, has_payload));
            assert!(self.lines[from].len() as u32 <= self.grant, "V1");
        }

        /// One end does one thing. `may_send`: the rule that decides whether it sends.
        fn step(&mut self, at: usize, wants: bool, may_send: fn(&Credits) -> bool) -> bool {
            if let Some((credits, _)) = self.lines[1 - at].pop_front() {
                self.ends[at].add(credits);
                self.ends[at].consumed();
                if self.ends[at].must_return() {
                    self.put(at, false);
                }
                return true;
            }
            let sends = wants && may_send(&self.ends[at]);
            if sends {
                self.put(at, true);
            }
            sends
        }

        /// Both send as much as they may before either reads, for many rounds. Messages sent.
        fn flood(&mut self, may_send: fn(&Credits) -> bool) -> u64 {
            let mut sent = 0;
            for _ in 0..1000 {
                for at in 0..2 {
                    while may_send(&self.ends[at]) {
                        self.put(at, true);
                        sent += 1;
                    }
                }
                for at in 0..2 {
                    while self.step(at, false, may_send) {}
                }
            }
            sent
        }
    }

    #[test]
    fn two_ends_that_flood_each_other_never_stop() {
        for grant in GRANT_MIN..40 {
            let sent = Pair::new(grant).flood(Credits::may_send);
            assert!(sent >= 2000, "grant {grant}: {sent}");
        }
    }

    #[test]
    fn a_smaller_grant_stops_them() {
        assert_eq!(Pair::new(GRANT_MIN - 1).flood(Credits::may_send), 2);
    }

    #[test]
    fn without_the_kept_credit_they_stop() {
        let stopped = |grant| Pair::new(grant).flood(|credits| credits.available > 0) < 2000;
        assert!((GRANT_MIN..40).all(stopped));
    }

    #[test]
    fn one_way_traffic_never_stops() {
        for grant in GRANT_MIN..40 {
            let mut pair = Pair::new(grant);
            for _ in 0..10_000 {
                let sent = pair.step(0, true, Credits::may_send);
                let read = pair.step(1, false, Credits::may_send);
                assert!(sent || read, "grant {grant}");
            }
        }
    }
}
