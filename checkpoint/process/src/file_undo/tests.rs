//! Journals of real files; the numbers are those of `rustbtl_checkpoint::file_undo`.

use super::*;
use rustbtl_checkpoint::file_undo::Entry;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

mod common;
mod held;
mod watched;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rustbtl-undo-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn process(&self, name: &str) -> PathBuf {
        self.0.join("job").join(name)
    }

    fn journal(&self, name: &str) -> Journal {
        Journal::open(&self.process(name), false).unwrap()
    }

    fn back(&self, name: &str, epoch: u64, alone: bool) -> Vec<NotPutBack> {
        let back = Rollback { folder: &self.process(name), epoch, alone };
        roll_back(&back).unwrap().not_put_back
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Records and makes a change of three bytes.
fn change(journal: &mut Journal, path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    journal.save(bytes(path), file.as_raw_fd(), 1..4).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"new", 1).unwrap();
}

#[test]
fn what_was_changed_is_put_back_once_and_again() {
    let place = Place::new("back");
    let (file, moved) = (place.file("file", "0123456789"), place.0.join("moved"));
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    change(&mut journal, &file);
    journal.append(&Entry::Size { path: bytes(&file), size: 10, extend: false }).unwrap();
    fs::write(&file, "longer than before").unwrap();
    journal.begin(2);
    // Another file with this name, which is removed; and the first has another name.
    journal.append(&Entry::Moved { from: bytes(&file), to: bytes(&moved) }).unwrap();
    fs::rename(&file, &moved).unwrap();
    journal.append(&Entry::Created { path: bytes(&file), inode: 0 }).unwrap();
    place.file("file", "other");
    let inode = fs::metadata(&file).unwrap().ino();
    journal.amend(&Entry::Created { path: bytes(&file), inode }).unwrap();
    let saved = place.process("set-0.rank-0").join("saved-2-1");
    fs::hard_link(&moved, &saved).unwrap();
    journal.append(&Entry::Removed { path: bytes(&moved), saved: b"saved-2-1" }).unwrap();
    fs::remove_file(&moved).unwrap();
    journal.append(&Entry::MadeFolder { path: bytes(&moved) }).unwrap();
    fs::create_dir(&moved).unwrap();
    // Nothing was changed: taken back.
    journal.append(&Entry::Created { path: b"/etc/passwd", inode: 0 }).unwrap();
    journal.take_back();

    assert_eq!(place.back("set-0.rank-0", 2, false), []);
    assert_eq!(fs::read_to_string(&file).unwrap(), "longer than before");
    assert!(!moved.exists() && !saved.exists());
    assert_eq!(place.back("set-0.rank-0", 2, false), [], "3");
    assert_eq!(place.back("set-0.rank-0", 1, false), []);
    assert_eq!(fs::read_to_string(&file).unwrap(), "l123er tha", "what was not recorded stays");
    assert_eq!(names(&place.process("set-0.rank-0")), ["held"]);
    // It has never written anything.
    assert_eq!(place.back("set-0.rank-1", 1, false), []);
}

#[test]
fn what_was_going_to_be_removed_has_one_name_again() {
    let place = Place::new("not-yet-removed");
    let file = place.file("file", "before");
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    let saved = place.process("set-0.rank-0").join("saved-1-1");
    fs::hard_link(&file, &saved).unwrap();
    journal.append(&Entry::Removed { path: bytes(&file), saved: b"saved-1-1" }).unwrap();
    assert_eq!(place.back("set-0.rank-0", 1, false), []);
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    assert!(!saved.exists());
}

#[test]
fn what_belongs_to_the_snapshot_stays_in_the_journal() {
    let place = Place::new("begun");
    let file = place.file("file", "0123456789");
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(3);
    let open = File::open(&file).unwrap();
    journal.append(&Entry::Size { path: bytes(&file), size: 10, extend: false }).unwrap();
    journal.save(bytes(&file), open.as_raw_fd(), 0..10).unwrap();
    journal.append(&Entry::Begun {}).unwrap();
    for _ in 0..2 {
        place.file("file", "abcdefghijklmnop");
        // The process that was restored continues with it.
        let created = place.0.join("created");
        let mut journal = place.journal("set-0.rank-0");
        journal.begin(3);
        journal.append(&Entry::Created { path: bytes(&created), inode: 0 }).unwrap();
        fs::write(&created, "").unwrap();
        assert_eq!(place.back("set-0.rank-0", 3, true), []);
        assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789");
        assert!(!created.exists());
    }
}

#[test]
fn an_entry_that_is_not_whole_ends_a_journal() {
    let place = Place::new("torn");
    let (first, second) = (place.file("first", "0123456789"), place.file("second", "0123456789"));
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    change(&mut journal, &first);
    journal.append(&Entry::Created { path: bytes(&second), inode: 0 }).unwrap();
    let name = place.process("set-0.rank-0").join("epoch-1");
    let length = fs::metadata(&name).unwrap().len();
    File::options().write(true).open(&name).unwrap().set_len(length - 1).unwrap();
    assert_eq!(place.back("set-0.rank-0", 1, false), []);
    assert_eq!(fs::read_to_string(&first).unwrap(), "0123456789");
    assert!(second.exists(), "5");
}

#[test]
fn a_file_that_another_set_writes_to_is_left_alone_and_named() {
    let place = Place::new("shared");
    let (shared, own) = (place.file("shared", "0123456789"), place.file("own", "0123456789"));
    let mut theirs = place.journal("set-1.rank-1");
    theirs.begin(9);
    theirs.append(&Entry::Writes { path: bytes(&shared) }).unwrap();
    let mut mates = place.journal("set-0.rank-2");
    mates.begin(9);
    mates.append(&Entry::Writes { path: bytes(&own) }).unwrap();
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    change(&mut journal, &shared);
    change(&mut journal, &own);
    journal.append(&Entry::Missing { path: b"/full" }).unwrap();
    let left = place.back("set-0.rank-0", 1, true);
    let paths: Vec<&Path> = left.iter().map(|left| left.path.as_path()).collect();
    assert_eq!(paths, [Path::new("/full"), shared.as_path()]);
    assert!(left[1].reason.contains("other sets"));
    assert_eq!(fs::read_to_string(&shared).unwrap(), "0new456789");
    assert_eq!(fs::read_to_string(&own).unwrap(), "0123456789");
    // All are rolled back: what was changed is put back.
    change(&mut journal, &shared);
    journal.begin(1);
    let file = File::options().read(true).open(&own).unwrap();
    journal.save(bytes(&shared), file.as_raw_fd(), 1..4).unwrap();
    let left = place.back("set-0.rank-0", 1, false);
    assert!(left.len() == 1 && left[0].path == Path::new("/full"), "{left:?}");
    assert_eq!(fs::read_to_string(&shared).unwrap(), "0123456789");
}

fn last_change(path: &Path) -> u64 {
    let found = fs::metadata(path).unwrap();
    (found.ctime() * 1_000_000_000 + found.ctime_nsec()) as u64
}

/// Can it be rolled back? Nothing is changed if not.
fn refusal(place: &Place, alone: bool) -> Option<String> {
    let folder = &place.process("set-0.rank-0");
    let count = || fs::metadata(folder.join("epoch-1")).map(|found| found.len()).unwrap_or(0);
    let before = count();
    let refused = roll_back(&Rollback { folder, epoch: 1, alone }).err()?;
    assert_eq!(count(), before);
    Some(refused.to_string())
}

#[test]
fn what_others_write_and_this_process_has_read_is_rolled_back_with_them() {
    let place = Place::new("read-by-us");
    let (file, other) = (place.file("file", "0123456789"), place.file("other", "0123456789"));
    let mut theirs = place.journal("set-1.rank-1");
    theirs.begin(9);
    theirs.append(&Entry::Writes { path: bytes(&file) }).unwrap();
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    // What nobody else writes does not matter.
    journal.note_read(bytes(&other), 0).unwrap();
    assert_eq!(refusal(&place, true), None);
    // It is open to be written to, as Fortran opens what is only read.
    journal.append(&Entry::Writes { path: bytes(&file) }).unwrap();
    journal.note_read(bytes(&file), last_change(&file)).unwrap();
    assert_eq!(refusal(&place, true), None, "nobody has changed it since");
    fs::write(&file, "abcdefghij").unwrap();
    let refused = refusal(&place, true).unwrap();
    assert!(refused.contains("/file is not") && refused.contains("with them only"), "{refused}");
    assert_eq!(refusal(&place, false), None, "all together");
    let folder = &place.process("set-0.rank-0");
    assert!(roll_back(&Rollback { folder, epoch: 2, alone: true }).is_ok(), "read before that");
}

/// Content is recorded when it is overwritten for the first time.
#[test]
fn whoever_overwrites_what_others_overwrite_too_is_rolled_back_with_them() {
    for (case, (theirs_at, refused)) in
        [(1..4, true), (0..2, true), (4..9, false)].iter().enumerate()
    {
        let place = Place::new(&format!("overwritten-{case}"));
        let file = place.file("file", "0123456789");
        let mut theirs = place.journal("set-1.rank-1");
        theirs.begin(9);
        theirs.append(&Entry::Writes { path: bytes(&file) }).unwrap();
        let reader = File::open(&file).unwrap();
        theirs.save(bytes(&file), reader.as_raw_fd(), theirs_at.clone()).unwrap();
        let mut journal = place.journal("set-0.rank-0");
        journal.begin(1);
        journal.append(&Entry::Begun {}).unwrap();
        change(&mut journal, &file);
        let why = refusal(&place, true);
        assert_eq!(why.is_some_and(|why| why.contains("same part")), *refused, "{theirs_at:?}");
        assert_eq!(refusal(&place, false), None, "all together");
    }
}

#[test]
fn what_a_set_alone_leaves_is_put_back_when_all_are_rolled_back() {
    let place = Place::new("kept");
    let (shared, own) = (place.file("shared", "0123456789"), place.file("own", "0123456789"));
    let mut theirs = place.journal("set-1.rank-1");
    theirs.begin(9);
    theirs.append(&Entry::Writes { path: bytes(&shared) }).unwrap();
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    journal.append(&Entry::Begun {}).unwrap();
    for epoch in 1..=2 {
        journal.begin(epoch);
        change(&mut journal, &shared);
        change(&mut journal, &own);
        journal.append(&Entry::Missing { path: b"/full" }).unwrap();
    }
    for _ in 0..2 {
        let left = place.back("set-0.rank-0", 1, true);
        assert!(left.iter().any(|left| left.path == shared) && left.len() == 2, "{left:?}");
        assert_eq!(fs::read_to_string(&own).unwrap(), "0123456789");
        assert_eq!(fs::read_to_string(&shared).unwrap(), "0new456789");
        // Its replay changes it again: what it records now is of the future.
        let mut journal = place.journal("set-0.rank-0");
        journal.begin(1);
        change(&mut journal, &shared);
    }
    // Interrupted when all was undone.
    let kept = place.process("set-0.rank-0").join("kept-1");
    let journal = fs::read(place.process("set-0.rank-0").join("epoch-1")).unwrap();
    let begun = {
        let mut bytes = Vec::new();
        Entry::Begun {}.encode(&mut bytes);
        bytes.len()
    };
    fs::write(&kept, &journal[begun..]).unwrap();
    fs::write(place.process("set-0.rank-0").join("epoch-1"), &journal[..begun]).unwrap();
    let left = place.back("set-0.rank-0", 1, false);
    assert!(!kept.exists());
    assert_eq!(left.len(), 1, "what has no room: {left:?}");
    assert_eq!(fs::read_to_string(&shared).unwrap(), "0123456789");
}

#[test]
fn what_a_snapshot_had_no_room_for_matters_if_it_was_changed() {
    let place = Place::new("large");
    let file = place.file("file", "0123456789");
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    journal.note_read(bytes(&file), last_change(&file)).unwrap();
    journal.append(&Entry::Missing { path: bytes(&file) }).unwrap();
    journal.append(&Entry::Begun {}).unwrap();
    assert_eq!(refusal(&place, true), None);
    std::thread::sleep(std::time::Duration::from_millis(30));
    place.file("file", "changed");
    assert!(refusal(&place, true).is_some());
}

#[test]
fn what_has_no_room_and_was_read_ends_a_rollback() {
    let place = Place::new("no-room");
    let file = place.file("file", "0123456789");
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    let written = |journal: &mut Journal| {
        journal.append(&Entry::Missing { path: bytes(&file) }).unwrap();
    };
    written(&mut journal);
    assert_eq!(place.back("set-0.rank-0", 1, true).len(), 1, "nobody reads it");
    for (who, alone, refused) in [
        ("set-1.rank-1", true, false),
        ("set-1.rank-1", false, true),
        ("set-0.rank-2", true, true),
        ("set-0.rank-0", true, true),
    ] {
        journal.begin(1);
        written(&mut journal);
        let mut reader = place.journal(who);
        reader.begin(5);
        reader.note_read(bytes(&file), 0).unwrap();
        let found = refusal(&place, alone);
        assert_eq!(found.is_some(), refused, "{who} {alone}");
        assert!(found.is_none_or(|text| text.contains("file_undo_max") && text.contains(who)));
        reader.remove_before(6);
    }
}

#[test]
fn journals_that_nobody_needs_are_removed() {
    let place = Place::new("removed");
    let mut journal = place.journal("set-0.rank-0");
    let folder = place.process("set-0.rank-0");
    for epoch in 1..=3 {
        journal.begin(epoch);
        journal.append(&Entry::Writes { path: b"/a" }).unwrap();
        journal.note_read(b"/a", 7).unwrap();
        fs::write(folder.join(format!("saved-{epoch}-7")), "").unwrap();
    }
    journal.remove_before(3);
    assert_eq!(names(&folder), ["epoch-3", "held", "reads-3", "saved-3-7"]);
    journal.remove_if_temporary();
    assert!(folder.exists(), "it belongs to checkpoints");
    journal.remove();
    assert!(!folder.exists());
}

#[test]
fn what_would_destroy_what_others_have_written_is_not_done_again() {
    type Doing = fn(&mut Journal, &Path);
    let made: Doing = |journal, file| {
        journal.append(&Entry::Created { path: bytes(file), inode: 0 }).unwrap();
    };
    let removed: Doing = |journal, file| {
        journal.append(&Entry::Removed { path: bytes(file), saved: b"saved-1-1" }).unwrap();
    };
    let noted: Doing = |journal, file| {
        journal.append(&Entry::NotAgain { path: bytes(file) }).unwrap();
    };
    let writes: Doing = |journal, file| {
        journal.append(&Entry::Writes { path: bytes(file) }).unwrap();
    };
    // What was done before and after the snapshot, and whether it can be rolled back alone.
    let cases: [(Option<Doing>, Option<Doing>, bool); 7] = [
        (None, Some(made), false),
        (None, Some(removed), false),
        (None, Some(noted), false),
        (None, Some(writes), true),
        (Some(made), Some(writes), true),
        (Some(removed), None, true),
        (Some(noted), None, false), // it was opened to append to
    ];
    for (case, (before, after, alone)) in cases.into_iter().enumerate() {
        let place = Place::new(&format!("not-again-{case}"));
        let file = place.file("file", "0123456789");
        let mut theirs = place.journal("set-1.rank-1");
        theirs.begin(9);
        writes(&mut theirs, &file);
        let mut journal = place.journal("set-0.rank-0");
        journal.begin(1);
        before.into_iter().for_each(|did| did(&mut journal, &file));
        journal.append(&Entry::Begun {}).unwrap();
        after.into_iter().for_each(|did| did(&mut journal, &file));
        let why = refusal(&place, true);
        assert_eq!(why.is_none(), alone, "case {case}: {why:?}");
        assert!(why.is_none_or(|why| why.contains("with them only")));
        assert_eq!(refusal(&place, false), None, "case {case}: all together");
    }
    // Nobody else's.
    let place = Place::new("not-again-own");
    let file = place.file("file", "0123456789");
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    noted(&mut journal, &file);
    assert_eq!(refusal(&place, true), None);
}

#[test]
fn what_sets_have_opened_together_is_left_as_it_is_by_one_of_them() {
    let place = Place::new("mpi-io");
    let (file, made) = (place.file("file", "0123456789"), place.0.join("made"));
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    journal.append(&Entry::Shared { path: bytes(&file) }).unwrap();
    journal.append(&Entry::Begun {}).unwrap();
    change(&mut journal, &file);
    journal.append(&Entry::Created { path: bytes(&made), inode: 0 }).unwrap();
    journal.append(&Entry::Shared { path: bytes(&made) }).unwrap();
    fs::write(&made, "new").unwrap();
    for _ in 0..2 {
        assert_eq!(place.back("set-0.rank-0", 1, true), []);
        assert_eq!(fs::read_to_string(&file).unwrap(), "0new456789", "its replay writes nothing");
        assert!(made.exists());
    }
    assert_eq!(place.back("set-0.rank-0", 1, false), [], "all are rolled back");
    assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789");
    assert!(!made.exists());
}

#[test]
fn what_sets_share_may_be_removed_by_one_that_is_rolled_back_alone() {
    let place = Place::new("mpi-io-gone");
    let (first, later) = (place.file("first", "0123456789"), place.file("later", "others"));
    let mut journal = place.journal("set-0.rank-0");
    journal.begin(1);
    journal.append(&Entry::Shared { path: bytes(&first) }).unwrap();
    journal.append(&Entry::Begun {}).unwrap();
    for path in [&first, &later] {
        // That of `later` was known to be shared before the snapshot.
        journal.append(&Entry::Shared { path: bytes(path) }).unwrap();
        journal.append(&Entry::Removed { path: bytes(path), saved: b"saved-1-1" }).unwrap();
        fs::remove_file(path).unwrap();
    }
    fs::write(&later, "made again").unwrap();
    let folder = place.process("set-0.rank-0");
    let back = roll_back(&Rollback { folder: &folder, epoch: 1, alone: true }).unwrap();
    assert_eq!(back.not_put_back, []);
    let shared: Vec<&[u8]> = back.shared.iter().map(Vec::as_slice).collect();
    assert_eq!(shared, [bytes(&first), bytes(&later)], "whose descriptors are not opened again");
    assert!(!first.exists());
    assert_eq!(fs::read_to_string(&later).unwrap(), "made again");
}

#[test]
fn who_has_read_or_removed_what_sets_share_is_not_rolled_back_alone() {
    for how in ["read", "removed", "noted"] {
        let (reads, place) = (how == "read", Place::new(&format!("mpi-io-{how}")));
        let file = place.file("file", "0123456789");
        let mut journal = place.journal("set-0.rank-0");
        journal.begin(1);
        journal.append(&Entry::Created { path: bytes(&file), inode: 0 }).unwrap();
        journal.append(&Entry::Begun {}).unwrap();
        if reads {
            journal.note_read(bytes(&file), 5).unwrap();
        } else if how == "noted" {
            journal.append(&Entry::NotAgain { path: bytes(&file) }).unwrap();
        } else {
            let removed = Entry::Removed { path: bytes(&file), saved: b"saved-1-1" };
            journal.append(&removed).unwrap();
            journal.append(&Entry::Created { path: bytes(&file), inode: 0 }).unwrap();
        }
        journal.append(&Entry::Shared { path: bytes(&file) }).unwrap();
        let folder = place.process("set-0.rank-0");
        let alone = roll_back(&Rollback { folder: &folder, epoch: 1, alone: true });
        let why = alone.unwrap_err().to_string();
        assert!(why.contains("with the others only") && why.contains("MPI-IO"), "{why}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789", "nothing was changed");
        assert!(roll_back(&Rollback { folder: &folder, epoch: 1, alone: false }).is_ok());
    }
}
