//! A job on this host without MPI: a real coordinator, real guardians and agents, pretended ranks.
#![allow(dead_code, reason = "not every test uses everything")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// An example of this crate.
pub fn example(name: &str) -> PathBuf {
    let test = env::current_exe().expect("this test");
    let target = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let file = target.join("examples").join(name);
    assert!(file.is_file(), "{} is not built: run `cargo test -p rustbtl-runtime`", file.display());
    file
}

/// Limit of every wait. Nothing here is about speed: the machine may be busy with jobs and
/// compilers, and these processes are behind them.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Wait until it is so.
pub fn wait_for(what: &str, mut good: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_MAX;
    while !good() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A folder of a test's own.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("rbt-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        for sub in ["run", "tmp", "checkpoints", "out"] {
            fs::create_dir_all(path.join(sub)).expect("a folder");
        }
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The job.
pub struct Job {
    pub scratch: Scratch,
    pub coordinator: Child,
    input: Option<ChildStdin>,
    pub answers: BufReader<ChildStdout>,
    pub port: String,
    pub name: String,
    pub secret: String,
    pub size: u32,
    pub guardians: Vec<Child>,
    restore: Option<PathBuf>,
    /// The coordinator's configuration, as mpirun sends it.
    config: String,
    /// Nodes keep their images themselves.
    local: bool,
}

impl Job {
    /// A coordinator; `more`: further lines of its configuration.
    pub fn start(size: u32, more: &str) -> Self {
        Self::start_in(Scratch::new(), size, more, None)
    }

    pub fn start_in(scratch: Scratch, size: u32, more: &str, restore: Option<PathBuf>) -> Self {
        let storage = format!("dir {}", scratch.0.join("checkpoints").display());
        Self::start_with(scratch, size, &storage, more, restore)
    }

    /// Nodes keep their images themselves, with so many replicas on others.
    pub fn start_local(size: u32, replicas: u32) -> Self {
        Self::start_local_in(Scratch::new(), size, replicas)
    }

    pub fn start_local_in(scratch: Scratch, size: u32, replicas: u32) -> Self {
        Self::start_local_with(scratch, size, replicas, "")
    }

    /// `more`: further lines of the configuration.
    pub fn start_local_with(scratch: Scratch, size: u32, replicas: u32, more: &str) -> Self {
        Self::start_with(scratch, size, &format!("copies {replicas}"), more, None)
    }

    fn start_with(
        scratch: Scratch,
        size: u32,
        storage: &str,
        more: &str,
        restore: Option<PathBuf>,
    ) -> Self {
        let local = storage.starts_with("copies");
        let restore_from = restore.as_ref().map(|folder| format!("restore {}\n", folder.display()));
        let restore_from = restore_from.unwrap_or_default();
        let session = scratch.0.join("run").display().to_string();
        let config = format!(
            "{storage}\nlog {session}\nsize {size}\narg ./a\nrecover 0\n{more}{restore_from}"
        );
        let (coordinator, input, answers, [port, name, secret]) = begin(&scratch, &config, "");
        let (input, guardians) = (Some(input), Vec::new());
        Self {
            scratch,
            coordinator,
            input,
            answers,
            port,
            name,
            secret,
            size,
            guardians,
            restore,
            config,
            local,
        }
    }

    /// Kills the coordinator, and starts another one in its place, as mpirun does it.
    pub fn fail_over(&mut self) {
        let _ = (self.coordinator.kill(), self.coordinator.wait());
        let failover = format!("again {} {} {}\n", self.name, self.port, self.secret);
        let (coordinator, input, answers, who) = begin(&self.scratch, &self.config, &failover);
        assert_eq!(who, [self.port.clone(), self.name.clone(), self.secret.clone()]);
        (self.coordinator, self.input, self.answers) = (coordinator, Some(input), answers);
    }

    /// Where a rank's output goes.
    pub fn output(&self, rank: u32) -> PathBuf {
        self.scratch.0.join("out").join(format!("{rank}-{}", self.name))
    }

    pub fn printed(&self, rank: u32) -> String {
        fs::read_to_string(self.output(rank)).unwrap_or_default()
    }

    /// What the coordinator has reported to the user.
    pub fn reported(&self) -> String {
        fs::read_to_string(self.scratch.0.join("stderr")).unwrap_or_default()
    }

    /// Its events.
    pub fn events(&self) -> Vec<serde_json::Value> {
        let file = self.scratch.0.join("checkpoints").join(&self.name).join("events.jsonl");
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Writes a line to mpirun's pipe to the coordinator.
    pub fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("a pipe"), "{line}").expect("it reads");
    }

    /// A guardian as orted starts it, on a "node" of its own if `node` differs.
    pub fn guardian(&self, rank: u32, node: &str, program: &[&str]) -> Command {
        let tmp = self.scratch.0.join("tmp").join(node);
        fs::create_dir_all(&tmp).expect("a folder");
        let mut command = Command::new(example("plain_images"));
        command.arg("guardian").args(program);
        command.env("RUSTBTL_JOB", &self.name).env("RUSTBTL_SECRET", &self.secret);
        command.env("RUSTBTL_COORDINATOR", format!("{} 0.0;tcp://127.0.0.1:1", self.port));
        command.env("PMIX_SERVER_TMPDIR", &tmp);
        command.env("OMPI_COMM_WORLD_RANK", rank.to_string());
        command.env("OMPI_COMM_WORLD_SIZE", self.size.to_string());
        if self.local {
            command.env("RUSTBTL_LOCAL", self.scratch.0.join("local")).env("RUSTBTL_NODE", node);
        }
        if let Some(restore) = &self.restore {
            command.env("RUSTBTL_RESTORE", restore);
        }
        let out = fs::File::create(self.output(rank)).expect("a file");
        command.stdout(out.try_clone().expect("a copy")).stderr(out);
        command
    }

    /// A guardian that a shell starts: `"$@"` in its script.
    pub fn guardian_under(&self, script: &str, rank: u32, node: &str, program: &[&str]) -> Command {
        let guardian = self.guardian(rank, node, program);
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(guardian.get_program()).args(guardian.get_args());
        shell.envs(guardian.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let out = fs::File::create(self.output(rank)).expect("a file");
        shell.stdout(out.try_clone().expect("a copy")).stderr(out);
        shell
    }

    /// The same, with output that is counted.
    pub fn counting_guardian(&self, rank: u32, node: &str, program: &[&str]) -> Command {
        let mut command = self.guardian(rank, node, program);
        command.env("RUSTBTL_FOLDER", self.scratch.0.join("checkpoints").join(&self.name));
        command
    }

    /// All pretended ranks, two on each node.
    pub fn ranks(mut self) -> Self {
        let rank = example("pretend_rank").display().to_string();
        let folder = self.scratch.0.display().to_string();
        for number in 0..self.size {
            let node = format!("n{}", number / 2);
            let child = self.guardian(number, &node, &[&rank, &folder]).spawn();
            self.guardians.push(child.expect("a guardian"));
        }
        self
    }

    pub fn touch(&self, file: &str) {
        fs::write(self.scratch.0.join(file), "").expect("a file");
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.scratch.0.join(file)).expect("a file");
    }

    /// The `rustbtl` command: exit code, everything it prints.
    pub fn command(&self, words: &[&str]) -> (i32, String) {
        let mut command = Command::new(example("plain_images"));
        command.args(words).env_remove("RUSTBTL_JOBS");
        command.env("XDG_RUNTIME_DIR", self.scratch.0.join("run"));
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// `rustbtl checkpoint` of this job, whatever else runs on this host.
    pub fn checkpoint(&self, words: &[&str]) -> (i32, String) {
        self.command(&[&["checkpoint"], words, &[self.name.as_str()]].concat())
    }

    pub fn status(&self) -> serde_json::Value {
        let (code, text) = self.command(&["status", "--json", &self.name]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    pub fn ready_ranks(&self) -> usize {
        let status = self.status();
        let ranks = status["ranks"].as_array().expect("ranks");
        ranks.iter().filter(|rank| rank["state"] == "ready").count()
    }

    pub fn wait_until_ready(&self) {
        wait_for("all ranks are ready", || self.ready_ranks() == self.size as usize);
    }

    pub fn manifests(&self) -> usize {
        let folder = self.scratch.0.join("checkpoints").join(&self.name);
        let checkpoints = fs::read_dir(folder).into_iter().flatten().flatten();
        checkpoints.filter(|folder| folder.path().join("manifest.json").exists()).count()
    }

    /// mpirun reports that a node is lost.
    pub fn lose(&mut self, node: &str) {
        let input = self.input.as_mut().expect("mpirun is there");
        writeln!(input, "lost {node}").expect("it reads");
    }

    /// What mpirun is answered next.
    pub fn answered(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        line
    }

    /// First answer of another coordinator that is to take over.
    pub fn failover_answer(&self) -> String {
        let failover = format!("again {} {} {}\n", self.name, self.port, self.secret);
        let mut other = spawn(&self.scratch);
        let mut input = other.stdin.take().expect("a pipe");
        writeln!(input, "{}{failover}go", self.config).expect("it reads");
        let mut answer = String::new();
        let mut answers = BufReader::new(other.stdout.take().expect("a pipe"));
        answers.read_line(&mut answer).expect("an answer");
        drop(input);
        let _ = other.wait();
        answer
    }

    /// mpirun closes its pipe.
    pub fn hang_up(&mut self) {
        drop(self.input.take());
    }

    /// Let the ranks finish; their exit codes.
    pub fn finish(&mut self) -> Vec<i32> {
        self.touch("finish");
        let codes = self.guardians.iter_mut().map(|guardian| code(&end(guardian))).collect();
        self.guardians.clear();
        codes
    }

    /// mpirun ends; then nothing may be left of the job.
    pub fn end(mut self) -> Scratch {
        drop(self.input.take());
        assert!(end(&mut self.coordinator).success());
        let left = |folder: &Path| fs::read_dir(folder).map_or(0, Iterator::count);
        assert_eq!(left(&self.scratch.0.join("run/rustbtl")), 0, "a socket is left");
        let nodes = fs::read_dir(self.scratch.0.join("tmp")).expect("nodes");
        let nodes: Vec<PathBuf> = nodes.flatten().map(|node| node.path()).collect();
        wait_for("agents are gone", || nodes.iter().all(|node| left(node) == 0));
        wait_for("images are gone", || left(&self.scratch.0.join("local")) == 0);
        core::mem::replace(&mut self.scratch, Scratch(PathBuf::from("/nonexistent")))
    }
}

fn spawn(scratch: &Scratch) -> Child {
    let mut command = Command::new(example("plain_images"));
    command.arg("coordinator").env_remove("RUSTBTL_JOBS");
    command.env("XDG_RUNTIME_DIR", scratch.0.join("run"));
    command.env("RUSTBTL_EVENTS", &scratch.0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(fs::File::create(scratch.0.join("stderr")).expect("a file"));
    command.spawn().expect("a coordinator")
}

/// A coordinator that has answered: port, name and secret.
fn begin(
    scratch: &Scratch,
    config: &str,
    failover: &str,
) -> (Child, ChildStdin, BufReader<ChildStdout>, [String; 3]) {
    let mut coordinator = spawn(scratch);
    let mut input = coordinator.stdin.take().expect("a pipe");
    writeln!(input, "{config}{failover}go").expect("it reads");
    let mut answers = BufReader::new(coordinator.stdout.take().expect("a pipe"));
    let mut answer = String::new();
    answers.read_line(&mut answer).expect("an answer");
    let words: Vec<&str> = answer.split_whitespace().collect();
    assert_eq!((words.len(), words[0]), (4, "ok"), "{answer}");
    (coordinator, input, answers, [1, 2, 3].map(|at| words[at].to_owned()))
}

impl Drop for Job {
    fn drop(&mut self) {
        for guardian in &mut self.guardians {
            let _ = (guardian.kill(), guardian.wait());
        }
        let _ = (self.coordinator.kill(), self.coordinator.wait());
    }
}

/// How a process has ended, which it does soon.
pub fn end(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_for("a process ends", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.expect("ended")
}

/// As a shell reports it.
pub fn code(status: &ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The agent's process on a "node" of the job: whoever has its directory as an argument.
pub fn agent_pid(job: &Job, node: &str) -> Option<i32> {
    let tmp = job.scratch.0.join("tmp").join(node).display().to_string();
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    for process in processes {
        let mut line = Vec::new();
        let file = fs::File::open(process.path().join("cmdline"));
        if file.and_then(|mut file| file.read_to_end(&mut line)).is_err() {
            continue;
        }
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        if words.get(1) == Some(&&b"agent"[..])
            && words.get(2).is_some_and(|path| path.starts_with(tmp.as_bytes()))
        {
            return process.file_name().to_string_lossy().parse().ok();
        }
    }
    None
}
