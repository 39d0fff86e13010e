//! Nondeterministic calls of a program: tests, probes, cancels. What a driver does with them
//! (coordination/DESIGN.md "Determinants, the driver's contract").

use crate::host::BLANK;
use crate::model::Pattern;
use crate::options::Planted;
use crate::process::{Open, Process, Shared, engine_pattern};
use crate::replay_model::name_of;
use crate::script::Request;
use rustbtl_coordination::determinants::{
    CallKind, Divergence, NondetCall, Outcome, ReplayDecision, Ticks,
};
use rustbtl_fragments::ids::*;

/// A request of the program that it has not seen complete.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Which.
    pub request: Request,
    /// A send that a wildcard takes: waited for at the very end.
    pub wild: bool,
}

/// Steps of the run that one date lasts.
const STEPS_OF_A_DATE: u64 = 50;

/// Nanoseconds of a step, and of how far the clocks of machines differ.
const STEP_NS: u64 = 2000;
const APART_NS: u64 = 1_000_000;
/// Nanoseconds between readings in one step: more than the clock's resolution.
const BETWEEN_NS: u64 = 400;
/// Ticks of the processor's counter in a microsecond.
const TICKS_PER_US: u64 = 2000;

pub(crate) fn fold(digest: &mut u64, word: u64) {
    *digest = (*digest ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
}

impl Process {
    /// A driver ends the job; here it goes on if that is the planted bug.
    fn diverged(&mut self, shared: &Shared, divergence: Divergence) {
        if shared.options.planted != Some(Planted::DivergenceIgnored) {
            panic!("{}: {divergence}", self.me);
        }
        self.host.memory.decisions.give_up();
    }

    fn ask(&mut self, shared: &Shared, call: NondetCall) -> ReplayDecision {
        match self.host.memory.decisions.decide(call) {
            Ok(ask) => ask,
            Err(divergence) => {
                self.diverged(shared, divergence);
                ReplayDecision::Execute
            }
        }
    }

    fn found(&mut self, shared: &Shared, call: NondetCall, outcome: Outcome) {
        if let Err(divergence) = self.host.memory.decisions.record_outcome(call, outcome) {
            self.diverged(shared, divergence);
        }
        self.host.drain();
    }

    /// The program saw nothing, and may act on it.
    fn miss(&mut self) {
        fold(&mut self.program.digest, 1);
    }

    /// Before a send, a receive, a communicator.
    pub(crate) fn before_action(&mut self, shared: &Shared, library: bool) {
        if !shared.options.determinants {
            return;
        }
        if library {
            self.host.memory.decisions.before_library_action();
        } else if let Err(divergence) = self.host.memory.decisions.before_action() {
            self.diverged(shared, divergence);
        }
        self.host.drain();
    }

    /// The program sees that a request is complete.
    pub(crate) fn observe(&mut self, shared: &Shared, request: Request) {
        let before = self.program.pending.len();
        self.program.pending.retain(|pending| pending.request != request);
        if before == self.program.pending.len() {
            return;
        }
        fold(&mut self.program.digest, u64::from(request));
        if shared.options.determinants && shared.options.records(self.me) {
            // It goes out with what the program does next.
            self.read_date(shared);
            self.read_and_draw(shared);
        }
        if let Some(outcome) = self.program.results.get(&request) {
            let sum = outcome.sum();
            fold(&mut self.program.digest, sum);
        }
    }

    /// The date of its machine.
    pub(crate) fn clock(&self, shared: &Shared) -> u64 {
        let ahead = [0, 3, 1][(self.me + usize::from(self.host.incarnation())) % 3];
        10 + ahead + shared.now / STEPS_OF_A_DATE
    }

    /// time(): what the program does next depends on it. The clocks of nodes differ, and restarted
    /// processes run where it is earlier.
    pub(crate) fn read_date(&mut self, shared: &Shared) {
        let date = self.host.memory.decisions.program_time(self.clock(shared));
        assert!(date >= self.program.date, "T1: {} after {}", date, self.program.date);
        self.program.date = date;
        fold(&mut self.program.digest, date);
    }

    /// Reads one of two clocks a few times, or draws random numbers; not always: what is new goes
    /// out before each send.
    pub(crate) fn read_and_draw(&mut self, shared: &Shared) {
        if !shared.options.reads {
            return;
        }
        let digest = self.program.digest;
        if digest.is_multiple_of(4) {
            let clock = (digest >> 8) as u8 & 1;
            for reading in 0..=digest >> 9 & 3 {
                let ns = self.read_clock(shared, clock, reading * BETWEEN_NS);
                fold(&mut self.program.digest, ns);
            }
        } else if digest % 8 == 3 {
            let mut word = [0; 8];
            assert!(self.host.memory.random.draw(&mut word), "N2: it has a seed");
            fold(&mut self.program.digest, u64::from_le_bytes(word));
        }
    }

    fn read_clock(&mut self, shared: &Shared, clock: u8, later_ns: u64) -> u64 {
        let now_ns = self.clock(shared) * APART_NS + shared.now * STEP_NS + later_ns;
        let ticks = Ticks { now: now_ns * TICKS_PER_US / 1000, per_us: TICKS_PER_US };
        let decisions = &mut self.host.memory.decisions;
        let before_ns = decisions.clock_readings(clock).given_ns();
        let again = decisions.clock_again(clock, ticks.now);
        let ns = again.unwrap_or_else(|| decisions.read_clock(clock, now_ns, ticks));
        assert!(ns >= before_ns, "R1: {ns} after {before_ns}");
        ns
    }

    fn is_complete(&self, request: Request) -> bool {
        !self.program.open.contains_key(&request)
    }

    /// One step of a loop that waits for all requests, in a way that depends on what was seen.
    pub(crate) fn drain(&mut self, shared: &mut Shared, rest: bool, draw: usize) -> bool {
        let list = self.program.pending.iter().filter(|pending| rest || !pending.wild);
        let list: Vec<Request> = list.map(|pending| pending.request).collect();
        if list.is_empty() {
            return true;
        }
        self.begin_call(shared);
        let holds = self.holds(shared);
        if !shared.options.records(self.me) {
            let all = !holds && list.iter().all(|request| self.is_complete(*request));
            if all {
                list.into_iter().for_each(|request| self.observe(shared, request));
                self.end_call(shared, true);
            }
            return false;
        }
        let digest = self.program.digest;
        let mut kind = [
            CallKind::Test,
            CallKind::TestAll,
            CallKind::TestAny,
            CallKind::TestSome,
            CallKind::WaitAny,
        ][(digest % 5) as usize];
        let strays = [Planted::Diverges, Planted::DivergenceIgnored].map(Some);
        let incarnation = self.host.incarnation();
        if strays.contains(&shared.options.planted) && incarnation > 0 && digest.is_multiple_of(7) {
            kind = if kind == CallKind::Test { CallKind::TestAny } else { CallKind::Test };
        }
        let one = (digest >> 8) as usize % list.len();
        let asked: Vec<Request> = if kind == CallKind::Test { vec![list[one]] } else { list };
        let call = NondetCall::requests(kind, asked.len() as u32);
        let done: Vec<u32> =
            (0..).zip(&asked).filter(|(_, r)| self.is_complete(**r)).map(|(at, _)| at).collect();
        let all = done.len() == asked.len();
        let outcome = match self.ask(shared, call) {
            ReplayDecision::ReportNothing => {
                self.miss();
                self.end_call(shared, false);
                return false;
            }
            _ if holds => return false,
            ReplayDecision::Await(outcome) => {
                let wanted = match &outcome {
                    Outcome::Requests(places) => places.iter().all(|place| done.contains(place)),
                    _ => all,
                };
                if !wanted {
                    return false;
                }
                outcome
            }
            ReplayDecision::Execute => match kind {
                _ if done.is_empty() && kind == CallKind::WaitAny => return false,
                CallKind::Test | CallKind::TestAll if all => Outcome::Done,
                CallKind::TestSome if !done.is_empty() => Outcome::Requests(done),
                CallKind::TestAny | CallKind::WaitAny if !done.is_empty() => {
                    Outcome::Requests(vec![done[draw % done.len()]])
                }
                _ => {
                    self.host.memory.decisions.record_nothing(call);
                    self.miss();
                    self.end_call(shared, false);
                    return false;
                }
            },
        };
        let seen: Vec<Request> = match &outcome {
            Outcome::Requests(places) => places.iter().map(|at| asked[*at as usize]).collect(),
            _ => asked,
        };
        self.found(shared, call, outcome);
        seen.into_iter().for_each(|request| self.observe(shared, request));
        self.end_call(shared, true);
        false
    }

    fn probe_call(call: CallKind, pattern: Pattern) -> NondetCall {
        let context = ContextId(pattern.context).number() as u16;
        let source = pattern.source.map_or(-1, |source| source as i32);
        NondetCall::probe(call, context, source, pattern.tag.unwrap_or(-1))
    }

    /// MPI_Iprobe in a loop.
    pub(crate) fn iprobe(&mut self, shared: &Shared, comm: usize, pattern: Pattern) -> bool {
        let call = Self::probe_call(CallKind::Probe, pattern);
        let (source, tag) = engine_pattern(pattern);
        let holds = self.holds(shared);
        let name = match self.ask(shared, call) {
            ReplayDecision::ReportNothing => {
                self.miss();
                self.end_call(shared, false);
                return false;
            }
            _ if holds => return false,
            ReplayDecision::Await(Outcome::Message(name)) => {
                if self.engine.probe_named(&name).is_none() {
                    return false;
                }
                name
            }
            ReplayDecision::Await(other) => panic!("{other:?} of a probe"),
            ReplayDecision::Execute => {
                let comm = self.program.comms[&comm];
                let status = self.engine.probe(comm, source, tag);
                self.check_probe(pattern, status);
                let Some(name) = self.engine.probe_name(comm, source, tag) else {
                    self.host.memory.decisions.record_nothing(call);
                    self.miss();
                    self.end_call(shared, false);
                    return false;
                };
                name
            }
        };
        self.found(shared, call, Outcome::Message(name));
        fold(&mut self.program.digest, u64::from(name.from.0) + 7);
        self.end_call(shared, true)
    }

    /// MPI_Improbe in a loop. The message, when it was claimed.
    pub(crate) fn improbe(
        &mut self,
        shared: &mut Shared,
        comm: usize,
        pattern: Pattern,
        request: Request,
    ) -> Option<MessageId> {
        let call = Self::probe_call(CallKind::Claim, pattern);
        let (source, tag) = engine_pattern(pattern);
        let holds = self.holds(shared);
        let (id, name) = match self.ask(shared, call) {
            ReplayDecision::ReportNothing => {
                self.miss();
                self.end_call(shared, false);
                return None;
            }
            _ if holds => return None,
            ReplayDecision::Await(Outcome::Message(name)) => {
                let (id, _) = self.engine.claim_named(&name)?;
                self.program.matching.claim_named(request, &name);
                (id, name)
            }
            ReplayDecision::Await(other) => panic!("{other:?} of a matched probe"),
            ReplayDecision::Execute => {
                let comm = self.program.comms[&comm];
                let name = self.engine.probe_name(comm, source, tag);
                let claimed = self.engine.claim(comm, source, tag);
                self.check_probe(pattern, claimed.map(|(_, status)| status));
                let (Some((id, _)), Some(name)) = (claimed, name) else {
                    self.host.memory.decisions.record_nothing(call);
                    self.miss();
                    self.end_call(shared, false);
                    return None;
                };
                self.program.matching.claim(request, pattern);
                (id, name)
            }
        };
        let claimed = &self.program.matching.claimed[&request];
        assert_eq!((claimed.stream, claimed.sequence), name_of(self.me, &name), "claimed");
        self.found(shared, call, Outcome::Message(name));
        fold(&mut self.program.digest, u64::from(name.from.0) + 9);
        self.end_call(shared, true);
        Some(id)
    }

    /// MPI_Cancel of a receive; if it was in time it is posted again.
    pub(crate) fn cancel_recorded(&mut self, shared: &mut Shared, request: Request) {
        let call = NondetCall::requests(CallKind::Cancel, 1);
        let open = match self.program.open.get(&request).copied() {
            Some(Open::Receive { id: Some(id), comm, pattern, capacity }) => {
                Some((id, comm, pattern, capacity))
            }
            _ => None,
        };
        let ask = self.ask(shared, call);
        let name = match (&ask, open) {
            (ReplayDecision::Await(Outcome::Cancelled(None)), _) | (_, None) => None,
            (_, Some((id, ..))) => {
                let id = self.receive_id(request, id);
                let name = self.engine.receive_name(id);
                let gone = self.engine.cancel_receive(id);
                assert_eq!(gone, self.program.matching.cancel(request), "cancel");
                name.filter(|_| gone)
            }
        };
        self.found(shared, call, Outcome::Cancelled(name));
        fold(&mut self.program.digest, u64::from(name.is_some()) + 3);
        if let (Some(_), Some((_, comm, pattern, capacity))) = (name, open) {
            self.host.memory.buffers.insert(request, vec![BLANK; capacity as usize]);
            self.receive(shared, comm, pattern, capacity, request);
        }
    }

    /// Determinants of the past have run out: free what waits for that.
    pub(crate) fn maybe_end_replay(&mut self, shared: &mut Shared) {
        let past = self.host.memory.decisions.has_outcomes_to_replay()
            || self.engine.awaits_receives()
            || !self.host.memory.windows.rma.is_record_applied();
        if past || !self.engine.is_replaying() {
            return;
        }
        for message in self.program.matching.end_replay() {
            shared.book.note_match(&message);
        }
        self.engine.end_replay(&mut self.host);
        self.settle(shared);
    }
}
