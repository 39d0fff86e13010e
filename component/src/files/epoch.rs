//! From one snapshot to the next: where an epoch ends and another begins, and which journals are
//! kept.
//!
//! The checkpoint thread has the recorder from before threads are suspended until they run again;
//! so it has it in a restored process, too, and gives it back there.

use crate::files::functions;
use crate::files::held;
use crate::files::recorder::{self, ANYWHERE, Guard, NO_STREAM, id_of};
use crate::files::shared_io;
use crate::files::streams;
use crate::files::system::{self, Path as Place};
use crate::files::watched;
use core::ffi::c_int;
use rustbtl_checkpoint::file_undo::{Entry, FileId};
use rustbtl_process::file_undo::Journal;
use rustbtl_process::session_folders::is_session_folder;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Folder of the job in which processes keep journals; the guardian sets it.
const FOLDER: &str = "RUSTBTL_UNDO";
/// Longest call that changes a file, before the checkpoint is given up.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Of a file with a stream that may write anywhere so much is copied while all threads are
/// suspended.
const COPIED_MAX: u64 = 64 << 20;

/// A file that may be written to without our seeing it, when a snapshot is taken: by a stream, or
/// as memory.
struct Stream {
    fd: c_int,
    /// The same file, to read.
    reader: Option<c_int>,
    path: Place,
    id: FileId,
    is_anywhere: bool,
    size: u64,
    is_saved: bool,
}

/// An epoch begins; see the head of this file.
pub struct Beginning {
    guard: Guard,
    streams: Vec<Stream>,
    folder: Vec<u8>,
    checkpoint: u64,
    /// Threads were suspended, and what streams may change is recorded.
    is_begun: bool,
}

/// In MPI_Init, before the first checkpoint: `budget` bytes may be recorded; the session's folder
/// is Open MPI's. Why nothing is, if it could be.
pub fn install(budget: u64, session: Option<PathBuf>, name: &str) -> Result<(), String> {
    let Some(folder) = std::env::var_os(FOLDER).filter(|_| budget > 0) else { return Ok(()) };
    let folder = PathBuf::from(folder).join(name);
    let durable = is_shared(&folder);
    let journal = Journal::open(&folder, durable).map_err(|error| {
        format!(
            "{}: {error}. Files that the program changes are not put back when it is rolled back \
             to a checkpoint: make this folder writable, or choose another \
             vprotocol_correlated_checkpoint_dir",
            folder.display()
        )
    })?;
    functions::install();
    held::install(&folder);
    recorder::start(journal, budget, session.map_or_else(Vec::new, |path| top_of(&path)));
    for fd in numbers() {
        streams::assume(fd);
    }
    Ok(())
}

/// Does what is written there outlive this node, as soon as it is on the disk?
fn is_shared(folder: &Path) -> bool {
    /// NFS, SMB, CIFS, Lustre, GPFS, BeeGFS, Ceph, 9P, FUSE (GlusterFS), OrangeFS.
    const KINDS: [u64; 10] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0x0bd0_0bd0,
        0x4750_4653,
        0x1983_0326,
        0x00c3_6400,
        0x0102_1997,
        0x6573_5546,
        0x2003_0528,
    ];
    use std::os::unix::ffi::OsStrExt;
    let existing = folder.ancestors().find(|folder| folder.exists());
    let Some(folder) = existing else { return false };
    let Ok(path) = std::ffi::CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: all of its fields are numbers.
    let mut found: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: a path, and writable.
    let done = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    done == 0 && KINDS.contains(&(found.f_type as u64 & 0xffff_ffff))
}

/// All of Open MPI's sessions on the node: `/tmp/ompi.NODE.UID` of `/tmp/ompi.NODE.UID/pid.1/0/1`.
fn top_of(session: &Path) -> Vec<u8> {
    let is_top = |path: &&Path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        // That of PMIx is below one of the others.
        is_session_folder(name) && !name.starts_with(b"pmix")
    };
    let top = session.ancestors().filter(is_top).last().unwrap_or(session);
    top.as_os_str().as_encoded_bytes().to_vec()
}

/// Files with a name that are mapped, and whether they are to be written to: then the image has
/// only those of their pages that are in memory, and none that are zero. Not those with code.
fn mapped_files() -> BTreeMap<Vec<u8>, bool> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let (mut files, mut objects) = (BTreeMap::new(), BTreeSet::new());
    for line in maps.split(|byte| *byte == b'\n') {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let (Some(access), Some(path)) = (words.nth(1), words.nth(3)) else { continue };
        let path = path.trim_ascii_start();
        // What is in memory only is restored as memory.
        let is_file =
            path.starts_with(b"/") && !path.starts_with(b"/dev/") && !path.ends_with(b" (deleted)");
        if is_file && access.get(2) == Some(&b'x') {
            objects.insert(path.to_vec());
        } else if is_file && access.starts_with(b"r") {
            let writes = access.starts_with(b"rw") && access.ends_with(b"s");
            *files.entry(path.to_vec()).or_insert(false) |= writes;
        }
    }
    files.retain(|path, writes| *writes || !objects.contains(path));
    files
}

/// Open descriptors.
fn numbers() -> Vec<c_int> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

impl Beginning {
    /// Threads are suspended next, for this checkpoint. `None`: nothing is recorded.
    pub fn of(checkpoint: u64) -> Result<Option<Self>, &'static str> {
        let Some(mut guard) = recorder::enter() else { return Ok(None) };
        let until = Instant::now() + CALL_MAX;
        if !recorder::close_epoch(|| Instant::now() > until) {
            return Err("a call of the program that reads or writes a file takes too long");
        }
        let state = &mut *guard;
        let (before, saved) = (state.journal.epoch(), state.journal.saved());
        if before > 0 {
            state.contents.insert(before, saved);
        }
        let epoch = before + 1;
        state.journal.begin(epoch);
        state.checkpoints.insert(checkpoint, epoch);
        state.tracker.begin_epoch(state.contents.values().sum());
        state.reads.clear();
        state.not_again.clear();
        let folder = state.journal.folder().as_os_str().as_encoded_bytes().to_vec();
        let mut streams = Vec::new();
        for fd in numbers() {
            let access = system::flags_of(fd) & libc::O_ACCMODE;
            if access != libc::O_WRONLY && recorder::stream(fd) != NO_STREAM {
                state.note_read_of(fd);
            }
            let writes = access != libc::O_RDONLY;
            let Some(stat) = system::fstat(fd).filter(|stat| writes && system::is_regular(stat))
            else {
                continue;
            };
            let Some(path) = Place::of_descriptor(fd) else { continue };
            // What has no name is in the image.
            let is_named = stat.st_nlink > 0 && !path.bytes().ends_with(b" (deleted)");
            if !is_named || state.is_left_out(path.bytes()) {
                continue;
            }
            state.append(&path, &Entry::Writes { path: path.bytes() });
            if system::flags_of(fd) & libc::O_APPEND != 0 {
                state.not_again(&path);
            }
            if shared_io::is_shared(fd) {
                state.append(&path, &Entry::Shared { path: path.bytes() });
            }
            let kind = recorder::stream(fd);
            if kind != NO_STREAM {
                let is_anywhere = kind == ANYWHERE;
                let reader = is_anywhere.then(|| Place::of_link(fd).open(libc::O_RDONLY)).flatten();
                let (id, size, is_saved) = (id_of(&stat), 0, false);
                streams.push(Stream { fd, reader, path, id, is_anywhere, size, is_saved });
            }
        }
        for (path, writes) in mapped_files() {
            let path = Place::of(&[&path]);
            if state.is_left_out(path.bytes()) {
                continue;
            }
            if let Ok(stat) = path.stat(true)
                && system::is_regular(&stat)
            {
                state.note_read(&path, &stat);
            }
            if !writes {
                continue;
            }
            let Some(fd) = path.open(libc::O_RDONLY | libc::O_NONBLOCK) else { continue };
            let stat = system::fstat(fd).filter(system::is_regular);
            let known = |id: FileId| streams.iter().any(|known: &Stream| known.id == id);
            let Some(id) = stat.map(|stat| id_of(&stat)).filter(|id| !known(*id)) else {
                system::close(fd);
                continue;
            };
            state.append(&path, &Entry::Writes { path: path.bytes() });
            let (reader, is_anywhere, size, is_saved) = (Some(fd), true, 0, false);
            streams.push(Stream { fd, reader, path, id, is_anywhere, size, is_saved });
        }
        Ok(Some(Self { guard, streams, folder, checkpoint, is_begun: false }))
    }

    /// Where it is recorded, for the image.
    pub fn record(&self) -> (Vec<u8>, u64) {
        (self.folder.clone(), self.guard.journal.epoch())
    }

    /// Descriptors that are not in the image.
    pub fn descriptors(&self) -> Vec<c_int> {
        let readers = self.streams.iter().filter_map(|stream| stream.reader);
        self.guard.journal.descriptor().into_iter().chain(readers).collect()
    }

    /// All threads are suspended: nothing is allocated. What streams wrote until here is before the
    /// snapshot, what they will write is seen by nobody.
    pub fn suspended(&mut self) {
        let Self { guard, streams, is_begun, .. } = self;
        *is_begun = true;
        watched::suspended();
        if guard.journal.descriptor().is_none() && streams.is_empty() {
            // No file is open to be written to.
            return;
        }
        let mut left = guard.tracker.left();
        for stream in streams {
            let Some(stat) = system::fstat(stream.fd) else { continue };
            stream.size = stat.st_size as u64;
            let (path, size) = (stream.path.bytes(), stream.size);
            let _ = guard.journal.append(&Entry::Size { path, size, extend: false });
            if !stream.is_anywhere {
                continue;
            }
            let fits = size <= left.min(COPIED_MAX);
            let reader = stream.reader.filter(|_| fits);
            stream.is_saved =
                reader.is_some_and(|reader| guard.journal.save(path, reader, 0..size).is_ok());
            if stream.is_saved {
                left -= size;
            } else {
                let _ = guard.journal.append(&Entry::Missing { path });
            }
        }
        let _ = guard.journal.append(&Entry::Begun {});
        guard.journal.sync();
    }

    /// Threads that were never suspended have had no snapshot: of their streams nothing is known in
    /// this epoch, and all that is seen of them is recorded, so that the epochs before it can be
    /// undone.
    fn threads_run(&mut self) {
        if !self.is_begun {
            return;
        }
        for stream in core::mem::take(&mut self.streams) {
            let Stream { id, size, is_anywhere, is_saved, path, .. } = stream;
            if is_anywhere {
                self.guard.tracker.begun(id, size, is_saved);
                if !is_saved {
                    self.guard.name(&path);
                }
            } else {
                self.guard.tracker.sized(id, size);
            }
        }
    }

    /// The program continues; or there is no snapshot.
    pub fn continued(mut self, is_taken: bool) {
        self.streams.iter().filter_map(|stream| stream.reader).for_each(system::close);
        watched::continued(&self.guard);
        self.threads_run();
        if !is_taken {
            self.guard.checkpoints.remove(&self.checkpoint);
        }
    }

    /// This is a restored process. What belongs to the snapshot is in the journal, nothing else.
    /// `alone`: processes of other sets go on meanwhile.
    pub fn restored(mut self, is_another_job: bool, alone: bool) {
        self.guard.journal.forget_descriptor();
        // All have put back what they have changed, and none runs yet.
        rustbtl_process::file_undo::is_over(self.guard.journal.folder());
        shared_io::restored();
        watched::restored(&mut self.guard, alone && !is_another_job);
        self.threads_run();
        if is_another_job {
            // Its checkpoints have other numbers.
            self.guard.checkpoints.clear();
        }
    }
}

/// The checkpoint was given up.
pub fn aborted(checkpoint: u64) {
    if let Some(mut guard) = recorder::enter() {
        guard.checkpoints.remove(&checkpoint);
    }
}

/// Nobody is rolled back to a checkpoint before this one.
pub fn keep_from(checkpoint: u64) {
    let Some(mut guard) = recorder::enter() else { return };
    let state = &mut *guard;
    state.checkpoints.retain(|known, _| *known >= checkpoint);
    let Some(&epoch) = state.checkpoints.values().min() else { return };
    let released: u64 = state.contents.range(..epoch).map(|(_, bytes)| bytes).sum();
    if state.contents.range(..epoch).next().is_some() {
        state.contents.retain(|known, _| *known >= epoch);
        state.tracker.released(released);
        state.journal.remove_before(epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::recorder::{Change, Place as At, SEQUENTIAL};
    use rustbtl_process::file_undo::{Rollback, roll_back};
    use std::fs::{self, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_snapshot_that_fails_before_threads_are_suspended_loses_nothing() {
        let folder = std::env::temp_dir().join(format!("rustbtl-epoch-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let open = |name: &str| {
            let path = folder.join(name);
            fs::write(&path, "0123456789").unwrap();
            (OpenOptions::new().read(true).write(true).open(&path).unwrap(), path)
        };
        let ((stream, stream_path), (mapped, mapped_path)) = (open("stream"), open("mapped"));
        // SAFETY: a new mapping.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let file = mapped.as_raw_fd();
            libc::mmap(core::ptr::null_mut(), 10, access, libc::MAP_SHARED, file, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let process = folder.join("job/set-0.rank-0");
        recorder::start(Journal::open(&process, false).unwrap(), 1 << 20, Vec::new());
        recorder::set_stream(stream.as_raw_fd(), SEQUENTIAL);

        let mut first = Beginning::of(1).unwrap().unwrap();
        first.suspended();
        first.continued(true);
        Beginning::of(2).unwrap().unwrap().continued(false);
        assert_eq!(recorder::NOTICE.get(), None, "all of it is recorded");
        for file in [&stream, &mapped] {
            let call = recorder::before(file.as_raw_fd(), || Change::Write(At::At(2), 3));
            file.write_all_at(b"new", 2).unwrap();
            drop(call);
        }
        recorder::stop();

        let back = Rollback { folder: &process, epoch: 1, alone: false };
        assert_eq!(roll_back(&back).unwrap().not_put_back, []);
        for path in [stream_path, mapped_path] {
            assert_eq!(fs::read_to_string(&path).unwrap(), "0123456789", "{}", path.display());
        }
        // SAFETY: mapped above.
        unsafe { libc::munmap(memory, 10) };
        fs::remove_dir_all(&folder).unwrap();
    }
}
