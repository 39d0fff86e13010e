//! Looking at everything that is not read directly: by epoll, and by the clock.

use crate::os::now_ns;
use crate::transports::tcp::Tcp;
use crate::transports::tcp::epoll_token::EpollToken;

impl Tcp {
    /// Everything else: new connections, half-open ones, those that are seldom active, timers.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_slow(&mut self) {
        self.idle = 0;
        // A clock of our own: while nobody calls us, no time passes, since the peers' answers
        // wait in the kernel meanwhile.
        let now = now_ns();
        self.clock_ms += ((now - self.looked_ns) / 1_000_000).min(100);
        if now - self.looked_ns >= 1_000_000 {
            self.looked_ns = now;
        }
        let mut happened = std::mem::take(&mut self.happened);
        self.epoll.ready(&mut happened);
        for ready in &happened {
            match EpollToken::of(ready.token) {
                Some(EpollToken::Listener(at)) => self.accept(at),
                Some(EpollToken::PendingConnection(at)) => self.drive_pending(at),
                Some(EpollToken::Dial(slot)) => self.drive_dial(slot),
                Some(EpollToken::Connection(at)) if self.fill(at) => self.prefer(at),
                Some(EpollToken::Connection(_)) | None => {}
            }
        }
        self.happened = happened;
        if self.timers_ms != self.clock_ms {
            self.timers_ms = self.clock_ms;
            self.timers();
        }
    }

    /// The connection that was active last is read directly.
    fn prefer(&mut self, at: u32) {
        if let Some(place) = self.live.iter().position(|&other| other == at) {
            self.live.swap(0, place);
        }
    }

    fn timers(&mut self) {
        let limit = u64::from(self.config.handshake_ms_max);
        for place in 0..self.pending.len() {
            let Some(pending) = &self.pending[place] else { continue };
            if self.clock_ms - pending.since_ms <= limit {
                continue;
            }
            if pending.is_plausible() {
                self.pending[place] = None;
            } else {
                self.refuse(place, "it did not finish the handshake in time");
            }
        }
        while self.pending.last().is_some_and(Option::is_none) {
            self.pending.pop();
        }
        if self.dialing > 0 {
            for slot in 0..self.peers.len() {
                self.drive_dial(slot);
            }
        }
    }
}
