//! Our own MPI programs, on one, two and three nodes, and once over stock Open MPI.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::header::Header;
use super::job::{Job, Outcome};
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::{Context, Result};
use crate::{paths, run};

/// Compiles and runs them all; only over stock Open MPI if there is no component.
pub fn run(summary: &mut Summary, with_component: bool) {
    summary.tier("MPI programs (tests/mpi)");
    let sources = match sources() {
        Ok(sources) => sources,
        Err(failure) => {
            summary.check("list of programs", || Err(failure));
            return;
        }
    };
    for source in sources {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let header = Header::read(&fs::read_to_string(&source).unwrap_or_default());
        if header.is_library {
            continue;
        }
        // With `--only`, what was compiled before is good enough.
        let mut program = Ok(place(&source));
        let compiled = summary.check(&format!("{name}: compile"), || {
            program = compile(&source);
            program.as_ref().map(drop).map_err(|f| crate::error::Failure(f.0.clone()))
        });
        if let (true, Ok(program)) = (compiled, program) {
            run_shapes(summary, &name, &header, &program, with_component);
        }
    }
}

fn run_shapes(summary: &mut Summary, name: &str, header: &Header, program: &Path, ours: bool) {
    if memory_mb() < header.memory_mb {
        println!("  skip  {name}: needs {} MB of free memory", header.memory_mb);
        return;
    }
    let shapes = header.shapes();
    for arguments in &header.arguments {
        let name = [&[name.to_string()], arguments.as_slice()].concat().join(" ");
        let mut seen = Lines::new();
        for &(nodes, ranks) in shapes.iter().filter(|_| ours) {
            let title = format!("{name}: {ranks} ranks on {nodes} nodes");
            let run = Run { header, program, arguments, nodes, ranks, stock: false };
            summary.check(&title, || run.try_it(&mut seen));
        }
        // Stock once, on as many nodes as the program allows: is the program itself right?
        if let Some(&(nodes, ranks)) = shapes.last().filter(|_| !header.stock_fails) {
            let title = format!("{name}: {ranks} ranks on {nodes} nodes, stock");
            let run = Run { header, program, arguments, nodes, ranks, stock: true };
            summary.check(&title, || run.try_it(&mut seen));
        }
    }
}

/// The line with the result, by number of ranks: the same over every layout and every PML.
type Lines = BTreeMap<u32, String>;

/// One run of a program.
struct Run<'a> {
    header: &'a Header,
    program: &'a Path,
    arguments: &'a [String],
    nodes: u32,
    ranks: u32,
    stock: bool,
}

impl Run<'_> {
    fn try_it(&self, seen: &mut Lines) -> Result<()> {
        let scratch = Scratch::new("mpi")?;
        let mut command = vec![self.program.as_os_str().to_owned()];
        command.extend(self.arguments.iter().map(Into::into));
        let mut job = Job::new(self.nodes, self.ranks.div_ceil(self.nodes), &command);
        job = job.with(&["--np", &self.ranks.to_string()]);
        for variable in &self.header.environment {
            job = job.with(&["--env", variable]);
        }
        if self.stock {
            let options: Vec<&str> = self.header.stock_options.iter().map(String::as_str).collect();
            job = job.with(&["--plain"]).with(&options);
        }
        job.folder = scratch.0.clone();
        let outcome = job.run()?;
        let line = judge(self.header, &outcome)?;
        let first = seen.entry(self.ranks).or_insert_with(|| line.clone());
        outcome.must(*first == line, &format!("another run has said `{first}`"))
    }
}

/// The line with the result, if all is well.
fn judge(header: &Header, outcome: &Outcome) -> Result<String> {
    let code = outcome.code;
    let ended_well = header.exit.map_or(code != 0 && code != 124, |wanted| code == wanted);
    outcome.must(ended_well, "not the exit code that means passed")?;
    let line = matching_line(&outcome.said(), &header.output)?;
    outcome.must(!line.is_empty(), &format!("no line matches `{}`", header.output))?;
    Ok(line)
}

/// The first line of the text that as a whole matches the regular expression, or nothing.
fn matching_line(text: &str, expression: &str) -> Result<String> {
    if let Some(line) = text.lines().find(|line| *line == expression) {
        return Ok(line.to_string());
    }
    let mut grep = Command::new("grep");
    grep.args(["-m1", "-xE", expression]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = grep.spawn().context(|| "starting grep".into())?;
    // grep stops reading at the first match: a broken pipe is no error.
    let _ = child.stdin.take().expect("piped").write_all(text.as_bytes());
    let output = child.wait_with_output().context(|| "waiting for grep".into())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_string())
}

/// Sources of programs, in order of name.
fn sources() -> Result<Vec<PathBuf>> {
    let folder = paths::root().join("tests/mpi");
    let entries = fs::read_dir(&folder).context(|| folder.display().to_string())?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| compiler(file).is_some())
        .collect();
    files.sort();
    Ok(files)
}

/// What compiles this kind of source, and how strictly.
fn compiler(source: &Path) -> Option<&'static [&'static str]> {
    match source.extension()?.to_str()? {
        "c" => Some(&["mpicc", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]),
        "cpp" | "cc" => Some(&["mpicxx", "-Wall", "-Wextra", "-Werror"]),
        "f90" => Some(&["mpifort", "-Wall"]),
        _ => None,
    }
}

fn place(source: &Path) -> PathBuf {
    paths::target().join("mpi-tests").join(source.file_stem().unwrap_or_default())
}

/// Compiles a program into the target folder.
pub fn compile(source: &Path) -> Result<PathBuf> {
    let folder = paths::target().join("mpi-tests");
    fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    let program = place(source);
    let words = compiler(source).unwrap_or(&["mpicc"]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["-O2", "-o"]).arg(&program).arg(source);
    run::output(command.args(["-lm", "-pthread"]))?;
    Ok(program)
}

/// Memory that is free for programs.
fn memory_mb() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kb = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kb.unwrap_or(u64::MAX) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_line_must_match() {
        assert_eq!(matching_line("a\nOK\n", "OK").unwrap(), "OK");
        assert_eq!(matching_line("NOT OK\n", "OK").unwrap(), "");
        assert_eq!(matching_line("HASH 1\nHASH 2\n", "HASH .*").unwrap(), "HASH 1");
    }

    #[test]
    fn kinds_of_source_are_known() {
        assert!(compiler(Path::new("a.c")).is_some());
        assert!(compiler(Path::new("check.h")).is_none());
    }
}
