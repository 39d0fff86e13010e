//! Checkpoints on the disk: `DIR/JOB/checkpoint-N/rank-R.img` and `manifest.json`, which is written
//! last. Without a manifest a checkpoint does not count.

use crate::os;
use crate::settings::{hex, is_job_name};
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Version of the manifest.
pub const FORMAT: u32 = 1;
/// Longest manifest that is read.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;
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
        os::make_folders(folder)?;
        let sealed = Sealed { manifest: self.clone(), sha256: self.seal()? };
        let mut text = serde_json::to_string_pretty(&sealed).map_err(io::Error::other)?;
        text.push('\n');
        let temporary = folder.join(format!("{MANIFEST}.tmp"));
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join(MANIFEST))?;
        os::sync_directory(folder)?;
        folder.parent().map_or(Ok(()), os::sync_directory)
    }

    /// Read and check the one of this folder.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let file = folder.join(MANIFEST);
        let what = |problem: &str| format!("{}: {problem}", file.display());
        let mut text = String::new();
        let opened = File::open(&file).map_err(|error| what(&error.to_string()))?;
        let read = opened.take(MANIFEST_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| what(&error.to_string()))?;
        let sealed: Sealed =
            serde_json::from_str(&text).map_err(|error| what(&format!("damaged: {error}")))?;
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
    pub fn read(folder: &Path) -> Result<Self, String> {
        Manifest::read(folder).map(|manifest| Self { folder: folder.to_owned(), manifest })
    }

    /// File of a rank's image.
    pub fn image(&self, rank: u32) -> PathBuf {
        self.folder.join(crate::guardian::images::file_name(PeerId(rank)))
    }

    /// Images that are not there as the manifest says; their content is not read.
    pub fn missing(&self) -> Vec<String> {
        let problem = |image: &Image| {
            let file = self.image(image.rank);
            match fs::metadata(&file) {
                Ok(found) if found.len() == image.bytes => None,
                Ok(found) => Some(format!(
                    "{} has {} bytes, it should have {}",
                    file.display(),
                    found.len(),
                    image.bytes
                )),
                Err(error) => Some(format!("{}: {error}", file.display())),
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
}

/// What is in a directory of checkpoints, or of one job, or of one checkpoint.
pub fn list(directory: &Path) -> Result<StoredCheckpoints, String> {
    let mut found = StoredCheckpoints::default();
    let mut add = |folder: &Path| match StoredCheckpoint::read(folder) {
        Ok(checkpoint) => found.checkpoints.push(checkpoint),
        Err(_) if !folder.join(MANIFEST).exists() => found.unfinished.push(folder.to_owned()),
        Err(problem) => found.problems.push(problem),
    };
    if directory.join(MANIFEST).exists() {
        add(directory);
    } else {
        for folder in folders(directory)? {
            if is_checkpoint(&folder) {
                add(&folder);
            } else {
                for folder in folders(&folder)?.iter().filter(|folder| is_checkpoint(folder)) {
                    add(folder);
                }
            }
        }
    }
    found
        .checkpoints
        .sort_by_key(|checkpoint| (checkpoint.manifest.unix_ms, checkpoint.manifest.checkpoint));
    Ok(found)
}

/// The newest checkpoint from which a whole job can be restarted.
pub fn newest_global(directory: &Path) -> Result<StoredCheckpoint, String> {
    let StoredCheckpoints { checkpoints, unfinished, mut problems } = list(directory)?;
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

fn is_checkpoint(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("checkpoint-").is_some_and(|number| number.parse::<u64>().is_ok())
}

fn folders(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut all: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    all.sort();
    Ok(all)
}

/// Removes incomplete images of a job that was killed; returns how many files. Nothing if the job's
/// coordinator runs, or if that cannot be found out.
pub fn remove_incomplete_images(job: &Path) -> usize {
    let events = File::options().append(true).open(job.join(EVENTS));
    let Some(events) = events.ok().filter(|events| os::lock(events, false).unwrap_or(false)) else {
        return 0;
    };
    let mut removed = 0;
    for checkpoint in
        folders(job).unwrap_or_default().into_iter().filter(|folder| is_checkpoint(folder))
    {
        for entry in fs::read_dir(&checkpoint).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let incomplete = name.to_str().is_some_and(|name| {
                let known = name.starts_with("rank-") || name.starts_with(MANIFEST);
                known && name.ends_with(".tmp")
            });
            if incomplete && fs::remove_file(entry.path()).is_ok() {
                removed += 1;
            }
        }
        // If it is empty now.
        let _ = fs::remove_dir(&checkpoint);
    }
    drop(events);
    removed
}

/// Removes a checkpoint's manifest first: from then on it does not count.
pub fn remove_manifest(folder: &Path) {
    if fs::remove_file(folder.join(MANIFEST)).is_ok() {
        let _ = os::sync_directory(folder);
    }
    let _ = fs::remove_file(folder.join(format!("{MANIFEST}.tmp")));
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(checkpoint: u64, kind: Kind) -> Manifest {
        let image = |rank| Image {
            rank,
            set: rank / 2 * 2,
            node: "n0".into(),
            bytes: 3,
            raw_bytes: 4096,
            checksum: 7,
        };
        let images: Vec<Image> = (0..4).map(image).collect();
        Manifest {
            format: FORMAT,
            job: "job-1".into(),
            checkpoint,
            kind,
            unix_ms: checkpoint,
            size: 4,
            command: vec!["./a".into()],
            images: if kind == Kind::Set { images[..2].to_vec() } else { images },
        }
    }

    #[test]
    fn incomplete_images_are_removed_when_their_job_has_ended() {
        let job = scratch("incomplete-images");
        let checkpoint = job.join("checkpoint-2");
        let (complete, other) = (job.join("checkpoint-1/rank-0.img"), job.join("notes.tmp"));
        for folder in [&checkpoint, &job.join("checkpoint-1")] {
            fs::create_dir_all(folder).unwrap();
        }
        let incomplete = ["rank-0.img.tmp", "rank-1.img.tmp.tmp", "manifest.json.tmp"];
        for file in incomplete.map(|name| checkpoint.join(name)).iter().chain([&complete, &other]) {
            fs::write(file, "x").unwrap();
        }
        assert_eq!(remove_incomplete_images(&job), 0, "whose job it is cannot be known");
        let coordinator = File::create(job.join(EVENTS)).unwrap();
        assert!(os::lock(&coordinator, true).unwrap());
        assert_eq!(remove_incomplete_images(&job), 0, "the job runs");
        drop(coordinator);
        assert_eq!(remove_incomplete_images(&job), incomplete.len());
        assert!(complete.exists() && other.exists() && !checkpoint.exists());
        fs::remove_dir_all(job).unwrap();
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rustbtl-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_checkpoint_is_found_when_its_manifest_is_written_and_not_before() {
        let base = scratch("store");
        let make = |checkpoint: u64, kind| {
            let folder = folder(&base, "job-1", CheckpointId(checkpoint));
            fs::create_dir_all(&folder).unwrap();
            let manifest = manifest(checkpoint, kind);
            for image in &manifest.images {
                fs::write(folder.join(format!("rank-{}.img", image.rank)), "abc").unwrap();
            }
            (folder, manifest)
        };
        let (first, manifest_1) = make(1, Kind::Global);
        assert!(newest_global(&base).is_err());
        manifest_1.write(&first).unwrap();
        let (second, manifest_2) = make(2, Kind::Set);
        manifest_2.write(&second).unwrap();
        assert_eq!(newest_global(&base).unwrap().manifest, manifest_1);
        assert_eq!(list(&base).unwrap().checkpoints.len(), 2);
        fs::create_dir(base.join("job-1/checkpoint-9")).unwrap();
        let found = list(&base).unwrap();
        assert_eq!(found.unfinished, [base.join("job-1/checkpoint-9")], "which is no damage");
        assert!(found.problems.is_empty());
        assert_eq!(manifest_2.sets(), [SetId(0)]);
        let (third, manifest_3) = make(3, Kind::Global);
        manifest_3.write(&third).unwrap();
        fs::write(third.join("rank-2.img"), "ab").unwrap();
        assert_eq!(
            newest_global(&base).unwrap().manifest.checkpoint,
            1,
            "a damaged one is passed over"
        );
        remove_manifest(&first);
        let why = newest_global(&base).unwrap_err();
        assert!(why.contains("rank-2.img has 2 bytes, it should have 3"), "{why}");
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn the_keys_of_a_manifest_are_those_of_format_1() {
        let text = serde_json::to_string(&manifest(7, Kind::Set)).unwrap();
        let image = |rank| {
            format!(
                r#"{{"rank":{rank},"set":0,"node":"n0","bytes":3,"raw_bytes":4096,"checksum":7}}"#
            )
        };
        let head = r#"{"format":1,"job":"job-1","line":7,"kind":"set","unix_ms":7,"size":4,"#;
        let rest = r#""command":["./a"],"images":["#;
        assert_eq!(text, format!("{head}{rest}{},{}]}}", image(0), image(1)));
    }

    #[test]
    fn every_change_of_a_manifest_is_noticed() {
        let base = scratch("sealed");
        manifest(1, Kind::Global).write(&base).unwrap();
        let file = base.join(MANIFEST);
        let good = fs::read_to_string(&file).unwrap();
        for (from, to) in [("\"size\": 4", "\"size\": 5"), ("./a", "./b"), ("}", ""), ("1", "x")] {
            fs::write(&file, good.replacen(from, to, 1)).unwrap();
            assert!(Manifest::read(&base).unwrap_err().contains("damaged"), "{from}");
        }
        fs::write(&file, &good).unwrap();
        assert!(Manifest::read(&base).is_ok());
        fs::remove_dir_all(&base).unwrap();
    }
}
