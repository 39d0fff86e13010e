//! What cannot be restored is refused with its name, and the program continues unharmed; images
//! that are damaged, or of another machine, make no process.

mod common;
#[path = "common/doctor.rs"]
mod doctor;

use common::{Subject, copy_program, program, scratch};
use doctor::Difference;
use rustbtl_process::dump::{WriteOptions, write_image};
use rustbtl_process::restore::{Ids, inspect, verify};
use std::process::Command;

/// A program that holds something and then waits for a moment.
fn holding(name: &str, python: &str) -> (Result<(), String>, i32, String) {
    let folder = scratch(&format!("refuse-{name}"));
    let (output, image) = (folder.join("output"), folder.join("image"));
    let script = format!(
        "import os,socket,time,mmap,ctypes\n{python}\nprint('ready', flush=True)\n\
            time.sleep(1)\nprint('unharmed')"
    );
    let mut command = Command::new("/usr/bin/python3");
    let subject = Subject::start(command.arg("-c").arg(script), &output);
    subject.wait_for("ready");
    let outcome = subject.checkpoint("either", &image, &WriteOptions::default());
    let (status, text) = subject.finish(30);
    (outcome.map(|_| ()), status, text)
}

#[test]
fn what_cannot_be_restored_is_refused_by_name_and_the_program_continues() {
    let table = [
        ("socketpair", "a, b = socket.socketpair()", "socket"),
        (
            "connected",
            "l = socket.create_server(('127.0.0.1', 0))\n\
            c = socket.create_connection(l.getsockname())",
            "a connected socket",
        ),
        ("terminal", "a, b = os.openpty()", "terminal"),
        ("inotify", "f = ctypes.CDLL(None).inotify_init()", "inotify"),
        (
            "queue",
            "c = ctypes.CDLL(None)\n\
            f = c.mq_open(b'/rustbtl-test', os.O_RDWR | os.O_CREAT, 0o600, None)\n\
            assert f >= 0 and c.mq_unlink(b'/rustbtl-test') == 0",
            "a message queue",
        ),
        (
            "sysv",
            "c = ctypes.CDLL(None)\nc.shmat.restype = ctypes.c_void_p\n\
            c.shmat(c.shmget(0, 4096, 0o1600), None, 0)",
            "System V shared memory",
        ),
        (
            "fifo",
            "os.path.exists('/tmp/rustbtl-fifo') or os.mkfifo('/tmp/rustbtl-fifo')\n\
            f = os.open('/tmp/rustbtl-fifo', os.O_RDWR)",
            "/tmp/rustbtl-fifo",
        ),
        (
            "uring",
            "f = ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(200))\n\
            assert f > 0",
            "io_uring",
        ),
    ];
    for (name, python, reason) in table {
        let (outcome, status, text) = holding(name, python);
        let error = outcome.expect_err(name);
        assert!(error.contains(reason), "{name}: {error}");
        assert_eq!((status, text.as_str()), (0, "ready\nunharmed\n"), "{name}");
    }
}

#[test]
fn a_damaged_image_makes_no_process() {
    let folder = scratch("damaged");
    let (output, image) = (folder.join("output"), folder.join("image"));
    let path = program("count.c", &[]);
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    subject.kill();
    let summary = verify(&image).unwrap();
    assert_eq!(summary, inspect(&image).unwrap());
    assert_eq!(summary.threads.len(), 2);
    assert!(summary.to_string().contains("checkpoint"));
    let good = std::fs::read(&image).unwrap();
    let text = std::fs::read_to_string(&output).unwrap();
    // In the header, in a block, in the metadata, in the table; and cut off.
    let places = [9, 40, 5000, good.len() / 2, good.len() - 40_000, good.len() - 10];
    for at in places {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&image, &bad).unwrap();
        assert!(verify(&image).is_err(), "byte {at}");
        let error = Subject::try_restore(&image, &output, Ids::New).err().expect("an error");
        assert!(!error.to_string().is_empty());
    }
    for length in [0, 10, 64, good.len() / 2, good.len() - 1] {
        std::fs::write(&image, &good[..length]).unwrap();
        assert!(Subject::try_restore(&image, &output, Ids::New).is_err(), "{length} bytes");
    }
    assert_eq!(std::fs::read_to_string(&output).unwrap(), text, "nothing has run");
    std::fs::write(&image, &good).unwrap();
    let (subject, _) = Subject::restore(&image, &output, Ids::New);
    let (status, text) = subject.finish(30);
    assert_eq!(status, 42 << 8, "{status:#x} {text}");
}

#[test]
fn a_program_that_was_changed_is_not_mixed_with_its_image() {
    let folder = scratch("changed");
    let (output, image) = (folder.join("output"), folder.join("image"));
    let path = folder.join("count");
    copy_program(&program("count.c", &[]), &path);
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    subject.kill();
    std::fs::remove_file(&path).unwrap();
    std::fs::copy(program("zoo.c", &["-pthread"]), &path).unwrap();
    let error = Subject::try_restore(&image, &output, Ids::New).err().expect("an error");
    assert!(error.to_string().contains("another version"), "{error}");
}

#[test]
fn half_an_image_has_another_name() {
    let folder = scratch("half");
    let (output, image) = (folder.join("output"), folder.join("image"));
    let _ = std::fs::remove_file(&image);
    let path = program("count.c", &[]);
    let subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    let description = b"nonsense";
    let error = write_image(subject.pid, description, &image, &WriteOptions::default());
    assert!(error.is_err());
    assert!(!image.exists() && !image.with_extension("tmp").exists());
    let (status, text) = subject.finish(30);
    assert_eq!(status, 42 << 8, "{status:#x} {text}");
}

/// A program with a file that it maps, shared and writable, and one that it writes to.
const TWO_FILES: &str = "import mmap,os,sys,time\n\
    log = open(sys.argv[2], 'w')\n\
    print('A' * 100, file=log, flush=True)\n\
    file = os.open(sys.argv[1], os.O_RDWR)\n\
    memory = mmap.mmap(file, 4096)\n\
    os.close(file)\n\
    memory[:4096] = b'A' * 4096\n\
    print('ready', flush=True)\n\
    time.sleep(0.5)\n\
    print('done', flush=True)";

#[test]
fn an_image_of_another_machine_is_refused_before_anything_is_touched() {
    let folder = scratch("another-machine");
    let (output, image) = (folder.join("output"), folder.join("image"));
    let [mapped, log] = ["mapped", "log"].map(|name| folder.join(name));
    std::fs::write(&mapped, vec![b'-'; 4096]).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-c").arg(TWO_FILES).arg(&mapped).arg(&log);
    let mut subject = Subject::start(&mut command, &output);
    subject.wait_for("ready");
    subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    subject.kill();
    let good = std::fs::read(&image).unwrap();
    // What the image would restore has changed since.
    let others = vec![b'B'; 4096];
    for file in [&mapped, &log] {
        std::fs::write(file, &others).unwrap();
    }
    for (difference, _, says) in Difference::ALL {
        std::fs::write(&image, &good).unwrap();
        difference.doctor(&image);
        assert!(verify(&image).is_ok(), "{difference:?}: all its checksums are right");
        let error = Subject::try_restore(&image, &output, Ids::New).err();
        let error = error.unwrap_or_else(|| panic!("{difference:?} makes a process")).to_string();
        let whole = error.starts_with("this machine differs in ") && error.contains(says);
        assert!(whole, "{difference:?}: {error}");
        for file in [&mapped, &log] {
            let same = std::fs::read(file).unwrap() == others;
            assert!(same, "{difference:?} has changed {}", file.display());
        }
        assert_eq!(std::fs::read_to_string(&output).unwrap(), "ready\n", "{difference:?}");
    }
    // Not doctored, it does all that.
    std::fs::write(&image, &good).unwrap();
    let (subject, _) = Subject::restore(&image, &output, Ids::New);
    let (status, text) = subject.finish(30);
    assert_eq!((status, text.as_str()), (0, "ready\ndone\n"));
    assert_eq!(std::fs::read(&mapped).unwrap(), [b'A'; 4096]);
    assert_eq!(std::fs::metadata(&log).unwrap().len(), 101);
}
