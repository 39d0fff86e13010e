//! A program through the shadow, over a libibverbs in memory (fake_ibverbs.c): traffic of every
//! kind while all objects are made again, again and again. Where the headers of libibverbs are
//! absent nothing is proved.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// A fresh folder below cargo's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verbs-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn compile(arguments: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut compiler = Command::new(compiler);
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror"]).args(arguments).current_dir(sources);
    let output = compiler.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The shared object that cargo has built beside this test.
fn shadow() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let shadow = test.with_file_name("librustbtl_verbs.so");
    assert!(shadow.exists(), "{} is not there", shadow.display());
    shadow
}

/// The fake library and the program in a folder. None: nothing can be built here.
fn built(name: &str) -> Option<PathBuf> {
    if !Path::new(HEADER).exists() {
        eprintln!("skipped: no {HEADER}");
        return None;
    }
    let folder = folder(name);
    let library = folder.join("libibverbs.so.1");
    let library = library.to_str().expect("UTF-8");
    let shared = ["-fPIC", "-shared", "-pthread", "-Wl,-soname,libibverbs.so.1"];
    compile(&[&shared[..], &["-o", library, "fake_ibverbs.c"]].concat());
    let program = folder.join("torture");
    compile(&["-o", program.to_str().expect("UTF-8"), "torture.c", library]);
    Some(folder)
}

fn run(folder: &Path, cycles: &str, environment: &[(&str, &str)]) -> Output {
    let mut program = Command::new(folder.join("torture"));
    program.args([folder.to_str().expect("UTF-8"), cycles, "fake0", "fake1"]);
    program.env("LD_LIBRARY_PATH", folder).env("LD_PRELOAD", shadow());
    program.envs(environment.iter().copied()).output().expect("the program")
}

fn text(output: &Output) -> String {
    let [said, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{said}{errors}{}", output.status)
}

#[test]
fn a_program_notices_nothing_of_rebuilds_under_traffic() {
    let Some(folder) = built("rebuilds") else { return };
    let path = folder.to_str().expect("UTF-8");
    let job = [
        ("RUSTBTL_VERBS_FOLDER", path),
        ("RUSTBTL_VERBS_PROCESS", "0"),
        ("RUSTBTL_VERBS_PROCESSES", "1"),
    ];
    let output = run(&folder, "30", &job);
    let said = text(&output);
    assert!(output.status.success() && said.contains("all is well"), "{said}");
    let rebuilds = said.lines().filter(|line| line.contains("receives posted again")).count();
    assert_eq!(rebuilds, 20, "{said}");
    let under_way = |line: &str| {
        let count = line.split_once(": ok: ")?.1.split_once(" sends under way")?.0;
        count.parse::<u32>().ok()
    };
    let sends: u32 = said.lines().filter_map(under_way).sum();
    assert!(sends > 0, "nothing was under way at any time: {said}");
    let name = |epoch: u32| folder.join(format!("{epoch}.qp.800000"));
    assert_ne!(fs::read(name(0)).ok(), fs::read(name(20)).ok(), "the real number is the same");
    assert!(name(20).exists() && !name(21).exists(), "twenty epochs");
}

#[test]
fn nothing_happens_where_it_is_not_asked_for() {
    let Some(folder) = built("not-asked") else { return };
    let output = run(&folder, "0", &[]);
    let said = text(&output);
    assert!(output.status.success() && said.contains("all is well"), "{said}");
    let names = fs::read_dir(&folder).expect("the folder").count();
    assert_eq!(names, 2, "files of the shadow's are there");
}

#[test]
fn a_folder_without_numbers_is_refused() {
    let Some(folder) = built("no-numbers") else { return };
    let output = run(&folder, "0", &[("RUSTBTL_VERBS_FOLDER", "/nowhere")]);
    let said = text(&output);
    assert!(said.contains("RUSTBTL_VERBS_PROCESS and RUSTBTL_VERBS_PROCESSES are not"), "{said}");
}
