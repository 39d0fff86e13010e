//! Real programs are frozen, written, killed and restored, and give the same answer.

mod common;

use common::{Answer, Subject, copy_program, program, scratch};
use rustbtl_process::dump::{Compression, History, WriteOptions, write_next_image};
use rustbtl_process::restore::{Ids, RestoreOptions, SharedRegistry, verify};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn a_simple_program_gives_the_same_answer() {
    let folder = scratch("simple");
    let path = program("count.c", &[]);
    let undisturbed = Command::new(&path).output().unwrap();
    let answer = String::from_utf8(undisturbed.stdout).unwrap();
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    let (stats, times) = subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    eprintln!("{stats:?} {times:?}");
    subject.kill();
    let (subject, child) = Subject::restore(&image, &output, Ids::SameIfPermitted);
    eprintln!("{child:?}");
    let (status, text) = subject.finish(30);
    assert_eq!(text, answer);
    assert_eq!(libc::WEXITSTATUS(status), 42);
}

#[test]
fn it_dies_with_the_thread_that_has_restored_it_if_that_is_wanted() {
    let folder = scratch("dies");
    let path = program("count.c", &[]);
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    subject.kill();
    for dies_with_parent in [true, false] {
        let options = RestoreOptions { dies_with_parent, ..RestoreOptions::default() };
        let restored = || Subject::restore_with(&image, &output, options).unwrap().0;
        let subject = std::thread::scope(|scope| scope.spawn(restored).join().unwrap());
        let (status, _) = subject.finish(30);
        if dies_with_parent {
            assert_eq!(status, libc::SIGKILL);
        } else {
            assert_eq!(libc::WEXITSTATUS(status), 42);
        }
    }
}

/// What a program prints when it is not checkpointed.
fn undisturbed(path: &std::path::Path) -> String {
    let output = Command::new(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

fn zoo(name: &str, order: &str, ids: Ids) {
    let folder = scratch(name);
    let path = program("zoo.c", &["-pthread"]);
    let answer = undisturbed(&path);
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    let (stats, times) = subject.checkpoint(order, &image, &WriteOptions::default()).unwrap();
    eprintln!("{stats:?} {times:?}");
    subject.kill();
    let (subject, child) = Subject::restore(&image, &output, ids);
    eprintln!("{child:?}");
    let (status, text) = subject.finish(30);
    assert_eq!(text, answer);
    assert_eq!(status, 0);
}

#[test]
fn threads_in_every_kind_of_wait_notice_nothing() {
    zoo("zoo", "fork", Ids::SameIfPermitted);
}

#[test]
fn threads_with_new_ids_notice_nothing() {
    zoo("zoo-new", "fork", Ids::New);
}

#[test]
fn an_image_that_is_written_in_the_pause_is_as_good() {
    zoo("zoo-pause", "pause", Ids::SameIfPermitted);
}

#[test]
fn an_image_that_builds_on_one_that_was_dropped_is_as_good() {
    let folder = scratch("zoo-next");
    let path = program("zoo.c", &["-pthread"]);
    let answer = undisturbed(&path);
    let output = folder.join("output");
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    let mut history = History::new(3);
    let images = ["1.img", "2.img", "3.img", "4.img"].map(|name| folder.join(name));
    let mut elsewhere = Vec::new();
    for image in &images {
        subject.send("fork");
        let Answer::Continued { child, description, .. } = subject.receive() else { panic!() };
        let options = WriteOptions { compression: Compression::Zstd, ..WriteOptions::default() };
        let stats =
            write_next_image(child, &description, image, image, &options, &mut history).unwrap();
        subject.send("d");
        elsewhere.push(stats.elsewhere_bytes > stats.stored_bytes);
    }
    assert_eq!(elsewhere, [false, true, true, false], "one of three is full");
    subject.kill();
    images[..2].iter().for_each(|image| std::fs::remove_file(image).unwrap());
    let summary = verify(&images[2]).unwrap();
    assert_eq!(summary.bases.len(), 2, "{summary}");
    let (subject, _) = Subject::restore(&images[2], &output, Ids::SameIfPermitted);
    let (status, text) = subject.finish(30);
    assert_eq!((status, text), (0, answer));
}

#[test]
fn memory_whose_contents_nobody_needs_is_there_and_empty() {
    let folder = scratch("dead");
    let path = program("dead.c", &[]);
    for how in ["fork", "pause"] {
        let [output, first, second, end] =
            ["output", "1.img", "2.img", "end"].map(|name| folder.join(format!("{how}-{name}")));
        drop(std::fs::remove_file(&end));
        let start = || {
            let subject = Subject::start(Command::new(&path).arg(&end), &output);
            subject.wait_for("\n");
            let order = format!("{how};{}", subject.text().trim());
            (subject, order)
        };
        let line = |text: &str, key: &str| -> String {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(key));
            lines.next_back().unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
        };
        let (mut subject, order) = start();
        let all = subject.checkpoint(how, &first, &WriteOptions::default()).unwrap().0;
        let less = subject.checkpoint(&order, &first, &WriteOptions::default()).unwrap().0;
        let dead = all.stored_bytes.saturating_sub(less.stored_bytes) + (1 << 19);
        assert!(dead > 4 << 20, "{how}: it is not in the image");
        subject.kill();
        // A restored process can do it again.
        let (mut subject, _) = Subject::restore(&first, &output, Ids::SameIfPermitted);
        let again = subject.checkpoint(&order, &second, &WriteOptions::default()).unwrap().0;
        assert!(again.stored_bytes <= less.stored_bytes + (1 << 20), "{how}: {again:?}");
        subject.kill();
        // The one that goes on has all of it.
        let (subject, order) = start();
        subject.checkpoint(&order, &first, &WriteOptions::default()).unwrap();
        std::fs::write(&end, "").unwrap();
        let (status, whole) = subject.finish(30);
        assert_eq!((status, &line(&whole, "wiped ")[..]), (0, "0"));
        let (subject, _) = Subject::restore(&second, &output, Ids::SameIfPermitted);
        let (status, text) = subject.finish(30);
        assert_eq!((status, &line(&text, "wiped ")[..]), (0, "0"), "{how}: {text}");
        assert_ne!(line(&whole, "dead "), format!("{:016x}", 0));
        assert_eq!(line(&text, "dead "), format!("{:016x}", 0), "{how}");
        for key in ["before ", "behind ", "written "] {
            assert_eq!(line(&text, key), line(&whole, key), "{how}: {key}");
        }
    }
}

#[test]
fn the_program_that_was_pictured_goes_on_unharmed() {
    let folder = scratch("zoo-goes-on");
    let path = program("zoo.c", &["-pthread"]);
    let answer = undisturbed(&path);
    let (output, image) = (folder.join("output"), folder.join("image"));
    let subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    for order in ["fork", "pause", "either", "fork", "fork"] {
        subject.checkpoint(order, &image, &WriteOptions::default()).unwrap();
    }
    let (status, text) = subject.finish(30);
    assert_eq!(text, answer);
    assert_eq!(status, 0);
}

/// Undisturbed and restored: the same output and the same end.
fn same_answer(name: &str, command: impl Fn() -> Command) {
    let folder = scratch(name);
    let undisturbed = command().output().unwrap();
    let answer = String::from_utf8(undisturbed.stdout).unwrap();
    assert!(answer.starts_with("ready"), "{}", String::from_utf8_lossy(&undisturbed.stderr));
    for (ids, compression) in
        [(Ids::SameIfPermitted, Compression::None), (Ids::New, Compression::Lz4)]
    {
        let (output, image) = (folder.join("output"), folder.join("image"));
        let mut subject = Subject::start(&mut command(), &output);
        subject.wait_for("ready");
        std::thread::sleep(std::time::Duration::from_millis(100));
        let options = WriteOptions { compression, threads: 2, ..WriteOptions::default() };
        let outcome = subject.checkpoint("fork", &image, &options);
        let Ok((stats, times)) = outcome else {
            panic!("{outcome:?}; the subject: {:?}", subject.finish(60));
        };
        eprintln!("{stats:?} {times:?}");
        subject.kill();
        let (subject, child) = Subject::restore(&image, &output, ids);
        eprintln!("{child:?}");
        let (status, text) = subject.finish(60);
        eprintln!("ended with {status:#x}");
        assert_eq!(text, answer);
        let code = undisturbed.status.code().unwrap();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == code, "{status:#x}");
    }
}

#[test]
fn files_pipes_mappings_timers_and_limits_are_as_before() {
    let path = program("files.c", &[]);
    let folder = scratch("files-work");
    same_answer("files", || {
        let mut command = Command::new(&path);
        command.arg(&folder);
        command
    });
}

#[test]
fn an_interval_timer_whose_signal_waits_goes_on() {
    let path = program("interval_timer.c", &[]);
    same_answer("interval-timer", || Command::new(&path));
}

/// As on another node.
#[test]
fn the_working_directory_and_tmpdir_of_another_node_are_made_empty() {
    let folder = scratch("folders");
    let (output, image) = (folder.join("output"), folder.join("image"));
    let place = format!("/dev/shm/rustbtl-test-{}", std::process::id());
    let [work, temporary] = ["work/here", "tmp"].map(|name| format!("{place}/{name}"));
    for made in [&work, &temporary] {
        std::fs::create_dir_all(made).unwrap();
    }
    std::fs::write(format!("{work}/old"), "").unwrap();
    const SCRIPT: &str = "import os, sys, time, tempfile\n\
        print('ready', flush=True)\n\
        while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n\
        open('new', 'w')\n\
        print(os.listdir(), os.getcwd(), os.path.dirname(tempfile.mkdtemp()), flush=True)";
    let mut command = Command::new("/usr/bin/python3");
    let go = folder.join("go");
    command.args(["-c", SCRIPT]).arg(&go).current_dir(&work).env("TMPDIR", &temporary);
    let mut subject = Subject::start(&mut command, &output);
    subject.wait_for("ready");
    subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    subject.kill();
    std::fs::remove_dir_all(&place).unwrap();
    let (subject, _) = Subject::restore(&image, &output, Ids::New);
    std::fs::write(&go, "").unwrap();
    let (status, text) = subject.finish(30);
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!((status, text), (0, format!("ready\n['new'] {work} {temporary}\n")));
}

#[test]
fn openmp_gives_the_same_sum() {
    let path = program("openmp.c", &["-fopenmp", "-lm"]);
    same_answer("openmp", || {
        let mut command = Command::new(&path);
        command.env("OMP_NUM_THREADS", "3").env("OMP_WAIT_POLICY", "passive");
        command
    });
}

#[test]
fn fortran_gives_the_same_sum() {
    let path = program("fortran.f90", &[]);
    same_answer("fortran", || Command::new(&path));
}

#[test]
fn python_with_numpy_gives_the_same_digest() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/digest.py");
    same_answer("python", || {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(&script).env("OPENBLAS_NUM_THREADS", "2");
        command
    });
}

#[test]
fn a_program_that_is_pictured_very_often_goes_on_unharmed() {
    let folder = scratch("often");
    let path = program("openmp.c", &["-fopenmp", "-lm"]);
    let mut command = Command::new(&path);
    command.env("OMP_NUM_THREADS", "3").env("OMP_WAIT_POLICY", "passive");
    // Long enough for many snapshots, also on a busy machine.
    command.env("STEPS", "6000");
    let undisturbed = command.output().unwrap();
    let answer = String::from_utf8(undisturbed.stdout).unwrap();
    let (output, image) = (folder.join("output"), folder.join("image"));
    let subject = Subject::start(&mut command, &output);
    subject.wait_for("ready");
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    let mut taken = 0;
    while subject.checkpoint("fork", &image, &options).is_ok() {
        taken += 1;
        if subject.text() == answer || taken == 100 {
            break;
        }
    }
    let (status, text) = subject.finish(120);
    assert_eq!((status, text), (0, answer), "after {taken} snapshots");
    assert!(taken > 5, "only {taken}");
}

/// The program `guard` (an example), perhaps as somebody without any rights.
fn guard(words: &[&str], unprivileged: bool) -> (bool, String) {
    let guard = common::preload().with_file_name("guard");
    let root = is_root();
    let mut command = Command::new(if root && unprivileged { "setpriv" } else { "env" });
    if root && unprivileged {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
    }
    let output = command.arg(guard).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let more = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), text + &more)
}

#[test]
fn ten_generations_of_a_restored_process() {
    let path = program("zoo.c", &["-pthread"]);
    for words in [vec![], vec!["new"]] {
        let all = [&words[..], &["10", "100", path.to_str().unwrap(), "4"]].concat();
        let (ok, text) = guard(&all, false);
        assert!(ok && text.contains("generation 10") && text.contains("amx: ok"), "{text}");
    }
}

#[test]
fn somebody_without_any_rights_can_do_it() {
    let path = program("zoo.c", &["-pthread"]);
    for order in ["fork", "pause"] {
        let (ok, text) = guard(&[order, "2", "100", path.to_str().unwrap(), "3"], true);
        assert!(ok && text.contains("generation 2") && text.contains("amx: ok"), "{text}");
    }
}

#[test]
fn threads_name_each_other_whatever_ids_they_have() {
    let path = program("ids.c", &["-pthread"]);
    assert_eq!(undisturbed(&path), "ready\nall right\n");
    let path = path.to_str().unwrap();
    // With the same ids; with new ones; by a user without the right to choose them.
    for (words, unprivileged) in [(&[][..], false), (&["new"][..], false), (&[][..], true)] {
        let all = [words, &["3", "60", path][..]].concat();
        let (ok, text) = guard(&all, unprivileged);
        assert!(ok && text.contains("generation 3") && text.contains("all right"), "{text}");
        let same = kept_ids(&text);
        assert_eq!(same, words.is_empty() && !unprivileged && is_root(), "{text}");
    }
}

/// Do the processes have the same ids?
fn kept_ids(text: &str) -> bool {
    text.contains("same_ids: true")
}

fn is_root() -> bool {
    // SAFETY: only queries.
    unsafe { libc::geteuid() == 0 }
}

/// Checkpoints two processes that share memory, and kills both.
fn checkpoint_both(both: &mut [Subject; 2], images: &[PathBuf; 2]) {
    // All are suspended before any copies, and have copied before any continues.
    both.iter().for_each(|subject| subject.send("fork;barrier"));
    for _ in 0..2 {
        both.iter().for_each(|subject| assert!(matches!(subject.receive(), Answer::Suspended)));
        both.iter().for_each(|subject| subject.send("go"));
    }
    for (subject, image) in both.iter().zip(images) {
        subject.write(image, &WriteOptions::default()).unwrap();
    }
    both.iter_mut().for_each(Subject::kill);
    both.iter().for_each(|subject| assert_eq!(subject.text(), "ready\n", "too late"));
}

#[test]
fn two_processes_share_their_memory_in_every_generation() {
    /// Generations whose memory has a name.
    const NAMED: usize = 2;
    let folder = scratch("shared");
    let path = program("shared.c", &[]);
    // Of files there, the memory is what counts.
    let file = PathBuf::from(format!("/dev/shm/rustbtl-shared-{}", std::process::id()));
    let start = |role: &str| {
        let mut command = Command::new(&path);
        Subject::start(command.arg(role).arg(&file), &folder.join(role))
    };
    let mut both = [start("0"), start("1")];
    both.iter().for_each(|subject| subject.wait_for("ready"));
    let images = ["image 0", "image 1"].map(|name| folder.join(name));
    for generation in 1..=4 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        // As most programs do when all have opened it; after that it has no name.
        let has_name = generation <= NAMED;
        if generation == NAMED + 1 {
            std::fs::remove_file(&file).unwrap();
        }
        checkpoint_both(&mut both, &images);
        // The name is made again, and given to the new memory.
        if generation == 1 {
            std::fs::remove_file(&file).unwrap();
        }
        let place = folder.join(format!("place {generation}"));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).unwrap();
        let place = SharedRegistry { folder: place, key: "restart".into() };
        // In another order each time: it does not matter who is the first, but for a name, which
        // is given by one that has mapped all.
        let first = if has_name { 0 } else { generation % 2 };
        let order = [first, 1 - first];
        let mut restored = order.map(|role| {
            let output = folder.join(role.to_string());
            Subject::restore_sharing(&images[role], &output, place.clone())
        });
        restored.sort_by(|a, b| a.output.cmp(&b.output));
        both = restored;
        // What is left of the place does not count, nor that it goes.
        std::fs::remove_dir_all(&place.folder).unwrap();
        for subject in &both {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", subject.pid)).unwrap();
            assert_eq!(maps.contains("/memfd:rustbtl-shared (deleted)"), !has_name, "{maps}");
            if has_name {
                let inode = std::fs::metadata(&file).unwrap().ino();
                assert!(maps.contains(&format!("{inode} ")), "{inode} in {maps}");
                assert!(maps.contains(&format!("{}\n", file.display())), "{maps}");
            }
        }
    }
    // The program runs until it is sent a signal.
    let stop = file.with_extension("stop");
    std::fs::write(&stop, "").unwrap();
    let texts = both.map(|subject| subject.finish(60));
    std::fs::remove_file(&stop).unwrap();
    for (status, text) in texts {
        assert_eq!((status, text), (0, "ready\nsum is right\n".into()));
    }
}

#[test]
fn memory_that_is_open_is_restored_where_only_a_part_is_mapped() {
    let folder = scratch("parts");
    let file = PathBuf::from(format!("/dev/shm/rustbtl-parts-{}", std::process::id()));
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut command = Command::new(program("parts.c", &[]));
    let mut subject = Subject::start(command.arg(&file), &output);
    subject.wait_for("ready");
    subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    subject.kill();
    // What others do to it afterwards does not matter.
    std::fs::write(&file, [b'-'; 3 * 4096]).unwrap();
    let (subject, _) = Subject::restore(&image, &output, Ids::New);
    let stop = file.with_extension("stop");
    std::fs::write(&stop, "").unwrap();
    let found = subject.finish(60);
    let named = std::fs::read(&file).unwrap();
    std::fs::remove_file(&stop).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(found, (0, "ready\naabxcc y\n".into()));
    assert_eq!((named.len(), named[0], named[4096 + 8]), (3 * 4096, b'a', b'y'), "its name");
}

#[test]
fn a_program_whose_file_was_removed_meanwhile_takes_it_along() {
    let folder = scratch("removed");
    let original = program("zoo.c", &["-pthread"]);
    let answer = undisturbed(&original);
    let path = folder.join("zoo");
    copy_program(&original, &path);
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    std::fs::remove_file(&path).unwrap();
    subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    subject.kill();
    let (subject, _) = Subject::restore(&image, &output, Ids::New);
    let (status, text) = subject.finish(30);
    assert_eq!((status, text), (0, answer));
}
