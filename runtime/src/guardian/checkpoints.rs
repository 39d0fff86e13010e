//! A guardian's part in a checkpoint: the folder of the image, writing it, and the report.

use crate::guardian::images::{StoredImage, Written};
use crate::guardian::lost_time::{ThreadTimes, lost_ns};
use crate::guardian::{Guardian, ThreadReport};
use rustbtl_coordination::control::{CheckpointId, FromNode};
use std::path::{Path, PathBuf};

/// What is needed to know what the program loses beside a checkpoint, until that is complete.
#[derive(Debug)]
pub(super) struct Beside {
    checkpoint: CheckpointId,
    /// When the image before was stored.
    before: Option<ThreadTimes>,
    /// After the snapshot.
    begin: ThreadTimes,
}

impl Guardian {
    /// The folder that the coordinator names.
    pub(super) fn folder(&self, directory: &str) -> Result<PathBuf, String> {
        if Path::new(directory).is_absolute() {
            return Ok(directory.into());
        }
        match &self.local {
            Some(Ok(local)) => local.checkpoint(directory),
            Some(Err(problem)) => return Err(problem.clone()),
            None => None,
        }
        .ok_or_else(|| format!("there is no folder {directory:?}"))
    }

    /// The rank will take part in a checkpoint.
    pub(super) fn prepare(&mut self, checkpoint: CheckpointId, directory: &str) {
        let rank = self.settings.rank;
        match self.folder(directory) {
            Ok(folder) => {
                if let Some(message) = self.rank.prepare(checkpoint, folder, rank) {
                    self.send(&message);
                    self.write_images();
                }
            }
            Err(reason) => self.send(&FromNode::StoreFailed { rank, checkpoint, reason }),
        }
    }

    /// Starts to write the images whose snapshots are taken.
    pub(super) fn write_images(&mut self) {
        while let Some(mut task) = self.rank.next_image() {
            task.limited = self.local.is_some();
            task.times = self.times.clone();
            let (store, reporter) = (self.store.clone(), self.reporter.clone());
            let report = move |checkpoint, result| {
                reporter.report(ThreadReport::Written(checkpoint, result))
            };
            self.writers.write(task, store, report);
        }
    }

    /// Reports how an image was written.
    pub(super) fn written(
        &mut self,
        checkpoint: CheckpointId,
        result: Result<StoredImage, String>,
    ) {
        let rank = self.settings.rank;
        self.rank.release(checkpoint, rank);
        let message = match result {
            Ok(StoredImage { written, ns, lost_ns, begin, times }) => {
                let Written { bytes, raw_bytes, checksum } = written;
                let before = self.times.take();
                self.beside = begin.map(|begin| Beside { checkpoint, before, begin });
                self.times = times;
                tracing::info!(
                    "rank {rank}: image of checkpoint {checkpoint} stored, {bytes} bytes"
                );
                FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, lost_ns, checksum }
            }
            Err(reason) => {
                tracing::warn!(
                    "rank {rank}: image of checkpoint {checkpoint} not stored: {reason}"
                );
                FromNode::StoreFailed { rank, checkpoint, reason }
            }
        };
        self.send(&message);
    }

    /// A checkpoint is complete: what has the program lost since its snapshot?
    pub(super) fn report_lost(&mut self, complete: CheckpointId) {
        let Some(beside) = self.beside.take_if(|beside| beside.checkpoint == complete) else {
            return;
        };
        let Some(end) = self.rank.program().and_then(ThreadTimes::of) else { return };
        let lost_ns = lost_ns(beside.before.as_ref(), &beside.begin, &end);
        self.times = Some(end);
        let rank = self.settings.rank;
        self.send(&FromNode::LostBeside { rank, checkpoint: complete, lost_ns });
    }
}
