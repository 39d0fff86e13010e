//! A guardian for tests: starts a program with the preload, has it frozen, writes, kills, restores.
#![allow(dead_code)] // each test file uses a part of it

use rustbtl_process::ProcessImageError;
use rustbtl_process::dump::{self, ImageStats, WriteOptions};
use rustbtl_process::restore::{self, RestoreOptions, RestoredChild};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of the socket in the program.
pub const SOCKET: RawFd = 200;
/// Says so to the checkpoint thread. Only processes that tests checkpoint have it.
const VARIABLE: &str = "RUSTBTL_TEST_FD";

/// Copies a program that is to be started. Another process does it: a child that is forked here
/// while a file is open for writing holds it, too, and what somebody may write cannot be started.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

/// A folder of tests.
fn folder(name: &str) -> PathBuf {
    let temporary = option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/tmp/rustbtl-process");
    Path::new(temporary).join(name)
}

/// Folder of this test run, with nothing in it of an earlier one. Once for each name.
pub fn scratch(name: &str) -> PathBuf {
    let folder = folder(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The preload, which cargo builds as an example.
pub fn preload() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    // target/debug/deps/test or target/debug/examples/guard
    exe.ancestors().nth(2).unwrap().join("examples/libpreload.so")
}

/// Compiles a program of tests/programs.
pub fn program(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let programs = folder("programs");
    std::fs::create_dir_all(&programs).unwrap();
    let path = programs.join(name.split('.').next().unwrap());
    let changed = |path: &Path| path.metadata().and_then(|stat| stat.modified());
    if changed(&path).is_ok_and(|made| made > changed(&source).unwrap()) {
        return path;
    }
    let compiler = if name.ends_with(".f90") { "gfortran" } else { "gcc" };
    // Tests run in parallel: a program appears under its name when it is complete.
    let draft = path.with_extension(format!("{:?}", std::thread::current().id()));
    let mut command = Command::new(compiler);
    command.arg("-O1").arg("-g").arg("-o").arg(&draft).arg(&source).args(flags);
    assert!(command.status().unwrap().success(), "compiling {name}");
    std::fs::rename(&draft, &path).unwrap();
    path
}

/// A program that a guardian watches.
pub struct Subject {
    pub pid: u32,
    pub socket: OwnedFd,
    pub output: PathBuf,
    child: Option<Child>,
    /// Nobody has waited for its end yet.
    runs: bool,
    /// What it shares with others that are to be restored, too.
    shared: Vec<OwnedFd>,
    /// How long its output was when it was frozen last.
    output_bytes: Cell<Option<u64>>,
}

/// Answer to an order.
#[derive(Debug)]
pub enum Answer {
    Continued { child: u32, times_us: [u64; 6], description: Vec<u8> },
    Paused { pid: u32, description: Vec<u8> },
    Refused(String),
    Restored { same_ids: bool, generation: u8, payload: Vec<u8> },
    Suspended,
    Ended,
}

pub fn pair() -> (OwnedFd, OwnedFd) {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: two numbers.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) }, 0);
    let buffer_bytes: i32 = 4 << 20;
    for fd in pair {
        let size = size_of::<i32>() as u32;
        let at = (&raw const buffer_bytes).cast();
        // SAFETY: one number.
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, at, size) };
    }
    // SAFETY: just made.
    let owned = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let [ours, theirs] = owned;
    (ours, theirs)
}

impl Subject {
    /// Starts a program; its output goes to a file.
    pub fn start(command: &mut Command, output: &Path) -> Subject {
        let (ours, theirs) = pair();
        let file = File::create(output).unwrap();
        let from = theirs.as_raw_fd();
        let others = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
        let others = others.and_then(|(_, others)| Some(format!(":{}", others?.to_str()?)));
        let preloads = preload().display().to_string() + &others.unwrap_or_default();
        command.env("LD_PRELOAD", preloads).env(VARIABLE, SOCKET.to_string());
        command.stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file);
        let prepare = move || {
            let cloexec = 4;
            // SAFETY: cargo's own pipes are none of the program's business.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, cloexec) };
            // SAFETY: a number for our socket.
            let done = unsafe { libc::dup2(from, SOCKET) };
            if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: only system calls.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().unwrap();
        let (pid, output) = (child.id(), output.to_owned());
        let (shared, output_bytes) = (Vec::new(), Cell::new(None));
        let child = Some(child);
        Subject { pid, socket: ours, output, child, runs: true, shared, output_bytes }
    }

    pub fn send(&self, order: &str) {
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads the text.
        unsafe { libc::send(self.socket.as_raw_fd(), order.as_ptr().cast(), order.len(), flags) };
    }

    pub fn receive(&self) -> Answer {
        let mut poll =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 30_000) }, 1, "no answer in 30 s");
        let mut buffer = vec![0; 4 << 20];
        let fd = self.socket.as_raw_fd();
        // SAFETY: the kernel writes into `buffer`.
        let got = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if got <= 0 {
            return Answer::Ended;
        }
        buffer.truncate(got as usize);
        let number = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().unwrap());
        match buffer[0] {
            b'C' => {
                let mut times_us = [0; 6];
                for (time, bytes) in times_us.iter_mut().zip(buffer[5..].chunks(8)) {
                    *time = u64::from_le_bytes(bytes.try_into().unwrap());
                }
                Answer::Continued { child: number(1), times_us, description: buffer[53..].to_vec() }
            }
            b'P' => Answer::Paused { pid: number(1), description: buffer[5..].to_vec() },
            b'R' => Answer::Restored {
                same_ids: buffer[1] != 0,
                generation: buffer[2],
                payload: buffer[3..].to_vec(),
            },
            b'B' => Answer::Suspended,
            _ => Answer::Refused(String::from_utf8_lossy(&buffer[1..]).into_owned()),
        }
    }

    /// Freezes and writes the image; the program continues.
    pub fn checkpoint(
        &self,
        order: &str,
        path: &Path,
        options: &WriteOptions,
    ) -> Result<(ImageStats, [u64; 6]), String> {
        self.send(order);
        self.write(path, options)
    }

    /// Writes what the answer to an order describes.
    pub fn write(
        &self,
        path: &Path,
        options: &WriteOptions,
    ) -> Result<(ImageStats, [u64; 6]), String> {
        let answer = self.receive();
        self.output_bytes.set(std::fs::metadata(&self.output).ok().map(|output| output.len()));
        match answer {
            Answer::Continued { child, times_us, description } => {
                let stats = dump::write_image(child, &description, path, options);
                self.send("d");
                stats.map(|stats| (stats, times_us)).map_err(|error| error.to_string())
            }
            Answer::Paused { pid, description } => {
                let stats = dump::write_image(pid, &description, path, options);
                self.send("d");
                let Answer::Continued { times_us, .. } = self.receive() else { panic!() };
                stats.map(|stats| (stats, times_us)).map_err(|error| error.to_string())
            }
            Answer::Refused(reason) => Err(reason),
            Answer::Ended => Err("it has ended".into()),
            other => panic!("{other:?}"),
        }
    }

    /// kill -9, and waits for the end. What it has printed since its image is gone: it goes on
    /// while the image is written and flushed, which may take longer than it does.
    pub fn kill(&mut self) {
        // SAFETY: our own child.
        unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
        self.wait_any();
        if let Some(bytes) = self.output_bytes.take() {
            std::fs::File::options()
                .write(true)
                .open(&self.output)
                .unwrap()
                .set_len(bytes)
                .unwrap();
        }
    }

    fn wait_any(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(self.pid as i32, &raw mut status, 0) };
        (self.child, self.runs) = (None, false);
        status
    }

    /// Waits for the end; its output.
    pub fn finish(mut self, seconds: u64) -> (i32, String) {
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut status = 0;
        loop {
            // SAFETY: our own child.
            let got = unsafe { libc::waitpid(self.pid as i32, &raw mut status, libc::WNOHANG) };
            if got == self.pid as i32 {
                break;
            }
            if Instant::now() > end {
                let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
                for task in tasks.flatten() {
                    let read = |name| std::fs::read_to_string(task.path().join(name));
                    let (name, call) = (read("comm").unwrap(), read("syscall").unwrap());
                    eprintln!("{} {call}", name.trim());
                }
                self.kill();
                panic!("it hangs; output:\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        (self.child, self.runs) = (None, false);
        let text = self.text();
        (status, text)
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until the output has this.
    pub fn wait_for(&self, what: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        while !self.text().contains(what) {
            assert!(Instant::now() < end, "no {what:?} in:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A new process from an image; output goes to a file, which is appended to.
    pub fn restore(path: &Path, output: &Path, ids: restore::Ids) -> (Subject, RestoredChild) {
        Self::try_restore(path, output, ids).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn restore_sharing(
        path: &Path,
        output: &Path,
        registry: restore::SharedRegistry,
    ) -> Subject {
        // What the killed ones leave for a moment, the frozen copies that their images were written
        // from, is theirs.
        let together = Some(VARIABLE);
        let options =
            RestoreOptions { shared: Some(registry), together, ..RestoreOptions::default() };
        let restored = Self::restore_with(path, output, options);
        let (subject, child) = restored.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(child.not_named, []);
        subject
    }

    pub fn try_restore(
        path: &Path,
        output: &Path,
        ids: restore::Ids,
    ) -> Result<(Subject, RestoredChild), ProcessImageError> {
        Self::restore_with(path, output, RestoreOptions { ids, ..RestoreOptions::default() })
    }

    pub fn restore_with(
        path: &Path,
        output: &Path,
        options: RestoreOptions,
    ) -> Result<(Subject, RestoredChild), ProcessImageError> {
        let (ours, theirs) = pair();
        let file = std::fs::OpenOptions::new().append(true).create(true).open(output).unwrap();
        let null = File::open("/dev/null").unwrap();
        let options = RestoreOptions {
            supplied: vec![
                (0, null.into()),
                (1, file.try_clone().unwrap().into()),
                (2, file.into()),
                (SOCKET, theirs),
            ],
            payload: b"hello".to_vec(),
            ..options
        };
        let mut child = restore::restore(path, options)?;
        let shared = std::mem::take(&mut child.shared);
        let (pid, output) = (child.pid, output.to_owned());
        let output_bytes = Cell::new(None);
        let subject =
            Subject { pid, socket: ours, output, child: None, runs: true, shared, output_bytes };
        match subject.receive() {
            Answer::Restored { payload, same_ids, .. } => {
                assert_eq!(payload, b"hello");
                assert_eq!(same_ids, child.same_ids);
            }
            other => {
                let (status, text) = subject.finish(5);
                panic!("{other:?}, {status:#x}: {text}")
            }
        }
        Ok((subject, child))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Also one that was restored: a test that fails must leave nothing behind.
        if self.runs {
            self.kill();
        }
    }
}
