//! What the rank prints: the guardian takes it in, counts it, and hands it on at once.
//!
//! ```text
//! program ── terminal or pipe, as orted gave it ──> guardian ── counts (`Ledger`) ──> orted
//!                               or, if the rank has lost its orted ──> coordinator ──> mpirun
//! ```
//! 1. Nothing is handed on twice in all lives of the program: a piece is counted before it is
//!    handed on, and what a restored program prints again is dropped up to that count.
//! 2. What the program had printed when its picture was taken, and was not handed on, is in the
//!    line: it is not printed again by the restored program, so the next guardian hands it on.
//! 3. What was handed on to the orted of a node that is lost may not have come to mpirun, which has
//!    counted. A guardian on another node goes back to what has come: the line has the last of what
//!    was handed on before it, and what is after it the program prints again.
//! 4. A reader who does not read slows the program down as without a guardian; the guardian never
//!    waits for it.
//! 5. What goes by way of the coordinator is kept until mpirun has it, and sent again to another
//!    coordinator: mpirun knows where it is in the stream, and prints nothing twice
//!    (docs/adr/0020).

use crate::guardian::output_offsets::{Ledger, Mark, Place, STREAMS};
use crate::os;
use crate::os::Poll;
use crate::settings::{Printed, Settings};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes that are handed on at a time, what SIGKILL can lose: pipes take them whole or not at all.
const HANDED_BYTES: usize = 4096;
/// Bytes that wait for orted before the program has to wait, too.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Bytes that are kept of what was handed on: as much as may be on its way to mpirun.
const KEPT_BYTES: usize = 256 << 10;
/// Bytes that are taken in for a mark at most: somebody else may be printing all the time.
const DRAIN_BYTES_MAX: usize = 4 << 20;

/// Standard descriptors of the program where they are not those of the guardian.
#[derive(Debug, Default)]
pub struct Ends(pub [Option<OwnedFd>; STREAMS]);

impl Ends {
    /// The numbers of all three.
    pub fn numbers(&self) -> [RawFd; 3] {
        let [out, err] = &self.0;
        let number = |end: &Option<OwnedFd>, own| end.as_ref().map_or(own, AsRawFd::as_raw_fd);
        [0, number(out, 1), number(err, 2)]
    }
}

#[derive(Debug)]
struct Stream {
    /// `None`: nobody writes any more, or nobody reads.
    from: Option<File>,
    to: File,
    /// Taken in, not handed on; its end is at `written`.
    waiting: Vec<u8>,
    /// `None`: it goes to `to`. Else to the coordinator, which has so much of what waits.
    sent: Option<usize>,
    written: u64,
    /// The last of what was handed on, in whatever life.
    kept: Vec<u8>,
    /// What is before this place was handed on in an earlier life.
    known: u64,
    /// `to` takes nothing at the moment.
    blocked: bool,
}

/// Places in a poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places([(Option<usize>, Option<usize>); STREAMS]);

/// For the coordinator (`FromNode::Output`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// 1: standard output, 2: standard error.
    pub stream: u8,
    /// Bytes of the stream before it.
    pub position: u64,
    /// None: this is where the rank goes on.
    pub bytes: Vec<u8>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Output {
    streams: [Stream; STREAMS],
    pieces: VecDeque<Piece>,
    ledger: Ledger,
    began: [u64; STREAMS],
}

impl Output {
    /// For a job that has a folder; the ends are for the program, and not to be kept.
    pub fn open(settings: &Settings) -> io::Result<Option<(Self, Ends)>> {
        let place = settings.folder.as_ref().or(settings.local.as_ref());
        let Some(folder) = place else { return Ok(None) };
        let (ledger, mut known) = Ledger::open(folder, settings.rank)?;
        let mark = match &settings.restore {
            Some(line) => Mark::read(line, settings.rank)?,
            None => None,
        };
        let oldest = |at: usize| {
            let of = |Mark(places): &Mark| places[at].handed_on() - places[at].before.len() as u64;
            mark.as_ref().map_or(0, of)
        };
        for (at, known) in known.iter_mut().enumerate() {
            match settings.printed {
                Some(Printed { bytes, exact: true }) => {
                    *known = bytes[at];
                    tell_gap(settings, at, oldest(at).saturating_sub(*known));
                }
                Some(Printed { bytes, .. }) => *known = bytes[at].max(*known),
                None => {}
            }
            ledger.set(at, *known);
        }
        let away = settings.prints && settings.printed.is_some();
        let (out, out_end) = Stream::open(1, known[0], away)?;
        let (err, err_end) = Stream::open(2, known[1], away)?;
        let (streams, pieces, began) = ([out, err], VecDeque::new(), [0; STREAMS]);
        let mut output = Self { streams, pieces, ledger, began };
        let exact = settings.printed.is_some_and(|printed| printed.exact);
        for (stream, place) in output.streams.iter_mut().zip(mark.iter().flat_map(|mark| &mark.0)) {
            stream.go_back(place, exact);
        }
        output.began = output.reached();
        output.hand_on();
        Ok(Some((output, Ends([Some(out_end), Some(err_end)]))))
    }

    /// What to wait for.
    pub fn poll(&self, poll: &mut Poll) -> Places {
        let mut places = Places::default();
        for (stream, place) in self.streams.iter().zip(&mut places.0) {
            if let Some(from) = &stream.from
                && stream.waiting.len() < WAITING_BYTES_MAX
            {
                place.0 = Some(poll.add(from.as_raw_fd(), false));
            }
            if stream.blocked {
                place.1 = Some(poll.add_for_writing(stream.to.as_raw_fd()));
            }
        }
        places
    }

    /// Something may have happened.
    pub fn attend(&mut self, poll: &Poll, places: &Places) {
        let ready = |place: Option<usize>| place.is_some_and(|place| poll.is_ready(place));
        for (stream, (from, to)) in self.streams.iter_mut().zip(places.0) {
            if ready(to) {
                stream.blocked = false;
            }
            if ready(from) {
                stream.read();
            }
        }
        self.hand_on();
    }

    /// The next piece for the coordinator.
    pub fn next_piece(&mut self) -> Option<Piece> {
        self.pieces.pop_front()
    }

    /// There is a coordinator that has got nothing yet (5).
    pub fn send_anew(&mut self) {
        self.pieces.clear();
        for (stream, of) in (1..).zip(&mut self.streams) {
            if of.sent.is_some() {
                of.sent = Some(0);
                let position = of.reached();
                self.pieces.push_back(Piece { stream, position, bytes: Vec::new() });
            }
        }
        self.hand_on();
    }

    /// mpirun has everything of this stream up to there.
    pub fn taken(&mut self, stream: u8, position: u64) {
        let at = usize::from(stream).checked_sub(1);
        if let Some(stream) = at.and_then(|at| self.streams.get_mut(at)) {
            stream.taken(position);
        }
    }

    /// There will be no coordinator: what is not known to be printed goes where the guardian itself
    /// prints.
    pub fn stay_here(&mut self) {
        self.pieces.clear();
        self.streams.iter_mut().for_each(|stream| stream.sent = None);
        self.hand_on();
    }

    /// Does it go by way of the coordinator?
    pub fn is_away(&self) -> bool {
        self.streams.iter().any(|stream| stream.sent.is_some())
    }

    /// Where the streams were before anything was handed on through here.
    pub fn began(&self) -> [u64; STREAMS] {
        self.began
    }

    /// Where the streams are that orted has got.
    pub fn handed_on(&self) -> [u64; STREAMS] {
        [0, 1].map(|at| self.streams[at].handed_on())
    }

    /// Where the streams are of all lives: a program that repeats what was printed is before that.
    pub fn reached(&self) -> [u64; STREAMS] {
        [0, 1].map(|at| self.streams[at].reached())
    }

    /// Where the streams are now that the program stands still.
    pub fn mark(&mut self) -> Mark {
        self.drain();
        Mark([0, 1].map(|at| {
            let Stream { waiting, written, kept, .. } = &self.streams[at];
            let before = kept[kept.len().saturating_sub(KEPT_BYTES)..].to_vec();
            Place { written: *written, waiting: waiting.clone(), before }
        }))
    }

    /// Take in what is there.
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
        self.hand_on();
    }

    /// Everything is handed on, and if `to_the_end`, nobody can print any more.
    pub fn is_done(&self, to_the_end: bool) -> bool {
        let done =
            |stream: &Stream| stream.waiting.is_empty() && !(to_the_end && stream.from.is_some());
        self.streams.iter().all(done)
    }

    fn hand_on(&mut self) {
        for (at, stream) in self.streams.iter_mut().enumerate() {
            let count = |position| self.ledger.set(at, position);
            match stream.sent {
                None => stream.hand_on(count),
                Some(_) => {
                    let piece = |(position, bytes)| Piece { stream: at as u8 + 1, position, bytes };
                    self.pieces.extend(stream.hand_over(count).map(piece));
                }
            }
        }
    }
}

/// Where the program prints. Without the way through here it prints all the same.
pub fn open(settings: &Settings) -> (Option<Output>, Ends) {
    match Output::open(settings) {
        Ok(Some((output, ends))) => (Some(output), ends),
        Ok(None) => Default::default(),
        Err(error) => {
            say!(
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
    /// In place of the guardian's own descriptor `fd`; `away`: to the coordinator, as long as there
    /// is one. The second is the program's end.
    fn open(fd: RawFd, known: u64, away: bool) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: standard descriptors are open as long as this process lives.
        let own = unsafe { BorrowedFd::borrow_raw(fd) };
        let (from, end) = if own.is_terminal() {
            os::terminal_like(own)?
        } else {
            let (from, end) = io::pipe()?;
            (from.into(), end.into())
        };
        os::never_wait(&from)?;
        let stream = Self {
            from: Some(from.into()),
            to: os::writer_that_never_waits(own)?,
            waiting: Vec::new(),
            sent: away.then_some(0),
            written: known,
            kept: Vec::new(),
            known,
            blocked: false,
        };
        Ok((stream, end))
    }

    fn handed_on(&self) -> u64 {
        self.written - self.waiting.len() as u64
    }

    fn reached(&self) -> u64 {
        self.handed_on().max(self.known)
    }

    /// What waits and was not sent yet, with its position.
    fn hand_over(&mut self, count: impl Fn(u64)) -> Option<(u64, Vec<u8>)> {
        let piece = self.waiting.get(self.sent?..).filter(|piece| !piece.is_empty())?;
        // Before it is handed on (1).
        count(self.written);
        let begin = self.written - piece.len() as u64;
        let piece = piece.to_vec();
        self.sent = Some(self.waiting.len());
        Some((begin, piece))
    }

    fn taken(&mut self, position: u64) {
        let bytes = position.saturating_sub(self.handed_on()).min(self.waiting.len() as u64);
        keep(&mut self.kept, &self.waiting[..bytes as usize]);
        self.waiting.drain(..bytes as usize);
        self.sent = self.sent.map(|sent| sent.saturating_sub(bytes as usize));
        // A life before this one has printed more.
        self.known = self.known.max(position);
    }

    /// To where it was at a line. Of what was handed on before that nothing is printed again,
    /// unless it is known exactly what was printed.
    fn go_back(&mut self, at: &Place, exact: bool) {
        self.written = at.handed_on() - at.before.len() as u64;
        if !exact {
            self.known = self.known.max(at.handed_on());
        }
        self.take_in(&at.before);
        self.take_in(&at.waiting);
    }

    fn take_in(&mut self, bytes: &[u8]) {
        let again = self.known.saturating_sub(self.written).min(bytes.len() as u64);
        self.written += bytes.len() as u64;
        let (printed, new) = bytes.split_at(again as usize);
        keep(&mut self.kept, printed);
        self.waiting.extend_from_slice(new);
    }

    /// Bytes that were taken in; 0: there are none at the moment, or there will be none.
    fn read(&mut self) -> usize {
        let Some(from) = &mut self.from else { return 0 };
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            return match from.read(&mut piece) {
                Ok(bytes) if bytes > 0 => {
                    self.take_in(&piece[..bytes]);
                    bytes
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                // The end; a terminal says it by an error.
                _ => {
                    self.from = None;
                    0
                }
            };
        }
    }

    fn hand_on(&mut self, count: impl Fn(u64)) {
        while !self.waiting.is_empty() && !self.blocked {
            let piece = &self.waiting[..self.waiting.len().min(HANDED_BYTES)];
            let newline = piece.iter().rposition(|&byte| byte == b'\n');
            let bytes = newline.map_or(piece.len(), |at| at + 1);
            let begin = self.written - self.waiting.len() as u64;
            // Before it is handed on (1).
            count(begin + bytes as u64);
            let done = match self.to.write(&self.waiting[..bytes]) {
                Ok(done) => done,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    0
                }
                Err(_) => {
                    // Nobody reads: the program learns it as without a guardian.
                    self.from = None;
                    self.waiting.clear();
                    return;
                }
            };
            keep(&mut self.kept, &self.waiting[..done]);
            self.waiting.drain(..done);
            if done < bytes {
                count(begin + done as u64);
            }
        }
    }
}

/// More was handed on: of all that, the last is kept.
fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    if kept.len() > 2 * KEPT_BYTES {
        kept.drain(..kept.len() - KEPT_BYTES);
    }
}

/// What was printed before this line is not kept by it.
fn tell_gap(settings: &Settings, stream: usize, bytes: u64) {
    if bytes > 0 {
        let name = ["output", "error"][stream];
        say!(
            "{bytes} bytes of rank {}'s standard {name} are lost: they were on their way to mpirun \
             when the rank's node was lost, and are older than what its line keeps",
            settings.rank
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(known: u64) -> Stream {
        let to = File::options().write(true).open("/dev/null").unwrap();
        let (waiting, kept) = (Vec::new(), Vec::new());
        Stream { from: None, to, waiting, sent: None, written: 0, kept, known, blocked: false }
    }

    #[test]
    fn what_mpirun_has_not_got_is_printed_again_from_what_the_line_keeps() {
        // At the line the program had written ten bytes, of which three were not handed on.
        let at = Place { written: 10, waiting: b"789".into(), before: b"3456".into() };
        let cases = [
            // What has come of it exactly, or at least; what is handed on next.
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
            stream.go_back(&at, exact);
            stream.take_in(b"ab");
            assert_eq!(stream.waiting, wanted.as_bytes(), "{known} {exact}");
            assert_eq!(stream.written, 12);
            // All of it is history in the end.
            stream.hand_on(|_| ());
            assert_eq!(stream.kept, b"3456789ab", "{known} {exact}");
        }
    }

    #[test]
    fn of_what_was_handed_on_only_the_last_is_kept() {
        let mut kept = Vec::new();
        for round in 0..40u8 {
            keep(&mut kept, &vec![round; KEPT_BYTES / 8]);
            assert!(kept.len() <= 2 * KEPT_BYTES && kept.last() == Some(&round));
        }
        assert!(kept.len() >= KEPT_BYTES);
    }

    #[test]
    fn what_was_handed_on_in_an_earlier_life_is_dropped() {
        for cut in 0..=10 {
            let mut stream = stream(6);
            stream.take_in(&b"0123456789"[..cut]);
            stream.take_in(&b"0123456789"[cut..]);
            assert_eq!(stream.waiting, b"6789", "{cut}");
            assert_eq!(stream.written, 10);
        }
    }

    #[test]
    fn a_piece_is_counted_before_it_is_handed_on() {
        let mut stream = stream(2);
        stream.take_in(b"abcde");
        let counted = core::cell::RefCell::new(Vec::new());
        stream.hand_on(|position| counted.borrow_mut().push(position));
        assert_eq!(*counted.borrow(), [5]);
        assert!(stream.waiting.is_empty());
    }

    #[test]
    fn invariant_5_what_the_coordinator_has_is_kept_until_mpirun_has_it() {
        let mut stream = stream(3);
        stream.sent = Some(0);
        let counted = core::cell::Cell::new(0);
        let hand_over = |stream: &mut Stream| stream.hand_over(|position| counted.set(position));
        stream.take_in(b"abcdef");
        assert_eq!(hand_over(&mut stream), Some((3, b"def".to_vec())));
        assert_eq!((hand_over(&mut stream), counted.get(), stream.handed_on()), (None, 6, 3));
        stream.taken(4);
        stream.take_in(b"gh");
        assert_eq!(hand_over(&mut stream), Some((6, b"gh".to_vec())));
        // There is another coordinator.
        stream.sent = Some(0);
        assert_eq!(hand_over(&mut stream), Some((4, b"efgh".to_vec())));
        stream.taken(2);
        assert_eq!((&stream.waiting[..], &stream.kept[..]), (&b"efgh"[..], &b"abcd"[..]));
        // Another life had come further.
        stream.taken(10);
        stream.take_in(b"ijk");
        assert_eq!(hand_over(&mut stream), Some((10, b"k".to_vec())));
        assert_eq!(stream.kept, b"abcdefghij");
        stream.taken(11);
        assert!(stream.waiting.is_empty() && stream.sent == Some(0));
    }
}
