//! Our own MPI programs, on one, two and three nodes, and once over stock Open MPI, which shows
//! that the program itself is right.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};

use super::btl;
use super::header::Header;
use super::job::{Outcome, TestJob};
use super::mpich::Wi4mpi;
use super::one_sided_component;
use super::scratch::Scratch;
use super::summary::Tier;
use crate::error::{Context, Failure, Result};
use crate::tree::{Installed, hex};
use crate::{debian, paths, run};

/// What the programs are compiled for and run over.
pub enum Over<'a> {
    /// The installed Open MPI with our component, and alone.
    Component,
    /// The installed Open MPI with our component, in jobs that record determinants.
    Protected,
    /// The same two for programs that need our own one-sided component.
    OneSided {
        /// In all layouts that a program allows; else in two.
        all_shapes: bool,
        /// Jobs that record determinants.
        recorded: bool,
    },
    /// The installed Open MPI with our component, and these options for its collectives.
    Collectives(&'static [&'static str]),
    /// Open MPI's own pml ob1 over our BTL.
    Btl(OverBtl<'a>),
    /// The installed Open MPI with our component; the programs are MPICH's binaries.
    Mpich(&'a Wi4mpi),
    /// An Open MPI that was built with our component.
    Tree(&'a Installed),
    /// Debian 13's, in a tree of its packages, with our component installed.
    Debian(InTree<'a>),
}

/// How programs run over our BTL.
#[derive(Clone, Copy, Default)]
pub struct OverBtl<'a> {
    /// Debian 13's Open MPI in this tree; else the installed one.
    pub tree: Option<InTree<'a>>,
    /// Windows over Open MPI's component osc/rdma, which uses the BTL itself, in two layouts.
    pub one_sided: bool,
    /// Collectives of 5.0 are not those of coll/han.
    pub without_han: bool,
}

impl OverBtl<'_> {
    /// The job, where this Open MPI is.
    pub fn in_its_tree(&self, job: TestJob) -> TestJob {
        match self.tree {
            Some(tree) => tree.job(job),
            None => job,
        }
    }
}

/// How programs run in a tree of packages.
#[derive(Clone, Copy)]
pub struct InTree<'a> {
    /// The tree.
    pub root: &'a Path,
    /// In the largest layout for one, two and three nodes; else for one and two.
    pub three_nodes: bool,
}

impl<'a> InTree<'a> {
    /// As jobs are by default.
    pub fn new(root: &'a Path) -> Self {
        InTree { root, three_nodes: false }
    }

    /// The job, in this tree.
    fn job(self, job: TestJob) -> TestJob {
        job.with(&["--root", &self.root.display().to_string()])
    }
}

impl Over<'_> {
    fn tree(&self) -> Option<&Installed> {
        if let Over::Tree(installed) = self { Some(installed) } else { None }
    }

    /// The tree of packages, if that is where programs run.
    fn packages(&self) -> Option<InTree<'_>> {
        match self {
            Over::Debian(tree) => Some(*tree),
            Over::Btl(over) => over.tree,
            _ => None,
        }
    }

    /// The job, run by this Open MPI.
    pub fn job(&self, mut job: TestJob) -> TestJob {
        if let Some(tree) = self.packages() {
            job = tree.job(job);
        }
        match self {
            Over::Tree(tree) => job.with(&["--openmpi", &tree.prefix.display().to_string()]),
            Over::Mpich(wi4mpi) => wi4mpi.job(job),
            Over::Btl(over) => {
                let one_sided = match (over.one_sided, over.tree) {
                    (true, _) => &btl::OSC_RDMA[..],
                    (false, Some(_)) => &btl::WITHOUT_OPERATIONS,
                    (false, None) => &[],
                };
                let collectives = if over.without_han { &btl::WITHOUT_HAN[..] } else { &[] };
                job.with(&btl::OPTIONS).with(one_sided).with(collectives)
            }
            _ => job,
        }
    }

    /// The layouts to try; in a tree the largest for each number of nodes.
    fn shapes(&self, header: &Header) -> Vec<(u32, u32)> {
        let all = header.shapes();
        let most = if matches!(self, Over::Debian(tree) if tree.three_nodes) { 3 } else { 2 };
        let largest = |&(nodes, ranks): &(u32, u32)| {
            nodes <= most && all.iter().all(|&(n, r)| n != nodes || r <= ranks)
        };
        match self {
            Over::Component | Over::Protected => all,
            Over::OneSided { all_shapes: true, .. } => all,
            Over::OneSided { .. } | Over::Collectives(_) => one_sided_component::some_shapes(&all),
            Over::Btl(over) if over.one_sided => one_sided_component::some_shapes(&all),
            Over::Btl(_) | Over::Mpich(_) | Over::Tree(_) | Over::Debian(_) => {
                all.iter().copied().filter(largest).collect()
            }
        }
    }

    /// Ends the names of cases.
    fn ending(&self) -> &'static str {
        match self {
            Over::Btl(over) if over.one_sided => ", btl, osc/rdma",
            Over::Btl(_) => ", btl",
            _ => "",
        }
    }

    fn records(&self) -> bool {
        matches!(self, Over::Protected | Over::OneSided { recorded: true, .. })
    }
}

/// Compiles and runs them all, but those that only our one-sided component can pass.
pub fn run_over(tier: &mut Tier, over: &Over) {
    run_some(tier, over, |name| !one_sided_component::is_for_it(name));
}

/// Only the programs whose name is wanted.
pub fn run_some(tier: &mut Tier, over: &Over, wanted: impl Fn(&str) -> bool) {
    let sources = match sources() {
        Ok(sources) => sources,
        Err(failure) => {
            tier.check("list of programs", || Err(failure));
            return;
        }
    };
    for source in sources {
        let (name, header) = (name(&source), header(&source));
        if header.is_library || !wanted(&name) {
            continue;
        }
        // With `--only`, what was compiled before is good enough.
        let mut program = Ok(place(&source, over, &[]));
        let compiled = tier.check(&format!("{name}: compile{}", over.ending()), || {
            program = compile_over(&source, over);
            program.as_ref().map(drop).map_err(|f| Failure(f.0.clone()))
        });
        if let (true, Ok(program)) = (compiled, program) {
            run_shapes(tier, &name, &header, &program, over);
        }
    }
}

fn run_shapes(tier: &mut Tier, name: &str, header: &Header, program: &Path, over: &Over) {
    if memory_mb() < header.memory_mb {
        tier.skip(&format!("{name}: needs {} MB of free memory", header.memory_mb));
        return;
    }
    let shapes = header.shapes();
    for arguments in &header.arguments {
        let name = [&[name.to_string()], arguments.as_slice()].concat().join(" ");
        let mut seen = Lines::new();
        for (nodes, ranks) in over.shapes(header) {
            let ending = over.ending();
            let title = format!("{name}: {ranks} ranks on {nodes} nodes{ending}");
            let run = Run { header, program, arguments, nodes, ranks, stock: false, over };
            tier.check(&title, || run.try_it(&mut seen));
        }
        // Stock once, on as many nodes as the program allows: is the program itself right?
        let stock = !header.stock_fails && matches!(over, Over::Component);
        if let Some(&(nodes, ranks)) = shapes.last().filter(|_| stock) {
            let title = format!("{name}: {ranks} ranks on {nodes} nodes, stock");
            let run = Run { header, program, arguments, nodes, ranks, stock: true, over };
            tier.check(&title, || run.try_it(&mut seen));
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
    over: &'a Over<'a>,
}

impl Run<'_> {
    fn try_it(&self, seen: &mut Lines) -> Result<()> {
        let scratch = Scratch::new("mpi")?;
        let mut command = vec![self.program.as_os_str().to_owned()];
        command.extend(self.arguments.iter().map(Into::into));
        let mut job = TestJob::new(self.nodes, self.ranks.div_ceil(self.nodes), &command);
        job = job.with(&["--np", &self.ranks.to_string()]);
        for variable in &self.header.environment {
            job = job.with(&["--env", variable]);
        }
        job = self.over.job(job);
        if let Over::Collectives(options) = self.over {
            job = job.with(options);
        }
        if self.over.records() {
            let folder = scratch.0.display().to_string();
            job = job.with(&["--mca", "vprotocol_correlated_checkpoint_dir", &folder]);
            job = job.with(&["--env", "RUSTBTL_RECORD=1"]);
        }
        // In 5.0 there is no osc/pt2pt to ask for.
        let needs_options = |over: &OverBtl| !over.one_sided && over.tree.is_none();
        if self.stock || matches!(self.over, Over::Btl(over) if needs_options(over)) {
            let options: Vec<&str> = self.header.stock_options.iter().map(String::as_str).collect();
            job = job.with(&options);
        }
        if self.stock {
            job = job.with(&["--plain"]);
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

/// Names of all programs but those of `one_sided_component`, in order.
pub fn names() -> Result<Vec<String>> {
    let programs = sources()?.into_iter().filter(|source| !header(source).is_library);
    let names = programs.map(|source| name(&source));
    Ok(names.filter(|name| !one_sided_component::is_for_it(name)).collect())
}

/// Is stock Open MPI known not to pass this program?
pub fn stock_fails(program: &str) -> bool {
    let sources = sources().unwrap_or_default();
    sources.iter().any(|source| name(source) == program && header(source).stock_fails)
}

/// Does the program of this name need so much memory that nothing should run beside it?
pub fn is_large(program: &str) -> bool {
    let sources = sources().unwrap_or_default();
    let found = sources.iter().find(|source| name(source) == program);
    found.is_some_and(|source| header(source).memory_mb > 0)
}

fn name(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn header(source: &Path) -> Header {
    Header::read(&fs::read_to_string(source).unwrap_or_default())
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

fn folder(over: &Over) -> PathBuf {
    if over.packages().is_some() {
        return debian::target().join("mpi-tests");
    }
    if matches!(over, Over::Mpich(_)) {
        return paths::target().join("mpi-tests/mpich");
    }
    match over.tree() {
        // Of the version and the variant: an Open MPI is built as VERSION/install[-VARIANT].
        Some(tree) => {
            let name = |path: Option<&Path>| path.and_then(Path::file_name).map(OsStr::to_owned);
            let version = name(tree.prefix.parent()).unwrap_or_default();
            let variant = name(Some(&tree.prefix)).unwrap_or_default();
            paths::target().join("mpi-tests").join(version).join(variant)
        }
        None => paths::target().join("mpi-tests"),
    }
}

/// Where a program is compiled to. Other options make another program.
fn place(source: &Path, over: &Over, options: &[&str]) -> PathBuf {
    let folder = folder(over);
    let folder = match options {
        [] => folder,
        _ => folder.join(&hex(&Sha256::digest(options.join(" ")))[..8]),
    };
    folder.join(source.file_stem().unwrap_or_default())
}

/// Compiles a program into the target folder.
pub fn compile(source: &Path) -> Result<PathBuf> {
    compile_with(source, &[])
}

/// The same with more options.
pub fn compile_with(source: &Path, options: &[&str]) -> Result<PathBuf> {
    compile_as(source, &Over::Component, options)
}

/// The same, for another Open MPI.
pub fn compile_over(source: &Path, over: &Over) -> Result<PathBuf> {
    compile_as(source, over, &[])
}

/// The same with more options: once while this process runs, also when tests that run beside
/// each other ask for it.
pub fn compile_as(source: &Path, over: &Over, options: &[&str]) -> Result<PathBuf> {
    type Compiled = Arc<OnceLock<std::result::Result<(), String>>>;
    static ALL: Mutex<BTreeMap<PathBuf, Compiled>> = Mutex::new(BTreeMap::new());
    let program = place(source, over, options);
    let compiled = {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(program.clone()).or_default())
    };
    let done = compiled.get_or_init(|| {
        compile_to(&program, source, over, options).map_err(|Failure(reason)| reason)
    });
    done.clone().map_err(Failure).map(|()| program)
}

fn compile_to(program: &Path, source: &Path, over: &Over, options: &[&str]) -> Result<()> {
    let folder = program.parent().unwrap_or(program);
    fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    let words = compiler(source).unwrap_or(&["mpicc"]);
    let mut command = match (over.packages(), over) {
        (Some(tree), _) => debian::inside(tree.root, &[words[0].into()])?,
        (None, Over::Tree(tree)) => tree.command(words[0]),
        (None, Over::Mpich(wi4mpi)) => Command::new(&wi4mpi.compiler),
        _ => Command::new(words[0]),
    };
    command.args(&words[1..]);
    if matches!(over, Over::Mpich(_)) {
        // MPICH's constants are addresses that gcc warns of.
        command.arg("-Wno-error");
    }
    command.args(options).args(["-O2", "-o"]).arg(program).arg(source);
    let text = fs::read_to_string(source).unwrap_or_default();
    if matches!(over, Over::Component) && text.contains("mpix_correlated.h") {
        // It requests checkpoints itself.
        let here = paths::mca().display().to_string();
        command.args([format!("-I{here}"), format!("-L{here}"), format!("-Wl,-rpath,{here}")]);
        command.args(["-Wl,--no-as-needed", "-lmpix_correlated"]);
    }
    run::output(command.args(["-lm", "-pthread"])).map(drop)
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
