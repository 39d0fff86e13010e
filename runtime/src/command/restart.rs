//! `rustbtl restart DIR`: mpirun again, with images in place of programs.

use crate::command::list::damaged;
use crate::guardian::images::ImageStore;
use crate::guardian::output_offsets;
use crate::store;
use rustbtl_fragments::ids::PeerId;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What was typed.
pub struct Restart {
    /// Checkpoints of several jobs, of one, or one checkpoint.
    pub directory: PathBuf,
    /// Print again what was printed since the checkpoint.
    pub again: bool,
    /// What to run in place of mpirun.
    pub mpirun: PathBuf,
    /// Images are not read before anything is started.
    pub no_verify: bool,
    /// For mpirun.
    pub options: Vec<OsString>,
}

/// The word after which guardians restore instead of starting a program.
pub const PLACEHOLDER: &str = "restored";

/// Becomes mpirun; returns only with the reason why not.
pub fn restart(what: &Restart, images: &dyn ImageStore) -> Result<(), String> {
    let directory = what.directory.canonicalize();
    let directory = directory.map_err(|error| format!("{}: {error}", what.directory.display()))?;
    let checkpoint = store::newest_global(&directory)?;
    if !what.no_verify {
        verify(&checkpoint, images)?;
    }
    let own = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
    report!(
        "restarting {} ({} ranks) from checkpoint {} in {}",
        checkpoint.manifest.job,
        checkpoint.manifest.size,
        checkpoint.manifest.checkpoint,
        checkpoint.folder.display()
    );
    let removed = checkpoint.folder.parent().map_or(0, store::remove_incomplete_images);
    if removed > 0 {
        report!("removed {removed} unfinished files that the job has left");
    }
    if what.again {
        for image in &checkpoint.manifest.images {
            output_offsets::rewind(&checkpoint.folder, PeerId(image.rank)).map_err(|error| {
                format!("output of rank {} in {}: {error}", image.rank, checkpoint.folder.display())
            })?;
        }
    }
    let words = arguments(&checkpoint, &what.options, &own);
    let mut mpirun = Command::new(&what.mpirun);
    let error = mpirun.args(words).exec();
    Err(format!("starting {}: {error}", what.mpirun.display()))
}

/// A damaged image is refused before anything is started.
fn verify(checkpoint: &store::StoredCheckpoint, images: &dyn ImageStore) -> Result<(), String> {
    let problems = damaged(checkpoint, images);
    if problems.is_empty() {
        return Ok(());
    }
    let folder = checkpoint.folder.display();
    let (name, problems) = (checkpoint.manifest.checkpoint, problems.join("\n  "));
    Err(format!(
        "checkpoint {name} cannot be restarted from, nothing was started:\n  {problems}\nGive the \
         folder of another checkpoint in place of {folder}, if `rustbtl list` shows one"
    ))
}

/// The user's options come last, because mpirun takes the first of equal ones; but the user may not
/// choose the checkpoint and the number of ranks.
fn arguments(
    checkpoint: &store::StoredCheckpoint,
    options: &[OsString],
    own: &Path,
) -> Vec<OsString> {
    let manifest = &checkpoint.manifest;
    let mut words: Vec<OsString> = vec!["-np".into(), manifest.size.to_string().into()];
    let given = |key: &str| options.iter().any(|word| word == key);
    let base = checkpoint.folder.parent().and_then(Path::parent).unwrap_or(&checkpoint.folder);
    let mut set = |key: &str, value: OsString| {
        if !given(key) {
            words.extend(["--mca".into(), key.into(), value]);
        }
    };
    set("pml", "v".into());
    set("vprotocol", "correlated".into());
    set("vprotocol_correlated_checkpoint_dir", base.into());
    set("vprotocol_correlated_restore", checkpoint.folder.clone().into());
    words.extend(options.iter().cloned());
    words.extend([own.into(), PLACEHOLDER.into()]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{FORMAT, Kind, Manifest, StoredCheckpoint};

    #[test]
    fn mpirun_gets_the_size_the_checkpoint_and_the_users_options() {
        let manifest = Manifest {
            format: FORMAT,
            job: "j".into(),
            checkpoint: 3,
            kind: Kind::Global,
            unix_ms: 0,
            size: 8,
            command: vec![],
            images: vec![],
        };
        let checkpoint = StoredCheckpoint { folder: "/l/j/checkpoint-3".into(), manifest };
        let options = ["--mca", "vprotocol_correlated_checkpoint_dir", "/other", "--tag-output"];
        let options: Vec<OsString> = options.iter().map(OsString::from).collect();
        let words = arguments(&checkpoint, &options, Path::new("/bin/rustbtl"));
        let text: Vec<String> =
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(
            text.join(" "),
            "-np 8 --mca pml v --mca vprotocol correlated --mca vprotocol_correlated_restore \
             /l/j/checkpoint-3 --mca vprotocol_correlated_checkpoint_dir /other --tag-output \
             /bin/rustbtl restored"
        );
    }
}
