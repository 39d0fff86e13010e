//! Files that several processes have changed.

use super::*;

/// Two processes have changed the same bytes in turns, and the second one has made the file longer.
fn changed_in_turns(place: &Place, names: [&str; 2]) -> (PathBuf, [Journal; 2]) {
    let file = place.file("file", "0123456789");
    let mut journals = names.map(|name| place.journal(name));
    for journal in &mut journals {
        journal.begin(1);
        journal.append(&Entry::Begun {}).unwrap();
    }
    for journal in &mut journals {
        change(journal, &file);
    }
    for (journal, size) in journals.iter_mut().zip([10, 14]) {
        journal.append(&Entry::Size { path: bytes(&file), size, extend: false }).unwrap();
        fs::write(&file, [fs::read(&file).unwrap(), b"more".to_vec()].concat()).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "0new456789moremore");
    (file, journals)
}

#[test]
fn what_several_processes_have_changed_is_what_the_first_one_has_found() {
    let (same, other) = (["set-0.rank-0", "set-0.rank-1"], ["set-0.rank-0", "set-1.rank-1"]);
    for (case, (names, alone)) in [(same, true), (same, false), (other, false)].iter().enumerate() {
        for order in [[0, 1], [1, 0]] {
            let place = Place::new(&format!("in-turns-{case}-{}", order[0]));
            let (file, journals) = changed_in_turns(&place, *names);
            for number in order {
                assert_eq!(place.back(names[number], 1, *alone), []);
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789", "{case} {order:?}");
            // One that was interrupted does not know what it has undone.
            fs::write(&file, "0new456789more").unwrap();
            assert_eq!(place.back(names[order[1]], 1, *alone), []);
            assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789", "{case} {order:?}");
            for (name, mut journal) in names.iter().zip(journals) {
                is_over(&place.process(name));
                assert_eq!(super::names(&place.process(name)), ["epoch-1", "held"]);
                journal.remove();
            }
            assert!(!place.0.join("job").exists(), "nothing is left");
        }
    }
}

#[test]
fn a_folder_with_files_of_another_process_is_removed_by_whoever_comes_last() {
    let names = ["set-0.rank-0", "set-1.rank-1"];
    let made = |place: &Place| {
        let (folder, inner) = (place.0.join("made"), place.0.join("made/inner"));
        let file = inner.join("file");
        let mut journals = names.map(|name| place.journal(name));
        for journal in &mut journals {
            journal.begin(1);
            journal.append(&Entry::Begun {}).unwrap();
        }
        for folder in [&folder, &inner] {
            journals[0].append(&Entry::MadeFolder { path: bytes(folder) }).unwrap();
            fs::create_dir(folder).unwrap();
        }
        fs::write(&file, "theirs").unwrap();
        let inode = fs::metadata(&file).unwrap().ino();
        journals[1].append(&Entry::Created { path: bytes(&file), inode }).unwrap();
        folder
    };
    for order in [[0, 1], [1, 0]] {
        let place = Place::new(&format!("folders-{}", order[0]));
        let folder = made(&place);
        for number in order {
            assert_eq!(place.back(names[number], 1, false), []);
        }
        assert!(!folder.exists(), "{order:?}");
        is_over(&place.process(names[0]));
        let left = super::names(&place.0.join("job"));
        assert_eq!(left.len(), 3, "folders of processes, and who holds files: {left:?}");
    }
    // It cannot be made again, so its process is not rolled back alone.
    let place = Place::new("folders-alone");
    let folder = made(&place);
    let back = Rollback { folder: &place.process(names[0]), epoch: 1, alone: true };
    let why = roll_back(&back).unwrap_err().to_string();
    assert!(why.contains("with them only") && why.contains("/made"), "{why}");
    assert_eq!(place.back(names[1], 1, true), [], "who has only written into it is");
    assert!(folder.exists());
}

#[test]
fn what_one_process_has_made_and_another_one_removed_is_not_there() {
    let names = ["set-0.rank-0", "set-1.rank-1"];
    for (order, is_new) in [([0, 1], true), ([1, 0], true), ([0, 1], false), ([1, 0], false)] {
        let place = Place::new(&format!("scratch-{}-{is_new}", order[0]));
        let (folder, file) = (place.0.join("scratch"), place.0.join("scratch/file"));
        let mut journals = names.map(|name| place.journal(name));
        for journal in &mut journals {
            journal.begin(1);
            journal.append(&Entry::Begun {}).unwrap();
        }
        let make = |journal: &mut Journal, content: &str| {
            journal.append(&Entry::MadeFolder { path: bytes(&folder) }).unwrap();
            fs::create_dir(&folder).unwrap();
            fs::write(&file, content).unwrap();
            let inode = fs::metadata(&file).unwrap().ino();
            journal.append(&Entry::Created { path: bytes(&file), inode }).unwrap();
        };
        let remove = |journal: &mut Journal| {
            let saved = journal.folder().join("saved-1-1");
            fs::rename(&file, saved).unwrap();
            journal.append(&Entry::Removed { path: bytes(&file), saved: b"saved-1-1" }).unwrap();
            fs::remove_dir(&folder).unwrap();
            journal.append(&Entry::RemovedFolder { path: bytes(&folder), mode: 0o700 }).unwrap();
        };
        if is_new {
            make(&mut journals[0], "new");
            remove(&mut journals[1]);
        } else {
            fs::create_dir(&folder).unwrap();
            fs::write(&file, "old").unwrap();
            remove(&mut journals[1]);
            make(&mut journals[0], "new");
        }
        for number in order {
            assert_eq!(place.back(names[number], 1, false), []);
        }
        assert_eq!(folder.exists(), !is_new, "{order:?}");
        if !is_new {
            assert_eq!(fs::read_to_string(&file).unwrap(), "old", "{order:?}");
        }
    }
}

#[test]
fn an_empty_folder_that_was_removed_and_made_again_is_there() {
    for order in [[0, 1], [1, 0]] {
        let place = Place::new(&format!("folder-again-{}", order[0]));
        let names = ["set-0.rank-0", "set-1.rank-1"];
        let folder = place.0.join("folder");
        fs::create_dir(&folder).unwrap();
        let mut journals = names.map(|name| place.journal(name));
        for journal in &mut journals {
            journal.begin(1);
            journal.append(&Entry::Begun {}).unwrap();
        }
        journals[1].append(&Entry::RemovedFolder { path: bytes(&folder), mode: 0o700 }).unwrap();
        journals[0].append(&Entry::MadeFolder { path: bytes(&folder) }).unwrap();
        for number in order {
            assert_eq!(place.back(names[number], 1, false), []);
        }
        assert!(folder.is_dir(), "{order:?}");
    }
}

#[test]
fn a_name_that_only_one_process_has_changed_is_put_back_beside_one_of_several() {
    for order in [[0, 1], [1, 0]] {
        let place = Place::new(&format!("moved-{}", order[0]));
        let names = ["set-0.rank-0", "set-1.rank-1"];
        let (_file, [mut first, _second]) = changed_in_turns(&place, names);
        let (file, target) = (place.0.join("file"), place.file("target", "old"));
        fs::rename(&target, first.folder().join("saved-1-1")).unwrap();
        first.append(&Entry::Removed { path: bytes(&target), saved: b"saved-1-1" }).unwrap();
        first.append(&Entry::Moved { from: bytes(&file), to: bytes(&target) }).unwrap();
        fs::rename(&file, &target).unwrap();
        for number in order {
            assert_eq!(place.back(names[number], 1, false), []);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789", "{order:?}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "old", "{order:?}");
    }
}

#[test]
fn a_file_that_another_process_has_removed_is_what_the_first_one_has_found() {
    for order in [[0, 1], [1, 0]] {
        let place = Place::new(&format!("in-turns-removed-{}", order[0]));
        let names = ["set-0.rank-0", "set-1.rank-1"];
        let (file, [_first, mut second]) = changed_in_turns(&place, names);
        let saved = second.folder().join("saved-1-1");
        fs::hard_link(&file, &saved).unwrap();
        second.append(&Entry::Removed { path: bytes(&file), saved: b"saved-1-1" }).unwrap();
        fs::remove_file(&file).unwrap();
        for number in order {
            assert_eq!(place.back(names[number], 1, false), []);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789", "{order:?}");
    }
}
