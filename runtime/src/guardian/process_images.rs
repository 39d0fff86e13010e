//! Images of processes, by `rustbtl_process`.

use crate::guardian::images;
use crate::guardian::images::{ImageStore, RestartInfo, Source, Written};
use crate::node::{NodeDirectory, SharedFolder};
use crate::os::Pid;
use crate::settings;
use crate::settings::{GUARDIAN_FD_NUMBER, IMAGES, Images, is_job_name};
use rustbtl_coordination::control::SnapshotMemory;
use rustbtl_fragments::ids::Incarnation;
use rustbtl_process::ProcessImageError;
use rustbtl_process::dump::{self, History, WriteOptions};
use rustbtl_process::file_undo::NotPutBack;
use rustbtl_process::private_files::Folder;
use rustbtl_process::restore::{self, NotNamed, RestoreOptions, SharedRegistry};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// How often a restore is tried that somebody ends by a signal.
const ATTEMPTS: usize = 3;

/// See the module's documentation.
#[derive(Debug)]
pub struct ProcessImages {
    style: Images,
    /// The node's private directory for the job, where it is known.
    node: Option<PathBuf>,
    /// What was written before; `None` while an image is written.
    history: Mutex<Option<History>>,
    /// Of all incarnations since every rank was restored last: other guardians of the set may still
    /// be restoring an earlier one than this guardian.
    shared: Mutex<Vec<Shared>>,
}

/// What a restored process shares with others of its node, kept until they have opened it.
#[derive(Debug)]
struct Shared {
    #[allow(dead_code, reason = "held until all have opened what they share")]
    folder: SharedFolder,
    #[allow(dead_code, reason = "held open")]
    objects: Vec<OwnedFd>,
}

impl ProcessImages {
    /// Images in this style.
    pub fn new(style: Images) -> Self {
        let history = Mutex::new(Some(History::new(style.full_every)));
        Self { style, node: None, history, shared: Mutex::default() }
    }

    /// As mpirun has set it; the coordinator has checked the value.
    pub fn from_environment() -> Self {
        let text = std::env::var(IMAGES).ok();
        let job = std::env::var(settings::JOB).ok().filter(|job| is_job_name(job));
        let temporary = settings::temporary(|name| std::env::var_os(name));
        let node = job.map(|job| NodeDirectory::path_for(&temporary, &job));
        Self { node, ..Self::new(text.and_then(|text| text.parse().ok()).unwrap_or_default()) }
    }
}

/// A number that belongs to one image: both checksums of its header, which are over the metadata
/// and over the table, which has the checksum of every block.
fn checksum(image: &Path) -> io::Result<u64> {
    let mut sums = [0; 8];
    let (folder, name) = Folder::of(image)?;
    folder.file(name)?.read_exact_at(&mut sums, 48)?;
    Ok(u64::from_le_bytes(sums))
}

/// The program continues with other files than it had.
fn name_files(image: &Path, files: &[NotPutBack]) {
    for NotPutBack { path, reason } in files {
        report!(
            "{} was restored, but {} is not put back to what it was at that checkpoint: {reason}. \
             The program had not read it since, and writes it again",
            image.display(),
            path.display()
        );
    }
}

/// Who opens it by its name afterwards finds something else.
fn name_memory(image: &Path, memory: &[NotNamed]) {
    for NotNamed { path, reason } in memory {
        report!(
            "{} was restored, but the memory that it shares as {} has not got this name again: \
             {reason}. Processes that have it share it; one that opens it by its name from now on \
             does not: let the program do that soon after it was made",
            image.display(),
            path.display()
        );
    }
}

fn copy_of(fd: RawFd) -> Result<OwnedFd, String> {
    // SAFETY: standard descriptors and the caller's socket are open while this runs.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed.try_clone_to_owned().map_err(|error| format!("copying descriptor {fd}: {error}"))
}

/// Where processes of one node that share memory find it: below the job's private directory, named
/// by their checkpoint and their incarnation, which no other restart of the job has.
fn shared_folder(
    node: &Path,
    image: &Path,
    incarnation: Incarnation,
) -> Result<(SharedRegistry, SharedFolder), String> {
    let checkpoint = image.parent().and_then(Path::file_name).unwrap_or_default();
    let key = format!("{}-{incarnation}", checkpoint.to_string_lossy());
    let what = |error| format!("a folder in {} for shared memory: {error}", node.display());
    let folder = NodeDirectory::shared_folder(node, &key).map_err(what)?;
    Ok((SharedRegistry { folder: folder.path().to_owned(), key }, folder))
}

impl ImageStore for ProcessImages {
    fn write(&self, source: &Source<'_>, to: &Path) -> Result<Written, String> {
        let pid = match source.snapshot {
            SnapshotMemory::Child(pid) => pid as u32,
            SnapshotMemory::InPause => source.program as u32,
        };
        let compression = self.style.compression;
        let verify_unchanged = std::env::var_os(settings::VERIFY_UNCHANGED).is_some();
        let options = WriteOptions { compression, verify_unchanged, ..WriteOptions::default() };
        // An image of an aborted checkpoint may still be being written: then this one is full.
        let history = || self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let older = history().take();
        let mut older = older.unwrap_or_else(|| History::new(self.style.full_every));
        let name = images::final_name(to);
        let description = source.description;
        let stats = dump::write_next_image(pid, description, to, &name, &options, &mut older);
        *history() = Some(older);
        let stats = stats.map_err(|error| error.to_string())?;
        let checksum = checksum(to).map_err(|error| format!("{}: {error}", to.display()))?;
        Ok(Written { bytes: stats.file_bytes, raw_bytes: stats.touched_bytes, checksum })
    }

    fn restore(
        &self,
        image: &Path,
        restart: RestartInfo,
        socket: RawFd,
        standard: [RawFd; 3],
    ) -> Result<Pid, String> {
        // Later images belong to checkpoints that may be dropped: the next image is full.
        *self.history.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(History::new(self.style.full_every));
        let [input, output, error] = standard;
        let numbers = [(0, input), (1, output), (2, error), (GUARDIAN_FD_NUMBER, socket)];
        let node = self.node.as_deref();
        let shared =
            node.map(|node| shared_folder(node, image, restart.incarnation)).transpose()?;
        let (shared, folder) = shared.unzip();
        let keep = |objects| {
            let shared = folder.map(|folder| Shared { folder, objects });
            self.shared.lock().unwrap_or_else(PoisonError::into_inner).extend(shared);
        };
        let restore = || {
            let copies = numbers.into_iter().map(|(number, fd)| Ok((number, copy_of(fd)?)));
            let options = RestoreOptions {
                supplied: copies.collect::<Result<_, String>>()?,
                shared: shared.clone(),
                together: Some(settings::GUARDIAN_FD),
                alone: restart.alone,
                dies_with_parent: true,
                ..RestoreOptions::default()
            };
            Ok::<_, String>(restore::restore(image, options))
        };
        let mut restored = restore()?;
        for _ in 1..ATTEMPTS {
            if !matches!(restored, Err(ProcessImageError::Killed { .. })) {
                break;
            }
            restored = restore()?;
        }
        match restored {
            Ok(child) => {
                name_files(image, &child.not_put_back);
                name_memory(image, &child.not_named);
                keep(child.shared);
                Ok(child.pid as Pid)
            }
            Err(error) => {
                keep(Vec::new());
                Err(format!("{}: {error}", image.display()))
            }
        }
    }

    fn tidy(&self) {
        let shared =
            core::mem::take(&mut *self.shared.lock().unwrap_or_else(PoisonError::into_inner));
        if shared.is_empty() {
            return;
        }
        drop(shared);
        // Where no agent was started nobody else removes the directory.
        if let Some(directory) = self.node.as_ref().and_then(|node| NodeDirectory::open(node).ok())
        {
            let _ = directory.leave();
        }
    }

    fn inspect(&self, image: &Path) -> Result<(), String> {
        let inspected = restore::inspect(image).map(drop);
        inspected.map_err(|error| format!("{}: {error}", image.display()))
    }

    fn check(&self, image: &Path) -> Result<Written, String> {
        let what = |error: &dyn core::fmt::Display| format!("{}: {error}", image.display());
        let summary = restore::verify(image).map_err(|error| what(&error))?;
        let checksum = checksum(image).map_err(|error| what(&error))?;
        let (bytes, raw_bytes) = (summary.file_bytes, summary.memory_bytes);
        Ok(Written { bytes, raw_bytes, checksum })
    }
}
