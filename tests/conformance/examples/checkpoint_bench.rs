//! Time of a checkpoint without the snapshot: the quiescence machines of n processes, as threads
//! over in-process rings, from the order at the first process until it resumes. By counters in
//! shared memory (the others see it there), and by frames (they see a token). For comparison, as in
//! the paper (Figure 3): one message of 10 KB from each process to the next. The three take turns.
//!
//! `cargo run --release -p rustbtl-conformance --example checkpoint_bench [ROUNDS [N…]]`

use rustbtl_component::transports::inproc::{Inproc, connected};
use rustbtl_component::transports::{Payload as Outgoing, Sent, Transport};
use rustbtl_coordination::quiescence::{
    CheckpointScope, CounterPhase, Input, Output, QuiesceMethod, Quiescence,
};
use rustbtl_fragments::checkpoint_frame::CheckpointFrame;
use rustbtl_fragments::engine::{Engine, Mode, Side, Source, TagMatch};
use rustbtl_fragments::host::*;
use rustbtl_fragments::ids::*;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

type Counters = rustbtl_component::transports::set_memory::SetCounters;

const MESSAGE_BYTES: u64 = 10 * 1024;
/// Turns between two polls of the rings while the machine waits for a counter, as in the component.
const POLL_EACH: u32 = 4;

/// Frames go to rings; there is only one kind of message.
struct Threads {
    end: Inproc,
    frames: VecDeque<(PeerId, CheckpointFrame)>,
    completed: u64,
    data: Vec<u8>,
}

impl Host for Threads {
    type SendBuffer = ();
    type ReceiveBuffer = ();
    type Token = ();

    fn resolve(&mut self, _: u64, rank: CommRank) -> PeerId {
        PeerId(rank.0)
    }

    fn peer_info(&mut self, _: PeerId) -> PeerInfo {
        let limits = self.end.limits();
        PeerInfo {
            set: SetId(0),
            incarnation: Incarnation(0),
            eager_bytes_max: limits.eager_bytes_max,
            chunk_bytes_max: limits.chunk_bytes_max,
        }
    }

    fn transmit(
        &mut self,
        to: PeerId,
        header: &[u8],
        payload: Payload<'_, ()>,
        taken: usize,
    ) -> Transmit {
        let bytes: &[u8] = match &payload {
            Payload::Program(_, range) => &self.data[range.start as usize..range.end as usize],
            _ => &[],
        };
        match self.end.send(to, header, Outgoing::Bytes(bytes), taken) {
            Sent::Accepted => Transmit::Accepted,
            Sent::Full(n) => Transmit::Full(n),
            Sent::Down => Transmit::Down,
        }
    }

    fn log_append(&mut self, _: &LogEntry, (): &mut ()) -> Result<LogRecord, LogFull> {
        Ok(LogRecord(0))
    }

    fn log_next(&self, _: PeerId, _: Option<LogRecord>) -> Option<(LogRecord, LogEntry)> {
        None
    }

    fn capacity(&self, (): &()) -> u64 {
        MESSAGE_BYTES
    }

    fn pack(&mut self, (): &mut (), _: Range<u64>, _: &mut Vec<u8>) {}

    fn unpack(&mut self, (): &mut (), offset: u64, bytes: &[u8]) {
        self.data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn copy(&mut self, (): &mut (), (): &mut (), _: u64) {}

    fn expose(&mut self, _: PeerId, _: SendId, _: Payload<'_, ()>) -> bool {
        false
    }

    fn withdraw(&mut self, _: PeerId, _: SendId) {}

    fn pull(&mut self, _: PeerId, _: SendId, _: ReceiveId, (): &mut (), _: u64) -> Pull {
        Pull::Refused
    }

    fn complete(&mut self, (): (), _: Status) {
        self.completed += 1;
    }

    fn checkpoint_frame(&mut self, from: PeerId, frame: CheckpointFrame) {
        self.frames.push_back((from, frame));
    }
}

struct Process {
    me: u32,
    n: u32,
    engine: Engine<Threads>,
    host: Threads,
    quiescence: Quiescence,
    counters: Arc<Counters>,
    comm: CommId,
}

impl Process {
    fn new(me: u32, n: u32, end: Inproc, counters: Arc<Counters>) -> Self {
        let ids: Vec<PeerId> = (0..n).map(PeerId).collect();
        let mut engine = Engine::new(PeerId(me), SetId(0), Incarnation(0));
        let comm = engine.add_comm(ContextId(0), CommRank(me), n, 0);
        let data = vec![me as u8; MESSAGE_BYTES as usize];
        let host = Threads { end, frames: VecDeque::new(), completed: 0, data };
        Self { me, n, engine, host, quiescence: Quiescence::new(PeerId(me), &ids), counters, comm }
    }

    /// Take all frames that are there.
    fn take(&mut self) -> bool {
        let mut happened = false;
        while let Some(incoming) = self.host.end.peek() {
            happened = true;
            // SAFETY: the frame stays where it is until it is consumed.
            let frame = unsafe { std::slice::from_raw_parts(incoming.start, incoming.len) };
            let accepted = self.engine.on_frame(&mut self.host, incoming.from, frame);
            accepted.expect("peers keep the protocol");
            self.host.end.consume(incoming);
        }
        happened
    }

    fn poll(&mut self) {
        let happened = self.take();
        self.engine.flush(&mut self.host);
        if !happened {
            std::thread::yield_now();
        }
    }

    fn begin(&mut self, checkpoint: u64) {
        let begun =
            self.quiescence.handle(Input::Begin { checkpoint, scope: CheckpointScope::Set });
        begun.expect("a new checkpoint");
    }

    /// Serve the machine where counters are used, as the component's checkpoint thread does. True:
    /// one input was handled.
    fn count(&mut self, checkpoint: u64) -> bool {
        if !self.quiescence.is_active()
            && self.counters.load(CounterPhase::Drained).checkpoint() == checkpoint
        {
            self.begin(checkpoint);
            return true;
        }
        if self.quiescence.wants_drained() && self.engine.is_set_drained() {
            let open = self.engine.has_internal_in_flight();
            self.quiescence.handle(Input::Drained { in_flight: open }).expect("it was asked for");
            return true;
        }
        let Some((checkpoint, station)) = self.quiescence.awaited_phase() else { return false };
        let Some(open) = self.counters.load(station).all_arrived(checkpoint, self.n as usize)
        else {
            return false;
        };
        if station != CounterPhase::SnapshotTaken {
            self.take();
        }
        self.quiescence
            .handle(Input::AllArrived { checkpoint, phase: station, in_flight: open })
            .expect("it was asked for");
        true
    }

    /// Take part in a checkpoint until it is over. The snapshot takes no time.
    fn checkpoint(&mut self, checkpoint: u64, way: QuiesceMethod) {
        self.quiescence.set_method(way);
        let mut turns = 0u32;
        if self.me == 0 {
            self.begin(checkpoint);
        }
        loop {
            let counted = way == QuiesceMethod::Counters && self.count(checkpoint);
            while let Some((from, frame)) = self.host.frames.pop_front() {
                let handled = self.quiescence.handle(Input::Frame { from, frame });
                handled.expect("peers keep the protocol");
            }
            if self.quiescence.wants_rendezvous_quiescence()
                && self.engine.is_rendezvous_quiescent()
            {
                let recipients = self.engine.take_done_recipients();
                let handled = self
                    .quiescence
                    .handle(Input::RendezvousQuiescent { done_recipients: recipients });
                handled.expect("it was asked for");
            }
            while let Some(output) = self.quiescence.poll_output() {
                match output {
                    Output::Enter { .. } => self.engine.hold(Side::Internal),
                    Output::Send { to, frame } => {
                        self.engine.send_checkpoint_frame(&mut self.host, to, frame)
                    }
                    Output::Arrive { checkpoint, phase: station, in_flight: open } => {
                        self.counters.arrive(checkpoint, station, open);
                    }
                    Output::Freeze { checkpoint } => {
                        let handled = self.quiescence.handle(Input::Frozen { checkpoint });
                        handled.expect("it was asked for");
                    }
                    Output::Resume { .. } => {
                        self.engine.release(&mut self.host, Side::Internal);
                        return;
                    }
                    Output::Answer(_) | Output::HoldOutgoing | Output::ReleaseOutgoing => {}
                }
            }
            if counted {
                continue;
            }
            turns += 1;
            match self.quiescence.awaited_phase() {
                Some((_, CounterPhase::SnapshotTaken)) => std::thread::yield_now(),
                Some((_, CounterPhase::Drained)) if !turns.is_multiple_of(POLL_EACH) => {
                    std::thread::yield_now()
                }
                _ => self.poll(),
            }
        }
    }

    /// One message to the next process and one from the one before.
    fn message(&mut self) {
        let (to, from) = ((self.me + 1) % self.n, (self.me + self.n - 1) % self.n);
        let (source, tag) = (Source::Rank(CommRank(from)), TagMatch::Is(1));
        let want = self.host.completed + 2;
        self.engine.receive(&mut self.host, self.comm, source, tag, (), ());
        let sent = self.engine.send(
            &mut self.host,
            self.comm,
            CommRank(to),
            1,
            Mode::Standard,
            (),
            MESSAGE_BYTES,
            (),
        );
        sent.expect("there is no log");
        while self.host.completed < want {
            self.poll();
        }
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Medians in µs of the slowest process: a checkpoint by counters, one by frames, a message.
fn measure(n: u32, rounds: u64) -> [f64; 3] {
    let ids: Vec<PeerId> = (0..n).map(PeerId).collect();
    let barrier = Arc::new(Barrier::new(n as usize));
    let counters = Arc::new(Counters::default());
    let threads: Vec<_> = (0..n)
        .zip(connected(&ids, 64 << 10))
        .map(|(me, end)| {
            let (barrier, counters) = (Arc::clone(&barrier), Arc::clone(&counters));
            std::thread::spawn(move || {
                let mut process = Process::new(me, n, end, counters);
                let mut times = [Vec::new(), Vec::new(), Vec::new()];
                for round in 1..=rounds {
                    for (what, times) in times.iter_mut().enumerate() {
                        barrier.wait();
                        let start = Instant::now();
                        match what {
                            0 => process.checkpoint(2 * round, QuiesceMethod::Counters),
                            1 => process.checkpoint(2 * round + 1, QuiesceMethod::Frames),
                            _ => process.message(),
                        }
                        times.push(start.elapsed());
                    }
                }
                // Others may still wait for frames that are queued in the engine.
                while !process.engine.is_flushed() {
                    process.poll();
                }
                barrier.wait();
                times.map(median)
            })
        })
        .collect();
    let all: Vec<[f64; 3]> =
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect();
    let worst = |at: usize| all.iter().map(|times| times[at]).fold(0.0, f64::max);
    [0, 1, 2].map(worst)
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let rounds = args.next().unwrap_or(300);
    let mut sizes: Vec<u32> = args.map(|n| n as u32).collect();
    if sizes.is_empty() {
        sizes = vec![2, 4, 8, 16, 32, 48];
    }
    println!(
        "processes  counted µs  by frames µs  10 KB message µs   (medians of {rounds}, the slowest \
         process)"
    );
    for n in sizes {
        let [counted, frames, message] = measure(n.max(2), rounds);
        println!("{n:9}  {counted:10.1}  {frames:12.1}  {message:16.1}");
    }
}
