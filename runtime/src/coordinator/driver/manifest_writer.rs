//! Manifests are written and removed by a thread of their own: storage that has much to do takes
//! seconds, sometimes many, until something is on it, and a coordinator that waits for it would
//! neither hear of a death nor let anybody hear that it lives.
//!
//! 1. Orders are carried out one after the other, in the order in which they are given.
//! 2. Images of a line are discarded when its manifest is gone, not before: what is told to
//!    guardians behind an order of the same line waits for it.

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

/// What is to be done in a line's folder.
enum Order {
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

/// What was done, and what may be told now.
pub type Done = (Vec<Report>, Vec<(PeerId, ToNode)>);

/// See the module's documentation.
#[derive(Debug)]
pub struct ManifestWriter {
    orders: Sender<(CheckpointId, PathBuf, Order)>,
    reports: Receiver<(CheckpointId, Report)>,
    bell: UnixStream,
    /// Orders of a line that are not carried out, and what has to wait for them.
    open: BTreeMap<CheckpointId, (usize, Vec<(PeerId, ToNode)>)>,
}

impl ManifestWriter {
    /// Its thread waits for orders.
    pub fn start() -> io::Result<Self> {
        let (orders, todo) = mpsc::channel::<(CheckpointId, PathBuf, Order)>();
        let (done, reports) = mpsc::channel();
        let (bell, mut rope) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        thread::Builder::new().name("storer".into()).spawn(move || {
            for (line, folder, order) in todo {
                let report = carry_out(line, &folder, order);
                // Whoever does not listen any more does not need it.
                if done.send((line, report)).is_err() || rope.write_all(&[1]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, reports, bell, open: BTreeMap::new() })
    }

    /// To poll: something was done.
    pub fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Write the manifest of a line into its folder.
    pub fn write(&mut self, folder: PathBuf, manifest: Manifest) {
        self.order(CheckpointId(manifest.checkpoint), folder, Order::Write(Box::new(manifest)));
    }

    /// Remove the manifest of a line, and the folder if nothing else is in it.
    pub fn remove(&mut self, line: CheckpointId, folder: PathBuf) {
        self.order(line, folder, Order::Remove);
    }

    fn order(&mut self, line: CheckpointId, folder: PathBuf, order: Order) {
        self.open.entry(line).or_default().0 += 1;
        // The thread ends after us.
        let _ = self.orders.send((line, folder, order));
    }

    /// To this guardian, unless it has to wait: then it is given back by [`Self::look`].
    pub fn pass(&mut self, rank: PeerId, message: ToNode) -> Option<(PeerId, ToNode)> {
        if let ToNode::Discard { checkpoint: line, .. } = &message
            && let Some((_, waiting)) = self.open.get_mut(line)
        {
            waiting.push((rank, message));
            return None;
        }
        Some((rank, message))
    }

    /// Since the last look.
    pub fn look(&mut self) -> Done {
        let mut rings = [0; 64];
        while matches!(self.bell.read(&mut rings), Ok(1..)) {}
        let (mut reports, mut told) = (Vec::new(), Vec::new());
        while let Ok((line, report)) = self.reports.try_recv() {
            self.close(line, &mut told);
            reports.push(report);
        }
        (reports, told)
    }

    /// As [`Self::look`], when the next order is carried out. None: there is none.
    pub fn wait(&mut self) -> Option<Done> {
        if self.open.is_empty() {
            return None;
        }
        let (line, report) = self.reports.recv().ok()?;
        let mut told = Vec::new();
        self.close(line, &mut told);
        Some((vec![report], told))
    }

    fn close(&mut self, line: CheckpointId, told: &mut Vec<(PeerId, ToNode)>) {
        if let Some((open, _)) = self.open.get_mut(&line) {
            *open -= 1;
            if *open == 0
                && let Some((_, waiting)) = self.open.remove(&line)
            {
                told.extend(waiting);
            }
        }
    }
}

fn carry_out(line: CheckpointId, folder: &std::path::Path, order: Order) -> Report {
    match order {
        Order::Write(manifest) => {
            let what = |error| format!("the manifest in {}: {error}", folder.display());
            Report::Written(line, manifest.write(folder).map_err(what))
        }
        Order::Remove => {
            store::remove_manifest(folder);
            Report::Removed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{FORMAT, Kind};

    fn manifest(line: u64) -> Manifest {
        Manifest {
            format: FORMAT,
            job: "job-1".into(),
            checkpoint: line,
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
        let (rank, line) = (PeerId(0), CheckpointId(3));
        let discard = |line| ToNode::Discard { rank, checkpoint: line };
        let mut storer = ManifestWriter::start().unwrap();
        storer.write(folder.clone(), manifest(3));
        storer.remove(line, folder.clone());
        assert!(storer.pass(rank, discard(line)).is_none(), "2");
        assert!(storer.pass(rank, discard(CheckpointId(2))).is_some(), "of another line");
        let (reports, told) = storer.wait().unwrap();
        assert!(matches!(&reports[..], [Report::Written(of, Ok(()))] if *of == line));
        assert_eq!(told, []);
        let (reports, told) = storer.wait().unwrap();
        assert!(matches!(&reports[..], [Report::Removed]));
        assert_eq!(told, [(rank, discard(line))]);
        assert!(storer.wait().is_none());
        assert!(!folder.exists());
        assert!(storer.pass(rank, discard(line)).is_some());
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let mut storer = ManifestWriter::start().unwrap();
        storer.write("/proc/nowhere".into(), manifest(4));
        let (reports, told) = storer.wait().unwrap();
        let [Report::Written(line, Err(why))] = &reports[..] else { panic!("{reports:?}") };
        assert!(*line == CheckpointId(4) && why.contains("/proc/nowhere") && told.is_empty());
    }
}
