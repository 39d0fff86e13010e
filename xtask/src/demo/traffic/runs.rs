//! One run of HPCC on the emulated nodes, with a line that shows how far it is.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{NODES, PPN};
use crate::demo::hpcc::{self, Results};
use crate::error::{Context, Result, fail};
use crate::paths;
use crate::report::{self, ReportedJob};

/// Longer than any machine should need; a hang must not last for ever.
const TIMEOUT_SECONDS: u32 = 600;

/// A run that has ended well.
pub struct TrafficRun {
    /// `stock`, or the way to make sets.
    pub name: String,
    /// What HPCC says.
    pub results: Results,
    /// What our component says.
    pub job: Option<ReportedJob>,
    /// From start to end.
    pub seconds: f64,
}

impl TrafficRun {
    /// The promise: the log holds the payload of messages that leave a set, and nothing else.
    pub fn check_log(&self) -> Result<()> {
        let Some(job) = &self.job else { return Ok(()) };
        let count = |name: &str| job.total.get(name).copied().unwrap_or(0);
        let (logged, outgoing) = (count("log_bytes"), count("sent_outgoing_bytes"));
        if logged != outgoing {
            fail!(
                "sets `{}`: {logged} bytes are in the logs, but {outgoing} bytes were sent to \
                 other sets",
                self.name
            );
        }
        Ok(())
    }
}

/// HPCC over stock Open MPI.
pub fn stock() -> Result<TrafficRun> {
    run("stock", "stock Open MPI", &["--plain"])
}

/// HPCC over our component.
pub fn protected(policy: &str) -> Result<TrafficRun> {
    let title = format!("protected, sets: {policy}");
    // All that is logged is to be there at the end.
    // What is counted is the traffic of the program, not that of its protection.
    let keeps = [
        "--mca",
        "vprotocol_correlated_trim_received",
        "0",
        "--mca",
        "vprotocol_correlated_recover",
        "0",
    ];
    let sets = ["--mca", "vprotocol_correlated_sets", policy, "--report", "report.json"];
    run(policy, &title, &[&keeps[..], &sets].concat())
}

fn run(name: &str, title: &str, how: &[&str]) -> Result<TrafficRun> {
    let folder = paths::out().join("demo").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).context(|| format!("emptying {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    let input = folder.join("hpccinf.txt");
    fs::write(&input, hpcc::input(PPN, NODES)).context(|| input.display().to_string())?;
    let start = Instant::now();
    let mut child = start_cluster(&folder, how)?;
    let status = follow(&mut child, title, &folder.join("hpccoutf.txt"))?;
    let seconds = start.elapsed().as_secs_f64();
    let log = folder.join("output.txt");
    if !status.success() {
        println!();
        let said = fs::read_to_string(&log).unwrap_or_default();
        fail!("HPCC ({title}) ended with {status}. The end of {}:\n{}", log.display(), tail(&said));
    }
    let results = Results::read(&folder.join("hpccoutf.txt"))?;
    let report = folder.join("report.json");
    let job = if report.exists() { Some(report::read(&report)?) } else { None };
    println!(" {seconds:6.1} s  verified");
    Ok(TrafficRun { name: name.into(), results, job, seconds })
}

fn start_cluster(folder: &Path, how: &[&str]) -> Result<Child> {
    let xtask = env::current_exe().context(|| "finding this program".into())?;
    let log = folder.join("output.txt");
    let log = File::create(&log).context(|| log.display().to_string())?;
    let errors = log.try_clone().context(|| "copying a descriptor".into())?;
    let mut cluster = Command::new(xtask);
    cluster.arg("cluster").current_dir(folder).args(how);
    cluster.args(["--nodes", &NODES.to_string(), "--ppn", &PPN.to_string()]);
    cluster.args(["--timeout", &TIMEOUT_SECONDS.to_string(), "--", "hpcc"]);
    cluster.stdin(Stdio::null()).stdout(log).stderr(errors);
    cluster.spawn().context(|| "starting the cluster".into())
}

/// Waits, with a dot for each part of HPCC that has begun.
fn follow(child: &mut Child, title: &str, output: &PathBuf) -> Result<ExitStatus> {
    print!("{title:22} ");
    let mut shown = 0;
    loop {
        let ended = child.try_wait().context(|| "waiting for the cluster".into())?;
        let parts = fs::read_to_string(output).map_or(0, |text| hpcc::parts_begun(&text));
        print!("{}", ".".repeat(parts.saturating_sub(shown)));
        let _ = io::stdout().flush();
        shown = shown.max(parts);
        if let Some(status) = ended {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The last lines of a text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
