//! Programs of others as users run them, with everything on and default parameters, beside stock:
//! LAMMPS, GROMACS and OpenFOAM from Debian's packages. Those that are not installed are left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::experiments::{DEFAULTS, Experiment, Program, STOCK, Side, TWO_NODES};
use super::launch::{Bench, sources};
use super::measured::Value;
use super::nas::end;
use super::rows::{Goal, Row, Unit, against};
use crate::error::{Context, Result, fail, failure};
use crate::{paths, run};

const SIDES: &[Side] = &[STOCK, DEFAULTS];
/// One thread, since each rank has one processor; and where Debian's OpenFOAM has its own files.
const ENVIRONMENT: [(&str, &str); 2] =
    [("OMP_NUM_THREADS", "1"), ("WM_PROJECT_DIR", "/usr/share/openfoam")];

/// What is run, and what of its time counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Application {
    /// A Lennard-Jones fluid, so many cells of 4 atoms long, so many steps: LAMMPS' own time of
    /// its loop.
    Lammps(u32, u32),
    /// Water with particle-mesh Ewald sums: GROMACS' own wall time.
    Gromacs,
    /// icoFoam, a cube with a lid that moves: the whole job.
    OpenFoam,
}

type Run = (&'static str, &'static str, Application, (u32, u32));

/// Names of experiments, what they are called in the table, and nodes and ranks on each.
const RUNS: [Run; 6] = [
    ("app-lammps-4k", "LAMMPS, 4,000 atoms", Application::Lammps(10, 12_000), TWO_NODES),
    ("app-lammps-32k", "LAMMPS, 32,000 atoms", Application::Lammps(20, 1_500), TWO_NODES),
    ("app-gromacs", "GROMACS, water", Application::Gromacs, TWO_NODES),
    ("app-openfoam", "OpenFOAM, icoFoam", Application::OpenFoam, TWO_NODES),
    ("app-lammps-3x1", "LAMMPS, 3 nodes", Application::Lammps(20, 1_500), (3, 1)),
    ("app-lammps-4x2", "LAMMPS, 4 nodes of 2", Application::Lammps(20, 1_500), (4, 2)),
];

impl Application {
    /// The programs that it takes, and Debian's package of them.
    fn needs(self) -> (&'static [&'static str], &'static str) {
        match self {
            Application::Lammps(..) => (&["lmp"], "lammps"),
            Application::Gromacs => (&["gmx", "gmx_mpi"], "gromacs"),
            Application::OpenFoam => (&["blockMesh", "decomposePar", "icoFoam"], "openfoam"),
        }
    }
}

/// All of them.
pub fn experiments() -> impl Iterator<Item = Experiment> {
    RUNS.into_iter().map(|(name, _, application, shape)| Experiment {
        name,
        sides: SIDES,
        shape,
        program: Program::Application(application),
        bare: &[],
        once: false,
    })
}

/// Their lines of the table.
pub fn rows() -> Vec<Row> {
    const TITLE: &str = "programs of others, 2 nodes of one rank";
    const CROWD: &str = "programs of others, more ranks than processors, yield when idle";
    const PAIR: (&str, &str, &str) = ("everything on, defaults / stock", DEFAULTS.name, STOCK.name);
    RUNS.into_iter()
        .map(|(name, label, _, shape)| {
            let title = if shape == TWO_NODES { TITLE } else { CROWD };
            against(title, name, Unit::Seconds, PAIR).labelled(label, 0, Goal::AtMost(1.03))
        })
        .collect()
}

/// Leaves out what is not installed, and says so.
pub fn keep_possible(experiments: &mut Vec<Experiment>) {
    if let Some(message) = leave_out(experiments, |name| paths::find_program(name).is_some()) {
        eprintln!("\nbench: WARNING: {message}\n");
    }
}

fn leave_out(experiments: &mut Vec<Experiment>, there: impl Fn(&str) -> bool) -> Option<String> {
    let mut packages = BTreeSet::new();
    experiments.retain(|experiment| {
        let Program::Application(application) = experiment.program else { return true };
        let (programs, package) = application.needs();
        let all = programs.iter().all(|name| there(name));
        if !all {
            packages.insert(package);
        }
        all
    });
    let packages = packages.into_iter().collect::<Vec<_>>().join(" ");
    (!packages.is_empty()).then(|| {
        format!(
            "programs that are not installed are not measured: `apt-get install \
             --no-install-recommends {packages}`"
        )
    })
}

/// Runs one of them in a folder of its own; its time, if it has come to its end.
pub fn measure(
    bench: &Bench,
    experiment: &Experiment,
    side: &Side,
    application: Application,
) -> Result<Vec<Value>> {
    let folder = bench.scratch.join(experiment.name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    paths::copy_contents(&sources().join("applications"), &folder)?;
    let job = |folder: &Path, words: &[&str]| {
        let words: Vec<_> = words.iter().map(ToString::to_string).collect();
        let environment = ENVIRONMENT.map(|(name, value)| format!("{name}={value}"));
        let environment: Vec<_> = environment.iter().map(String::as_str).collect();
        bench.job(experiment.shape, side, &words, folder, &environment)
    };
    let seconds = match application {
        Application::Lammps(edge, steps) => {
            let (edge_text, steps_text) = (edge.to_string(), steps.to_string());
            let input = ["lmp", "-in", "melt.in", "-log", "none", "-var", "edge", &edge_text];
            let words = [&input[..], &["-var", "steps", &steps_text]].concat();
            let ranks = experiment.shape.0 * experiment.shape.1;
            lammps_seconds(&job(&folder, &words)?, ranks, 4 * edge.pow(3), steps)?
        }
        Application::Gromacs => {
            let solvate = "solvate -cs spc216.gro -box 4.5 4.5 4.5 -o water.gro -p water.top";
            let grompp = "grompp -f water.mdp -c water.gro -p water.top -o water.tpr -maxwarn 1";
            for words in [solvate, grompp] {
                prepare(&folder, "gmx", words.split(' '))?;
            }
            // Without -notunepme it tries other grids by their speed, and runs differ by that.
            let mdrun = "gmx_mpi mdrun -s water.tpr -ntomp 1 -notunepme -noconfout -g md.log";
            job(&folder, &mdrun.split(' ').collect::<Vec<_>>())?;
            let log = folder.join("md.log");
            let text = fs::read_to_string(&log).context(|| log.display().to_string())?;
            gromacs_seconds(&text)?
        }
        Application::OpenFoam => {
            let folder = folder.join("cavity");
            for program in ["blockMesh", "decomposePar"] {
                prepare(&folder, program, [])?;
            }
            let start = Instant::now();
            let text = job(&folder, &["icoFoam", "-parallel"])?;
            let seconds = start.elapsed().as_secs_f64();
            if !text.contains("\nEnd\n") || !text.contains("\nTime = 3\n") {
                fail!("icoFoam has not come to its end: {}", end(&text));
            }
            seconds
        }
    };
    let label = RUNS.into_iter().find(|(name, ..)| *name == experiment.name);
    let (_, label, ..) =
        label.ok_or_else(|| failure!("{} is not one of these", experiment.name))?;
    Ok(vec![Value { metric: label.into(), size: 0, value: seconds }])
}

/// A program without MPI that makes what the job reads.
fn prepare<'a>(
    folder: &Path,
    program: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let mut command = Command::new(program);
    command.args(words).current_dir(folder).envs(ENVIRONMENT);
    run::output(command.stdin(Stdio::null())).map(drop)
}

/// `Loop time of 8.14 on 2 procs for 1500 steps with 32000 atoms`
fn lammps_seconds(text: &str, ranks: u32, atoms: u32, steps: u32) -> Result<f64> {
    let wanted = format!(" on {ranks} procs for {steps} steps with {atoms} atoms");
    let found = text.lines().find_map(|line| {
        line.trim().strip_prefix("Loop time of ")?.strip_suffix(&*wanted)?.parse().ok()
    });
    found.ok_or_else(|| failure!("LAMMPS does not say 'Loop time of …{wanted}': {}", end(text)))
}

/// The second number of the line that begins with `Time:`, after which the program says that it
/// has finished.
fn gromacs_seconds(text: &str) -> Result<f64> {
    let found = text.lines().find_map(|line| {
        line.trim().strip_prefix("Time:")?.split_whitespace().nth(1)?.parse().ok()
    });
    match found {
        Some(seconds) if text.contains("Finished mdrun on rank 0") => Ok(seconds),
        _ => fail!("md.log has no wall time, or mdrun has not finished: {}", end(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiments::chosen;
    use super::*;

    #[test]
    fn lammps_own_time_counts_if_it_is_the_problem_that_was_asked_for() {
        let text = "Step Temp\n  100 1.6\nLoop time of 8.14 on 2 procs for 1500 steps with 32000 \
                    atoms\n\nTotal wall time: 0:00:08\n";
        assert_eq!(lammps_seconds(text, 2, 32000, 1500).unwrap(), 8.14);
        let others = [(2, 4000, 1500), (2, 32000, 12000), (2, 2000, 1500), (3, 32000, 1500)];
        for (ranks, atoms, steps) in others {
            assert!(lammps_seconds(text, ranks, atoms, steps).is_err(), "{ranks} {atoms} {steps}");
        }
        let failure = lammps_seconds("ERROR: Lost atoms", 2, 4000, 1500).unwrap_err().0;
        assert!(failure.contains("Lost atoms"), "{failure}");
    }

    #[test]
    fn gromacs_wall_time_counts_if_it_has_finished() {
        let text = "Core t (s)   Wall t (s)        (%)\n       Time:       19.2     9.6  200.0\n\
                    Finished mdrun on rank 0 Sun Nov 29\n";
        assert_eq!(gromacs_seconds(text).unwrap(), 9.6);
        assert!(gromacs_seconds(text.split_once("Finished").unwrap().0).is_err());
        assert!(gromacs_seconds("Finished mdrun on rank 0").is_err());
    }

    #[test]
    fn what_is_not_installed_is_left_out_and_its_package_is_named() {
        let mut experiments = chosen(&["app-".into(), "tcp-rate".into()]);
        let message = leave_out(&mut experiments, |name| name.starts_with("gmx")).unwrap();
        let names: Vec<_> = experiments.iter().map(|e| e.name).collect();
        assert_eq!(names, ["tcp-rate", "app-gromacs"]);
        assert!(message.contains("lammps openfoam`"), "{message}");
        assert!(leave_out(&mut experiments, |_| true).is_none());
    }
}
