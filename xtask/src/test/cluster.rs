//! The emulated cluster itself: exit codes, streams, signals, and that nothing is left.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::job::{self, TestJob};
use super::scratch::Scratch;
use super::summary::Tier;
use crate::error::{Context, Result, fail};
use crate::sys;

/// Runs the tier; no component is needed, everything is stock Open MPI.
pub fn run(tier: &mut Tier) {
    tier.check("ranks fill the nodes in order", ranks_fill_nodes);
    tier.check("exit codes are those of mpirun", exit_codes);
    tier.check("stdin reaches rank 0", stdin_reaches_rank_0);
    tier.check("variables with spaces reach every rank", environment);
    tier.check("ranks start in the folder of the user", folder);
    tier.check("a job that takes too long ends with 124", time_limit);
    tier.check("two clusters at a time do not collide", two_at_a_time);
    for (name, signal) in [("SIGINT", libc::SIGINT), ("SIGTERM", libc::SIGTERM)] {
        tier.check(&format!("{name} ends everything"), || ended_by(signal));
    }
    tier.check("SIGHUP ends everything", || ended_by(libc::SIGHUP));
    tier.check("even SIGKILL leaves nothing", || ended_by(libc::SIGKILL));
    tier.check("works without root", without_root);
}

fn plain(nodes: u32, ppn: u32, command: &[&str]) -> TestJob {
    TestJob::new(nodes, ppn, command).with(&["--plain"])
}

fn ranks_fill_nodes() -> Result<()> {
    let script = "echo $OMPI_COMM_WORLD_RANK $(hostname)";
    let outcome = plain(3, 2, &["sh", "-c", script]).run()?;
    let mut lines: Vec<&str> = outcome.stdout.lines().collect();
    lines.sort_unstable();
    let wanted = ["0 n0", "1 n0", "2 n1", "3 n1", "4 n2", "5 n2"];
    outcome.must(outcome.code == 0 && lines == wanted, "ranks are not where they should be")
}

fn exit_codes() -> Result<()> {
    for (script, wanted) in [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", 139)] {
        let outcome = plain(2, 1, &["sh", "-c", script]).run()?;
        outcome.must(outcome.code == wanted, &format!("`{script}` should end with {wanted}"))?;
    }
    Ok(())
}

fn stdin_reaches_rank_0() -> Result<()> {
    let mut job = plain(2, 1, &["cat"]);
    let input = Scratch::new("stdin")?;
    let file = input.0.join("input");
    let text = "a line\n".repeat(20_000);
    fs::write(&file, &text).context(|| file.display().to_string())?;
    job.stdin = Some(file);
    let outcome = job.run()?;
    if outcome.code != 0 || outcome.stdout != text {
        fail!("{} bytes of {} came back", outcome.stdout.len(), text.len());
    }
    Ok(())
}

fn environment() -> Result<()> {
    let job = plain(2, 1, &["sh", "-c", "echo \"$WORDS\""]).with(&["--env", "WORDS=a b;c, d=e"]);
    let outcome = job.run()?;
    outcome.must(outcome.stdout == "a b;c, d=e\n".repeat(2), "the variable is not the same")
}

fn folder() -> Result<()> {
    let place = Scratch::new("folder with space")?;
    let mut job = plain(2, 1, &["pwd"]);
    job.folder = place.0.clone();
    let outcome = job.run()?;
    let wanted = format!("{}\n", place.0.display()).repeat(2);
    outcome.must(outcome.stdout == wanted, "ranks started in another folder")
}

fn time_limit() -> Result<()> {
    let token = token();
    let mut job = plain(2, 1, &["sleep", &token]);
    job.seconds = 1;
    let outcome = job.run()?;
    outcome.must(outcome.code == 124, "it should have ended with 124")?;
    nothing_left(&token)
}

fn two_at_a_time() -> Result<()> {
    let run = || plain(3, 1, &["sh", "-c", "sleep 1; hostname -I"]).run();
    let other = thread::spawn(run);
    let (one, two) = (run()?, other.join().expect("a job does not panic")?);
    for outcome in [one, two] {
        let good = outcome.code == 0 && outcome.stdout.contains("10.77.0.3");
        outcome.must(good, "one of two clusters did not work")?;
    }
    Ok(())
}

fn ended_by(signal: i32) -> Result<()> {
    let token = token();
    let xtask = env::current_exe().context(|| "finding this program".into())?;
    let mut command = plain(2, 2, &["sleep", &token]).command(&[xtask.as_os_str()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(sys::heed_signals) };
    let mut child = command.spawn().context(|| "starting a cluster".into())?;
    let all_run = |seen: usize| seen >= 4;
    wait_for("four ranks", &token, all_run)?;
    sys::kill(child.id() as libc::pid_t, signal);
    let code = job::wait(&mut child, Duration::from_secs(15))?;
    if code == 0 {
        fail!("the cluster was ended, but its exit code is 0");
    }
    nothing_left(&token)
}

/// Only the kernel can decide whether this user may make namespaces: then it must work.
fn without_root() -> Result<()> {
    if sys::euid() != 0 {
        return ranks_fill_nodes(); // we have no root ourselves
    }
    let place = Scratch::new("nobody")?;
    let copy = place.0.join("xtask");
    let xtask = env::current_exe().context(|| "finding this program".into())?;
    fs::copy(xtask, &copy).context(|| copy.display().to_string())?;
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let mut program: Vec<&OsStr> = nobody.iter().map(OsStr::new).collect();
    program.push(copy.as_os_str());
    let mut job = plain(3, 1, &["hostname"]);
    job.folder = PathBuf::from("/");
    let outcome = job.run_under(&program)?;
    let good = outcome.code == 0 && outcome.stdout.contains("n2");
    let refused = outcome.code == 125 && outcome.stderr.contains("user namespaces");
    outcome.must(good || refused, "neither done nor refused with a clear message")
}

/// A word that no other process on this machine has in its command line, and that sleep accepts.
pub(super) fn token() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("7{:07}.{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Processes that were started as `sleep TOKEN`.
fn sleepers(token: &str) -> usize {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let wanted = format!("sleep\0{token}\0");
    folders
        .filter(|f| fs::read(f.path().join("cmdline")).is_ok_and(|c| c == wanted.as_bytes()))
        .count()
}

fn wait_for(what: &str, token: &str, good: impl Fn(usize) -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while !good(sleepers(token)) {
        if Instant::now() > end {
            fail!("waited in vain for {what}; {} processes are there", sleepers(token));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn nothing_left(token: &str) -> Result<()> {
    // After a SIGKILL the kernel needs a moment.
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end && sleepers(token) > 0 {
        thread::sleep(Duration::from_millis(10));
    }
    match sleepers(token) {
        0 => Ok(()),
        left => fail!("{left} processes of the job are still there"),
    }
}
