//! One run of one program on one side.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::busy::Busy;
use super::experiments::{Experiment, Kind, Program, STOCK, Side};
use super::measured::{self, MeasuredRun, Value};
use super::{applications, callgrind, hpcc, log_append, nas, ucx};
use crate::error::{Context, Result, fail};
use crate::{build, paths, run};

/// Longer than any run should need, even on a busy machine.
const TIMEOUT_SECONDS: u32 = 300;
/// No checkpoint trims the log yet: room for all that a run logs, so that nothing is spilled.
const LOG_BUDGET: &str = "8589934592";
/// The parameter that makes the difference between the plain command and the engine alone.
const RECOVER: &str = "vprotocol_correlated_recover";

/// How much is measured, and with what.
pub struct Bench {
    /// Repeats within a run, of which the median counts.
    pub repeats: u32,
    /// Smaller problems for HPCC.
    pub quick: bool,
    /// Our component as it was at the start, whatever is built meanwhile.
    component: PathBuf,
    /// Compiled programs.
    programs: PathBuf,
    /// What runs write.
    pub scratch: PathBuf,
}

/// Folder of the programs' sources.
pub fn sources() -> PathBuf {
    paths::root().join("tests/bench")
}

impl Bench {
    /// Builds what is needed for the experiments and keeps a copy of the component.
    pub fn prepare(quick: bool, experiments: &[Experiment]) -> Result<Bench> {
        let folder = paths::target().join("bench");
        let bench = Bench {
            repeats: if quick { 3 } else { 5 },
            quick,
            component: folder.join("mca"),
            programs: folder.join("programs"),
            scratch: folder.join("scratch"),
        };
        for folder in [&bench.component, &bench.programs, &bench.scratch] {
            fs::create_dir_all(folder).context(|| folder.display().to_string())?;
        }
        let sides = || experiments.iter().flat_map(|e| e.sides);
        let is_ours = |side: &Side| {
            !matches!(side.kind, Kind::Stock | Kind::StockWith(_) | Kind::Bare | Kind::Ucx)
        };
        if sides().any(is_ours) {
            build::ensure_optimised()?;
            for file in
                fs::read_dir(paths::mca()).context(|| "reading target/mca".into())?.flatten()
            {
                let to = bench.component.join(file.file_name());
                if file.file_type().is_ok_and(|kind| kind.is_file()) {
                    fs::copy(file.path(), &to).context(|| to.display().to_string())?;
                }
            }
        }
        for name in [
            "p2p",
            "many",
            "crowd",
            "helpers",
            "services",
            "traffic",
            "neighbours",
            "count",
            "floor",
            "wire",
            "one_sided",
            "collectives",
        ] {
            bench.compile(&sources().join(name).with_extension("c"))?;
        }
        let workloads = experiments.iter().filter_map(|e| match e.program {
            Program::Workload(name, _) => Some(name),
            _ => None,
        });
        for name in workloads {
            let folder = paths::root().join("tests/workloads");
            bench.compile(&folder.join(name).with_extension("c"))?;
        }
        if experiments.iter().any(|e| e.program == Program::LogAppend) {
            log_append::build()?;
        }
        Ok(bench)
    }

    fn compile(&self, source: &Path) -> Result<()> {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let compiler = if name == "floor" { "gcc" } else { "mpicc" };
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-O2", "-o"]).arg(self.program(&name)).arg(source);
        run::output(command.arg("-lm")).map(drop)
    }

    /// A compiled program of tests/bench.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Runs it; what goes wrong is kept in the result, so that the rest goes on.
    pub fn measure(&self, experiment: &Experiment, side: &Side, pair: usize) -> MeasuredRun {
        let (start, busy) = (Instant::now(), Busy::now());
        let outcome = self.values(experiment, side);
        let (values, failure) = match outcome {
            Ok(values) if values.is_empty() => (values, Some("it has printed no number".into())),
            Ok(values) => (values, None),
            Err(failure) => (Vec::new(), Some(failure.0)),
        };
        MeasuredRun {
            experiment: experiment.name,
            side: side.name,
            pair,
            seconds: start.elapsed().as_secs_f64(),
            others: busy.others(),
            values,
            failure,
        }
    }

    fn values(&self, experiment: &Experiment, side: &Side) -> Result<Vec<Value>> {
        match (experiment.program, side.kind) {
            (Program::LogAppend, _) => log_append::measure(self.quick),
            (Program::Hpcc, _) => hpcc::measure(self, experiment, side),
            (Program::Nas(name), _) => nas::measure(self, experiment, side, name),
            (Program::Application(application), _) => {
                applications::measure(self, experiment, side, application)
            }
            (Program::Instructions, _) => callgrind::measure(self, side),
            (Program::Own(_, arguments), Kind::Ucx) => ucx::measure(self, experiment, arguments),
            (Program::Own(..), Kind::Bare) if experiment.shape.0 > 1 => {
                self.own_job(experiment, &STOCK, "wire", experiment.bare)
            }
            (Program::Own(..), Kind::Bare) => {
                let mut floor = Command::new(self.program("floor"));
                floor.args(experiment.bare).arg(self.repeats.to_string());
                Ok(measured::understand(&run::output(&mut floor)?))
            }
            (Program::Own(program, arguments), _) => {
                self.own_job(experiment, side, program, arguments)
            }
            (Program::Workload(name, arguments), _) => {
                let mut words = vec![self.program(name).display().to_string()];
                words.extend(arguments.iter().map(ToString::to_string));
                let times = ["TIMES=1"];
                let text = self.job(experiment.shape, side, &words, &self.scratch, &times)?;
                Ok(measured::understand(&text))
            }
        }
    }

    /// Runs a program of tests/bench over MPI.
    fn own_job(
        &self,
        experiment: &Experiment,
        side: &Side,
        program: &str,
        arguments: &[&str],
    ) -> Result<Vec<Value>> {
        let mut words = vec![self.program(program).display().to_string()];
        words.extend(arguments.iter().map(ToString::to_string));
        words.push(self.repeats.to_string());
        if side.threads {
            words.push("multiple".into());
        }
        let text = self.job(experiment.shape, side, &words, &self.scratch, &[])?;
        Ok(measured::understand(&text))
    }

    /// Runs an MPI job on emulated nodes; gives its output.
    pub fn job(
        &self,
        (nodes, ppn): (u32, u32),
        side: &Side,
        words: &[String],
        folder: &Path,
        environment: &[&str],
    ) -> Result<String> {
        let xtask = env::current_exe().context(|| "finding this program".into())?;
        let mut job = Command::new(xtask);
        job.current_dir(folder).stdin(Stdio::null());
        job.args(["cluster", "--nodes", &nodes.to_string(), "--ppn", &ppn.to_string()]);
        job.args(["--timeout", &TIMEOUT_SECONDS.to_string()]);
        let few = nodes * ppn <= 2;
        let binding = if nodes == 1 && few { "core" } else { "none" };
        job.args(["--plain", "--mca", "hwloc_base_binding_policy", binding]);
        job.args(self.parameters(side).iter().flat_map(|(key, value)| ["--mca", key, value]));
        job.args(environment.iter().flat_map(|variable| ["--env", variable]));
        job.arg("--");
        if nodes > 1 && few {
            job.arg(sources().join("pin.sh"));
        }
        let output = job.args(words).output().context(|| run::line(&job))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !output.status.success() {
            let errors = text(&output.stderr);
            fail!("`{}` ended with {}:\n{}", run::line(&job), output.status, errors.trim_end());
        }
        Ok(text(&output.stdout))
    }

    /// What makes a plain job ours. (Without `--plain` the cluster would check at every start if
    /// the component has to be built again.)
    fn parameters(&self, side: &Side) -> Vec<(&'static str, String)> {
        const LOG: (&str, &str) = ("vprotocol_correlated_log_budget", LOG_BUDGET);
        let path = format!("{}:SYSTEM_DEFAULT", self.component.display());
        let own: &[(&'static str, &str)] = match side.kind {
            // What is measured is the engine, not checkpoints; `--checkpoints` measures those.
            Kind::Ours(sets) => &[LOG, (RECOVER, "0"), ("vprotocol_correlated_sets", sets)],
            Kind::Ready(bytes) => {
                &[LOG, (RECOVER, "0"), ("vprotocol_correlated_log_prefault", bytes)]
            }
            Kind::Plain => &[LOG, (RECOVER, "1")],
            Kind::Defaults(beside) => beside,
            Kind::StockWith(beside) => {
                return beside.iter().map(|&(name, value)| (name, value.to_string())).collect();
            }
            Kind::Btl => {
                let btl = ("btl", "rustbtl,self".to_string());
                return vec![("mca_base_component_path", path), btl];
            }
            Kind::Stock | Kind::Bare | Kind::Ucx => return Vec::new(),
        };
        let all = [("mca_base_component_path", &*path), ("pml", "v"), ("vprotocol", "correlated")];
        all.iter().chain(own).map(|&(name, value)| (name, value.to_string())).collect()
    }
}

/// A script of tests/bench.
pub fn script(name: &str) -> String {
    sources().join(name).display().to_string()
}
