//! The state of this process, who may touch it, and its clockwork: poll for frames, hand them to
//! the engine, notify C what is complete.
//!
//! Rules: C is never called with the state borrowed, except for leaf functions (pack, unpack,
//! resolve, endpoint, help) that do not call back into us. Without MPI_THREAD_MULTIPLE there is no
//! lock.

use crate::engine::backoff::{Backoff, SLEEP_MIN_NS, Sleep};
use crate::engine::collectives::Collectives;
use crate::engine::counting::Counting;
use crate::engine::detached_sends::{self, PATIENCE_NS};
use crate::engine::driver_state::{BURST, Clock, Driver, SECOND};
use crate::engine::host::EngineHost;
use crate::engine::transport_set::NetworkKind;
use crate::engine::wait_policy::WaitPolicy;
use crate::ffi::operation::Op;
use crate::os::idle_processor;
use crate::os::{now_ns, thread_ns};
use crate::peers::transport_setup::NETWORK_UNUSED_INTERVAL;
use crate::transports::Incoming;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use rustbtl_fragments::engine::{Engine, FrameError};
use rustbtl_fragments::ids::{PeerId, ReceiveId, SendId};
use std::collections::{BTreeSet, VecDeque};

/// Frames taken from a transport in one call of Open MPI's progress.
const FRAMES_MAX: usize = 64;
/// Rounds between two polls of the clock.
const SLOW_ROUNDS: u32 = 1024;
/// Rounds between two looks at networks that reach nobody.
const UNUSED_WAIT: u32 = 63;
/// Turns between two polls of sockets where each turn gives the processor away.
const NETWORK_WAIT_OVERSUBSCRIBED: u32 = 3;
/// Light turns in a row ([`Driver::light_turns`]): where no process of another node was ever
/// reached, and where sockets are to be looked at between them.
const LIGHT_TURNS: u32 = 15;
const LIGHT_TURNS_NETWORK: u32 = NETWORK_WAIT_OVERSUBSCRIBED;

/// Outcome of [`Driver::place_directly`].
enum DirectPlacement {
    Nothing,
    Begun,
    Done,
}

impl Driver {
    /// A process with this engine and these surroundings.
    pub fn new(engine: Engine<EngineHost>, host: EngineHost, idle: WaitPolicy) -> Self {
        Self {
            engine,
            host,
            clock: Clock::default(),
            idle,
            neighbours: BTreeSet::new(),
            network_interval: 64,
            grace_ns: 5 * SECOND,
            finishing: false,
            protected: false,
            replaying: false,
            deferred: VecDeque::new(),
            unprotected_ns: 0,
            undetached: None,
            collectives: Collectives::default(),
            counting: Counting::default(),
            fruitless: 0,
            backoff: Backoff::default(),
            reported: false,
            unposted: 0,
            network_wait: 0,
            unused_wait: 0,
            network_hot: 0,
            rounds: 0,
            checked_ns: 0,
            lost: Vec::new(),
        }
    }

    /// One call into the engine, timed if wanted.
    #[inline(always)]
    pub fn timed<T>(
        &mut self,
        call: impl FnOnce(&mut Engine<EngineHost>, &mut EngineHost) -> T,
    ) -> T {
        let begin = self.clock.begin();
        let result = call(&mut self.engine, &mut self.host);
        self.clock.end(begin);
        result
    }

    /// Frames from shared memory, as many as there are, but not more than `most`.
    #[inline(never)]
    fn poll_node(&mut self, most: usize) -> usize {
        let mut taken = 0;
        while taken < most && self.take_one() {
            taken += 1;
        }
        taken
    }

    /// The next frame from shared memory, if there is one.
    #[inline(always)]
    fn take_one(&mut self) -> bool {
        match self.host.transports.peek_node_again() {
            Some(incoming) => self.accept_from_node(incoming),
            None => return self.take_any(),
        }
        true
    }

    /// The same, wherever it lies.
    #[inline(never)]
    fn take_any(&mut self) -> bool {
        let Some(incoming) = self.host.transports.peek_node() else {
            return false;
        };
        self.accept_from_node(incoming);
        true
    }

    #[inline(always)]
    fn accept_from_node(&mut self, incoming: Incoming) {
        self.accept(incoming);
        self.host.transports.consume_node(incoming);
    }

    /// Take everything that these peers (ascending) have put into shared memory so far.
    pub fn empty_rings(&mut self, peers: &[PeerId]) {
        while !self.host.transports.is_empty_from(peers) {
            self.take_any();
        }
    }

    /// Look for the frame that completes `op`, for a short time. Returns as soon as something
    /// is complete, that or another operation.
    #[inline]
    pub fn poll_until(&mut self, op: Op) {
        for _ in 0..BURST {
            if self.take_any() && (op.is_complete() || !self.host.done.is_empty()) {
                return;
            }
        }
        self.poll_slow(1);
    }

    /// The same in one poll. Has anything happened?
    #[inline]
    pub fn poll_once(&mut self, op: Op) -> bool {
        let mut happened = false;
        while self.take_any() {
            happened = true;
            if op.is_complete() || !self.host.done.is_empty() {
                return true;
            }
        }
        // Between two turns the processor belongs to others, for milliseconds if they want it.
        self.network_wait = self.network_wait.min(NETWORK_WAIT_OVERSUBSCRIBED);
        self.poll_slow(1) > 0 || happened
    }

    /// Nothing has happened in a poll of a waiting loop where processors are shared. So many turns
    /// may only ask whether the node has news: a whole poll takes a third of the time that
    /// the others need for theirs. Not while anything else may have to be done here.
    #[inline]
    pub fn light_turns(&self) -> u32 {
        use crate::determinants::set_order;
        let has_work = self.network_hot > 0
            || self.host.transports.holds()
            || !self.engine.is_flushed()
            || self.host.windows.neighbours.is_some()
            || self.host.pending_copies.has_uncopied()
            || set_order::is_held()
            || set_order::is_awaited();
        match self.network_interval >= NETWORK_UNUSED_INTERVAL {
            _ if has_work => 0,
            true => LIGHT_TURNS,
            false => LIGHT_TURNS_NETWORK,
        }
    }

    /// Everything but shared memory: sockets, frames that wait for room, and what is done seldom.
    #[inline(never)]
    pub(crate) fn poll_slow(&mut self, frames_max: usize) -> usize {
        let mut happened = 0;
        crate::determinants::recorder::look();
        if self.host.transports.has_network() {
            happened = self.poll_networks(frames_max);
        }
        if self.host.windows.has_news() {
            self.progress_windows();
        }
        if !self.engine.is_flushed() {
            self.timed(|engine, host| engine.flush(host));
            if self.engine.is_flushed() {
                crate::determinants::set_order::released();
            }
        }
        if happened == 0 {
            if let Some(op) = self.host.copy_some()
                && self.detach_send(op)
            {
                self.host.end(op);
            }
            if crate::determinants::set_order::is_held() {
                // What a frame waits for is acknowledged by processes that need a processor for it.
                crate::os::yield_now();
            }
        }
        detached_sends::polled(self);
        self.rounds += 1;
        if self.rounds >= SLOW_ROUNDS {
            self.rounds = 0;
            self.slow();
        }
        happened
    }

    /// Need the program not wait for a long send any more? It is in the log, its receiver has not
    /// asked for it, and somebody answers when that does. Where the receiver has asked, to push it
    /// out now is quicker than to leave it to the thread (docs/adr/0015).
    pub fn detach_send(&mut self, op: Op) -> bool {
        let may = self.host.sets_are_nodes
            && detached_sends::for_send(op.bytes())
            && self.host.is_logged(op);
        if may && op.on_stack() && !self.host.threads && !idle_processor::was_there() {
            // Its receiver most often asks for it within a moment.
            self.undetached = Some((SendId(op.id()), now_ns()));
            return false;
        }
        may && self.engine.detach_send(SendId(op.id())) && self.host.settle(op)
    }

    /// A blocking call waits for this operation. If it is a send that may be detached and has
    /// waited for its receiver's request for long enough, it is complete now.
    #[inline]
    pub fn detach_waiting_send(&mut self, op: Op) {
        if let Some((id, since_ns)) = self.undetached {
            self.detach_at(op, id, since_ns);
        }
    }

    #[cold]
    #[inline(never)]
    fn detach_at(&mut self, op: Op, id: SendId, since_ns: u64) {
        if op.is_complete() || op.id() != id.0 {
            self.undetached = None;
        } else if now_ns().saturating_sub(since_ns) >= PATIENCE_NS.load(Ordering::Relaxed) {
            self.undetached = None;
            // The engine knows no other operation by this number.
            if self.engine.detach_send(id) && self.host.settle(op) {
                self.host.end(op);
            }
            detached_sends::update(self);
        }
    }

    /// The engine's name for a receive that may be pending.
    pub fn receive_id(&mut self, op: Op) -> ReceiveId {
        self.engine.assign_receive_ids(&mut self.host);
        ReceiveId(op.id())
    }

    /// One call of Open MPI's progress: how many things happened.
    pub fn poll(&mut self) -> usize {
        let mut happened = self.poll_node(FRAMES_MAX);
        happened += self.poll_slow(FRAMES_MAX);
        if happened > 0 {
            self.fruitless = 0;
            self.backoff.reset();
        }
        happened
    }

    /// Nothing has happened in a poll of a waiting loop on an oversubscribed node: how long to
    /// sleep, and until which descriptors are readable. `None`: yield.
    #[inline]
    pub fn pause(&mut self) -> Option<Sleep> {
        use crate::determinants::set_order;
        let ns = self.backoff.pause(now_ns(), set_order::is_awaited(), thread_ns)?;
        // What frames wait for is in memory of the set, or at the coordinator's connection.
        let is_held = set_order::is_held();
        let ns = if is_held { SLEEP_MIN_NS } else { ns };
        Some(Sleep { descriptors: self.host.transports.wait_descriptors(), ns })
    }

    /// Have frames come from sockets of late?
    #[inline]
    pub fn network_is_busy(&self) -> bool {
        self.network_hot > 0
    }

    #[inline(always)]
    fn accept(&mut self, incoming: Incoming) {
        // SAFETY: the transport keeps the frame where it is until it is consumed.
        let frame = unsafe { core::slice::from_raw_parts(incoming.start, incoming.len) };
        if self.clock.on {
            self.accept_timed(incoming.from, frame);
        } else if !self.engine.complete_fast_path(&mut self.host, incoming.from, frame) {
            self.accept_any(incoming.from, frame);
        }
    }

    #[inline(never)]
    fn accept_timed(&mut self, from: PeerId, frame: &[u8]) {
        if !self.timed(|engine, host| engine.complete_fast_path(host, from, frame)) {
            self.accept_any(from, frame);
        }
    }

    #[inline(never)]
    fn accept_any(&mut self, from: PeerId, frame: &[u8]) {
        let result = self.timed(|engine, host| engine.on_frame(host, from, frame));
        if let Err(error) = result {
            self.refuse(from, error);
        }
    }

    #[cold]
    pub(crate) fn refuse(&mut self, from: PeerId, error: FrameError) {
        let who = self.host.describe(from);
        self.host.glue.fatal("protocol", &[&who, &format!("{error:?}")]);
    }

    /// Sockets cost system calls: not every time, while nothing comes from them.
    #[inline]
    fn poll_networks(&mut self, frames_max: usize) -> usize {
        if self.host.transports.holds() || !self.host.pulls.is_empty() {
            self.network_hot = self.network_interval;
            self.network_wait = 0;
        }
        if self.network_wait > 0 {
            self.network_wait -= 1;
            return 0;
        }
        self.poll_networks_now(frames_max)
    }

    #[inline(never)]
    fn poll_networks_now(&mut self, frames_max: usize) -> usize {
        let mut happened = 0;
        self.unused_wait = self.unused_wait.checked_sub(1).unwrap_or(UNUSED_WAIT);
        let looks_at_all = self.unused_wait == 0;
        for network in NetworkKind::ALL {
            if looks_at_all || !self.host.transports.is_unused(network) {
                happened += self.poll_network(network, frames_max - happened.min(frames_max));
            }
        }
        let pushes = self.host.transports.holds();
        self.host.push();
        // Otherwise they were looked at behind the last frame of each.
        if pushes || happened >= frames_max {
            for network in NetworkKind::ALL {
                happened += self.network_events(network);
            }
        }
        // A part of a frame counts: the rest of it is not to wait for its turn.
        if self.host.transports.take_received() || happened > 0 {
            self.network_hot = self.network_interval;
        }
        if self.network_hot > 0 {
            self.network_hot -= 1;
        } else if self.host.transports.has_node() {
            self.network_wait = self.network_interval;
        }
        happened
    }

    #[inline]
    fn poll_network(&mut self, network: NetworkKind, frames_max: usize) -> usize {
        let mut happened = 0;
        if !self.host.pulls.is_empty() {
            happened += self.end_pulls(network);
        }
        while happened < frames_max {
            let incoming = self.host.transports.peek(network);
            // The news of a channel comes before its frames.
            happened += self.network_events(network);
            let Some(incoming) = incoming else {
                match self.place_directly(network) {
                    DirectPlacement::Nothing => break,
                    DirectPlacement::Begun => {}
                    DirectPlacement::Done => happened += 1,
                }
                continue;
            };
            self.accept(incoming);
            self.host.transports.consume(network, incoming);
            self.engine.acknowledge(&mut self.host, incoming.from);
            happened += 1;
        }
        happened
    }

    /// Payloads that were fetched from where they lay, and are here.
    #[cold]
    fn end_pulls(&mut self, network: NetworkKind) -> usize {
        let mut ended = 0;
        while let Some((from, id)) = self.host.transports.pulled(network) {
            if let Some(receive) = self.host.take_pull(from, SendId(id)) {
                self.timed(|engine, host| engine.pull_finished(host, receive, true));
                self.engine.acknowledge(&mut self.host, from);
            }
            ended += 1;
        }
        ended
    }

    /// Payloads that are read to their place: the end of one, or else the beginning of one.
    fn place_directly(&mut self, network: NetworkKind) -> DirectPlacement {
        if let Some((from, head)) = self.host.transports.placed(network) {
            self.timed(|engine, host| engine.on_directly_placed(host, from, &head));
            self.engine.acknowledge(&mut self.host, from);
            return DirectPlacement::Done;
        }
        let Some((from, head)) = self.host.transports.unplaced(network) else {
            return DirectPlacement::Nothing;
        };
        let into = match self.engine.direct_placement(&self.host, from, &head) {
            Some((op, at)) if op.convertor().is_none() => {
                self.host.before_receiving(*op);
                NonNull::new(op.start().wrapping_add(at as usize))
            }
            _ => None,
        };
        // SAFETY: the engine has the payload's place inside the program's buffer, which the
        // program does not touch before the receive is complete.
        unsafe { self.host.transports.place(network, into) };
        DirectPlacement::Begun
    }
}
