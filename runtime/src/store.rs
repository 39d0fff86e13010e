//! Checkpoints on the disk: `DIR/JOB/checkpoint-N/rank-R.img` and `manifest.json`, which is written
//! last. Without a manifest a checkpoint does not count.

use crate::os;
use crate::settings::{hex, is_job_name};
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::ids::{PeerId, SetId};
use rustbtl_process::private_files::{FileError, Folder, make_folders};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Version of the manifest.
pub const FORMAT: u32 = 1;
/// Longest manifest that is read: some 200 bytes for each rank.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
const MANIFEST: &str = "manifest.json";
/// What happened to the job; its coordinator holds a lock on it.
pub const EVENTS: &str = "events.jsonl";

/// An image of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Whose.
    pub rank: u32,
    /// Its set: the lowest rank in it.
    pub set: u32,
    /// Where it ran.
    pub node: String,
    /// Size of the file.
    pub bytes: u64,
    /// Memory in it.
    pub raw_bytes: u64,
    /// Checksum over the file.
    pub checksum: u64,
}

/// Which ranks a checkpoint has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One set.
    Set,
    /// All sets: a job can be restarted from it.
    Global,
}

/// What there is to know about a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the job.
    pub job: String,
    /// Its number.
    #[serde(rename = "line")]
    pub checkpoint: u64,
    /// Of whom.
    pub kind: Kind,
    /// Milliseconds since 1970 when it was complete.
    pub unix_ms: u64,
    /// Ranks of the job.
    pub size: u32,
    /// Command line of the programs, as mpirun was given it.
    pub command: Vec<String>,
    /// In order of ranks.
    pub images: Vec<Image>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    manifest: Manifest,
    sha256: String,
}

/// A checkpoint that is on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredCheckpoint {
    /// Its folder.
    pub folder: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
}

/// Number of the checkpoint in this folder, by its name.
pub fn checkpoint_number(folder: &Path) -> Option<CheckpointId> {
    folder.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok().map(CheckpointId)
}

/// Folder of a checkpoint.
pub fn folder(directory: &Path, job: &str, checkpoint: CheckpointId) -> PathBuf {
    directory.join(job).join(format!("checkpoint-{checkpoint}"))
}

/// A job's folder, made if it is not there.
pub fn enter_job(path: &Path) -> Result<Folder, FileError> {
    match Folder::open(path) {
        Err(error) if error.is_missing() => {
            let made = make_folders(path);
            made.map_err(|error| FileError::System { path: path.to_owned(), error })?;
            Folder::open(path)
        }
        opened => opened,
    }
}

/// The folder of a checkpoint, made if it is not there, in a job's folder that is checked, too.
pub fn enter_checkpoint(path: &Path) -> Result<Folder, FileError> {
    match (path.parent(), path.file_name()) {
        (Some(job), Some(name)) => enter_job(job)?.folder_or_new(name),
        _ => Folder::open(path),
    }
}

impl Manifest {
    /// Sets in it.
    pub fn sets(&self) -> Vec<SetId> {
        let mut sets: Vec<SetId> = self.images.iter().map(|image| SetId(image.set)).collect();
        sets.sort_unstable();
        sets.dedup();
        sets
    }

    fn seal(&self) -> io::Result<String> {
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        Ok(hex(&Sha256::digest(text.as_bytes())))
    }

    /// Make it durable as the last file of its checkpoint.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let checkpoint = enter_checkpoint(folder)?;
        let sealed = Sealed { manifest: self.clone(), sha256: self.seal()? };
        let mut text = serde_json::to_string_pretty(&sealed).map_err(io::Error::other)?;
        text.push('\n');
        let temporary = format!("{MANIFEST}.tmp");
        let mut file = checkpoint.create_file_anew(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        checkpoint.rename(&temporary, MANIFEST)?;
        checkpoint.sync()?;
        folder.parent().map_or(Ok(()), os::sync_directory)
    }

    /// Read and check the one of this folder.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let folder = Folder::open(folder).map_err(|error| error.to_string())?;
        Self::read_in(&folder)
    }

    /// The same, where the folder is open.
    fn read_in(folder: &Folder) -> Result<Self, String> {
        let file = folder.path().join(MANIFEST);
        let what = |problem: &str| format!("{}: {problem}", file.display());
        let text = folder.read(MANIFEST, MANIFEST_BYTES_MAX).map_err(|error| error.to_string())?;
        let sealed: Sealed =
            serde_json::from_slice(&text).map_err(|error| what(&format!("damaged: {error}")))?;
        let manifest = sealed.manifest;
        if manifest.seal().ok() != Some(sealed.sha256) {
            return Err(what("damaged: its checksum is wrong"));
        }
        if manifest.format != FORMAT {
            let (theirs, ours) = (manifest.format, FORMAT);
            return Err(what(&format!("of format {theirs}; this rustbtl reads format {ours}")));
        }
        manifest.check().map_err(|problem| what(&problem))?;
        Ok(manifest)
    }

    /// Is it consistent?
    fn check(&self) -> Result<(), String> {
        if !is_job_name(&self.job) || self.checkpoint == 0 {
            return Err("names no job or no checkpoint".into());
        }
        let ascending = self.images.windows(2).all(|pair| pair[0].rank < pair[1].rank);
        let inside = self.images.iter().all(|image| image.rank < self.size);
        let complete = self.kind == Kind::Set || self.images.len() == self.size as usize;
        if ascending && inside && complete && !self.images.is_empty() {
            return Ok(());
        }
        Err("its images are not those of its ranks".into())
    }
}

impl StoredCheckpoint {
    /// The checkpoint in this folder.
    pub fn read(folder: &Folder) -> Result<Self, String> {
        let path = folder.path().to_owned();
        Manifest::read_in(folder).map(|manifest| Self { folder: path, manifest })
    }

    /// File of a rank's image.
    pub fn image(&self, rank: u32) -> PathBuf {
        self.folder.join(crate::guardian::images::file_name(PeerId(rank)))
    }

    /// Images that are not there as the manifest says; their content is not read.
    pub fn missing(&self) -> Vec<String> {
        let folder = match Folder::open(&self.folder) {
            Ok(folder) => folder,
            Err(error) => return vec![error.to_string()],
        };
        let problem = |image: &Image| {
            let name = crate::guardian::images::file_name(PeerId(image.rank));
            let shown = self.image(image.rank);
            let shown = shown.display();
            match folder.file(name).map(|file| file.metadata().map(|found| found.len())) {
                Ok(Ok(bytes)) if bytes == image.bytes => None,
                Ok(Ok(bytes)) => {
                    Some(format!("{shown} has {bytes} bytes, it should have {}", image.bytes))
                }
                Ok(Err(error)) => Some(format!("{shown}: {error}")),
                Err(error) => Some(error.to_string()),
            }
        };
        self.manifest.images.iter().filter_map(problem).collect()
    }
}

/// What there is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoredCheckpoints {
    /// In order of time.
    pub checkpoints: Vec<StoredCheckpoint>,
    /// Folders of checkpoints that were never completed: the job ended while they were taken.
    pub unfinished: Vec<PathBuf>,
    /// What cannot be used, and why.
    pub problems: Vec<String>,
    /// Folders of other users, and why they are left out: several users may share a directory.
    pub foreign: Vec<String>,
}

impl StoredCheckpoints {
    fn add(&mut self, folder: Result<Folder, FileError>) {
        match folder.map(|folder| (StoredCheckpoint::read(&folder), folder)) {
            Ok((Ok(checkpoint), _)) => self.checkpoints.push(checkpoint),
            Ok((Err(_), folder)) if folder.file(MANIFEST).is_err_and(|e| e.is_missing()) => {
                self.unfinished.push(folder.path().to_owned());
            }
            Ok((Err(problem), _)) => self.problems.push(problem),
            Err(error) if error.is_foreign() => self.foreign.push(error.to_string()),
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    fn add_job(&mut self, path: &Path) {
        let job = Folder::open(path);
        match job.map(|job| (job.names(), job)) {
            Ok((Ok(names), job)) => {
                for name in names.iter().filter(|name| is_checkpoint(name)) {
                    self.add(job.folder(name));
                }
            }
            Ok((Err(error), _)) => self.problems.push(error.to_string()),
            // Other folders may lie beside those of jobs, and may be anybody's.
            Err(_) if !has_checkpoints(path) => {}
            Err(error) if error.is_foreign() => self.foreign.push(error.to_string()),
            Err(error) => self.problems.push(error.to_string()),
        }
    }
}

/// What is in a directory of checkpoints, or of one job, or of one checkpoint. The directory of
/// several jobs may be anybody's; every folder and file below it is checked.
pub fn list(directory: &Path) -> Result<StoredCheckpoints, String> {
    let mut found = StoredCheckpoints::default();
    let top = Folder::open(directory);
    if directory.join(MANIFEST).symlink_metadata().is_ok() {
        match top {
            Ok(folder) => {
                found.add(Ok(folder));
                return Ok(found);
            }
            // Where all can write, anybody can have put one there: look on.
            Err(ref error) => found.problems.push(error.to_string()),
        }
    }
    for path in folders(directory)? {
        let name = path.file_name().unwrap_or_default();
        match (is_checkpoint(name), &top) {
            (false, _) => found.add_job(&path),
            (true, Ok(job)) => found.add(job.folder(name)),
            (true, Err(error)) => match Folder::open(&path) {
                Err(of_somebody) if of_somebody.is_foreign() => found.add(Err(of_somebody)),
                _ => found.problems.push(error.to_string()),
            },
        }
    }
    found.problems.dedup();
    found
        .checkpoints
        .sort_by_key(|checkpoint| (checkpoint.manifest.unix_ms, checkpoint.manifest.checkpoint));
    Ok(found)
}

/// The newest checkpoint from which a whole job can be restarted.
pub fn newest_global(directory: &Path) -> Result<StoredCheckpoint, String> {
    let StoredCheckpoints { checkpoints, unfinished, mut problems, foreign } = list(directory)?;
    // A newer one may be among these.
    problems.iter().for_each(|problem| report!("passed over: {problem}"));
    problems.extend(foreign);
    problems.extend(unfinished.iter().map(|folder| format!("{}: unfinished", folder.display())));
    for checkpoint in
        checkpoints.into_iter().rev().filter(|checkpoint| checkpoint.manifest.kind == Kind::Global)
    {
        let missing = checkpoint.missing();
        if missing.is_empty() {
            return Ok(checkpoint);
        }
        problems.extend(missing);
    }
    let mut text = format!("{} has no complete global checkpoint", directory.display());
    if !problems.is_empty() {
        text = format!("{text}. What is there cannot be used:\n  {}", problems.join("\n  "));
    }
    Err(text)
}

fn is_checkpoint(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix("checkpoint-"));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Is it the folder of a job, as far as its names tell?
fn has_checkpoints(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| is_checkpoint(&entry.file_name()))
}

fn folders(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let mut all: Vec<PathBuf> =
        entries.flatten().filter(is_folder).map(|entry| entry.path()).collect();
    all.sort();
    Ok(all)
}

/// Removes incomplete images of a job that was killed; returns how many files. Nothing if the job's
/// coordinator runs, or if that cannot be found out.
pub fn remove_incomplete_images(job: &Path) -> usize {
    let Ok(job) = Folder::open(job) else { return 0 };
    let events = job.file_to_append(EVENTS);
    let Some(events) = events.ok().filter(|events| os::lock(events, false).unwrap_or(false)) else {
        return 0;
    };
    let mut removed = 0;
    for name in job.names().unwrap_or_default().iter().filter(|name| is_checkpoint(name)) {
        let Ok(checkpoint) = job.folder(name) else { continue };
        for name in checkpoint.names().unwrap_or_default() {
            let incomplete = name.to_str().is_some_and(|name| {
                let known = name.starts_with("rank-") || name.starts_with(MANIFEST);
                known && name.ends_with(".tmp")
            });
            if incomplete && checkpoint.remove(&name).is_ok() {
                removed += 1;
            }
        }
        // If it is empty now.
        let _ = fs::remove_dir(checkpoint.path());
    }
    drop(events);
    removed
}

/// Removes a checkpoint's manifest first: from then on it does not count.
pub fn remove_manifest(folder: &Path) {
    if let Ok(checkpoint) = Folder::open(folder) {
        if checkpoint.remove(MANIFEST).is_ok() {
            let _ = checkpoint.sync();
        }
        let _ = checkpoint.remove(format!("{MANIFEST}.tmp"));
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests;
