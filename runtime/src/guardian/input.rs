//! The rank's standard input: the guardian reads it and passes it on through a pipe of its own, and
//! keeps what the program may have to read again.
//!
//! ```text
//! orted ── pipe ──> guardian ── keeps what was read since the oldest checkpoint ──> program
//! ```
//! 1. A restarted program reads on where it was at its checkpoint: what it had read since is there
//!    again, in the same order. How much it has read is what was written into its pipe, less what
//!    is in it, while the program is suspended for its snapshot.
//! 2. What it had not read at a checkpoint is stored with it. A job that is restarted gets that,
//!    and then the new input, of which as much is passed over as the old one had been read.
//! 3. Where a guardian on another node has no input, a rank is restored only if it needs none.
//! 4. It is never read ahead by more than [`AHEAD_BYTES`]: whoever writes has to wait as without a
//!    guardian.

use crate::guardian::output_offsets::OutputMark;
use crate::os;
use crate::os::Poll;
use crate::settings::Settings;
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::little_endian::{LittleEndian, take_bytes};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;

/// Bytes that wait for room in the program's pipe.
const AHEAD_BYTES: usize = 64 << 10;
/// Bytes that are kept for a rollback at most.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// Position of the input at a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InputMark {
    /// Bytes that the program had read.
    pub read: u64,
    /// What had come after them.
    pub waiting: Vec<u8>,
    /// Nothing will come after that.
    pub ended: bool,
}

impl InputMark {
    /// Appends it to the file of a checkpoint.
    pub fn append(&self, out: &mut Vec<u8>) {
        self.read.append(out);
        u64::from(self.ended).append(out);
        (self.waiting.len() as u64).append(out);
        out.extend(&self.waiting);
    }

    /// Takes it from there.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        let read = u64::take_from(rest)?;
        let ended = match u64::take_from(rest)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let length = usize::try_from(u64::take_from(rest)?).ok()?;
        Some(Self { read, waiting: take_bytes(rest, length)?.to_vec(), ended })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Input {
    /// `None`: it has ended.
    from: Option<File>,
    /// Bytes to pass over before anything is taken from `from` (2).
    skip: u64,
    /// From position `kept_from` on, up to what was read last.
    kept: VecDeque<u8>,
    kept_from: u64,
    /// Up to here it was written into the program's pipe.
    written: u64,
    /// The program's pipe; `None`: all was written, and there will be no more.
    to: Option<File>,
    /// Its other end, to see how much is in it.
    end: OwnedFd,
    /// The pipe is full.
    blocked: bool,
    /// What had been read at checkpoints to which the rank may still be rolled back.
    marks: BTreeMap<CheckpointId, u64>,
}

/// Slots in a poll: reading and writing.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollSlots(Option<usize>, Option<usize>);

impl Input {
    /// In place of the guardian's own standard input, if that is a pipe or a socket; `at`: where a
    /// program that is restored was in its input. Returns the program's end, too.
    pub fn open(at: Option<&InputMark>) -> io::Result<Option<(Self, OwnedFd)>> {
        let stdin = io::stdin();
        let from = File::from(stdin.as_fd().try_clone_to_owned()?);
        let kind = from.metadata()?.file_type();
        let nothing = InputMark::default();
        let needs_it = at.is_some_and(|at| *at != nothing);
        if !kind.is_fifo() && !kind.is_socket() && !needs_it {
            return Ok(None);
        }
        Self::over(from, at.unwrap_or(&nothing)).map(Some)
    }

    fn over(from: File, at: &InputMark) -> io::Result<(Self, OwnedFd)> {
        let from = if at.ended { None } else { Some(from) };
        let (end, to, for_program) = Self::pipe()?;
        let mut input = Self {
            from,
            skip: if at.ended { 0 } else { at.read + at.waiting.len() as u64 },
            kept: at.waiting.iter().copied().collect(),
            kept_from: at.read,
            written: at.read,
            to: Some(to),
            end,
            blocked: false,
            marks: BTreeMap::new(),
        };
        input.pass_on();
        Ok((input, for_program))
    }

    /// The guardian's two ends, and the program's.
    fn pipe() -> io::Result<(OwnedFd, File, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        let reader = OwnedFd::from(reader);
        os::set_nonblocking(&writer)?;
        Ok((reader.try_clone()?, File::from(OwnedFd::from(writer)), reader))
    }

    /// The program is rolled back to a checkpoint: its new end.
    ///
    /// # Errors
    /// What it has to read again is not here any more.
    pub fn rewind(&mut self, at: &InputMark) -> Result<OwnedFd, String> {
        if at.read < self.kept_from || at.read > self.position() {
            return Err(format!(
                "what it reads from standard input is not kept any more (from byte {} on; byte {} \
                 is needed)",
                self.kept_from, at.read
            ));
        }
        let (end, to, for_program) = Self::pipe().map_err(|error| error.to_string())?;
        (self.end, self.to, self.blocked, self.written) = (end, Some(to), false, at.read);
        self.pass_on();
        Ok(for_program)
    }

    /// Behind the last byte that was read.
    fn position(&self) -> u64 {
        self.kept_from + self.kept.len() as u64
    }

    fn ahead(&self) -> usize {
        usize::try_from(self.position() - self.written).unwrap_or(usize::MAX)
    }

    /// What to wait for.
    pub fn poll(&self, poll: &mut Poll) -> PollSlots {
        let from = self.from.as_ref().filter(|_| self.skip > 0 || self.ahead() < AHEAD_BYTES);
        let to = self.to.as_ref().filter(|_| self.blocked);
        PollSlots(
            from.map(|from| poll.add(from.as_raw_fd(), false)),
            to.map(|to| poll.add_for_writing(to.as_raw_fd())),
        )
    }

    /// Reads and passes on what polling has found.
    ///
    /// # Errors
    /// The new input of a restarted job is shorter than what had been read of the old one.
    pub fn handle_ready(&mut self, poll: &Poll, slots: PollSlots) -> Result<(), String> {
        let ready = |slot: Option<usize>| slot.is_some_and(|slot| poll.is_ready(slot));
        self.blocked &= !ready(slots.1);
        if ready(slots.0) {
            self.read()?;
        }
        self.pass_on();
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let Some(from) = &mut self.from else { return Ok(()) };
        let mut piece = vec![0; AHEAD_BYTES];
        match from.read(&mut piece) {
            Ok(bytes) if bytes > 0 => {
                let skipped = self.skip.min(bytes as u64);
                self.skip -= skipped;
                self.kept.extend(&piece[skipped as usize..bytes]);
                self.limit();
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            _ => {
                self.from = None;
                if self.skip > 0 {
                    return Err(format!(
                        "standard input has ended {} bytes before the place up to which the \
                         program had read it: give the job the same input as before",
                        self.skip
                    ));
                }
            }
        }
        Ok(())
    }

    /// A program that reads without end between two checkpoints cannot be rolled back.
    fn limit(&mut self) {
        let more = self.kept.len().saturating_sub(KEPT_BYTES_MAX);
        let passed_on = usize::try_from(self.written - self.kept_from).unwrap_or(usize::MAX);
        self.forget(more.min(passed_on));
    }

    fn forget(&mut self, bytes: usize) {
        self.kept.drain(..bytes);
        self.kept_from += bytes as u64;
    }

    /// Writes as much as there is room for.
    fn pass_on(&mut self) {
        while let Some(to) = &mut self.to
            && !self.blocked
        {
            let from = (self.written - self.kept_from) as usize;
            let (first, second) = self.kept.as_slices();
            let piece = match first.get(from..) {
                Some(piece) if !piece.is_empty() => piece,
                _ => &second[from - first.len()..],
            };
            if piece.is_empty() {
                if self.from.is_none() {
                    self.to = None;
                }
                return;
            }
            match to.write(piece) {
                Ok(bytes) => self.written += bytes as u64,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                // It is not read any more.
                Err(_) => return,
            }
        }
    }

    /// Where the program is, while it is suspended.
    pub fn mark(&mut self, checkpoint: CheckpointId) -> InputMark {
        let unread = os::bytes_in(&self.end).unwrap_or(0) as u64;
        let read = self.written.saturating_sub(unread).max(self.kept_from);
        self.marks.insert(checkpoint, read);
        let waiting = self.kept.iter().skip((read - self.kept_from) as usize).copied().collect();
        InputMark { read, waiting, ended: self.from.is_none() }
    }

    /// Nobody is rolled back to an older checkpoint.
    pub fn keep_from(&mut self, oldest: CheckpointId) {
        self.marks = self.marks.split_off(&oldest);
        if let Some(&needed) = self.marks.values().min() {
            self.forget(usize::try_from(needed - self.kept_from).unwrap_or(0));
        }
    }
}

/// For a program that is started, or restored by a guardian that has not run it before.
///
/// # Errors
/// Why it cannot be restored.
pub fn of(settings: &Settings) -> Result<Option<(Input, OwnedFd)>, String> {
    let at = match &settings.restore {
        Some(_) => Some(mark_of(settings)?),
        None => None,
    };
    if let Some(at) = at.as_ref().filter(|_| settings.printed.is_some()) {
        is_dispensable(at).map_err(|why| format!("rank {}: {why}", settings.rank))?;
    }
    Input::open(at.as_ref()).map_err(|error| format!("its standard input: {error}"))
}

/// The position in the checkpoint that is restored.
pub fn mark_of(settings: &Settings) -> Result<InputMark, String> {
    let Some(checkpoint) = &settings.restore else { return Ok(InputMark::default()) };
    let mark = OutputMark::read(checkpoint, settings.rank);
    let mark = mark.map_err(|error| format!("{}: {error}", checkpoint.display()))?;
    Ok(mark.unwrap_or_default().1)
}

/// Can a rank be restored where there is no input (3)?
///
/// # Errors
/// What it lacks.
fn is_dispensable(at: &InputMark) -> Result<(), String> {
    if at.ended || *at == InputMark::default() {
        return Ok(());
    }
    Err("it reads from standard input, which was on the node that is lost".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody who writes, the guardian's part, and the program's end.
    fn input(at: &InputMark) -> (File, Input, File) {
        let (from, writer) = io::pipe().unwrap();
        let (input, program) = Input::over(File::from(OwnedFd::from(from)), at).unwrap();
        (File::from(OwnedFd::from(writer)), input, File::from(program))
    }

    fn reads(program: &mut File, bytes: usize) -> String {
        let mut read = vec![0; bytes];
        program.read_exact(&mut read).unwrap();
        String::from_utf8(read).unwrap()
    }

    fn step(input: &mut Input) {
        input.read().unwrap();
        input.pass_on();
    }

    #[test]
    fn what_was_read_since_the_checkpoint_is_read_again() {
        let (mut writer, mut input, mut program) = input(&InputMark::default());
        writer.write_all(b"abcdefgh").unwrap();
        step(&mut input);
        assert_eq!(reads(&mut program, 3), "abc");
        let first = input.mark(CheckpointId(1));
        assert_eq!(first, InputMark { read: 3, waiting: b"defgh".into(), ended: false });
        assert_eq!(reads(&mut program, 2), "de");
        let second = input.mark(CheckpointId(2));
        assert_eq!((second.read, &second.waiting[..]), (5, &b"fgh"[..]));
        // The program has ended: its pipe and what is in it are gone.
        let mut program = File::from(input.rewind(&first).unwrap());
        assert_eq!(reads(&mut program, 5), "defgh");
        writer.write_all(b"ij").unwrap();
        step(&mut input);
        assert_eq!(reads(&mut program, 2), "ij");
        input.keep_from(CheckpointId(2));
        assert!(input.rewind(&first).unwrap_err().contains("not kept"));
        let mut program = File::from(input.rewind(&second).unwrap());
        drop(writer);
        step(&mut input);
        let mut rest = String::new();
        program.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "fghij", "and then the end");
        let ended = input.mark(CheckpointId(3));
        assert_eq!(ended, InputMark { read: 10, waiting: Vec::new(), ended: true });
    }

    #[test]
    fn a_restarted_job_gets_what_was_stored_and_then_the_rest_of_the_same_input() {
        let at = InputMark { read: 3, waiting: b"de".into(), ended: false };
        let (mut writer, mut input, mut program) = input(&at);
        assert_eq!(reads(&mut program, 2), "de");
        writer.write_all(b"abcd").unwrap();
        step(&mut input);
        writer.write_all(b"efg").unwrap();
        drop(writer);
        step(&mut input);
        step(&mut input);
        let mut all = String::new();
        program.read_to_string(&mut all).unwrap();
        assert_eq!(all, "fg");
    }

    #[test]
    fn an_input_that_is_too_short_is_refused_and_one_that_had_ended_is_not_needed() {
        let at = InputMark { read: 3, waiting: b"de".into(), ended: false };
        let (mut writer, mut input, _program) = input(&at);
        writer.write_all(b"abc").unwrap();
        input.read().unwrap();
        drop(writer);
        assert!(input.read().unwrap_err().contains("2 bytes before"));
        let at = InputMark { ended: true, ..at };
        let (_writer, mut input, mut program) = self::input(&at);
        step(&mut input);
        let mut all = String::new();
        program.read_to_string(&mut all).unwrap();
        assert_eq!(all, "de");
        assert!(is_dispensable(&at).is_ok() && is_dispensable(&InputMark::default()).is_ok());
        assert!(is_dispensable(&InputMark { ended: false, ..at }).is_err());
    }

    #[test]
    fn a_full_pipe_makes_it_wait() {
        let (mut writer, mut input, mut program) = input(&InputMark::default());
        let long = vec![b'x'; AHEAD_BYTES];
        let mut given = 0;
        while input.ahead() < AHEAD_BYTES {
            writer.write_all(&long).unwrap();
            given += long.len();
            step(&mut input);
        }
        assert!(input.blocked);
        let mut poll = Poll::default();
        assert!(input.poll(&mut poll).0.is_none(), "no more is read");
        let mut read = vec![0; given - input.ahead()];
        program.read_exact(&mut read).unwrap();
        input.blocked = false;
        input.pass_on();
        assert!(input.ahead() < AHEAD_BYTES);
    }

    #[test]
    fn a_mark_is_taken_as_it_was_appended() {
        let mark = InputMark { read: 7, waiting: b"abc".into(), ended: true };
        let mut bytes = Vec::new();
        mark.append(&mut bytes);
        let mut rest = &bytes[..];
        assert_eq!(InputMark::take(&mut rest), Some(mark));
        assert!(rest.is_empty());
        for at in 0..bytes.len() {
            assert_eq!(InputMark::take(&mut &bytes[..at]), None, "{at}");
        }
    }
}
