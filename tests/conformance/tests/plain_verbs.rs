//! Two plain processes that speak verbs, without MPI: each has a guardian, which takes images of
//! them while nothing is under way between them, kills both, and restores both, with adapters that
//! know nothing of them. The program is `ibv_rc_pingpong`, as its package has it.
//!
//! Over a libibverbs in memory (fake_ibverbs.c) on any machine that has headers, program and the
//! freezer's preload (`cargo test --workspace` builds it); over the adapters that RUSTBTL_ADAPTERS
//! names where that is asked for (`cargo xtask test --rdma`).

#[path = "../../../checkpoint/process/tests/common/mod.rs"]
mod common;

use common::Subject;
use rustbtl_process::dump::WriteOptions;
use rustbtl_process::restore::Ids;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PROGRAM: &str = "ibv_rc_pingpong";
const HEADER: &str = "/usr/include/infiniband/verbs.h";
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the processes find each other, what they run over, and what they are.
struct Job {
    folder: PathBuf,
    /// Devices of the two, and what the program is told of them beside that.
    devices: [String; 2],
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// The shared object that cargo has built beside this test, or that lies beside its copy.
fn shadow() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    test.with_file_name("librustbtl_verbs.so")
}

fn has_program() -> bool {
    Command::new(PROGRAM).arg("--version").output().is_ok()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sockets of a process. One is the guardian's.
fn sockets(pid: u32) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

impl Job {
    fn output(&self, process: usize) -> PathBuf {
        self.folder.join(format!("output.{process}"))
    }

    fn image(&self, process: usize) -> PathBuf {
        self.folder.join(format!("image.{process}"))
    }

    fn start(&self, process: usize, port: u16) -> Subject {
        let mut command = Command::new(PROGRAM);
        command.args(["-p", &port.to_string(), "-d", &self.devices[process]]);
        command.args(&self.arguments).env("LD_PRELOAD", shadow());
        command.env("RUSTBTL_VERBS_FOLDER", &self.folder).envs(self.environment.iter().cloned());
        command
            .env("RUSTBTL_VERBS_PROCESS", process.to_string())
            .env("RUSTBTL_VERBS_PROCESSES", "2");
        if process == 1 {
            command.arg("127.0.0.1");
        }
        Subject::start(&mut command, &self.output(process))
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.folder.join("part"), text).expect("a file");
        fs::rename(self.folder.join("part"), self.folder.join(name)).expect("a file");
    }

    fn get(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok()
    }

    /// Images of both, of a moment at which nothing is under way.
    fn picture(&self, number: u32, subjects: &[Subject; 2]) {
        self.put(&format!("order.{number}"), "hold");
        let held = |process| self.get(&format!("held.{number}.{process}"));
        let said = || [0, 1].map(|process| subjects[process].text());
        until(&format!("both are held: {:?}", said()), || held(0).is_some() && held(1).is_some());
        for (process, subject) in subjects.iter().enumerate() {
            let order = format!("fork;{}", held(process).expect("it was there"));
            let options = WriteOptions { sync: false, ..WriteOptions::default() };
            let image = subject.checkpoint(&order, &self.image(process), &options);
            image.unwrap_or_else(|refused| panic!("process {process}: {refused}"));
        }
    }

    /// What each of them says of an order, when it has carried it out.
    fn results(&self, number: u32) -> [String; 2] {
        let result = |process| self.get(&format!("result.{number}.{process}"));
        until("both have gone on", || result(0).is_some() && result(1).is_some());
        [0, 1].map(|process| result(process).expect("it was there"))
    }

    /// Both are killed and restored, twice; the second time they went on from their images first.
    fn run(&self, port: u16, iterations: u32) {
        let server = self.start(0, port);
        let listens = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let is_port = words.next().is_some_and(|own| own.ends_with(&format!(":{port:04X}")));
            is_port && words.nth(1) == Some("0A")
        };
        until("the server listens", || {
            let table = |table| fs::read_to_string(format!("/proc/net/{table}"));
            ["tcp", "tcp6"].into_iter().flat_map(table).any(|table| table.lines().any(listens))
        });
        let mut subjects = [server, self.start(1, port)];
        let queue_pairs = || {
            let names = fs::read_dir(&self.folder).into_iter().flatten().flatten();
            names.filter(|name| name.file_name().to_string_lossy().starts_with("0.qp.")).count()
        };
        until("queue pairs", || queue_pairs() == 2);
        // By connections the program only exchanges names, before anything else.
        until("they have met", || subjects.iter().all(|subject| sockets(subject.pid) == 1));
        for number in 0..2 {
            self.picture(number, &subjects);
            if number == 1 {
                self.put(&format!("go.{number}"), "keep");
                let said = self.results(number);
                assert!(said.iter().all(|said| said.starts_with("ok: ")), "{said:?}");
                std::thread::sleep(Duration::from_millis(50));
                for process in 0..2 {
                    let result = self.folder.join(format!("result.{number}.{process}"));
                    fs::remove_file(result).expect("it was there");
                }
            }
            for (process, subject) in subjects.iter_mut().enumerate() {
                assert!(!subject.text().contains("iters in"), "process {process} has ended before");
                subject.kill();
            }
            self.put(&format!("go.{number}"), "restored");
            // Locks of the adapter in memory name their owners by these ids.
            subjects = [0, 1].map(|process| {
                let image = self.image(process);
                Subject::restore(&image, &self.output(process), Ids::SameIfPermitted).0
            });
            let said = self.results(number);
            let again = |said: &String| said.starts_with("ok: ") && said.contains("posted again");
            assert!(said.iter().all(again), "{said:?}");
        }
        for subject in subjects {
            let (status, said) = subject.finish(100);
            let done = said.matches(&format!("{iterations} iters in")).count();
            assert_eq!((status, done), (0, 1), "{said}");
        }
    }
}

/// The adapter in memory, by its file: a process that ends a minute after its last user.
struct Adapter(String);

impl Drop for Adapter {
    fn drop(&mut self) {
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let is_it = words.split(|byte| *byte == 0).nth(1) == Some(self.0.as_bytes());
            let pid = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            if let Some(pid) = pid.filter(|_| is_it) {
                // SAFETY: the process that this test's program has started.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        let _ = fs::remove_file(&self.0);
    }
}

/// A fresh folder below cargo's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guarded-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn compile(folder: &Path, arguments: &[&str], name: &str) -> String {
    let (compiler, to) =
        (std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()), folder.join(name));
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shadow/library/tests/fake_ibverbs.c");
    let mut compiler = Command::new(compiler);
    let output = compiler.args(["-O1", "-pthread"]).args(arguments).arg(source).arg("-o").arg(&to);
    let output = output.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to.display().to_string()
}

#[test]
fn two_processes_are_killed_and_restored_over_adapters_in_memory() {
    if !Path::new(HEADER).exists() || !has_program() || !common::preload().exists() {
        eprintln!("skipped: no {HEADER}, no {PROGRAM}, or no {}", common::preload().display());
        return;
    }
    let folder = folder("memory");
    let library = ["-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1"];
    compile(&folder, &library, "libibverbs.so.1");
    let server = compile(&folder, &["-DSERVER"], "server");
    let world = format!("/dev/shm/infiniband/guarded-{}", std::process::id());
    let job = Job {
        devices: ["fake0".to_owned(), "fake1".to_owned()],
        arguments: ["-n", "6000", "-s", "4096", "-r", "16"].map(str::to_owned).to_vec(),
        environment: vec![
            ("LD_LIBRARY_PATH", folder.display().to_string()),
            ("FAKE_IBVERBS_SERVER", server),
            ("FAKE_IBVERBS_WORLD", world.clone()),
        ],
        folder,
    };
    let _adapter = Adapter(world);
    job.run(18_600, 6000);
}

#[test]
#[ignore = "needs adapters: cargo xtask test --rdma"]
fn two_processes_are_killed_and_restored() {
    let adapters = std::env::var("RUSTBTL_ADAPTERS").expect("RUSTBTL_ADAPTERS=rxe1,rxe2");
    let (first, second) = adapters.split_once(',').expect("two adapters");
    let folder = std::env::temp_dir().join("guarded");
    fs::create_dir_all(&folder).expect("a folder");
    let job = Job {
        folder,
        devices: [first.to_owned(), second.to_owned()],
        arguments: ["-g", "1", "-n", "3000", "-s", "65536"].map(str::to_owned).to_vec(),
        environment: Vec::new(),
    };
    job.run(18_515, 3000);
}
