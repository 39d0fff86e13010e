//! What is refused, made as somebody else would make it.

use super::*;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rustbtl-own-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder::create(&path).unwrap();
        Self(path)
    }

    fn folder(&self) -> Folder {
        Folder::open(&self.0).unwrap()
    }

    fn write(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, name).unwrap();
        allow(&path, mode);
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn problem<T: fmt::Debug>(result: Result<T, FileError>) -> Distrust {
    match result.unwrap_err() {
        FileError::Distrusted { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

/// Only root can give files away.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {test} needs root, to make files of another user");
    }
    root
}

#[test]
fn only_this_user_and_root_are_trusted_and_nobody_else_may_write() {
    let check = check_owner_and_mode;
    for (owner, mode) in [(7, 0o600), (7, 0o755), (0, 0o644), (7, 0o1700)] {
        assert_eq!(check(7, owner, mode), Ok(()), "{owner} {mode:o}");
    }
    assert_eq!(check(7, 8, 0o600), Err(Distrust::Owner { owner: 8, user: 7 }));
    assert_eq!(check(0, 7, 0o600), Err(Distrust::Owner { owner: 7, user: 0 }), "root is careful");
    for mode in [0o620, 0o602, 0o777, 0o1777] {
        assert_eq!(check(7, 7, mode), Err(Distrust::Writable { mode }));
        assert!(check(7, 0, mode).is_err());
    }
}

#[test]
fn what_others_can_write_to_is_refused_with_what_to_do() {
    let scratch = Scratch::new("mode");
    let folder = scratch.folder();
    scratch.write("fine", 0o644);
    assert_eq!(folder.read("fine", 100).unwrap(), b"fine");
    let open = scratch.write("open", 0o664);
    let text = folder.file("open").unwrap_err().to_string();
    assert!(text.contains(&format!("chmod g-w {}", open.display())), "{text}");
    allow(&open, 0o646);
    assert!(folder.file("open").unwrap_err().to_string().contains("chmod o-w"));
    allow(&scratch.0, 0o770);
    assert!(matches!(problem(Folder::open(&scratch.0)), Distrust::Writable { mode: 0o770 }));
    assert!(Folder::of(&scratch.0.join("fine")).is_err(), "its folder counts, too");
    // What is above it does not: homes are group-writable where the umask is 002.
    let below = scratch.0.join("below");
    Folder::create(&below).unwrap();
    assert!(Folder::open(&below).is_ok());
}

#[test]
fn what_belongs_to_somebody_else_is_refused() {
    if !is_root("what_belongs_to_somebody_else_is_refused") {
        return;
    }
    let scratch = Scratch::new("owner");
    let file = scratch.write("file", 0o600);
    chown(&file, Some(1234), None).unwrap();
    let error = scratch.folder().file("file").unwrap_err();
    assert!(error.is_foreign());
    let text = error.to_string();
    assert!(text.contains("belongs to user 1234") && text.contains("as user 1234"), "{text}");
    chown(&file, Some(NOBODY), None).unwrap();
    assert!(scratch.folder().file("file").unwrap_err().to_string().contains("root_squash"));
    chown(&scratch.0, Some(1234), None).unwrap();
    assert!(Folder::open(&scratch.0).unwrap_err().is_foreign());
    assert!(Folder::open_or_create(&scratch.0).unwrap_err().is_foreign());
}

#[test]
fn links_fifos_sockets_devices_and_folders_are_no_files() {
    let scratch = Scratch::new("kinds");
    let folder = scratch.folder();
    scratch.write("file", 0o600);
    symlink("file", scratch.0.join("link")).unwrap();
    symlink(".", scratch.0.join("round")).unwrap();
    let made = fs::mknodat(fs::CWD, scratch.0.join("fifo"), FileType::Fifo, PRIVATE_FILE, 0);
    made.unwrap();
    let _socket = UnixListener::bind(scratch.0.join("socket")).unwrap();
    Folder::create(&scratch.0.join("folder")).unwrap();
    assert_eq!(problem(folder.file("link")), Distrust::Link);
    assert_eq!(problem(folder.file_or_new_to_append("link")), Distrust::Link);
    assert_eq!(problem(folder.file("fifo")), Distrust::NotAFile, "and it does not wait");
    assert_eq!(problem(folder.file_or_new_to_append("fifo")), Distrust::NotAFile);
    assert_eq!(problem(folder.file("socket")), Distrust::NotAFile);
    assert_eq!(problem(folder.file("folder")), Distrust::NotAFile);
    assert_eq!(problem(folder.folder("file")), Distrust::NotAFolder);
    assert_eq!(problem(folder.folder("round")), Distrust::Link);
    assert_eq!(problem(Folder::open(&scratch.0.join("round"))), Distrust::Link);
    assert_eq!(folder.link("link"), Some("file".into()));
    assert_eq!(folder.link("file"), None);
    assert_eq!(problem(open_to_show(&scratch.0.join("fifo"))), Distrust::NotAFile);
    assert_eq!(problem(open_to_show(&scratch.0.join("link"))), Distrust::Link);
    allow(&scratch.0, 0o1777);
    assert!(open_to_show(&scratch.0.join("file")).is_ok(), "nobody else can replace it");
    allow(&scratch.0, 0o700);
    assert!(folder.file("none").unwrap_err().is_missing());
    for name in ["", ".", "..", "../x", "folder/x", "/etc/passwd"] {
        assert!(folder.file(name).is_err() && folder.create_file(name).is_err(), "{name}");
    }
}

#[test]
fn what_is_made_did_not_exist_and_is_closed_to_others() {
    let scratch = Scratch::new("new");
    let folder = scratch.folder();
    let victim = scratch.write("victim", 0o600);
    symlink(&victim, scratch.0.join("draft")).unwrap();
    assert!(folder.create_file("draft").is_err(), "a link that was put there is not followed");
    folder.create_file_anew("draft").unwrap().write_all(b"new").unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"victim");
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
    assert_eq!(mode(&scratch.0.join("draft")), 0o600);
    folder.rename("draft", "final").unwrap();
    assert_eq!(folder.read("final", 3).unwrap(), b"new");
    let below = scratch.0.join("below");
    assert_eq!(mode(Folder::create(&below).unwrap().path()), 0o700);
    assert!(Folder::create(&below).is_err(), "it is there");
    assert_eq!(folder.names().unwrap(), ["below", "final", "victim"]);
    folder.sync().unwrap();
}

#[test]
fn nothing_is_read_that_is_longer_than_it_may_be() {
    let scratch = Scratch::new("long");
    let folder = scratch.folder();
    // Sparse: it takes no room, but whoever trusted its length would allocate 1 TiB.
    folder.create_file("huge").unwrap().set_len(1 << 40).unwrap();
    let found = problem(folder.read("huge", 1 << 20));
    assert_eq!(found, Distrust::TooLong { bytes: 1 << 40, bytes_max: 1 << 20 });
    scratch.write("four", 0o600);
    assert!(folder.read("four", 3).is_err());
    assert_eq!(folder.read("four", 4).unwrap(), b"four");
}
