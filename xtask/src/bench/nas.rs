//! The NAS Parallel Benchmarks: whole programs with everything on and default parameters, beside
//! stock. They are not part of this repository: `RUSTBTL_NPB` names a folder in which they are
//! built.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::experiments::{DEFAULTS, Experiment, LOGGED, Program, STOCK, Side};
use super::launch::Bench;
use super::measured::Value;
use super::rows::{Goal, Row, Series, Unit};
use crate::error::{Context, Result, fail, failure};

/// The folder with NPB's own layout (`NPB3.4-MPI`), whose `bin` has the programs.
const FOLDER: &str = "RUSTBTL_NPB";
/// All names of experiments begin with this.
const PREFIX: &str = "nas";
/// By default logging may be suspended where it costs much; the last one shows what that saves.
const SIDES: &[Side] = &[STOCK, DEFAULTS, LOGGED];

/// What is run: name of the experiment, program and class, nodes and ranks on each. Classes take
/// between a few seconds and a minute. BT and SP run on square numbers of ranks only.
const RUNS: [(&str, &str, (u32, u32)); 17] = [
    ("nas-cg-2x1", "CG.B", (2, 1)),
    ("nas-ft-2x1", "FT.B", (2, 1)),
    ("nas-is-2x1", "IS.B", (2, 1)),
    ("nas-lu-2x1", "LU.A", (2, 1)),
    ("nas-mg-2x1", "MG.B", (2, 1)),
    ("nas-cg-1x2", "CG.B", (1, 2)),
    ("nas-ft-1x2", "FT.B", (1, 2)),
    ("nas-is-1x2", "IS.B", (1, 2)),
    ("nas-lu-1x2", "LU.A", (1, 2)),
    ("nas-mg-1x2", "MG.B", (1, 2)),
    ("nas-bt-2x2", "BT.A", (2, 2)),
    ("nas-cg-2x2", "CG.B", (2, 2)),
    ("nas-ft-2x2", "FT.B", (2, 2)),
    ("nas-is-2x2", "IS.B", (2, 2)),
    ("nas-lu-2x2", "LU.A", (2, 2)),
    ("nas-mg-2x2", "MG.B", (2, 2)),
    ("nas-sp-2x2", "SP.A", (2, 2)),
];

/// All of them.
pub fn experiments() -> impl Iterator<Item = Experiment> {
    RUNS.into_iter().map(|(name, program, shape)| Experiment {
        name,
        sides: SIDES,
        shape,
        program: Program::Nas(program),
        bare: &[],
        once: false,
    })
}

/// Their lines of the table.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (sides, ours, is_default) in [
        ("everything on, defaults / stock", DEFAULTS.name, true),
        ("everything on, logging never suspended / stock", LOGGED.name, false),
    ] {
        for (title, wanted) in [
            ("NAS Parallel Benchmarks, 2 nodes of one rank", (2, 1)),
            ("NAS Parallel Benchmarks, one node of 2 ranks", (1, 2)),
            ("NAS Parallel Benchmarks, 2 nodes of 2 ranks", (2, 2)),
        ] {
            for (experiment, label, _) in RUNS.into_iter().filter(|(_, _, shape)| *shape == wanted)
            {
                let series = |side| -> Series { (side, label) };
                rows.push(Row {
                    title,
                    sides,
                    experiment,
                    label,
                    size: 0,
                    unit: Unit::Seconds,
                    ours: series(ours),
                    base: series(STOCK.name),
                    goal: goal(label, is_default),
                    floor: None,
                });
            }
        }
    }
    rows
}

/// What a user notices nothing of. FT sends all that it has, all the time.
fn goal(program: &str, is_default: bool) -> Goal {
    match program {
        _ if !is_default => Goal::Shown,
        "FT.B" => Goal::AtMost(1.05),
        _ => Goal::AtMost(1.03),
    }
}

/// Is it one of these?
pub fn is(experiment: &Experiment) -> bool {
    matches!(experiment.program, Program::Nas(_))
}

/// Leaves out what cannot be run, and says so once: there is no folder, or programs are not in it.
pub fn keep_possible(experiments: &mut Vec<Experiment>) {
    let folder = env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    if let Some(message) = leave_out(experiments, folder.as_deref()) {
        eprintln!("\nbench: WARNING: {message}\n");
    }
}

fn leave_out(experiments: &mut Vec<Experiment>, folder: Option<&Path>) -> Option<String> {
    let mut missing = BTreeSet::new();
    experiments.retain(|experiment| {
        let Program::Nas(name) = experiment.program else { return true };
        let there = folder.is_some_and(|folder| program(folder, name).is_file());
        if !there {
            missing.insert(file(name));
        }
        there
    });
    if missing.is_empty() {
        return None;
    }
    let names = missing.into_iter().collect::<Vec<_>>().join(", ");
    Some(match folder {
        None => format!(
            "the NAS Parallel Benchmarks are not measured: set {FOLDER} to a folder NPB3.4-MPI \
             whose bin has {names} (docs/performance.md)"
        ),
        Some(folder) => format!(
            "not measured, since {}/bin does not have them: {names} (docs/performance.md)",
            folder.display()
        ),
    })
}

/// NPB's own name of a program: `cg.B.x`.
fn file(name: &str) -> String {
    let (program, class) = name.split_once('.').unwrap_or((name, "A"));
    format!("{}.{class}.x", program.to_lowercase())
}

fn program(folder: &Path, name: &str) -> PathBuf {
    folder.join("bin").join(file(name))
}

/// Runs one program; its own time, if its own verification is successful.
pub fn measure(
    bench: &Bench,
    experiment: &Experiment,
    side: &Side,
    name: &'static str,
) -> Result<Vec<Value>> {
    let folder = env::var_os(FOLDER).ok_or_else(|| failure!("{FOLDER} is not set"))?;
    let folder = fs::canonicalize(&folder).context(|| folder.display().to_string())?;
    // Files such as mg.input or timer.flag in the folder where they run change what they do.
    let empty = bench.scratch.join(PREFIX);
    let _ = fs::remove_dir_all(&empty);
    fs::create_dir_all(&empty).context(|| empty.display().to_string())?;
    let words = [program(&folder, name).display().to_string()];
    let text = bench.job(experiment.shape, side, &words, &empty, &[])?;
    let (nodes, ppn) = experiment.shape;
    let seconds = Report::of(&text)?.seconds(name, nodes * ppn)?;
    Ok(vec![Value { metric: name.into(), size: 0, value: seconds }])
}

/// What a program says about itself in the end.
#[derive(Debug, PartialEq)]
struct Report {
    /// `CG.B`
    name: String,
    processes: u32,
    seconds: f64,
    verification: String,
}

impl Report {
    /// Reads lines of the kind `Name = value`.
    fn of(text: &str) -> Result<Report> {
        let value = |wanted: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once('='));
            let found = pairs.find(|(name, _)| name.trim() == wanted);
            found.map(|(_, value)| value.trim()).ok_or_else(|| {
                failure!("its output has no line '{wanted} ='; the end of it: {}", end(text))
            })
        };
        let number = |wanted| {
            let text = value(wanted)?;
            text.parse::<f64>().context(|| format!("'{wanted} = {text}'"))
        };
        let program = text
            .lines()
            .find_map(|line| line.trim().trim_end_matches('.').strip_suffix(" Benchmark Completed"))
            .ok_or_else(|| failure!("it does not say 'Completed'; the end of it: {}", end(text)))?;
        Ok(Report {
            name: format!("{program}.{}", value("Class")?),
            processes: number("Total processes")? as u32,
            seconds: number("Time in seconds")?,
            verification: value("Verification")?.to_string(),
        })
    }

    /// Its time, if it is the program that was asked for and its result is right.
    fn seconds(&self, name: &str, ranks: u32) -> Result<f64> {
        if self.verification != "SUCCESSFUL" {
            fail!("{name}: Verification = {}: the result is wrong", self.verification);
        }
        if (self.name.as_str(), self.processes) != (name, ranks) {
            fail!("{} on {} ranks has run, not {name} on {ranks}", self.name, self.processes);
        }
        if !self.seconds.is_finite() || self.seconds <= 0.0 {
            fail!("{name}: Time in seconds = {}: not a time", self.seconds);
        }
        Ok(self.seconds)
    }
}

/// The last lines of an output, for an error.
pub fn end(text: &str) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    format!("\n{}", lines[lines.len().saturating_sub(5)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::super::experiments::chosen;
    use super::*;

    /// Lines as the programs in Fortran write them.
    fn output(verification: &str) -> String {
        let lines = [
            ("Class", "B"),
            ("Size", "75000"),
            ("Time in seconds", "17.42"),
            ("Total processes", "2"),
            ("Verification", verification),
            ("Version", "3.4"),
        ];
        let lines = lines.map(|(name, value)| format!(" {name:15} = {value:>24}\n")).concat();
        format!(" Initialization time = 1.5 seconds\n\n\n CG Benchmark Completed.\n{lines}")
    }

    #[test]
    fn the_time_is_the_programs_own() {
        let report = Report::of(&output("SUCCESSFUL")).unwrap();
        assert_eq!(report.seconds("CG.B", 2).unwrap(), 17.42);
    }

    #[test]
    fn the_program_in_c_writes_no_full_stop() {
        let text =
            output("SUCCESSFUL").replace("CG Benchmark Completed.", "IS Benchmark Completed");
        assert_eq!(Report::of(&text).unwrap().name, "IS.B");
    }

    #[test]
    fn whatever_is_not_verified_is_an_error_and_no_figure() {
        for word in ["UNSUCCESSFUL", "NOT PERFORMED", ""] {
            let failure = Report::of(&output(word)).unwrap().seconds("CG.B", 2).unwrap_err();
            assert!(failure.0.contains(&format!("Verification = {word}")), "{failure}");
        }
    }

    #[test]
    fn another_program_class_or_number_of_ranks_is_an_error() {
        let report = Report::of(&output("SUCCESSFUL")).unwrap();
        for (name, ranks) in [("FT.B", 2), ("CG.A", 2), ("CG.B", 4)] {
            assert!(report.seconds(name, ranks).is_err(), "{name} {ranks}");
        }
    }

    #[test]
    fn a_time_that_is_none_is_an_error() {
        let of = |time| Report::of(&output("SUCCESSFUL").replace("17.42", time));
        // Fortran writes stars where a number does not fit.
        assert!(of("************").unwrap_err().0.contains("Time in seconds"));
        for time in ["0.00", "-1.00", "NaN"] {
            assert!(of(time).unwrap().seconds("CG.B", 2).is_err(), "{time}");
        }
    }

    #[test]
    fn an_output_that_breaks_off_is_an_error_that_shows_its_end() {
        let text = output("SUCCESSFUL");
        let before = text.split_once(" Verification").unwrap().0;
        let failure = Report::of(before).unwrap_err().0;
        assert!(failure.contains("'Verification ='") && failure.contains("17.42"), "{failure}");
        assert!(Report::of("").is_err());
    }

    #[test]
    fn without_a_folder_the_others_are_still_measured_and_one_message_says_why() {
        let mut experiments = chosen(&["nas".into(), "hpcc".into()]);
        let message = leave_out(&mut experiments, None).unwrap();
        assert_eq!(
            experiments.iter().map(|e| e.name).collect::<Vec<_>>(),
            ["hpcc-1-node", "hpcc-2-nodes"]
        );
        assert!(message.contains("set RUSTBTL_NPB"), "{message}");
        assert!(leave_out(&mut experiments, None).is_none());
    }

    #[test]
    fn programs_that_are_not_built_are_left_out_by_name() {
        let folder = env::temp_dir().join(format!("xtask-nas-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/cg.B.x"), "").unwrap();
        let mut experiments = chosen(&["nas".into()]);
        let message = leave_out(&mut experiments, Some(&folder)).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(experiments.iter().all(|e| e.program == Program::Nas("CG.B")));
        assert_eq!(experiments.len(), 3);
        assert!(message.contains("bt.A.x") && !message.contains("cg.B.x"), "{message}");
    }

    #[test]
    fn a_program_or_all_of_them_can_be_chosen() {
        assert_eq!(chosen(&["nas".into()]).len(), RUNS.len());
        assert_eq!(chosen(&["nas-cg".into()]).len(), 3);
        assert_eq!(chosen(&["nas-lu-2x1".into()]).len(), 1);
    }

    #[test]
    fn names_tell_program_and_shape_and_ranks_fit_the_program() {
        for (name, program, (nodes, ppn)) in RUNS {
            let kernel = program.split_once('.').unwrap().0.to_lowercase();
            assert_eq!(name, format!("{PREFIX}-{kernel}-{nodes}x{ppn}"));
            assert!(!matches!(&*kernel, "bt" | "sp") || nodes * ppn == 4, "{name}");
        }
        assert_eq!(rows().len(), 2 * RUNS.len());
    }
}
