//! The rank's output: the guardian reads it, counts it, and forwards it at once.
//!
//! ```text
//! program ── terminal or pipe, as orted gave it ──> guardian ── counts (`OutputLedger`) ──> orted
//!                               or, if the rank has lost its orted ──> coordinator ──> mpirun
//! ```
//! 1. Nothing is forwarded twice in all incarnations of the program: a piece is counted before it
//!    is forwarded, and what a restarted program prints again is dropped up to that count.
//! 2. What the program had printed before its snapshot, and was not forwarded yet, is stored in the
//!    checkpoint: the restarted program does not print it again, so the next guardian forwards it.
//! 3. What was forwarded to the orted of a lost node may not have reached mpirun, which counts what
//!    it receives. A guardian on another node continues at mpirun's count: the checkpoint has the
//!    last of what was forwarded before it, and what came after it the program prints again.
//! 4. A reader that does not read blocks the program as without a guardian; the guardian itself is
//!    never blocked.
//! 5. What is relayed by the coordinator is kept until mpirun has it, and sent again to a
//!    failed-over coordinator: mpirun knows its position in the stream, and prints nothing twice
//!    (docs/adr/0020).

use crate::guardian::input::InputMark;
use crate::guardian::output_offsets::{OutputLedger, OutputMark, STREAMS, StreamMark};
use crate::os;
use crate::os::Poll;
use crate::settings::{Printed, Settings};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes that are forwarded at a time, which SIGKILL can lose: a pipe takes all of them or none.
const FORWARD_BYTES: usize = 4096;
/// Bytes that wait for orted before the program has to wait, too.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Bytes that are kept of what was forwarded: as much as may be on its way to mpirun.
const HISTORY_BYTES: usize = 256 << 10;
/// Bytes that are read for a mark at most: another process may be printing all the time.
const DRAIN_BYTES_MAX: usize = 4 << 20;

/// Standard descriptors of the program where they are not those of the guardian: output and error,
/// and input.
#[derive(Debug, Default)]
pub struct Ends(pub [Option<OwnedFd>; STREAMS], pub Option<OwnedFd>);

impl Ends {
    /// The numbers of all three.
    pub fn numbers(&self) -> [RawFd; 3] {
        let ([out, err], input) = (&self.0, &self.1);
        let number = |end: &Option<OwnedFd>, own| end.as_ref().map_or(own, AsRawFd::as_raw_fd);
        [number(input, 0), number(out, 1), number(err, 2)]
    }
}

#[derive(Debug)]
struct Stream {
    /// `None`: nobody writes any more, or nobody reads.
    from: Option<File>,
    to: File,
    /// Read, not forwarded; its end is at `written`.
    waiting: Vec<u8>,
    /// `None`: the stream goes to `to`. Else to the coordinator, which has so much of `waiting`.
    sent: Option<usize>,
    written: u64,
    /// The last of what was forwarded, in whatever incarnation.
    history: Vec<u8>,
    /// An earlier incarnation has forwarded everything before this position.
    forwarded_before: u64,
    /// `to` takes nothing at the moment.
    blocked: bool,
}

/// Slots in a poll: reading and writing of each stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollSlots([(Option<usize>, Option<usize>); STREAMS]);

/// For the coordinator (`FromNode::Output`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// 1: standard output, 2: standard error.
    pub stream: u8,
    /// Bytes of the stream before it.
    pub position: u64,
    /// Empty: only the position is reported.
    pub bytes: Vec<u8>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Output {
    streams: [Stream; STREAMS],
    pieces: VecDeque<Piece>,
    ledger: OutputLedger,
    start: [u64; STREAMS],
}

impl Output {
    /// For a job that has a folder; the ends are for the program only.
    pub fn open(settings: &Settings) -> io::Result<Option<(Self, Ends)>> {
        let folder = settings.folder.as_ref().or(settings.local.as_ref());
        let Some(folder) = folder else { return Ok(None) };
        let (ledger, mut forwarded) = OutputLedger::open(folder, settings.rank)?;
        let mark = match &settings.restore {
            Some(checkpoint) => OutputMark::read(checkpoint, settings.rank)?,
            None => None,
        };
        let oldest = |at: usize| {
            let of = |OutputMark(streams, _): &OutputMark| streams[at].oldest();
            mark.as_ref().map_or(0, of)
        };
        for (at, forwarded) in forwarded.iter_mut().enumerate() {
            match settings.printed {
                Some(Printed { bytes, exact: true }) => {
                    *forwarded = bytes[at];
                    report_gap(settings, at, oldest(at).saturating_sub(*forwarded));
                }
                Some(Printed { bytes, .. }) => *forwarded = bytes[at].max(*forwarded),
                None => {}
            }
            ledger.set(at, *forwarded);
        }
        let relayed = settings.prints && settings.printed.is_some();
        let (out, out_end) = Stream::open(1, forwarded[0], relayed)?;
        let (err, err_end) = Stream::open(2, forwarded[1], relayed)?;
        let (streams, pieces, start) = ([out, err], VecDeque::new(), [0; STREAMS]);
        let mut output = Self { streams, pieces, ledger, start };
        let exact = settings.printed.is_some_and(|printed| printed.exact);
        for (stream, at) in output.streams.iter_mut().zip(mark.iter().flat_map(|mark| &mark.0)) {
            stream.rewind(at, exact);
        }
        output.start = output.positions();
        output.forward();
        Ok(Some((output, Ends([Some(out_end), Some(err_end)], None))))
    }

    /// What to wait for.
    pub fn poll(&self, poll: &mut Poll) -> PollSlots {
        let mut slots = PollSlots::default();
        for (stream, slot) in self.streams.iter().zip(&mut slots.0) {
            if let Some(from) = &stream.from
                && stream.waiting.len() < WAITING_BYTES_MAX
            {
                slot.0 = Some(poll.add(from.as_raw_fd(), false));
            }
            if stream.blocked {
                slot.1 = Some(poll.add_for_writing(stream.to.as_raw_fd()));
            }
        }
        slots
    }

    /// Reads and forwards what polling has found.
    pub fn handle_ready(&mut self, poll: &Poll, slots: &PollSlots) {
        let ready = |slot: Option<usize>| slot.is_some_and(|slot| poll.is_ready(slot));
        for (stream, (from, to)) in self.streams.iter_mut().zip(slots.0) {
            if ready(to) {
                stream.blocked = false;
            }
            if ready(from) {
                stream.read();
            }
        }
        self.forward();
    }

    /// The next piece for the coordinator.
    pub fn next_piece(&mut self) -> Option<Piece> {
        self.pieces.pop_front()
    }

    /// Sends everything again: to a coordinator that has nothing yet (5).
    pub fn resend(&mut self) {
        self.pieces.clear();
        for (stream, of) in (1..).zip(&mut self.streams) {
            if of.sent.is_some() {
                of.sent = Some(0);
                let position = of.position();
                self.pieces.push_back(Piece { stream, position, bytes: Vec::new() });
            }
        }
        self.forward();
    }

    /// mpirun has everything of this stream up to this position.
    pub fn accepted(&mut self, stream: u8, position: u64) {
        let at = usize::from(stream).checked_sub(1);
        if let Some(stream) = at.and_then(|at| self.streams.get_mut(at)) {
            stream.accepted(position);
        }
    }

    /// There will be no coordinator: what mpirun has not acknowledged goes to the guardian's own
    /// descriptors.
    pub fn stop_relay(&mut self) {
        self.pieces.clear();
        self.streams.iter_mut().for_each(|stream| stream.sent = None);
        self.forward();
    }

    /// Is it relayed by the coordinator?
    pub fn is_relayed(&self) -> bool {
        self.streams.iter().any(|stream| stream.sent.is_some())
    }

    /// Positions of the streams before this guardian has forwarded anything.
    pub fn start_positions(&self) -> [u64; STREAMS] {
        self.start
    }

    /// Positions up to which orted has received the streams.
    pub fn forwarded(&self) -> [u64; STREAMS] {
        [0, 1].map(|at| self.streams[at].forwarded())
    }

    /// The same over all incarnations: a restarted program may still be repeating earlier output.
    pub fn positions(&self) -> [u64; STREAMS] {
        [0, 1].map(|at| self.streams[at].position())
    }

    /// Positions of the streams while the program is suspended.
    pub fn mark(&mut self) -> OutputMark {
        self.drain();
        let streams = [0, 1].map(|at| {
            let Stream { waiting, written, history, .. } = &self.streams[at];
            let before = history[history.len().saturating_sub(HISTORY_BYTES)..].to_vec();
            StreamMark { written: *written, waiting: waiting.clone(), before }
        });
        OutputMark(streams, InputMark::default())
    }

    /// Reads what is there.
    pub fn drain(&mut self) {
        for stream in &mut self.streams {
            let mut bytes = 0;
            while bytes < DRAIN_BYTES_MAX {
                match stream.read() {
                    0 => break,
                    some => bytes += some,
                }
            }
        }
        self.forward();
    }

    /// Is everything forwarded, and, if `to_the_end`, can nobody print any more?
    pub fn is_done(&self, to_the_end: bool) -> bool {
        let done =
            |stream: &Stream| stream.waiting.is_empty() && !(to_the_end && stream.from.is_some());
        self.streams.iter().all(done)
    }

    fn forward(&mut self) {
        for (at, stream) in self.streams.iter_mut().enumerate() {
            let count = |position| self.ledger.set(at, position);
            match stream.sent {
                None => stream.forward(count),
                Some(_) => {
                    let piece = |(position, bytes)| Piece { stream: at as u8 + 1, position, bytes };
                    self.pieces.extend(stream.next_unsent(count).map(piece));
                }
            }
        }
    }
}

/// Opens the program's output. If that fails it prints to the guardian's own descriptors.
pub fn open(settings: &Settings) -> (Option<Output>, Ends) {
    match Output::open(settings) {
        Ok(Some((output, ends))) => (Some(output), ends),
        Ok(None) => Default::default(),
        Err(error) => {
            report!(
                "rank {} on node {}: its output cannot be counted, so a restart may print some of \
                 it again: {error}",
                settings.rank,
                os::hostname()
            );
            Default::default()
        }
    }
}

impl Stream {
    /// In place of the guardian's own descriptor `fd`; `relayed`: to the coordinator, as long as
    /// there is one. Returns the program's end, too.
    fn open(fd: RawFd, forwarded_before: u64, relayed: bool) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: standard descriptors are open as long as this process lives.
        let own = unsafe { BorrowedFd::borrow_raw(fd) };
        let (from, end) = if own.is_terminal() {
            os::terminal_like(own)?
        } else {
            let (from, end) = io::pipe()?;
            (from.into(), end.into())
        };
        os::set_nonblocking(&from)?;
        let stream = Self {
            from: Some(from.into()),
            to: os::nonblocking_writer(own)?,
            waiting: Vec::new(),
            sent: relayed.then_some(0),
            written: forwarded_before,
            history: Vec::new(),
            forwarded_before,
            blocked: false,
        };
        Ok((stream, end))
    }

    fn forwarded(&self) -> u64 {
        self.written - self.waiting.len() as u64
    }

    fn position(&self) -> u64 {
        self.forwarded().max(self.forwarded_before)
    }

    /// What waits and was not sent yet, with its position.
    fn next_unsent(&mut self, count: impl Fn(u64)) -> Option<(u64, Vec<u8>)> {
        let piece = self.waiting.get(self.sent?..).filter(|piece| !piece.is_empty())?;
        // Before it is forwarded (1).
        count(self.written);
        let begin = self.written - piece.len() as u64;
        let piece = piece.to_vec();
        self.sent = Some(self.waiting.len());
        Some((begin, piece))
    }

    fn accepted(&mut self, position: u64) {
        let bytes = position.saturating_sub(self.forwarded()).min(self.waiting.len() as u64);
        append_history(&mut self.history, &self.waiting[..bytes as usize]);
        self.waiting.drain(..bytes as usize);
        self.sent = self.sent.map(|sent| sent.saturating_sub(bytes as usize));
        // An earlier incarnation has printed more.
        self.forwarded_before = self.forwarded_before.max(position);
    }

    /// Sets the stream back to where it was at a checkpoint. What was forwarded before that is not
    /// printed again, unless it is known exactly what mpirun has printed.
    fn rewind(&mut self, at: &StreamMark, exact: bool) {
        self.written = at.oldest();
        if !exact {
            self.forwarded_before = self.forwarded_before.max(at.forwarded());
        }
        self.append(&at.before);
        self.append(&at.waiting);
    }

    fn append(&mut self, bytes: &[u8]) {
        let repeated = self.forwarded_before.saturating_sub(self.written).min(bytes.len() as u64);
        self.written += bytes.len() as u64;
        let (printed, new) = bytes.split_at(repeated as usize);
        append_history(&mut self.history, printed);
        self.waiting.extend_from_slice(new);
    }

    /// Bytes that were read; 0: there are none at the moment, or there will be none.
    fn read(&mut self) -> usize {
        let Some(from) = &mut self.from else { return 0 };
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            return match from.read(&mut piece) {
                Ok(bytes) if bytes > 0 => {
                    self.append(&piece[..bytes]);
                    bytes
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                // The end, which a terminal reports by an error.
                _ => {
                    self.from = None;
                    0
                }
            };
        }
    }

    fn forward(&mut self, count: impl Fn(u64)) {
        while !self.waiting.is_empty() && !self.blocked {
            let piece = &self.waiting[..self.waiting.len().min(FORWARD_BYTES)];
            let newline = piece.iter().rposition(|&byte| byte == b'\n');
            let bytes = newline.map_or(piece.len(), |at| at + 1);
            let begin = self.written - self.waiting.len() as u64;
            // Before it is forwarded (1).
            count(begin + bytes as u64);
            let done = match self.to.write(&self.waiting[..bytes]) {
                Ok(done) => done,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    0
                }
                Err(_) => {
                    // Nobody reads: the program's next write fails, as without a guardian.
                    self.from = None;
                    self.waiting.clear();
                    return;
                }
            };
            append_history(&mut self.history, &self.waiting[..done]);
            self.waiting.drain(..done);
            if done < bytes {
                count(begin + done as u64);
            }
        }
    }
}

/// Adds what was forwarded, and drops what is too old.
fn append_history(history: &mut Vec<u8>, bytes: &[u8]) {
    history.extend_from_slice(bytes);
    if history.len() > 2 * HISTORY_BYTES {
        history.drain(..history.len() - HISTORY_BYTES);
    }
}

/// Reports output that mpirun has not received and that the checkpoint no longer has.
fn report_gap(settings: &Settings, stream: usize, bytes: u64) {
    if bytes > 0 {
        let name = ["output", "error"][stream];
        report!(
            "{bytes} bytes of rank {}'s standard {name} are lost: they were on their way to mpirun \
             when the rank's node was lost, and are older than what its checkpoint keeps",
            settings.rank
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(forwarded_before: u64) -> Stream {
        let to = File::options().write(true).open("/dev/null").unwrap();
        Stream {
            from: None,
            to,
            waiting: Vec::new(),
            sent: None,
            written: 0,
            history: Vec::new(),
            forwarded_before,
            blocked: false,
        }
    }

    #[test]
    fn what_mpirun_has_not_received_is_printed_again_from_the_checkpoint() {
        // At the checkpoint the program had written ten bytes, of which three were not forwarded.
        let at = StreamMark { written: 10, waiting: b"789".into(), before: b"3456".into() };
        let cases = [
            // What mpirun has of it exactly, or at least; what is forwarded next.
            (5, true, "56789ab"),
            (3, true, "3456789ab"),
            (9, true, "9ab"),
            (11, true, "b"),
            // Too much was lost.
            (1, true, "3456789ab"),
            (5, false, "789ab"),
            (9, false, "9ab"),
            (0, false, "789ab"),
        ];
        for (known, exact, wanted) in cases {
            let mut stream = stream(known);
            stream.rewind(&at, exact);
            stream.append(b"ab");
            assert_eq!(stream.waiting, wanted.as_bytes(), "{known} {exact}");
            assert_eq!(stream.written, 12);
            // All of it is history in the end.
            stream.forward(|_| ());
            assert_eq!(stream.history, b"3456789ab", "{known} {exact}");
        }
    }

    #[test]
    fn of_what_was_forwarded_only_the_last_is_kept() {
        let mut history = Vec::new();
        for round in 0..40u8 {
            append_history(&mut history, &vec![round; HISTORY_BYTES / 8]);
            assert!(history.len() <= 2 * HISTORY_BYTES && history.last() == Some(&round));
        }
        assert!(history.len() >= HISTORY_BYTES);
    }

    #[test]
    fn what_was_forwarded_in_an_earlier_incarnation_is_dropped() {
        for cut in 0..=10 {
            let mut stream = stream(6);
            stream.append(&b"0123456789"[..cut]);
            stream.append(&b"0123456789"[cut..]);
            assert_eq!(stream.waiting, b"6789", "{cut}");
            assert_eq!(stream.written, 10);
        }
    }

    #[test]
    fn a_piece_is_counted_before_it_is_forwarded() {
        let mut stream = stream(2);
        stream.append(b"abcde");
        let counted = core::cell::RefCell::new(Vec::new());
        stream.forward(|position| counted.borrow_mut().push(position));
        assert_eq!(*counted.borrow(), [5]);
        assert!(stream.waiting.is_empty());
    }

    #[test]
    fn invariant_5_what_the_coordinator_has_is_kept_until_mpirun_has_it() {
        let mut stream = stream(3);
        stream.sent = Some(0);
        let counted = core::cell::Cell::new(0);
        let next_unsent =
            |stream: &mut Stream| stream.next_unsent(|position| counted.set(position));
        stream.append(b"abcdef");
        assert_eq!(next_unsent(&mut stream), Some((3, b"def".to_vec())));
        assert_eq!((next_unsent(&mut stream), counted.get(), stream.forwarded()), (None, 6, 3));
        stream.accepted(4);
        stream.append(b"gh");
        assert_eq!(next_unsent(&mut stream), Some((6, b"gh".to_vec())));
        // The coordinator has failed over.
        stream.sent = Some(0);
        assert_eq!(next_unsent(&mut stream), Some((4, b"efgh".to_vec())));
        stream.accepted(2);
        assert_eq!((&stream.waiting[..], &stream.history[..]), (&b"efgh"[..], &b"abcd"[..]));
        // An earlier incarnation had come further.
        stream.accepted(10);
        stream.append(b"ijk");
        assert_eq!(next_unsent(&mut stream), Some((10, b"k".to_vec())));
        assert_eq!(stream.history, b"abcdefghij");
        stream.accepted(11);
        assert!(stream.waiting.is_empty() && stream.sent == Some(0));
    }
}
