//! What a process reads again alone, while others continue.

use super::*;
use crate::file_undo::WatchedReads;

const NAME: &str = "set-0.rank-0";

/// It has read both, and was rolled back alone.
fn read_again(place: &Place) -> (PathBuf, PathBuf, Journal, WatchedReads) {
    let (file, other) = (place.file("file", "0123456789"), place.file("other", "0123456789"));
    let mut journal = place.journal(NAME);
    journal.begin(1);
    journal.append(&Entry::Begun {}).unwrap();
    journal.note_read(bytes(&file), last_change(&file)).unwrap();
    journal.note_read(bytes(&other), last_change(&other)).unwrap();
    assert_eq!(place.back(NAME, 1, true), []);
    let mut watched = WatchedReads::begin(&place.process(NAME), 1).unwrap();
    assert_eq!((watched.check_one(bytes(&file)), watched.check()), (Ok(()), Ok(())));
    (file, other, journal, watched)
}

/// Another set opens it to write to it, and does.
fn written_by_others(place: &Place, file: &Path) -> Journal {
    let mut theirs = place.journal("set-1.rank-1");
    theirs.begin(9);
    theirs.append(&Entry::Writes { path: bytes(file) }).unwrap();
    fs::write(file, "abcdefghij").unwrap();
    theirs
}

#[test]
fn what_others_write_while_it_is_read_again_is_found() {
    let place = Place::new("watched-written");
    let (file, other, _journal, mut watched) = read_again(&place);
    let _theirs = written_by_others(&place, &file);
    assert!(watched.check_one(bytes(&file)).unwrap_err().contains("/file while"));
    assert!(watched.check().unwrap_err().contains("/file while"));
    assert_eq!(watched.check_one(bytes(&other)), Ok(()));
    assert_eq!(watched.check_one(b"/never/read"), Ok(()));
}

#[test]
fn so_is_what_they_remove_or_give_its_name_and_what_nobody_of_the_job_writes() {
    let changes: [fn(&Path); 3] = [
        |file| fs::remove_file(file).unwrap(),
        |file| fs::rename(file.with_file_name("other"), file).unwrap(),
        |file| fs::write(file, "0123456789").unwrap(),
    ];
    for (case, change) in changes.into_iter().enumerate() {
        let place = Place::new(&format!("watched-{case}"));
        let (file, _, _journal, mut watched) = read_again(&place);
        change(&file);
        assert!(watched.check_one(bytes(&file)).is_err(), "{case}");
        assert!(watched.check().is_err(), "{case}");
    }
}

#[test]
fn what_its_own_set_changes_again_is_not_unless_others_write_it_too() {
    let place = Place::new("watched-own");
    let (file, _, mut journal, mut watched) = read_again(&place);
    let mut mates = place.journal("set-0.rank-2");
    mates.begin(3);
    mates.append(&Entry::Writes { path: bytes(&file) }).unwrap();
    fs::write(&file, "abcdefghij").unwrap();
    assert_eq!((watched.check_one(bytes(&file)), watched.check()), (Ok(()), Ok(())));
    journal.append(&Entry::Writes { path: bytes(&file) }).unwrap();
    let _theirs = written_by_others(&place, &file);
    assert!(watched.check().is_err());
}

#[test]
fn what_it_had_not_read_before_must_not_be_written_by_others() {
    let place = Place::new("watched-new");
    let (_, _, mut journal, watched) = read_again(&place);
    let new = place.file("new", "0123456789");
    journal.note_read(bytes(&new), last_change(&new)).unwrap();
    assert_eq!(watched.check(), Ok(()), "it may have been there");
    let _theirs = written_by_others(&place, &new);
    assert!(watched.check().is_err());
}

#[test]
fn what_others_have_written_before_it_begins_is_refused_then() {
    let place = Place::new("watched-begin");
    let (file, _, _journal, _) = read_again(&place);
    let theirs = written_by_others(&place, &file);
    let of = |name: &str, epoch| WatchedReads::begin(&place.process(name), epoch);
    assert!(of(NAME, 1).is_err());
    assert!(of(NAME, 2).is_ok(), "read before that");
    drop(theirs);
    assert!(of("set-7.rank-7", 1).is_ok(), "it has no files");
}

#[test]
fn so_is_what_no_journal_says_but_not_what_its_own_set_has_put_back() {
    let place = Place::new("watched-outside");
    let (file, other, _journal, _) = read_again(&place);
    let begun = || WatchedReads::begin(&place.process(NAME), 1).map(drop);
    assert!(begun().is_ok());
    fs::write(&file, "abcdefghij").unwrap();
    let error = begun().unwrap_err().to_string();
    assert!(
        error.contains("/file is not what it was") && error.contains("with all only"),
        "{error}"
    );
    // By another rank of its set, which is rolled back, too.
    let mut mates = place.journal("set-0.rank-2");
    mates.begin(1);
    mates.append(&Entry::Begun {}).unwrap();
    change(&mut mates, &file);
    assert!(begun().is_ok(), "its own set's");
    assert_eq!(place.back("set-0.rank-2", 1, true), []);
    assert!(begun().is_ok(), "it has put it back");
    fs::remove_file(&other).unwrap();
    assert!(begun().is_err(), "removed");
}

#[test]
fn so_is_what_was_changed_just_before_it_was_read_and_again() {
    let place = Place::new("watched-just-before");
    let file = place.file("file", "0123456789");
    let mut journal = place.journal(NAME);
    journal.begin(1);
    // Clocks of file systems go in steps.
    let step = std::time::Duration::from_millis(30);
    std::thread::sleep(step);
    journal.note_read(bytes(&file), 0).unwrap();
    let begun = || WatchedReads::begin(&place.process(NAME), 1).map(drop);
    assert!(begun().is_ok(), "nobody can say");
    std::thread::sleep(step);
    fs::write(&file, "abcdefghij").unwrap();
    journal.note_read(bytes(&file), last_change(&file)).unwrap();
    assert!(begun().is_err());
}

#[test]
fn what_others_have_written_behind_its_end_is_left_as_it_is() {
    let place = Place::new("watched-grown");
    let names = ["longer", "made", "overwritten", "before", "own"];
    let [longer, made, over, before, own] = names.map(|name| place.file(name, "0123456789"));
    let mut journal = place.journal(NAME);
    journal.begin(1);
    journal.append(&Entry::Begun {}).unwrap();
    for path in [&over, &before, &own] {
        journal.append(&Entry::Size { path: bytes(path), size: 4, extend: false }).unwrap();
    }
    let mut theirs = place.journal("set-1.rank-1");
    theirs.begin(9);
    theirs.append(&Entry::Size { path: bytes(&longer), size: 10, extend: false }).unwrap();
    theirs.append(&Entry::Created { path: bytes(&made), inode: 0 }).unwrap();
    let content = |path, offset| Entry::Content { path: bytes(path), offset, bytes: b"ab" };
    theirs.append(&content(&over, 3)).unwrap();
    theirs.append(&content(&before, 2)).unwrap();
    let watched = WatchedReads::begin(&place.process(NAME), 1).unwrap();
    let is_left =
        [&longer, &made, &over, &before, &own].map(|of| watched.is_left_as_it_is(bytes(of)));
    assert_eq!(is_left, [true, true, true, false, false]);
}
