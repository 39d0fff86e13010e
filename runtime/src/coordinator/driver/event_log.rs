//! The events of a job, one JSON document a text line: `DIR/JOB/events.jsonl`, or in mpirun's
//! session directory.

use crate::coordinator::driver::clock::unix_ms;
use crate::coordinator::job::config::JobConfig;
use crate::store::EVENTS;
use crate::trace;
use rustbtl_process::private_files::Folder;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Of names and fields (docs/events.md).
const EVENTS_VERSION: u32 = 2;

/// The file, if there is a folder for it. A job does not fail without it.
pub struct Events(Option<File>);

impl Events {
    /// In the job's folder, or in mpirun's.
    pub fn open(config: &JobConfig, job: &str) -> Self {
        let in_folder = |folder: &PathBuf| {
            Folder::open(&folder.join(job)).and_then(|folder| folder.file_or_new_to_append(EVENTS))
        };
        let own = config.directory.as_ref().map(in_folder);
        let session = config.log.as_ref().map(|folder| folder.join(format!("rustbtl-{job}.jsonl")));
        // Where it outlives a job without a directory.
        let chosen = std::env::var_os("RUSTBTL_EVENTS").map(PathBuf::from);
        let chosen = chosen.map(|folder| folder.join(format!("rustbtl-{job}.jsonl")));
        let mut options = File::options();
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = match (own, chosen.or(session)) {
            (Some(own), _) => own.ok(),
            (None, path) => path.and_then(|path| options.open(path).ok()),
        };
        // Locked as long as this process lives: cleanup after a job checks the lock.
        if let Some(file) = &file {
            let _ = crate::os::lock(file, false);
        }
        Self(file)
    }

    /// One more event.
    pub fn write(&mut self, mut event: Value) {
        trace::event(&event);
        let Some(file) = &mut self.0 else { return };
        event["v"] = EVENTS_VERSION.into();
        event["unix_ms"] = unix_ms().into();
        // In one piece, so that a reader sees whole lines.
        let _ = file.write_all(format!("{event}\n").as_bytes());
    }
}
