//! Looking at everything that is not read directly: by epoll, and by the clock.

use crate::os::now_ns;
use crate::transports::tcp::Tcp;
use crate::transports::tcp::watched::Watched;

impl Tcp {
    /// Everything else: new connections, half-open ones, those that are seldom active, timers.
    #[cold]
    #[inline(never)]
    pub(super) fn look_around(&mut self) {
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
            match Watched::of(ready.token) {
                Some(Watched::Listener(at)) => self.accept(at),
                Some(Watched::Stranger(at)) => self.drive_stranger(at),
                Some(Watched::Dial(slot)) => self.drive_dial(slot),
                Some(Watched::Connection(at)) if self.fill(at) => self.prefer(at),
                Some(Watched::Connection(_)) | None => {}
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
        for place in 0..self.strangers.len() {
            let Some(stranger) = &self.strangers[place] else { continue };
            if self.clock_ms - stranger.since_ms <= limit {
                continue;
            }
            if stranger.is_plausible() {
                self.strangers[place] = None;
            } else {
                self.refuse(place, "it did not finish the handshake in time");
            }
        }
        while self.strangers.last().is_some_and(Option::is_none) {
            self.strangers.pop();
        }
        if self.dialing > 0 {
            for slot in 0..self.peers.len() {
                self.drive_dial(slot);
            }
        }
    }
}
