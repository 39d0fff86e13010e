//! Images of ranks: a trait writes and restores them; when and where is decided here.

use crate::guardian::failpoints;
use crate::guardian::lost_time::{ThreadTimes, lost_ns};
use crate::guardian::output_offsets::OutputMark;
use crate::local;
use crate::os;
use crate::os::Pid;
use crate::store;
use rustbtl_coordination::control::{CheckpointId, SnapshotMemory};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_process::dump::is_base_of;
use rustbtl_process::private_files::Folder;
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

/// An image that is stored, and what that took.
#[derive(Clone, Debug)]
pub struct StoredImage {
    /// What was written.
    pub written: Written,
    /// How long it took, nanoseconds.
    pub ns: u64,
    /// How much of that the program has lost; half of it where the kernel does not tell.
    pub lost_ns: u64,
    /// The times of the program's threads before it was stored.
    pub begin: Option<ThreadTimes>,
    /// When it was.
    pub times: Option<ThreadTimes>,
}

/// A snapshot of a process, as the process has announced it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The program.
    pub program: Pid,
    /// Where its memory is.
    pub snapshot: SnapshotMemory,
    /// What only the program knew.
    pub description: &'a [u8],
}

/// How a process is restarted from an image.
#[derive(Clone, Copy, Debug)]
pub struct RestartInfo {
    /// Its incarnation, which differs from those of earlier restarts from the same image.
    pub incarnation: Incarnation,
    /// Other ranks keep running meanwhile, and may have written to the files that it writes to.
    pub alone: bool,
}

/// Writes images and restores processes from them. The texts of errors name what failed, on what,
/// and what to do.
pub trait ImageStore: Send + Sync {
    /// Write an image to `to`, which does not exist, and flush it to the disk.
    fn write(&self, source: &Source<'_>, to: &Path) -> Result<Written, String>;

    /// Start the process that is in the image as a child of this one: with the signal mask and the
    /// `standard` descriptors, with `socket` for its guardian, and so that it dies with its parent.
    fn restore(
        &self,
        image: &Path,
        restart: RestartInfo,
        socket: RawFd,
        standard: [RawFd; 3],
    ) -> Result<Pid, String>;

    /// Reads the whole image: is it undamaged?
    fn check(&self, image: &Path) -> Result<Written, String>;

    /// Are the image's table and all that it refers to there?
    fn inspect(&self, image: &Path) -> Result<(), String> {
        fs::metadata(image).map(drop).map_err(|error| format!("{}: {error}", image.display()))
    }

    /// Removes what restoring has left on this node: all ranks are restored, or the program has
    /// ended.
    fn tidy(&self) {}
}

/// Where no image can be written or restored.
pub struct NoImages;

const NO_IMAGES: &str = "this rustbtl was built without the part that writes and restores images";

impl ImageStore for NoImages {
    fn write(&self, _: &Source<'_>, _: &Path) -> Result<Written, String> {
        Err(NO_IMAGES.into())
    }

    fn restore(&self, _: &Path, _: RestartInfo, _: RawFd, _: [RawFd; 3]) -> Result<Pid, String> {
        Err(NO_IMAGES.into())
    }

    fn check(&self, _: &Path) -> Result<Written, String> {
        Err(NO_IMAGES.into())
    }
}

/// Name of a rank's image in the folder of its checkpoint.
pub fn file_name(rank: PeerId) -> String {
    format!("rank-{rank}.img")
}

/// An image that is to be written.
pub struct ImageTask {
    /// Whose.
    pub rank: PeerId,
    /// Of this checkpoint.
    pub checkpoint: CheckpointId,
    /// The program.
    pub program: Pid,
    /// Where its memory is.
    pub snapshot: SnapshotMemory,
    /// The frozen child, if it is one; its process id may belong to another process by now.
    pub child: Option<OwnedFd>,
    /// What only the program knew.
    pub description: Vec<u8>,
    /// Position of its output.
    pub output: Option<OutputMark>,
    /// Folder of the checkpoint.
    pub directory: PathBuf,
    /// The times of the program's threads when the last image was stored.
    pub times: Option<ThreadTimes>,
    /// The node's storage is limited: free space is checked first.
    pub limited: bool,
}

impl ImageTask {
    /// Writes the image under a temporary name, renames it, makes both durable. The frozen child is
    /// killed in any case.
    pub fn run(&self, store: &dyn ImageStore) -> Result<StoredImage, String> {
        failpoints::at(failpoints::IMAGE, self.rank);
        let start = Instant::now();
        let begin = ThreadTimes::of(self.program);
        let done = self.write(store);
        if let Some(child) = &self.child {
            os::kill_pidfd(child);
        }
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let times = ThreadTimes::of(self.program);
        let both = begin.as_ref().zip(times.as_ref());
        let lost = |(begin, end)| lost_ns(self.times.as_ref(), begin, end);
        let lost_ns = both.map_or(ns / 2, lost);
        done.map(|written| StoredImage { written, ns, lost_ns, begin, times })
    }

    fn write(&self, store: &dyn ImageStore) -> Result<Written, String> {
        let folder = &self.directory;
        let shown = folder.display();
        let checkpoint = store::enter_checkpoint(folder).map_err(|error| error.to_string())?;
        if self.limited {
            local::check_room(folder, os::memory_of(self.program))?;
        }
        let name = file_name(self.rank);
        let temporary = temporary(self.rank);
        let _ = checkpoint.remove(&temporary);
        let (program, snapshot) = (self.program, self.snapshot);
        let source = Source { program, snapshot, description: &self.description };
        let marked = self.output.as_ref().map_or(Ok(()), |mark| mark.store(folder, self.rank));
        marked.map_err(|error| format!("{shown}: {error}"))?;
        let written = store.write(&source, &folder.join(&temporary)).and_then(|written| {
            let named = checkpoint.rename(&temporary, &name).and_then(|()| checkpoint.sync());
            named.map(|()| written).map_err(|error| error.to_string())
        });
        written.inspect_err(|_| {
            let _ = checkpoint.remove(&temporary);
        })
    }
}

/// Threads that write images.
#[derive(Default)]
pub struct Writers(Vec<JoinHandle<()>>);

impl Writers {
    /// Writes it in a thread, which reports the result.
    pub fn write(
        &mut self,
        task: ImageTask,
        store: Arc<dyn ImageStore>,
        report: impl FnOnce(CheckpointId, Result<StoredImage, String>) + Send + 'static,
    ) {
        self.0.retain(|writer| !writer.is_finished());
        self.0.push(thread::spawn(move || report(task.checkpoint, task.run(&*store))));
    }

    /// Waits for the writers, but not longer than this. A writer whose program has ended removes
    /// what it has written; if the guardian ended first, that would stay.
    pub fn wait(&mut self, at_most: Duration) {
        let until = Instant::now() + at_most;
        while !self.0.iter().all(JoinHandle::is_finished) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        self.0.clear();
    }
}

/// Name of an image that is not complete.
fn temporary(rank: PeerId) -> String {
    format!("{}.tmp", file_name(rank))
}

/// The final name of an image that is being written to `temporary`.
pub fn final_name(temporary: &Path) -> PathBuf {
    temporary.with_extension("")
}

/// Removes a rank's files from the folder of a checkpoint, and the folder if it is empty then.
/// Incremental images of other checkpoints have names of their own for the images they need.
pub fn discard(folder: &Path, rank: PeerId) {
    // What is not this user's is not his to remove.
    if let Ok(checkpoint) = Folder::open(folder) {
        let image = file_name(rank);
        let names = checkpoint.names().unwrap_or_default();
        let is_base = |name: &str| is_base_of(name, &image);
        for base in names.iter().filter(|name| name.to_str().is_some_and(is_base)) {
            let _ = checkpoint.remove(base);
        }
        let temporary = temporary(rank);
        let draft = format!("{temporary}.tmp");
        for name in [&image, &draft, &temporary, &OutputMark::file(rank)] {
            let _ = checkpoint.remove(name);
        }
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the description, or half of it, after a delay.
    struct Half(bool, Duration);

    impl ImageStore for Half {
        fn write(&self, source: &Source<'_>, to: &Path) -> Result<Written, String> {
            thread::sleep(self.1);
            let half = &source.description[..source.description.len() / 2];
            fs::write(to, if self.0 { half } else { source.description }).unwrap();
            let bytes = source.description.len() as u64;
            if self.0 { Err("no room".into()) } else { Ok(Written { bytes, ..Default::default() }) }
        }

        fn restore(
            &self,
            _: &Path,
            _: RestartInfo,
            _: RawFd,
            _: [RawFd; 3],
        ) -> Result<Pid, String> {
            unreachable!()
        }

        fn check(&self, _: &Path) -> Result<Written, String> {
            unreachable!()
        }
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rustbtl-{name}-{}", std::process::id()))
    }

    fn task(folder: &Path) -> ImageTask {
        ImageTask {
            rank: PeerId(3),
            checkpoint: CheckpointId(1),
            program: 1,
            snapshot: SnapshotMemory::InPause,
            child: None,
            description: b"abcd".to_vec(),
            output: None,
            directory: folder.join("job/checkpoint-1"),
            times: None,
            limited: true,
        }
    }

    #[test]
    fn nothing_incomplete_is_left_when_writers_were_waited_for() {
        let folder = scratch("writers");
        let task = task(&folder);
        let directory = task.directory.clone();
        let (sender, reports) = std::sync::mpsc::channel();
        let mut writers = Writers::default();
        let report = move |checkpoint, result: Result<_, _>| {
            sender.send((checkpoint, result.is_err())).unwrap()
        };
        writers.write(task, Arc::new(Half(true, Duration::from_millis(50))), report);
        writers.wait(Duration::from_secs(60));
        assert_eq!(reports.try_recv(), Ok((CheckpointId(1), true)));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_image_has_its_name_only_when_it_is_complete() {
        let folder = scratch("img");
        let task = task(&folder);
        assert_eq!(task.run(&Half(true, Duration::ZERO)).unwrap_err(), "no room");
        assert_eq!(fs::read_dir(&task.directory).unwrap().count(), 0);
        assert_eq!(task.run(&Half(false, Duration::ZERO)).unwrap().written.bytes, 4);
        let names: Vec<_> =
            fs::read_dir(&task.directory).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["rank-3.img"]);
        let temporary = task.directory.join(temporary(PeerId(3)));
        assert_eq!(final_name(&temporary), task.directory.join("rank-3.img"));
        fs::write(task.directory.join("rank-3.img.base-1"), "").unwrap();
        discard(&task.directory, PeerId(3));
        assert!(!task.directory.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_image_is_not_written_through_a_link_in_a_folder_of_another_user() {
        if os::euid() != 0 {
            return eprintln!("SKIPPED: only root can make a folder of another user");
        }
        let folder = scratch("foreign");
        let task = task(&folder);
        fs::create_dir_all(&task.directory).unwrap();
        let victim = folder.join("victim");
        fs::write(&victim, "mine").unwrap();
        let planted = task.directory.join("rank-3.out");
        std::os::unix::fs::symlink(&victim, &planted).unwrap();
        std::os::unix::fs::chown(&task.directory, Some(65534), None).unwrap();
        let why = task.run(&Half(false, Duration::ZERO)).unwrap_err();
        assert!(why.contains("belongs to user 65534"), "{why}");
        discard(&task.directory, PeerId(3));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert!(planted.is_symlink(), "nor is anything removed there");
        fs::remove_dir_all(&folder).unwrap();
    }
}
