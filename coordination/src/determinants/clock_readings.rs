//! What the program reads from its clocks (clock_gettime and the like), and what is recorded of it.
//!
//! Source: docs/adr/0029. As a date (`program_time`), a reading takes no part in the order of
//! nondeterministic calls: those on each clock have an index of their own. A program that reads a
//! clock more or less often than before gets some reading of that clock, and does not diverge.
//!
//! Readings are collected. All that was read since the last message is one determinant, with the
//! differences between readings in two or three bytes each; calls that gave the same are counted.
//! It is recorded when something else is ([`ClockReadings::close`]): before the next send.
//!
//! How many different readings there are is limited over long ([`NS_PER_READING`]). While there is
//! room a clock has the resolution [`QUANTUM_NS_MIN`]; a program that does nothing but read it gets
//! a coarser one. Within it the clock is not even read: the processor's counter is.
//!
//! Invariants:
//! * R1 Readings of a clock never decrease.
//! * R2 Every call that was given something is covered by a determinant once all are closed: with
//!   these kept, each gives again what it gave.
//! * R3 Calls beyond what is kept are given the machine's clock: nothing is waited for.

use super::codec::{CodecError, put, take};
use std::collections::VecDeque;

/// So many clocks are told apart; what they are is the driver's.
pub const CLOCKS: usize = 20;

/// Bytes of readings in one determinant: it has to fit into a slot of the set's memory.
const ROOM: usize = 56;

/// Over long, one different reading in such a time is paid for...
const NS_PER_READING: u64 = 50_000;
/// ...and as many as that is in such a time can be had at once.
const BURST_NS: u64 = 1_000_000_000;
/// The resolution while all of that can be had; it doubles with each part of it that is spent.
const QUANTUM_NS_MIN: u64 = 256;
const PARTS: u64 = 10;

/// No reading and no index is more: there is room for a bit beside it, and for calls behind it.
const MOST: u64 = u64::MAX >> 1;

/// What consecutive calls on one clock were given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readings {
    /// Which clock.
    pub clock: u8,
    /// Index of the first call.
    pub call: u64,
    /// What it was given, in nanoseconds.
    pub first_ns: u64,
    used: u8,
    /// For each different reading: how much more it is than the one before, doubled; if several
    /// calls were given it, one more, and how many more calls.
    more: [u8; ROOM],
}

impl Readings {
    fn of(clock: u8, call: u64, first_ns: u64) -> Self {
        Self { clock, call, first_ns, used: 0, more: [0; ROOM] }
    }

    /// As it is sent, behind the clock, the call and the first reading.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.more[..usize::from(self.used)]
    }

    /// # Errors
    /// The bytes are no readings.
    pub(super) fn read(
        clock: u8,
        call: u64,
        first_ns: u64,
        bytes: &[u8],
    ) -> Result<Self, CodecError> {
        let mut readings = Self::of(clock, call, first_ns);
        if usize::from(clock) >= CLOCKS || bytes.len() > ROOM || first_ns > MOST {
            return Err(CodecError::Range);
        }
        readings.more[..bytes.len()].copy_from_slice(bytes);
        readings.used = bytes.len() as u8;
        let (mut rest, mut ns, mut end) = (bytes, first_ns, call);
        while !rest.is_empty() {
            let (more_ns, calls) = take_one(&mut rest)?;
            ns = ns.checked_add(more_ns).filter(|ns| *ns <= MOST).ok_or(CodecError::Range)?;
            end = end.checked_add(calls).filter(|end| *end <= MOST).ok_or(CodecError::Range)?;
        }
        if end == call { Err(CodecError::Short) } else { Ok(readings) }
    }

    /// Appends a reading. False: there is no room.
    fn add(&mut self, more_ns: u64, calls: u64) -> bool {
        let mut at = usize::from(self.used);
        let mut whole = true;
        let mut number = |mut number: u64| {
            loop {
                let last = number < 0x80;
                let Some(to) = self.more.get_mut(at) else {
                    whole = false;
                    return;
                };
                *to = number as u8 & 0x7F | if last { 0 } else { 0x80 };
                at += 1;
                number >>= 7;
                if last {
                    return;
                }
            }
        };
        number(more_ns << 1 | u64::from(calls > 1));
        if calls > 1 {
            number(calls - 1);
        }
        if whole {
            self.used = at as u8;
        } else {
            self.more[usize::from(self.used)..].fill(0);
        }
        whole
    }

    /// How many calls these are.
    pub fn calls(&self) -> u64 {
        let (mut rest, mut calls) = (self.bytes(), 0);
        while let Ok((_, more)) = take_one(&mut rest) {
            calls += more;
        }
        calls
    }

    /// Without the last different reading, if there are several: for tests of who checks.
    pub fn shortened(mut self) -> Self {
        let (mut rest, mut used) = (self.bytes(), 0);
        while take_one(&mut rest).is_ok() && !rest.is_empty() {
            used = usize::from(self.used) - rest.len();
        }
        if used > 0 {
            self.used = used as u8;
            self.more[used..].fill(0);
        }
        self
    }
}

fn take_one(rest: &mut &[u8]) -> Result<(u64, u64), CodecError> {
    let word = take(rest)?;
    let more = if word & 1 == 1 { take(rest)? } else { 0 };
    Ok((word >> 1, more.checked_add(1).ok_or(CodecError::Range)?))
}

/// Appends readings.
pub(super) fn encode(readings: &Readings, out: &mut Vec<u8>) {
    out.push(readings.clock);
    put(out, readings.call);
    put(out, readings.first_ns);
    out.push(readings.used);
    out.extend_from_slice(readings.bytes());
}

/// # Errors
/// The bytes are damaged.
pub(super) fn decode(from: &mut &[u8]) -> Result<Readings, CodecError> {
    let byte = |from: &mut &[u8]| {
        let (&byte, rest) = from.split_first().ok_or(CodecError::Short)?;
        *from = rest;
        Ok(byte)
    };
    let clock = byte(from)?;
    let (call, first_ns) = (take(from)?, take(from)?);
    let used = usize::from(byte(from)?);
    let (bytes, rest) = from.split_at_checked(used).ok_or(CodecError::Short)?;
    *from = rest;
    Readings::read(clock, call, first_ns, bytes)
}

/// The processor's counter, which says how long ago a clock was read without reading it.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    /// Now.
    pub now: u64,
    /// So many are a microsecond; 0: not known, and not used.
    pub per_us: u64,
}

/// One clock.
#[derive(Clone, Debug, Default)]
pub struct ClockReadings {
    /// Index of the next call.
    next: u64,
    /// What was given last.
    given_ns: u64,
    /// Being collected; and what is not yet written down in there: calls that were given
    /// `given_ns`, and what was given before.
    open: Option<Readings>,
    run: u64,
    written_ns: u64,
    /// Until when the different readings that were given are paid for.
    paid_ns: u64,
    /// Readings within so much of the last one are the same.
    quantum_ns: u64,
    /// The counter when the clock was read last, and the quantum in it.
    read_tick: u64,
    quantum_ticks: u64,
    /// What was recorded in an earlier incarnation for calls to come, in their order.
    past: VecDeque<Readings>,
    cursor: Cursor,
}

/// How far the first of what was recorded earlier has been given.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Bytes of it.
    at: usize,
    /// The reading, its calls that are left, and the index of the first call behind them.
    ns: u64,
    left: u64,
    end: u64,
}

impl ClockReadings {
    /// The reading of a call that comes so soon after the last one that it is the same, if it does.
    #[inline]
    pub fn again(&mut self, tick: u64) -> Option<u64> {
        if tick.wrapping_sub(self.read_tick) >= self.quantum_ticks {
            return None;
        }
        self.next += 1;
        self.run += 1;
        Some(self.given_ns)
    }

    /// What was given last: no reading is less (R1).
    pub fn given_ns(&self) -> u64 {
        self.given_ns
    }

    /// Is anything forced, so that the machine's clock need not be read?
    pub fn replays(&self) -> bool {
        !self.past.is_empty()
    }

    /// Is there anything that [`ClockReadings::close`] would record?
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The program asks, and the machine's clock says `now_ns`: what is it given? And what is full,
    /// to be recorded. `clock`: which one this is. No memory is allocated.
    pub fn read(&mut self, clock: u8, now_ns: u64, ticks: Ticks) -> (u64, Option<Readings>) {
        if let Some(ns) = self.replayed() {
            return (ns, None);
        }
        let now_ns = now_ns.clamp(self.given_ns, MOST);
        let is_new = now_ns - self.given_ns >= self.quantum_ns.max(1);
        let call = self.next;
        self.next += 1;
        let mut full = None;
        if self.open.is_none() {
            // The first one behind a message is no finer than others: what lies between two
            // readings would be too short for one kind of pairs, and too long for the other.
            let ns = if is_new { now_ns } else { self.given_ns };
            self.open = Some(Readings::of(clock, call, ns));
            (self.written_ns, self.run) = (ns, 1);
        } else if is_new {
            full = self.write_down(clock, call - self.run);
            self.run = 1;
        } else {
            self.run += 1;
        }
        if is_new {
            self.given_ns = now_ns;
            let spent_ns = self.paid_ns.saturating_sub(now_ns).min(BURST_NS);
            self.quantum_ns = QUANTUM_NS_MIN << (spent_ns * (PARTS - 1) / BURST_NS);
            self.paid_ns = self.paid_ns.clamp(now_ns, now_ns + BURST_NS) + NS_PER_READING;
            self.read_tick = ticks.now;
        }
        self.quantum_ticks = self.quantum_ns * ticks.per_us / 1000;
        (self.given_ns, full)
    }

    /// `given_ns` was given to `run` calls, the first of them `call`.
    fn write_down(&mut self, clock: u8, call: u64) -> Option<Readings> {
        let open = self.open.as_mut()?;
        let more_ns = self.given_ns - self.written_ns;
        let full = (!open.add(more_ns, self.run)).then(|| {
            let mut next = Readings::of(clock, call, self.given_ns);
            next.add(0, self.run);
            core::mem::replace(open, next)
        });
        self.written_ns = self.given_ns;
        full
    }

    /// What was collected is to be recorded now: the last of it, and before that what did not fit.
    pub fn close(&mut self, clock: u8) -> [Option<Readings>; 2] {
        let full = self.write_down(clock, self.next.saturating_sub(self.run));
        // The next call begins anew, whenever it comes.
        (self.run, self.quantum_ticks) = (0, 0);
        [full, self.open.take()]
    }

    /// The reading that the next call was given before.
    fn replayed(&mut self) -> Option<u64> {
        while self.cursor.left == 0 {
            let first = self.past.front()?;
            if self.cursor.at == 0 {
                (self.cursor.ns, self.cursor.end) = (first.first_ns, first.call);
            }
            let mut rest = &first.bytes()[self.cursor.at..];
            let Ok((more_ns, calls)) = take_one(&mut rest) else {
                self.past.pop_front();
                self.cursor.at = 0;
                continue;
            };
            self.cursor.at = usize::from(first.used) - rest.len();
            self.cursor.ns = self.cursor.ns.saturating_add(more_ns);
            // Some of it may have been before the snapshot; calls of which nothing is known are
            // none.
            self.next = self.next.max(self.cursor.end);
            self.cursor.end = self.cursor.end.saturating_add(calls);
            self.cursor.left = self.cursor.end.saturating_sub(self.next).min(calls);
            if rest.is_empty() {
                self.past.pop_front();
                self.cursor.at = 0;
            }
        }
        self.cursor.left -= 1;
        self.next = self.next.saturating_add(1);
        self.given_ns = self.given_ns.max(self.cursor.ns);
        Some(self.given_ns)
    }

    /// The process was restored. What was collected is of the incarnation before, which has
    /// recorded it if anybody may know of it.
    pub fn restored(&mut self) {
        (self.open, self.run) = (None, 0);
        (self.paid_ns, self.quantum_ns, self.quantum_ticks) = (0, 0, 0);
    }

    /// This was kept, behind what was handed in before.
    pub fn force(&mut self, readings: Readings) {
        self.past.push_back(readings);
    }

    /// The machine's clock from now on: for a job that is to end.
    pub fn give_up(&mut self) {
        self.past.clear();
        self.cursor = Cursor::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TICKS: Ticks = Ticks { now: 0, per_us: 0 };

    /// Reads at these times, closes after each `every`.
    fn live(clock: &mut ClockReadings, times: &[u64], every: usize) -> (Vec<u64>, Vec<Readings>) {
        let (mut given, mut recorded) = (Vec::new(), Vec::new());
        for (at, &now) in times.iter().enumerate() {
            let (ns, full) = clock.read(1, now, NO_TICKS);
            given.push(ns);
            recorded.extend(full);
            if (at + 1) % every == 0 {
                recorded.extend(clock.close(1).into_iter().flatten());
            }
        }
        recorded.extend(clock.close(1).into_iter().flatten());
        (given, recorded)
    }

    fn replayed(
        snapshot: &ClockReadings,
        kept: &[Readings],
        times: &[u64],
    ) -> (Vec<u64>, Vec<Readings>) {
        let mut clock = snapshot.clone();
        clock.restored();
        kept.iter().for_each(|readings| clock.force(*readings));
        live(&mut clock, times, usize::MAX)
    }

    fn times(step: u64, count: u64) -> Vec<u64> {
        (0..count).map(|call| 7_000_000_000 + call * step + call * call % 97 * 1000).collect()
    }

    #[test]
    fn readings_between_messages_are_exact_and_one_determinant() {
        let mut all = times(100_000, 1000);
        all.sort_unstable();
        let (given, recorded) = live(&mut ClockReadings::default(), &all, 10);
        assert_eq!(given, all);
        assert_eq!(recorded.len(), 100);
        let bytes: usize = recorded.iter().map(|readings| readings.bytes().len()).sum();
        assert!(bytes < 3200, "{bytes}");
        assert_eq!(recorded.iter().map(Readings::calls).sum::<u64>(), 1000);
    }

    #[test]
    fn r2_every_call_gives_what_it_gave_before_wherever_the_past_ends() {
        let snapshot = ClockReadings::default();
        for (step, every) in [(50, 7), (3, usize::MAX), (2_000_000, 1), (900, 4)] {
            let mut all = times(step, 500);
            all.sort_unstable();
            let (given, recorded) = live(&mut snapshot.clone(), &all, every);
            for kept in 0..=recorded.len() {
                let (kept, lost) = recorded.split_at(kept);
                let seen = lost.first().map_or(all.len(), |first| first.call as usize);
                let (second, more) = replayed(&snapshot, kept, &[1 << 40; 520]);
                assert_eq!(second[..seen], given[..seen], "with {} of them", kept.len());
                // R3
                assert!(second[seen..].iter().all(|&ns| ns == 1 << 40));
                let (third, _) = replayed(&snapshot, &[kept, &more].concat(), &[1 << 50; 520]);
                assert_eq!(third, second);
            }
        }
    }

    #[test]
    fn r1_readings_do_not_decrease_when_the_machines_clock_does() {
        let mut clock = ClockReadings::default();
        let (given, _) = live(&mut clock, &[70_000, 60_000, 69_999, 80_000], usize::MAX);
        assert_eq!(given, [70_000, 70_000, 70_000, 80_000]);
        assert_eq!(replayed(&clock, &[], &[3, 90_000]).0, [80_000, 90_000]);
        assert_eq!(live(&mut clock, &[u64::MAX], 1).0, [MOST]);
    }

    #[test]
    fn a_snapshot_amid_what_is_collected_or_forced_goes_on_there() {
        let mut clock = ClockReadings::default();
        let all: Vec<u64> = (1..=20).map(|call| call * 1_000_000).collect();
        live(&mut clock, &all[..3], usize::MAX);
        for &now in &all[3..8] {
            clock.read(1, now, NO_TICKS);
        }
        let snapshot = clock.clone();
        let (given, recorded) = live(&mut clock, &all[8..], usize::MAX);
        assert_eq!(given, all[8..]);
        assert_eq!(recorded[0].call, 3);
        let (second, _) = replayed(&snapshot, &recorded, &[1 << 40; 13]);
        assert_eq!(second, [&all[8..], &[1 << 40]].concat());
        // Amid replay.
        let mut middle = snapshot;
        middle.restored();
        recorded.iter().for_each(|readings| middle.force(*readings));
        assert!(middle.replays());
        assert_eq!(live(&mut middle, &[0; 4], usize::MAX), (all[8..12].to_vec(), vec![]));
        assert_eq!(replayed(&middle, &[], &[1 << 40; 9]).0, [&all[12..], &[1 << 40]].concat());
        middle.give_up();
        assert_eq!(live(&mut middle, &[1 << 41], 1).0, [1 << 41]);
    }

    #[test]
    fn a_clock_that_is_read_without_end_becomes_coarser_and_records_little() {
        let mut clock = ClockReadings::default();
        let (mut different, mut last, mut most) = (0u64, 0, 0);
        let mut bytes = 0;
        // Five seconds, read each 20 ns; by the counter, but for what the counter does not know.
        for now in (1_000_000_000..6_000_000_000u64).step_by(20) {
            let ns = clock.again(now * 2).unwrap_or_else(|| {
                let (ns, full) = clock.read(1, now, Ticks { now: now * 2, per_us: 2000 });
                bytes += full.map_or(0, |full| full.bytes().len() + 20);
                ns
            });
            assert!(ns <= now && ns >= last);
            most = most.max(now - ns);
            different += u64::from(ns != last);
            last = ns;
        }
        let paid = 6 * BURST_NS / NS_PER_READING;
        assert!((paid - paid / 4..=paid + 1).contains(&different), "{different} of {paid}");
        assert!(most <= QUANTUM_NS_MIN << (PARTS - 1), "{most}");
        assert!(bytes < 6 * 200_000, "{bytes}");
        let all = clock.next;
        let [_, last] = clock.close(1);
        assert_eq!(last.map(|last| last.call + last.calls()), Some(all));
        assert_eq!(clock.again(6_000_000_000 * 2), None, "closed: it begins anew");
    }

    #[test]
    fn more_or_fewer_calls_get_readings_that_do_not_decrease() {
        let (_, recorded) = live(&mut ClockReadings::default(), &[1000, 2000, 3000], usize::MAX);
        let fresh = ClockReadings::default();
        assert_eq!(replayed(&fresh, &recorded, &[9000]).0, [1000]);
        let (more, _) = replayed(&fresh, &recorded, &[9000, 9000, 9000, 9000]);
        assert_eq!(more, [1000, 2000, 3000, 9000]);
        let last = recorded[0].shortened();
        assert_eq!((last.calls(), last.shortened().shortened().calls()), (2, 1));
    }

    #[test]
    fn readings_decode_and_what_is_none_does_not() {
        let mut readings = Readings::of(3, 900, 1 << 50);
        while readings.add(1_000_000, 3) {}
        assert!(!readings.add(u64::MAX >> 1, u64::MAX));
        let mut bytes = Vec::new();
        encode(&readings, &mut bytes);
        assert!(bytes.len() < 80);
        let mut rest = &bytes[..];
        assert_eq!(decode(&mut rest), Ok(readings));
        assert!(rest.is_empty());
        for cut in 0..bytes.len() {
            assert!(decode(&mut &bytes[..cut]).is_err());
        }
        let read = |clock, call, ns, bytes| Readings::read(clock, call, ns, bytes).map(|_| ());
        assert_eq!(read(0, 0, 0, &[]), Err(CodecError::Short));
        assert_eq!(read(CLOCKS as u8, 0, 0, &[0]), Err(CodecError::Range));
        assert_eq!(read(0, MOST, 0, &[0]), Err(CodecError::Range));
        assert_eq!(read(0, 0, MOST, &[2]), Err(CodecError::Range));
        assert_eq!(read(0, 0, MOST + 1, &[0]), Err(CodecError::Range));
        assert_eq!(read(0, 0, MOST, &[0]), Ok(()));
        // From nowhere: no harm.
        let odd = Readings::read(0, MOST - 1, MOST, &[0]).unwrap();
        assert_eq!(replayed(&ClockReadings::default(), &[odd, odd], &[1, 2]).0, [MOST; 2]);
    }
}
