//! Checkpoints in folders of this user and of others.

use super::*;
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

fn manifest(checkpoint: u64, kind: Kind) -> Manifest {
    let image = |rank| Image {
        rank,
        set: rank / 2 * 2,
        node: "n0".into(),
        bytes: 3,
        raw_bytes: 4096,
        checksum: 7,
    };
    let images: Vec<Image> = (0..4).map(image).collect();
    Manifest {
        format: FORMAT,
        job: "job-1".into(),
        checkpoint,
        kind,
        unix_ms: checkpoint,
        size: 4,
        command: vec!["./a".into()],
        images: if kind == Kind::Set { images[..2].to_vec() } else { images },
    }
}

#[test]
fn incomplete_images_are_removed_when_their_job_has_ended() {
    let job = scratch("incomplete-images");
    let checkpoint = job.join("checkpoint-2");
    let (complete, other) = (job.join("checkpoint-1/rank-0.img"), job.join("notes.tmp"));
    for folder in [&checkpoint, &job.join("checkpoint-1")] {
        fs::create_dir_all(folder).unwrap();
    }
    let incomplete = ["rank-0.img.tmp", "rank-1.img.tmp.tmp", "manifest.json.tmp"];
    for file in incomplete.map(|name| checkpoint.join(name)).iter().chain([&complete, &other]) {
        fs::write(file, "x").unwrap();
    }
    assert_eq!(remove_incomplete_images(&job), 0, "whose job it is cannot be known");
    let coordinator = File::create(job.join(EVENTS)).unwrap();
    assert!(os::lock(&coordinator, true).unwrap());
    assert_eq!(remove_incomplete_images(&job), 0, "the job runs");
    drop(coordinator);
    assert_eq!(remove_incomplete_images(&job), incomplete.len());
    assert!(complete.exists() && other.exists() && !checkpoint.exists());
    fs::remove_dir_all(job).unwrap();
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("rustbtl-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_checkpoint_is_found_when_its_manifest_is_written_and_not_before() {
    let base = scratch("store");
    let make = |checkpoint: u64, kind| {
        let folder = folder(&base, "job-1", CheckpointId(checkpoint));
        fs::create_dir_all(&folder).unwrap();
        let manifest = manifest(checkpoint, kind);
        for image in &manifest.images {
            fs::write(folder.join(format!("rank-{}.img", image.rank)), "abc").unwrap();
        }
        (folder, manifest)
    };
    let (first, manifest_1) = make(1, Kind::Global);
    assert!(newest_global(&base).is_err());
    manifest_1.write(&first).unwrap();
    let (second, manifest_2) = make(2, Kind::Set);
    manifest_2.write(&second).unwrap();
    assert_eq!(newest_global(&base).unwrap().manifest, manifest_1);
    assert_eq!(list(&base).unwrap().checkpoints.len(), 2);
    fs::create_dir(base.join("job-1/checkpoint-9")).unwrap();
    let found = list(&base).unwrap();
    assert_eq!(found.unfinished, [base.join("job-1/checkpoint-9")], "which is no damage");
    assert!(found.problems.is_empty());
    assert_eq!(manifest_2.sets(), [SetId(0)]);
    let (third, manifest_3) = make(3, Kind::Global);
    manifest_3.write(&third).unwrap();
    fs::write(third.join("rank-2.img"), "ab").unwrap();
    assert_eq!(
        newest_global(&base).unwrap().manifest.checkpoint,
        1,
        "a damaged one is passed over"
    );
    remove_manifest(&first);
    let why = newest_global(&base).unwrap_err();
    assert!(why.contains("rank-2.img has 2 bytes, it should have 3"), "{why}");
    fs::remove_dir_all(&base).unwrap();
}

#[test]
fn the_keys_of_a_manifest_are_those_of_format_1() {
    let text = serde_json::to_string(&manifest(7, Kind::Set)).unwrap();
    let image = |rank| {
        format!(r#"{{"rank":{rank},"set":0,"node":"n0","bytes":3,"raw_bytes":4096,"checksum":7}}"#)
    };
    let head = r#"{"format":1,"job":"job-1","line":7,"kind":"set","unix_ms":7,"size":4,"#;
    let rest = r#""command":["./a"],"images":["#;
    assert_eq!(text, format!("{head}{rest}{},{}]}}", image(0), image(1)));
}

#[test]
fn every_change_of_a_manifest_is_noticed() {
    let base = scratch("sealed");
    let folder = folder(&base, "job-1", CheckpointId(1));
    manifest(1, Kind::Global).write(&folder).unwrap();
    let file = folder.join(MANIFEST);
    let good = fs::read_to_string(&file).unwrap();
    for (from, to) in [("\"size\": 4", "\"size\": 5"), ("./a", "./b"), ("}", ""), ("1", "x")] {
        fs::write(&file, good.replacen(from, to, 1)).unwrap();
        assert!(Manifest::read(&folder).unwrap_err().contains("damaged"), "{from}");
    }
    fs::write(&file, &good).unwrap();
    assert!(Manifest::read(&folder).is_ok());
    fs::remove_dir_all(&base).unwrap();
}

/// Another user.
const OTHER: u32 = 65534;

/// Only root can give files away.
fn is_root(test: &str) -> bool {
    if os::euid() != 0 {
        eprintln!("SKIPPED: {test} needs root, to make files of another user");
    }
    os::euid() == 0
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A complete global checkpoint of a job.
fn complete(base: &Path, job: &str, checkpoint: u64) -> PathBuf {
    let folder = folder(base, job, CheckpointId(checkpoint));
    let manifest = Manifest { job: job.into(), ..manifest(checkpoint, Kind::Global) };
    manifest.write(&folder).unwrap();
    for image in &manifest.images {
        fs::write(folder.join(format!("rank-{}.img", image.rank)), "abc").unwrap();
    }
    folder
}

fn give_away(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        chown(entry.path(), Some(OTHER), None).unwrap();
    }
    chown(folder, Some(OTHER), None).unwrap();
}

#[test]
fn a_job_is_not_restarted_from_what_another_user_has_put_into_a_shared_directory() {
    if !is_root("a_job_is_not_restarted_from_what_another_user_has_put_into_a_shared_directory") {
        return;
    }
    let base = scratch("planted");
    allow(&base, 0o1777);
    let own = complete(&base, "job-1", 1);
    let newer = complete(&base, "job-2", 9);
    give_away(&newer);
    give_away(newer.parent().unwrap());
    assert_eq!(newest_global(&base).unwrap().folder, own, "though it is newer");
    let found = list(&base).unwrap();
    assert_eq!((found.checkpoints.len(), found.foreign.len()), (1, 1), "{found:?}");
    assert!(found.problems.is_empty(), "what is somebody else's is no damage: {found:?}");
    // Only the folder of the job is the other user's, or only a file.
    for foreign in ["job-3", "job-4/checkpoint-9", "job-5/checkpoint-9/manifest.json"] {
        let job = foreign.split('/').next().unwrap();
        complete(&base, job, 9);
        chown(base.join(foreign), Some(OTHER), None).unwrap();
        assert_eq!(newest_global(&base).unwrap().folder, own, "{foreign}");
    }
    chown(complete(&base, "job-6", 9).join("rank-2.img"), Some(OTHER), None).unwrap();
    assert_eq!(newest_global(&base).unwrap().folder, own, "an image");
    fs::remove_dir_all(own.parent().unwrap()).unwrap();
    let why = newest_global(&base).unwrap_err();
    assert!(why.contains(&format!("belongs to user {OTHER}")), "{why}");
    let why = newest_global(&newer).unwrap_err();
    assert!(why.contains("belongs to user"), "its own folder: {why}");
    // Root does not run what is a user's: that user does.
    assert!(why.contains(&format!("Do this as user {OTHER}")), "{why}");
    fs::remove_dir_all(&base).unwrap();
}

#[test]
fn what_others_can_change_is_not_restarted_from_and_the_message_says_what_to_do() {
    let base = scratch("writable");
    // A home where the umask is 002: what is above the job's folder does not matter.
    allow(&base, 0o775);
    let folder = complete(&base, "job-1", 1);
    assert!(newest_global(&base).is_ok());
    let image = folder.join("rank-1.img");
    for path in [folder.parent().unwrap(), &folder, &folder.join(MANIFEST), &image] {
        let before = path.metadata().unwrap().permissions();
        allow(path, before.mode() | 0o020);
        let why = newest_global(&base).unwrap_err();
        assert!(why.contains(&format!("chmod g-w {}", path.display())), "{why}");
        fs::set_permissions(path, before).unwrap();
    }
    assert!(newest_global(&base).is_ok());
    fs::remove_dir_all(&base).unwrap();
}

#[test]
fn files_in_a_directory_that_all_write_to_stop_nobody() {
    let base = scratch("sabotage");
    allow(&base, 0o1777);
    let own = complete(&base, "job-1", 1);
    fs::write(base.join(MANIFEST), "{}").unwrap();
    fs::create_dir(base.join("checkpoint-7")).unwrap();
    symlink(&own, base.join("checkpoint-8")).unwrap();
    fs::create_dir(base.join("unreadable")).unwrap();
    allow(&base.join("unreadable"), 0);
    symlink("/", base.join("job-0")).unwrap();
    assert_eq!(newest_global(&base).unwrap().folder, own);
    fs::remove_dir_all(&base).unwrap();
}

#[test]
fn a_manifest_that_is_no_file_is_refused_at_once() {
    let base = scratch("fifo");
    let folder = complete(&base, "job-1", 1);
    let manifest = folder.join(MANIFEST);
    fs::remove_file(&manifest).unwrap();
    let name = std::ffi::CString::new(manifest.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a terminated path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(
        Manifest::read(&folder).unwrap_err().contains("no regular file"),
        "and it is not awaited"
    );
    fs::remove_file(&manifest).unwrap();
    File::create(&manifest).unwrap().set_len(1 << 40).unwrap();
    assert!(Manifest::read(&folder).unwrap_err().contains("bytes, more than"));
    fs::remove_dir_all(&base).unwrap();
}

#[test]
fn nothing_is_written_into_a_folder_of_another_user() {
    if !is_root("nothing_is_written_into_a_folder_of_another_user") {
        return;
    }
    let base = scratch("foreign");
    let victim = base.join("victim");
    fs::write(&victim, "mine").unwrap();
    for foreign in ["job-1", "job-2/checkpoint-1"] {
        let folder = folder(&base, foreign.split('/').next().unwrap(), CheckpointId(1));
        fs::create_dir_all(&folder).unwrap();
        symlink(&victim, folder.join("manifest.json.tmp")).unwrap();
        chown(base.join(foreign), Some(OTHER), None).unwrap();
        assert!(manifest(1, Kind::Global).write(&folder).is_err(), "{foreign}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    }
    fs::remove_dir_all(&base).unwrap();
}
