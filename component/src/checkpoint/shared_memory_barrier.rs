//! Ranks of a node that share memory with each other directly (MPI_Win_allocate_shared, the
//! program's own): snapshots of them must be of one moment, although no message says that they
//! belong together.
//!
//! 1. None of them copies before the threads of all are suspended, and none goes on before all have
//!    copied.
//! 2. Who waits does not wait for one that has failed or left the checkpoint, nor for ever.
//! 3. Where a node has several sets, (1) holds for all ranks of the node in a checkpoint of all:
//!    who shares has joined when its set has stopped, and no set begins before all have stopped.
//!    There a set whose ranks share memory is not rolled back alone, since others may have it, too.
//!
//! Who shares nothing pays for reading its mappings, most of it before the program is kept out. The
//! counts of `transports::set_memory::Counts` belong to a checkpoint: its number times 2¹⁶, plus
//! how many have come.

use crate::checkpoint::state::Checkpoint;
use crate::checkpoint::state::Sharing;
use crate::engine::driver_state::Driver;
use crate::os::{now_ns, yield_now};
use crate::sync::checkpoint_signals::mark_not_replayable;
use crate::transports::set_memory::{Counts, SetMemory};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use rustbtl_coordination::control::{CheckpointId, ReplayBlocker};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_process::session_folders::{is_own_memory, is_server_memory, is_session_folder};
use std::fs::File;
use std::io::Read;

/// How long the others may take, longer than parking may.
const PATIENCE_NS: u64 = 30_000_000_000;
/// As a number of those who have come: one of them has failed.
const BROKEN: u64 = 0xFFFF;

const LATE: &str = "another driver of this node, with which this one shares memory, did not stand \
                    still in time, or could not be snapshotted";

/// Comes to a count of this checkpoint: how many have. `None`: one has failed, or it is another
/// checkpoint.
fn join(word: &AtomicU64, id: CheckpointId) -> Option<u64> {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let next = match (seen >> 16).cmp(&id.0) {
            core::cmp::Ordering::Less => (id.0 << 16) + 1,
            core::cmp::Ordering::Equal if seen & 0xFFFF != BROKEN => seen + 1,
            _ => return None,
        };
        // [together] what was done before coming is done for whoever sees the count.
        match word.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(next & 0xFFFF),
            Err(now) => seen = now,
        }
    }
}

/// Nobody needs to wait for this count of the checkpoint any more.
fn break_up(word: &AtomicU64, id: CheckpointId) {
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
        (seen >> 16 <= id.0).then_some((id.0 << 16) + BROKEN)
    });
}

/// False: one has failed, it is too late, or the others are further.
fn await_all(word: &AtomicU64, id: CheckpointId, parties: u64) -> bool {
    if join(word, id).is_none() {
        return false;
    }
    let until = now_ns() + PATIENCE_NS;
    loop {
        // [together]
        let seen = word.load(Ordering::Acquire);
        if seen >> 16 != id.0 || seen & 0xFFFF == BROKEN {
            return false;
        }
        if seen & 0xFFFF >= parties {
            return true;
        }
        if now_ns() > until {
            break_up(word, id);
            return false;
        }
        yield_now();
    }
}

/// Of memory that the program shares, which others of its node may have as well.
const MAY_BE_OF_OTHERS: &str = "it shares memory, perhaps with ranks of other sets of its node \
                                (vprotocol_correlated_sets node puts them into one)";
/// One that shares does not have the counts of the others.
const APART: &str = "it shares memory, and was rolled back without processes of other correlated \
                     sets of its node, with which it may share it";

/// The mapped file of a line of /proc/self/maps.
pub(super) fn name_of(line: &[u8]) -> &[u8] {
    line.iter().position(|&byte| byte == b'/').map_or(&[][..], |at| &line[at..])
}

/// Is what a line of /proc/self/maps tells of the program's, and not Open MPI's, an adapter's, or
/// ours? (Windows say themselves whether others have them.)
pub(super) fn is_of_program(line: &[u8]) -> bool {
    let name = name_of(line);
    let is_of_others = |part: &[u8]| is_session_folder(part) || part == b"infiniband";
    !name.split(|&byte| byte == b'/').any(is_of_others)
        && !name.starts_with(b"/memfd:rustbtl-window")
        && !is_server_memory(name)
        && !is_own_memory(name)
}

/// Does a line of /proc/self/maps tell of memory that others may write? Who can only read it has
/// it in his image, too, if it has no name that stays, and may be restored first.
pub(super) fn is_shared(line: &[u8], without: &[Range<usize>]) -> bool {
    let mut words = line.split(|&byte| byte == b' ');
    let (Some(range), Some(rights)) = (words.next(), words.next()) else { return false };
    let name = name_of(line);
    let is_memory = name.starts_with(b"/memfd:")
        || name.starts_with(b"/dev/shm/")
        || name.ends_with(b" (deleted)");
    let counts = rights.get(1) == Some(&b'w') || rights.first() == Some(&b'r') && is_memory;
    if rights.get(3) != Some(&b's') || !counts {
        return false;
    }
    let start = range.split(|&byte| byte == b'-').next().unwrap_or_default();
    let start = core::str::from_utf8(start).ok().and_then(|t| usize::from_str_radix(t, 16).ok());
    start.is_some_and(|start| !without.iter().any(|range| range.contains(&start)))
}

/// Does this process share memory that it can write to, other than `without`? Allocates nothing. If
/// it cannot be seen, it does.
pub fn shares_memory(without: &[Range<usize>]) -> bool {
    any_mapping(|line| is_shared(line, without))
}

/// The same of what the program shares itself.
fn program_shares_memory(without: &[Range<usize>]) -> bool {
    any_mapping(|line| is_shared(line, without) && is_of_program(line))
}

/// Is there such a line in /proc/self/maps?
fn any_mapping(is_wanted: impl Fn(&[u8]) -> bool) -> bool {
    let Ok(mut maps) = File::open("/proc/self/maps") else { return true };
    // A path is at most 4 KiB.
    let mut piece = [0u8; 16 << 10];
    let mut kept = 0;
    loop {
        match maps.read(&mut piece[kept..]) {
            Ok(0) => return false,
            Ok(bytes) => {
                let end = kept + bytes;
                let whole = piece[..end].iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
                let mut lines = piece[..whole].split(|&byte| byte == b'\n');
                if lines.any(&is_wanted) || (whole == 0 && end == piece.len()) {
                    return true;
                }
                piece.copy_within(whole..end, 0);
                kept = end - whole;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
}

/// Where the ranks of the set that are on this node count; all ranks of the node, if it is of
/// several sets (`of_node`).
fn counts<'a>(driver: &'a Driver, members: &[PeerId], of_node: bool) -> Option<&'a Counts> {
    let by = &driver.host.transports;
    if of_node {
        return by.counts(0);
    }
    let first = members.iter().copied().filter(|&rank| by.node_index(rank).is_some()).min()?;
    by.counts(by.node_index(first)?)
}

fn own_memory(driver: &Driver) -> [Range<usize>; 1] {
    [driver.host.transports.node_memory()]
}

/// Was this process rolled back without one of its node? They count in other memory.
fn is_apart(driver: &Driver) -> bool {
    let own = driver.host.incarnation;
    let is_older = |peer| driver.host.endpoints.get(peer).is_none_or(|of| of.incarnation < own);
    own > Incarnation(0) && driver.neighbours.iter().any(is_older)
}

impl Checkpoint {
    /// The set has stopped for a checkpoint of all: who shares memory on a node of several sets
    /// joins before any set of it begins.
    pub(crate) fn join_node(&mut self, id: CheckpointId, driver: &Driver) {
        if !self.several_sets {
            return;
        }
        let own = own_memory(driver);
        let shares = shares_memory(&own);
        let counts = counts(driver, &self.members, true).filter(|_| shares);
        let joined = counts.is_some_and(|counts| join(&counts.sharing, id).is_some());
        self.sharing = Sharing { id, shares, joined, of_node: true };
        self.watch_program_memory(&own);
    }

    /// What is restored alone would have a copy of its own.
    fn watch_program_memory(&mut self, own: &[Range<usize>]) {
        if self.several_sets && program_shares_memory(own) {
            mark_not_replayable(MAY_BE_OF_OTHERS, ReplayBlocker::Set);
            self.report_not_replayable();
        }
    }

    /// A checkpoint was ordered: what can be looked at while the program still runs.
    pub(crate) fn poll_set_memory(&mut self, id: CheckpointId) {
        if self.sharing.id == id {
            return;
        }
        let own = match self.shared.take() {
            Ok(driver) => own_memory(&driver),
            Err(error) => self.fatal(&error.to_string()),
        };
        let shares = shares_memory(&own);
        self.sharing = Sharing { id, shares, joined: false, of_node: false };
        self.watch_program_memory(&own);
    }

    /// The checkpoint is entered: all that share have joined before the first of them is quiescent.
    pub(crate) fn send_sharing(&mut self, id: CheckpointId, driver: &Driver) {
        if self.sharing.id != id {
            let shares = shares_memory(&own_memory(driver));
            self.sharing = Sharing { id, shares, joined: false, of_node: false };
        }
        if self.sharing.shares
            && !self.sharing.joined
            && !self.sharing.of_node
            && let Some(counts) = counts(driver, &self.members, false)
        {
            self.sharing.joined = join(&counts.sharing, id).is_some();
        }
    }

    /// The checkpoint is left. If it was aborted, others may not know of it yet, and are suspended
    /// until this process does.
    pub(crate) fn leave_sharing(&self, driver: &Driver) {
        let Sharing { id, joined, of_node, .. } = self.sharing;
        if joined && let Some(counts) = counts(driver, &self.members, of_node) {
            break_up(&counts.suspended, id);
            break_up(&counts.snapshotted, id);
        }
    }
}

/// The snapshots of this checkpoint on this node.
pub struct SharedMemoryBarrier<'a> {
    counts: Option<&'a Counts>,
    own: [Range<usize>; 1],
    id: CheckpointId,
    joined: bool,
    /// Nobody else who may share with it is here.
    alone: bool,
    /// Others who may share with it count elsewhere.
    apart: bool,
}

impl<'a> SharedMemoryBarrier<'a> {
    /// After the first barrier.
    pub(crate) fn of(checkpoint: &Checkpoint, id: CheckpointId, driver: &'a Driver) -> Self {
        let Sharing { id: of, joined, of_node, .. } = checkpoint.sharing;
        let of_node = of_node && of == id;
        let counts = counts(driver, &checkpoint.members, of_node);
        let is_here = |rank: &&PeerId| driver.host.transports.node_index(**rank).is_some();
        let (alone, apart) = match of_node {
            true => (driver.neighbours.is_empty(), is_apart(driver)),
            false => (checkpoint.members.iter().filter(is_here).count() < 2, false),
        };
        Self { counts, own: own_memory(driver), id, joined: joined && of == id, alone, apart }
    }

    fn parties(&self, counts: &Counts) -> u64 {
        // The barrier has ordered it: everybody who shares has come.
        let seen = counts.sharing.load(Ordering::Acquire);
        if seen >> 16 == self.id.0 { seen & 0xFFFF } else { 0 }
    }

    /// The threads of this process are suspended. Allocates nothing.
    ///
    /// # Errors
    /// There can be no snapshot now.
    pub fn suspended(&self) -> Result<(), &'static str> {
        if self.apart && program_shares_memory(&self.own) {
            return Err(APART);
        }
        let Some(counts) = self.counts else { return Ok(()) };
        if !self.joined {
            // Also where nobody has come: all may have begun to share at once.
            if !self.alone && shares_memory(&self.own) {
                return Err("it began to share memory with others while the checkpoint began");
            }
            return Ok(());
        }
        if await_all(&counts.suspended, self.id, self.parties(counts)) { Ok(()) } else { Err(LATE) }
    }

    /// The snapshot is taken. False: one has failed, or others go on since this one took too long:
    /// what was copied is not of one moment.
    pub fn snapshotted(&self) -> bool {
        let counts = self.counts.filter(|_| self.joined);
        counts.is_none_or(|counts| await_all(&counts.snapshotted, self.id, self.parties(counts)))
    }

    /// There is no snapshot of this process.
    pub fn failed(&self) {
        if let Some(counts) = self.counts.filter(|_| self.joined) {
            break_up(&counts.suspended, self.id);
            break_up(&counts.snapshotted, self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn all_wait_for_all_and_checkpoints_follow_each_other() {
        let word = Arc::new(AtomicU64::new(0));
        let ranks: Vec<_> = (0..4)
            .map(|_| {
                let word = Arc::clone(&word);
                thread::spawn(move || {
                    (1..=50).all(|id| {
                        let done = await_all(&word, CheckpointId(id), 4);
                        // Nobody is further than the next checkpoint, which needs us.
                        let seen = word.load(Ordering::Relaxed) >> 16;
                        seen == id + 1 || done && seen == id
                    })
                })
            })
            .collect();
        assert!(ranks.into_iter().all(|rank| rank.join().unwrap()));
    }

    #[test]
    fn nobody_waits_for_one_that_has_failed() {
        let word = AtomicU64::new(0);
        break_up(&word, CheckpointId(3));
        assert!(!await_all(&word, CheckpointId(3), 2));
        assert_eq!(join(&word, CheckpointId(2)), None, "a checkpoint that is over");
        assert_eq!(join(&word, CheckpointId(4)), Some(1));
        break_up(&word, CheckpointId(3));
        assert_eq!(join(&word, CheckpointId(4)), Some(2), "an old failure does not touch a new id");
    }

    #[test]
    fn who_leaves_the_checkpoint_releases_those_who_wait() {
        let word = Arc::new(AtomicU64::new(0));
        let there = Arc::clone(&word);
        let start = now_ns();
        let waits = thread::spawn(move || await_all(&there, CheckpointId(5), 2));
        while word.load(Ordering::Relaxed) != (5 << 16) + 1 {
            thread::yield_now();
        }
        break_up(&word, CheckpointId(5));
        assert!(!waits.join().unwrap() && now_ns() - start < PATIENCE_NS);
    }

    #[test]
    fn shared_memory_is_seen() {
        let line = b"7f0000000000-7f0000002000 rw-s 00000000 00:01 7  /dev/shm/x";
        assert!(is_shared(line, &[]));
        let own = 0x7f00_0000_0000..0x7f00_0000_2000;
        assert!(!is_shared(line, core::slice::from_ref(&own)));
        for name in ["/dev/shm/x", "/memfd:x (deleted)", "/tmp/x (deleted)"] {
            let line = format!("7f0000000000-7f0000002000 r--s 00000000 00:01 7  {name}");
            assert!(is_shared(line.as_bytes(), &[]), "it is in the image: {name}");
        }
        let read_only = b"7f0000000000-7f0000002000 r--s 00000000 00:01 7  /tmp/x";
        let private = b"7f0000000000-7f0000002000 rw-p 00000000 00:01 7  /dev/shm/x";
        for line in [&read_only[..], private, b"", b"x", b"- rw-s", b"7f rw"] {
            assert!(!is_shared(line, &[]));
        }
        for (name, expected) in [
            ("/dev/shm/x", true),
            ("/memfd:rustbtl-shared (deleted)", true),
            ("/memfd:rustbtl-window (deleted)", false),
            ("/memfd:rustbtl-of-server (deleted)", false),
            ("/dev/shm/rustbtl-0-8e367fff57e7836f4f64627023d87d40 (deleted)", false),
            ("/tmp/ompi.n0.0/pid.7/pmix_dstor/smlockseg", false),
            ("/dev/infiniband/uverbs0", false),
        ] {
            let line = format!("7f0000000000-7f0000002000 rw-s 00000000 00:01 7  {name}");
            assert_eq!(is_of_program(line.as_bytes()), expected, "{name}");
        }
        let bytes = 8192;
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        assert!(shares_memory(&[]));
        // SAFETY: the mapping from above.
        unsafe { libc::munmap(at, bytes) };
    }
}
