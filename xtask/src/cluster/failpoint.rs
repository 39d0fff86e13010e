//! Who is killed at a known point of a checkpoint: the checkpoint waits there for it.
//!
//! The guardian of the last rank waits at a failpoint (`runtime/src/guardian/failpoints.rs`), and
//! the checkpoint cannot go past it. So whatever the machine is busy with, the failure is between
//! what has happened by then and what has not.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::options::ClusterOptions;
use super::stage::Stage;
use super::victim::Victim;
use crate::error::{Context, Result};

/// The variable that tells guardians where the file is.
pub const VARIABLE: &str = "RUSTBTL_FAILPOINTS";

/// A point of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// All ranks but the last one have been ordered to begin.
    Quiescence,
    /// All images but that of the last rank are stored.
    Images,
    /// All are; the coordinator is suspended, so there is no manifest.
    Manifest,
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "quiescence" | "silence" => Ok(Point::Quiescence),
            "images" => Ok(Point::Images),
            "manifest" => Ok(Point::Manifest),
            _ => Err("choose quiescence, images or manifest".into()),
        }
    }
}

/// How far the checkpoint is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FailpointState {
    /// It is still to be requested.
    Awaited,
    /// The last rank waits at the failpoint.
    AtFailpoint,
    /// It does not any more, but the coordinator is suspended.
    Standing,
}

/// The failure that is still to come.
pub struct Failpoint {
    victim: Victim,
    point: Point,
    state: FailpointState,
    /// While it is there, the guardian waits.
    file: PathBuf,
    checkpoints: PathBuf,
    ranks: u32,
}

impl Failpoint {
    /// As it was given in the options.
    pub fn new(options: &ClusterOptions, stage: &Stage) -> Option<Failpoint> {
        let (victim, point) = options.kill_in_checkpoint()?;
        let (checkpoints, ranks) = (options.checkpoint_folder()?.to_owned(), options.ranks());
        let word = if point == Point::Quiescence { "begin" } else { "image" };
        let file = stage.failpoints().join(format!("{word}-{}", ranks - 1));
        Some(Failpoint { victim, point, state: FailpointState::Awaited, file, checkpoints, ranks })
    }

    /// The checkpoint is going to be requested.
    pub fn begin(&mut self) -> Result<()> {
        self.state = FailpointState::AtFailpoint;
        fs::write(&self.file, "").context(|| self.file.display().to_string())
    }

    /// Kills, if the time has come, and lets the checkpoint go on; returns what was done, in words.
    pub fn poll(&mut self) -> Result<Option<String>> {
        let here = match (self.state, self.point) {
            (FailpointState::Awaited, _) => false,
            (FailpointState::AtFailpoint, Point::Quiescence) => self.is_waiting(),
            (FailpointState::AtFailpoint, Point::Images) => {
                self.is_waiting() && self.has_images(self.ranks - 1)
            }
            (FailpointState::AtFailpoint, Point::Manifest) => {
                // It has the images, or will receive them when it goes on.
                if self.is_waiting() && Victim::Coordinator.signal(libc::SIGSTOP) {
                    self.state = FailpointState::Standing;
                    self.release()?;
                }
                false
            }
            (FailpointState::Standing, _) => self.has_images(self.ranks),
        };
        if !here {
            return Ok(None);
        }
        let killed = self.victim.kill();
        if self.state == FailpointState::Standing {
            Victim::Coordinator.signal(libc::SIGCONT);
        } else {
            self.release()?;
        }
        let (victim, point) = (self.victim, self.point);
        let done = if killed { "killed" } else { "there is no" };
        Ok(Some(format!("{done} {victim:?} ({point:?} of the last checkpoint)")))
    }

    fn is_waiting(&self) -> bool {
        self.file.with_extension("reached").exists()
    }

    fn release(&self) -> Result<()> {
        fs::remove_file(&self.file).context(|| self.file.display().to_string())
    }

    /// Are the images of the first ranks there, in a checkpoint that is not complete?
    fn has_images(&self, ranks: u32) -> bool {
        let incomplete = |checkpoint: &PathBuf| !checkpoint.join("manifest.json").exists();
        let has_all = |checkpoint: PathBuf| {
            (0..ranks).all(|rank| checkpoint.join(format!("rank-{rank}.img")).exists())
        };
        folders(&self.checkpoints).flat_map(|job| folders(&job)).filter(incomplete).any(has_all)
    }
}

/// What is in a folder; nothing, if it is not there.
fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_without_a_manifest_is_the_one_that_is_being_taken() {
        let checkpoints =
            std::env::temp_dir().join(format!("rustbtl-failpoint-{}", std::process::id()));
        let (one, two) =
            (checkpoints.join("job/checkpoint-1"), checkpoints.join("job/checkpoint-2"));
        fs::create_dir_all(&one).unwrap();
        fs::create_dir_all(&two).unwrap();
        for file in ["rank-0.img", "rank-1.img", "manifest.json"] {
            fs::write(one.join(file), "").unwrap();
        }
        let (victim, point, state) = (Victim::Agent, Point::Images, FailpointState::AtFailpoint);
        let failpoint = Failpoint {
            victim,
            point,
            state,
            file: checkpoints.join("f"),
            checkpoints: checkpoints.clone(),
            ranks: 2,
        };
        assert!(!failpoint.has_images(1));
        fs::write(two.join("rank-0.img"), "").unwrap();
        assert!(failpoint.has_images(1) && !failpoint.has_images(2));
        fs::remove_dir_all(&checkpoints).unwrap();
    }

    #[test]
    fn points_are_named_in_words() {
        assert_eq!("images".parse(), Ok(Point::Images));
        assert!("imges".parse::<Point>().is_err());
    }
}
