//! Files after any changes and a rollback are what they were at the checkpoint (invariants 2 and 3
//! of `file_undo`): a model of a file system, changed at random through the tracker, rolled back
//! with interruptions.

use proptest::prelude::*;
use rustbtl_checkpoint::file_undo::{
    Entry, FileId, HEAD_BYTES, Head, Need, Shape, Step, Tracker, steps,
};
use std::collections::BTreeMap;

/// Names of files, and what their inodes hold.
#[derive(Clone, Default, Debug)]
struct Files {
    names: BTreeMap<u8, u64>,
    inodes: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Files {
    fn contents(&self) -> BTreeMap<u8, Vec<u8>> {
        self.names.iter().map(|(name, inode)| (*name, self.inodes[inode].clone())).collect()
    }
}

#[derive(Clone, Debug)]
enum Operation {
    /// Opens with O_CREAT, and O_TRUNC if so.
    Open(u8, bool),
    Write(u8, u64, u8, u8),
    Resize(u8, u8),
    Rename(u8, u8),
    Unlink(u8),
    Checkpoint,
}

fn operation() -> impl Strategy<Value = Operation> {
    let name = || 0u8..4;
    prop_oneof![
        2 => (name(), any::<bool>()).prop_map(|(name, cut)| Operation::Open(name, cut)),
        6 => (name(), 0u64..40, 1u8..20, any::<u8>())
            .prop_map(|(name, at, bytes, with)| Operation::Write(name, at, bytes, with)),
        2 => (name(), 0u8..60).prop_map(|(name, size)| Operation::Resize(name, size)),
        2 => (name(), name()).prop_map(|(from, to)| Operation::Rename(from, to)),
        2 => name().prop_map(Operation::Unlink),
        1 => Just(Operation::Checkpoint),
    ]
}

/// The process, and what outlives it.
struct World {
    files: Files,
    saved: BTreeMap<Vec<u8>, u64>,
    journals: BTreeMap<u64, Vec<Vec<u8>>>,
    tracker: Tracker,
    epoch: u64,
    snapshots: BTreeMap<u64, BTreeMap<u8, Vec<u8>>>,
}

fn id(inode: u64) -> FileId {
    FileId { device: 1, inode }
}

impl World {
    fn append(&mut self, entry: &Entry<'_>) {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        self.journals.entry(self.epoch).or_default().push(bytes);
    }

    fn satisfy(&mut self, name: u8, inode: u64, need: &Need) {
        assert!(!need.missing);
        for range in &need.content {
            let bytes =
                self.files.inodes[&inode][range.start as usize..range.end as usize].to_vec();
            self.append(&Entry::Content { path: &[name], offset: range.start, bytes: &bytes });
        }
        if let Some((size, extend)) = need.size {
            self.append(&Entry::Size { path: &[name], size, extend });
        }
    }

    fn removed(&mut self, name: u8) {
        let Some(&inode) = self.files.names.get(&name) else { return };
        if self.tracker.is_fresh(id(inode)) {
            return self.tracker.forget(id(inode));
        }
        let saved = format!("saved-{}", self.saved.len()).into_bytes();
        self.saved.insert(saved.clone(), inode);
        self.append(&Entry::Removed { path: &[name], saved: &saved });
    }

    fn resize(&mut self, name: u8, to: u64) {
        let Some(&inode) = self.files.names.get(&name) else { return };
        let size = self.files.inodes[&inode].len() as u64;
        let need = self.tracker.resize(id(inode), size, to);
        self.satisfy(name, inode, &need);
        self.files.inodes.get_mut(&inode).unwrap().resize(to as usize, 0);
    }

    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Open(name, cut) if self.files.names.contains_key(&name) => {
                if cut {
                    self.resize(name, 0);
                }
            }
            Operation::Open(name, _) => {
                self.files.next += 1;
                let inode = self.files.next;
                self.append(&Entry::Created { path: &[name], inode });
                self.tracker.created(id(inode));
                self.files.names.insert(name, inode);
                self.files.inodes.insert(inode, Vec::new());
            }
            Operation::Write(name, at, bytes, with) => {
                let Some(&inode) = self.files.names.get(&name) else { return };
                let (size, end) = (self.files.inodes[&inode].len(), at as usize + bytes as usize);
                let need = self.tracker.write(id(inode), size as u64, at..end as u64);
                self.satisfy(name, inode, &need);
                let content = self.files.inodes.get_mut(&inode).unwrap();
                content.resize(size.max(end), 0);
                content[at as usize..end].fill(with);
            }
            Operation::Resize(name, to) => self.resize(name, to.into()),
            Operation::Rename(from, to) => {
                let Some(&inode) = self.files.names.get(&from) else { return };
                if from == to {
                    return;
                }
                self.removed(to);
                self.append(&Entry::Moved { from: &[from], to: &[to] });
                self.files.names.remove(&from);
                self.files.names.insert(to, inode);
            }
            Operation::Unlink(name) => {
                self.removed(name);
                self.files.names.remove(&name);
            }
            Operation::Checkpoint => {
                self.epoch += 1;
                self.tracker.begin_epoch(0);
                self.snapshots.insert(self.epoch, self.files.contents());
                let open: Vec<(u8, u64)> = self.files.names.iter().map(|(a, b)| (*a, *b)).collect();
                // One of them has a stream that may write anywhere.
                for (name, inode) in open.into_iter().take(1) {
                    let size = self.files.inodes[&inode].len() as u64;
                    self.append(&Entry::Size { path: &[name], size, extend: false });
                    let bytes = self.files.inodes[&inode].clone();
                    self.append(&Entry::Content { path: &[name], offset: 0, bytes: &bytes });
                    self.tracker.begun(id(inode), size, true);
                }
                self.append(&Entry::Begun {});
            }
        }
    }

    fn undo(&mut self, bytes: &[u8]) {
        let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().unwrap();
        assert!(Head::decode(*head).unwrap().is_of(body));
        let files = &mut self.files;
        match Entry::decode(body).unwrap() {
            Entry::Created { path, inode } if files.names.get(&path[0]) == Some(&inode) => {
                files.names.remove(&path[0]);
            }
            Entry::Size { path, size, extend } => {
                let Some(inode) = files.names.get(&path[0]) else { return };
                let content = files.inodes.get_mut(inode).unwrap();
                if content.len() as u64 > size || extend {
                    content.resize(size as usize, 0);
                }
            }
            Entry::Content { path, offset, bytes } => {
                let Some(inode) = files.names.get(&path[0]) else { return };
                let content = files.inodes.get_mut(inode).unwrap();
                let end = offset as usize + bytes.len();
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(bytes);
            }
            Entry::Moved { from, to } => {
                if !files.names.contains_key(&from[0])
                    && let Some(inode) = files.names.remove(&to[0])
                {
                    files.names.insert(from[0], inode);
                }
            }
            Entry::Removed { path, saved } => {
                if let Some(inode) = self.saved.remove(saved) {
                    files.names.insert(path[0], inode);
                }
            }
            _ => {}
        }
    }

    /// Ends after so many steps; true: it is complete.
    fn roll_back(&mut self, to: u64, most: usize) -> bool {
        let begun = Entry::Begun {};
        let mut wanted = Vec::new();
        begun.encode(&mut wanted);
        let shape = |(epoch, entries): (&u64, &Vec<Vec<u8>>)| Shape {
            epoch: *epoch,
            entries: entries.len(),
            begun: entries.iter().position(|entry| *entry == wanted).map_or(0, |at| at + 1),
        };
        let shapes: Vec<Shape> = self.journals.iter().map(shape).collect();
        let all = steps(&shapes, to);
        for step in all.iter().take(most) {
            match *step {
                Step::Undo { epoch, entry } => {
                    let bytes = self.journals[&epoch][entry].clone();
                    self.undo(&bytes);
                }
                Step::Cut { epoch, entry } => {
                    self.journals.get_mut(&epoch).unwrap().truncate(entry);
                }
                Step::Remove { epoch } => drop(self.journals.remove(&epoch)),
            }
        }
        most >= all.len()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn after_a_rollback_files_are_what_they_were_at_the_checkpoint(
        operations in prop::collection::vec(operation(), 1..60),
        back in 0u64..3,
        interruptions in prop::collection::vec(0usize..20, 0..4),
        again in prop::collection::vec(operation(), 0..20),
    ) {
        let mut world = World {
            files: Files::default(),
            saved: BTreeMap::new(),
            journals: BTreeMap::new(),
            tracker: Tracker::new(u64::MAX),
            epoch: 0,
            snapshots: BTreeMap::new(),
        };
        world.run(&Operation::Checkpoint);
        operations.iter().for_each(|operation| world.run(operation));
        let to = world.epoch.saturating_sub(back).max(1);
        for most in interruptions {
            if world.roll_back(to, most) {
                break;
            }
        }
        prop_assert!(world.roll_back(to, usize::MAX));
        prop_assert_eq!(&world.files.contents(), &world.snapshots[&to]);
        // The process continues, and fails again.
        world.epoch = to;
        world.tracker.begin_epoch(0);
        again.iter().filter(|next| !matches!(next, Operation::Checkpoint))
            .for_each(|next| world.run(next));
        prop_assert!(world.roll_back(to, usize::MAX));
        prop_assert_eq!(&world.files.contents(), &world.snapshots[&to]);
    }
}
