//! Images of ranks: who writes and restores them is behind a trait, when and where is decided here.

use crate::guardian::failpoints;
use crate::guardian::output_offsets::Mark;
use crate::local;
use crate::os;
use crate::os::Pid;
use rustbtl_coordination::control::{CheckpointId, SnapshotMemory};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_process::dump::is_base_of;
use std::fs;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Size of the file.
    pub bytes: u64,
    /// Memory that is in it.
    pub raw_bytes: u64,
    /// Checksum over the file, as [`ImageStore::check`] gives it.
    pub checksum: u64,
}

/// A picture of a process, as the process has announced it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The program.
    pub program: Pid,
    /// Where its memory is.
    pub picture: SnapshotMemory,
    /// What only it knew.
    pub description: &'a [u8],
}

/// The life of a process that is made from an image.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// What tells it from others that begin with the same image.
    pub incarnation: Incarnation,
    /// Others of the job go on meanwhile, and may have written to the files that it writes to.
    pub alone: bool,
}

/// Writes images and makes processes of them. The texts of errors say what failed, on what, and
/// what to do.
pub trait ImageStore: Send + Sync {
    /// Write an image to `to`, which does not exist, and flush it to the disk.
    fn write(&self, source: &Source<'_>, to: &Path) -> Result<Written, String>;

    /// Start the process that is in the image as a child of this one: with the signal mask and the
    /// `standard` descriptors, with `socket` as its way to its guardian, and so that it dies with
    /// its parent.
    fn restore(
        &self,
        image: &Path,
        life: Life,
        socket: RawFd,
        standard: [RawFd; 3],
    ) -> Result<Pid, String>;

    /// Read the whole image: is it undamaged?
    fn check(&self, image: &Path) -> Result<Written, String>;

    /// Are the image's table and all that it refers to there?
    fn look(&self, image: &Path) -> Result<(), String> {
        fs::metadata(image).map(drop).map_err(|error| format!("{}: {error}", image.display()))
    }

    /// All ranks are restored, or the program has ended: remove what restoring it has left on this
    /// node.
    fn tidy(&self) {}
}

/// Where no image can be written or restored.
pub struct NoImages;

const NO_IMAGES: &str = "this rustbtl was built without the part that writes and restores images";

impl ImageStore for NoImages {
    fn write(&self, _: &Source<'_>, _: &Path) -> Result<Written, String> {
        Err(NO_IMAGES.into())
    }

    fn restore(&self, _: &Path, _: Life, _: RawFd, _: [RawFd; 3]) -> Result<Pid, String> {
        Err(NO_IMAGES.into())
    }

    fn check(&self, _: &Path) -> Result<Written, String> {
        Err(NO_IMAGES.into())
    }
}

/// Name of a rank's image in the folder of its line.
pub fn file_name(rank: PeerId) -> String {
    format!("rank-{rank}.img")
}

/// An image on its way to the disk.
pub struct Job {
    /// Whose.
    pub rank: PeerId,
    /// Of this line.
    pub line: CheckpointId,
    /// The program.
    pub program: Pid,
    /// Where its memory is.
    pub picture: SnapshotMemory,
    /// The frozen child, if it is one: its number could be somebody else's by now.
    pub child: Option<OwnedFd>,
    /// What only the program knew.
    pub description: Vec<u8>,
    /// Where its output was.
    pub output: Option<Mark>,
    /// Folder of the line.
    pub directory: PathBuf,
    /// It is on a node that has no room to waste.
    pub limited: bool,
}

impl Job {
    /// Write it under a temporary name, give it its name, make both durable. The frozen child is
    /// gone afterwards, however it went.
    pub fn run(&self, store: &dyn ImageStore) -> Result<(Written, u64), String> {
        failpoints::at(failpoints::IMAGE, self.rank);
        let start = Instant::now();
        let done = self.write(store);
        if let Some(child) = &self.child {
            os::kill_pidfd(child);
        }
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        done.map(|written| (written, ns))
    }

    fn write(&self, store: &dyn ImageStore) -> Result<Written, String> {
        let folder = &self.directory;
        let shown = folder.display();
        os::make_folders(folder).map_err(|error| format!("making {shown}: {error}"))?;
        if self.limited {
            local::check_room(folder, os::memory_of(self.program))?;
        }
        let name = folder.join(file_name(self.rank));
        let temporary = temporary(folder, self.rank);
        let _ = fs::remove_file(&temporary);
        let (program, picture) = (self.program, self.picture);
        let source = Source { program, picture, description: &self.description };
        let marked = self.output.as_ref().map_or(Ok(()), |mark| mark.store(folder, self.rank));
        marked.map_err(|error| format!("{shown}: {error}"))?;
        let written = store.write(&source, &temporary).and_then(|written| {
            let named = fs::rename(&temporary, &name).and_then(|()| os::sync_directory(folder));
            named.map(|()| written).map_err(|error| format!("{}: {error}", name.display()))
        });
        written.inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }
}

/// Threads that write images.
#[derive(Default)]
pub struct Writers(Vec<JoinHandle<()>>);

impl Writers {
    /// Write it beside everything else, and say how it went.
    pub fn write(
        &mut self,
        job: Job,
        store: Arc<dyn ImageStore>,
        told: impl FnOnce(CheckpointId, Result<(Written, u64), String>) + Send + 'static,
    ) {
        self.0.retain(|writer| !writer.is_finished());
        self.0.push(thread::spawn(move || told(job.line, job.run(&*store))));
    }

    /// A writer whose program has gone removes what it has written; one that was ended before would
    /// leave it. One that waits for the disk is not waited for longer than this.
    pub fn wait(&mut self, at_most: Duration) {
        let until = Instant::now() + at_most;
        while !self.0.iter().all(JoinHandle::is_finished) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        self.0.clear();
    }
}

/// Name of an image that is not complete.
fn temporary(folder: &Path, rank: PeerId) -> PathBuf {
    folder.join(format!("{}.tmp", file_name(rank)))
}

/// The name that an image will have which is being written to `temporary`.
pub fn known_as(temporary: &Path) -> PathBuf {
    temporary.with_extension("")
}

/// Remove what there is of a rank in the folder of a line, and the folder if it was the last.
/// Images of other lines that need this one have it under a name of their own.
pub fn discard(folder: &Path, rank: PeerId) {
    let image = file_name(rank);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| is_base_of(name, &image)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_file(folder.join(file_name(rank)));
    let draft = temporary(folder, rank);
    let _ = fs::remove_file(draft.with_extension("tmp.tmp"));
    let _ = fs::remove_file(draft);
    let _ = fs::remove_file(Mark::file(folder, rank));
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the description, or half of it, and begins late.
    struct Half(bool, Duration);

    impl ImageStore for Half {
        fn write(&self, source: &Source<'_>, to: &Path) -> Result<Written, String> {
            thread::sleep(self.1);
            let half = &source.description[..source.description.len() / 2];
            fs::write(to, if self.0 { half } else { source.description }).unwrap();
            let bytes = source.description.len() as u64;
            if self.0 { Err("no room".into()) } else { Ok(Written { bytes, ..Default::default() }) }
        }

        fn restore(&self, _: &Path, _: Life, _: RawFd, _: [RawFd; 3]) -> Result<Pid, String> {
            unreachable!()
        }

        fn check(&self, _: &Path) -> Result<Written, String> {
            unreachable!()
        }
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rustbtl-{name}-{}", std::process::id()))
    }

    fn job(folder: &Path) -> Job {
        Job {
            rank: PeerId(3),
            line: CheckpointId(1),
            program: 1,
            picture: SnapshotMemory::InPause,
            child: None,
            description: b"abcd".to_vec(),
            output: None,
            directory: folder.join("job/checkpoint-1"),
            limited: true,
        }
    }

    #[test]
    fn who_waits_for_writers_finds_nothing_half() {
        let folder = scratch("writers");
        let job = job(&folder);
        let directory = job.directory.clone();
        let (sender, told) = std::sync::mpsc::channel();
        let mut writers = Writers::default();
        let say = move |line, result: Result<_, _>| sender.send((line, result.is_err())).unwrap();
        writers.write(job, Arc::new(Half(true, Duration::from_millis(50))), say);
        writers.wait(Duration::from_secs(60));
        assert_eq!(told.try_recv(), Ok((CheckpointId(1), true)));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_image_has_its_name_only_when_it_is_whole() {
        let folder = scratch("img");
        let job = job(&folder);
        assert_eq!(job.run(&Half(true, Duration::ZERO)).unwrap_err(), "no room");
        assert_eq!(fs::read_dir(&job.directory).unwrap().count(), 0);
        assert_eq!(job.run(&Half(false, Duration::ZERO)).unwrap().0.bytes, 4);
        let names: Vec<_> =
            fs::read_dir(&job.directory).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["rank-3.img"]);
        let draft = temporary(&job.directory, PeerId(3));
        assert_eq!(known_as(&draft), job.directory.join("rank-3.img"));
        fs::write(job.directory.join("rank-3.img.base-1"), "").unwrap();
        discard(&job.directory, PeerId(3));
        assert!(!job.directory.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
