//! What is put back by one set alone is held back from all others until it is written again.

use super::*;
use crate::file_undo::{holders, is_any_held_below, is_any_held_in, is_held, release};

const WRITER: &str = "set-1.rank-1";
const READER: &str = "set-0.rank-0";

/// One has made a file, and overwritten another one.
fn written(place: &Place) -> (PathBuf, PathBuf, Journal) {
    let file = place.file("file", "0123456789");
    let mut journal = place.journal(WRITER);
    journal.begin(1);
    journal.append(&Entry::Begun {}).unwrap();
    change(&mut journal, &file);
    let made = place.file("made", "new");
    journal.append(&Entry::Created { path: bytes(&made), inode: 0 }).unwrap();
    (file, made, journal)
}

fn is_any(place: &Place) -> bool {
    fs::metadata(holders(&place.process(READER))).is_ok_and(|found| found.len() > 0)
}

#[test]
fn it_is_held_until_it_is_written_again() {
    let place = Place::new("held");
    let (file, made, _journal) = written(&place);
    let mut reader = place.journal(READER);
    reader.begin(4);
    let held = |name: &str| [&file, &made].map(|path| is_held(&place.process(name), bytes(path)));
    assert_eq!((held(READER), is_any(&place)), ([false; 2], false));
    assert_eq!(place.back(WRITER, 1, true), []);
    assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789");
    assert_eq!((held(READER), is_any(&place)), ([true; 2], true));
    assert_eq!(held("set-1.rank-3"), [false; 2], "its own set is rolled back, too");
    assert!(!is_held(&place.process(READER), b"/another/file"));
    let is_any_in = |folder: &Path| is_any_held_in(&place.process(READER), bytes(folder));
    assert!(is_any_in(&place.0) && !is_any_in(&place.0.join("job")) && !is_any_in(&file));
    let is_any_below = |folder: &Path| is_any_held_below(&place.process(READER), bytes(folder));
    assert!(is_any_below(&place.0) && is_any_below(place.0.parent().unwrap()));
    assert!(!is_any_in(place.0.parent().unwrap()) && !is_any_below(&file));
    release(&place.process("set-2.rank-9"));
    assert_eq!(held(READER), [true; 2], "by somebody else");
    release(&place.process(WRITER));
    assert_eq!((held(READER), is_any(&place)), ([false; 2], false));
}

#[test]
fn what_was_put_back_before_stays_held_where_a_replay_fails() {
    let place = Place::new("held-again");
    let (file, made, mut journal) = written(&place);
    assert_eq!(place.back(WRITER, 1, true), []);
    let other = place.file("other", "0123456789");
    journal.forget_descriptor();
    journal.begin(1);
    change(&mut journal, &other);
    assert_eq!(place.back(WRITER, 1, true), []);
    let held = |path: &Path| is_held(&place.process(READER), bytes(path));
    assert!(held(&file) && held(&made) && held(&other));
    assert!(held(&made.join("below")), "it may be a folder");
    // Half an entry.
    let list = place.process(WRITER).join("held");
    let bytes = fs::metadata(&list).unwrap().len();
    File::options().write(true).open(&list).unwrap().set_len(bytes - 3).unwrap();
    assert!(held(&file));
    journal.forget_descriptor();
    journal.begin(1);
    change(&mut journal, &other);
    assert_eq!(place.back(WRITER, 1, true), []);
    assert!(held(&file) && held(&other));
}

#[test]
fn who_has_read_it_is_rolled_back_too() {
    for (read, newer, is_refused) in [(0, None, true), (1, None, true), (0, Some(5), false)] {
        let place = Place::new(&format!("held-read-{read}-{}", newer.is_some()));
        let (file, made, _journal) = written(&place);
        let mut reader = place.journal(READER);
        reader.begin(4);
        let path = if read == 0 { &file } else { &made };
        reader.note_read(bytes(path), 0).unwrap();
        if let Some(newer) = newer {
            // It was before its last snapshot.
            reader.begin(newer);
            reader.append(&Entry::Begun {}).unwrap();
        }
        let alone = roll_back(&Rollback { folder: &place.process(WRITER), epoch: 1, alone: true });
        assert_eq!(alone.is_err(), is_refused, "{read}, {newer:?}");
        if let Err(error) = alone {
            assert!(error.to_string().contains("ranks of other sets have read it"), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "0new456789", "nothing is changed");
            assert_eq!(place.back(WRITER, 1, false), []);
        }
    }
}

#[test]
fn what_others_write_to_and_what_all_put_back_is_not_held() {
    let place = Place::new("held-not");
    let (file, made, mut journal) = written(&place);
    let mut reader = place.journal(READER);
    reader.begin(4);
    reader.append(&Entry::Writes { path: bytes(&file) }).unwrap();
    assert_eq!(place.back(WRITER, 1, true).len(), 1, "it is left as it is");
    let held = |path: &Path| is_held(&place.process(READER), bytes(path));
    assert!(!held(&file) && held(&made));
    release(&place.process(WRITER));
    assert_eq!(place.back(WRITER, 1, false), []);
    assert!(!held(&file) && !held(&made));
    journal.remove();
    assert!(place.process(READER).exists() && !place.process(WRITER).exists());
    reader.remove();
    assert!(!place.0.join("job").exists());
}
