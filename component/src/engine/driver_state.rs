//! What the driver knows: plain data, for all files of this room.

use crate::engine::backoff::Backoff;
use crate::engine::collectives::Collectives;
use crate::engine::counting::Counting;
use crate::engine::host::EngineHost;
use crate::engine::wait_policy::WaitPolicy;
use crate::ffi::operation::Op;
use crate::os::{now_ns, ticks};
use rustbtl_fragments::engine::{Engine, Source, TagMatch};
use rustbtl_fragments::ids::{CommId, PeerId, SendId};
use std::collections::{BTreeSet, VecDeque};

/// Polls of shared memory for each poll of anything else.
pub(crate) const BURST: u32 = 16;
/// In nanoseconds.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Time spent in the engine, if anybody wants to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Count at all.
    pub on: bool,
    /// Ticks in the engine.
    pub ticks: u64,
    pub(crate) start_ticks: u64,
    pub(crate) start_ns: u64,
}

impl Clock {
    /// Start to count.
    pub fn start(&mut self) {
        *self = Self { on: true, ticks: 0, start_ticks: ticks(), start_ns: now_ns() };
    }

    /// Nanoseconds spent in the engine.
    pub fn ns(&self) -> u64 {
        let (ticks_all, ns_all) = (ticks() - self.start_ticks, now_ns() - self.start_ns);
        let ratio = ns_all as f64 / ticks_all.max(1) as f64;
        (self.ticks as f64 * ratio) as u64
    }

    /// Before a call into the engine.
    #[inline(always)]
    pub fn begin(&self) -> u64 {
        if self.on { ticks() } else { 0 }
    }

    /// After it.
    #[inline(always)]
    pub fn end(&mut self, begin: u64) {
        if self.on {
            self.ticks += ticks() - begin;
        }
    }
}

/// See the module's documentation.
pub struct Driver {
    /// The engine.
    pub engine: Engine<EngineHost>,
    /// Its surroundings.
    pub host: EngineHost,
    /// Time in the engine.
    pub clock: Clock,
    /// How long to poll before yielding.
    pub idle: WaitPolicy,
    /// Other ranks that run on this node.
    pub neighbours: BTreeSet<PeerId>,
    /// Sockets are looked at once in so many rounds while only shared memory is busy.
    pub network_interval: u32,
    /// How long mpirun may take to end the job after a process was lost.
    pub grace_ns: u64,
    /// MPI_Finalize has begun: peers may go.
    pub finishing: bool,
    /// Somebody restarts dead processes: to wait for them is no failure.
    pub protected: bool,
    /// It was restarted alone, and may not have repeated all that its earlier incarnation has done.
    pub replaying: bool,
    /// Receives that are posted when the program looks for what is complete.
    pub deferred: VecDeque<(Op, Wanted)>,
    /// Since when nobody does any more.
    pub unprotected_ns: u64,
    /// A blocking send that its call waits for, and since when, although it may be detached.
    pub(crate) undetached: Option<(SendId, u64)>,
    /// Collectives that do not go over messages.
    pub collectives: Collectives,
    /// Collectives that go past the engine.
    pub counting: Counting,
    /// Rounds of waiting loops in which nothing happened.
    pub fruitless: u32,
    /// When waiting ranks sleep.
    pub backoff: Backoff,
    /// The report is written.
    pub reported: bool,
    pub(crate) unposted: u32,
    pub(crate) network_wait: u32,
    /// Rounds until networks that reach nobody are looked at.
    pub(crate) unused_wait: u32,
    pub(crate) network_hot: u32,
    pub(crate) rounds: u32,
    pub(crate) checked_ns: u64,
    pub(crate) lost: Vec<Lost>,
}

/// A peer whose channel was lost.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) peer: PeerId,
    pub(crate) reason: String,
    pub(crate) since_ns: u64,
    /// When the next attempt to connect is made; `None`: such a channel cannot be repaired.
    pub(crate) again_ns: Option<u64>,
}

/// Communicator, source, tag.
pub type Wanted = (CommId, Source, TagMatch);

/// Outcome of [`Driver::receive_unposted`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unposted {
    /// The message is in the buffer.
    Done,
    /// It is not here yet.
    Nothing,
    /// Something else comes first: post the receive.
    Post,
}
