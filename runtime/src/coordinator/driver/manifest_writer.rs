//! Manifests are written and removed by a thread of their own. Loaded storage takes seconds,
//! sometimes many, for a small file; a coordinator that waits for it would neither handle failures
//! nor send heartbeats.
//!
//! 1. Orders are carried out one after the other, in the order in which they are given.
//! 2. Images of a checkpoint are discarded when its manifest is removed, not before: a message to
//!    guardians after an order for the same checkpoint waits for the order.

use crate::store;
use crate::store::Manifest;
use rustbtl_coordination::control::{CheckpointId, ToNode};
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

/// What is to be done in a checkpoint's folder.
enum WriteOrder {
    Write(Box<Manifest>),
    Remove,
}

/// What was done.
#[derive(Debug)]
pub enum Report {
    /// The manifest is on the storage, or why it is not.
    Written(CheckpointId, Result<(), String>),
    /// Nothing is left of it.
    Removed,
}

/// What was done, and messages that may be sent now.
pub type Done = (Vec<Report>, Vec<(PeerId, ToNode)>);

/// See the module's documentation.
#[derive(Debug)]
pub struct ManifestWriter {
    orders: Sender<(CheckpointId, PathBuf, WriteOrder)>,
    reports: Receiver<(CheckpointId, Report)>,
    wake_reader: UnixStream,
    /// Orders of a checkpoint that are not carried out yet, and messages that wait for them.
    open: BTreeMap<CheckpointId, (usize, Vec<(PeerId, ToNode)>)>,
}

impl ManifestWriter {
    /// Its thread waits for orders.
    pub fn start() -> io::Result<Self> {
        let (orders, todo) = mpsc::channel::<(CheckpointId, PathBuf, WriteOrder)>();
        let (done, reports) = mpsc::channel();
        let (wake_reader, mut wake_writer) = UnixStream::pair()?;
        wake_reader.set_nonblocking(true)?;
        thread::Builder::new().name("storer".into()).spawn(move || {
            for (checkpoint, folder, order) in todo {
                let report = carry_out(checkpoint, &folder, order);
                // A coordinator that does not read any more does not need it.
                if done.send((checkpoint, report)).is_err() || wake_writer.write_all(&[1]).is_err()
                {
                    return;
                }
            }
        })?;
        Ok(Self { orders, reports, wake_reader, open: BTreeMap::new() })
    }

    /// To poll: readable when something was done.
    pub fn fd(&self) -> RawFd {
        self.wake_reader.as_raw_fd()
    }

    /// Writes the manifest of a checkpoint into its folder.
    pub fn write(&mut self, folder: PathBuf, manifest: Manifest) {
        self.order(
            CheckpointId(manifest.checkpoint),
            folder,
            WriteOrder::Write(Box::new(manifest)),
        );
    }

    /// Removes the manifest of a checkpoint, and the folder if nothing else is in it.
    pub fn remove(&mut self, checkpoint: CheckpointId, folder: PathBuf) {
        self.order(checkpoint, folder, WriteOrder::Remove);
    }

    fn order(&mut self, checkpoint: CheckpointId, folder: PathBuf, order: WriteOrder) {
        self.open.entry(checkpoint).or_default().0 += 1;
        // The thread ends after this value.
        let _ = self.orders.send((checkpoint, folder, order));
    }

    /// A message to a guardian. None: it has to wait, and [`Self::poll`] returns it later.
    pub fn pass(&mut self, rank: PeerId, message: ToNode) -> Option<(PeerId, ToNode)> {
        if let ToNode::Discard { checkpoint, .. } = &message
            && let Some((_, waiting)) = self.open.get_mut(checkpoint)
        {
            waiting.push((rank, message));
            return None;
        }
        Some((rank, message))
    }

    /// What was done since the last call.
    pub fn poll(&mut self) -> Done {
        let mut bytes = [0; 64];
        while matches!(self.wake_reader.read(&mut bytes), Ok(1..)) {}
        let (mut reports, mut released) = (Vec::new(), Vec::new());
        while let Ok((checkpoint, report)) = self.reports.try_recv() {
            self.close(checkpoint, &mut released);
            reports.push(report);
        }
        (reports, released)
    }

    /// As [`Self::poll`], when the next order is carried out. None: there is none.
    pub fn wait(&mut self) -> Option<Done> {
        if self.open.is_empty() {
            return None;
        }
        let (checkpoint, report) = self.reports.recv().ok()?;
        let mut released = Vec::new();
        self.close(checkpoint, &mut released);
        Some((vec![report], released))
    }

    fn close(&mut self, checkpoint: CheckpointId, released: &mut Vec<(PeerId, ToNode)>) {
        if let Some((open, _)) = self.open.get_mut(&checkpoint) {
            *open -= 1;
            if *open == 0
                && let Some((_, waiting)) = self.open.remove(&checkpoint)
            {
                released.extend(waiting);
            }
        }
    }
}

fn carry_out(checkpoint: CheckpointId, folder: &std::path::Path, order: WriteOrder) -> Report {
    match order {
        WriteOrder::Write(manifest) => {
            let what = |error| format!("the manifest in {}: {error}", folder.display());
            Report::Written(checkpoint, manifest.write(folder).map_err(what))
        }
        WriteOrder::Remove => {
            store::remove_manifest(folder);
            Report::Removed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{FORMAT, Kind};

    fn manifest(checkpoint: u64) -> Manifest {
        Manifest {
            format: FORMAT,
            job: "job-1".into(),
            checkpoint,
            kind: Kind::Global,
            unix_ms: 5,
            size: 1,
            command: vec!["a".into()],
            images: Vec::new(),
        }
    }

    #[test]
    fn images_are_discarded_when_the_manifest_is_gone() {
        let base = std::env::temp_dir().join(format!("rustbtl-storer-{}", std::process::id()));
        let folder = base.join("checkpoint-3");
        let (rank, checkpoint) = (PeerId(0), CheckpointId(3));
        let discard = |checkpoint| ToNode::Discard { rank, checkpoint };
        let mut manifest_writer = ManifestWriter::start().unwrap();
        manifest_writer.write(folder.clone(), manifest(3));
        manifest_writer.remove(checkpoint, folder.clone());
        assert!(manifest_writer.pass(rank, discard(checkpoint)).is_none(), "2");
        assert!(
            manifest_writer.pass(rank, discard(CheckpointId(2))).is_some(),
            "of another checkpoint"
        );
        let (reports, released) = manifest_writer.wait().unwrap();
        assert!(matches!(&reports[..], [Report::Written(of, Ok(()))] if *of == checkpoint));
        assert_eq!(released, []);
        let (reports, released) = manifest_writer.wait().unwrap();
        assert!(matches!(&reports[..], [Report::Removed]));
        assert_eq!(released, [(rank, discard(checkpoint))]);
        assert!(manifest_writer.wait().is_none());
        assert!(!folder.exists());
        assert!(manifest_writer.pass(rank, discard(checkpoint)).is_some());
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_reported() {
        let mut manifest_writer = ManifestWriter::start().unwrap();
        manifest_writer.write("/proc/nowhere".into(), manifest(4));
        let (reports, released) = manifest_writer.wait().unwrap();
        let [Report::Written(checkpoint, Err(why))] = &reports[..] else { panic!("{reports:?}") };
        assert!(
            *checkpoint == CheckpointId(4) && why.contains("/proc/nowhere") && released.is_empty()
        );
    }
}
