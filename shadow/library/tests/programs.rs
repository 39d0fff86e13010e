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
    for name in ["torture", "refusals"] {
        let (program, source) = (folder.join(name), format!("{name}.c"));
        compile(&["-o", program.to_str().expect("UTF-8"), &source, library]);
    }
    Some(folder)
}

fn run_program(
    folder: &Path,
    name: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Output {
    let mut program = Command::new(folder.join(name));
    program.args(arguments).env("LD_LIBRARY_PATH", folder).env("LD_PRELOAD", shadow());
    program.envs(environment.iter().copied()).output().expect("the program")
}

fn run(folder: &Path, cycles: &str, environment: &[(&str, &str)]) -> Output {
    let path = folder.to_str().expect("UTF-8");
    run_program(folder, "torture", &[path, cycles, "fake0", "fake1"], environment)
}

/// A process alone, whose objects are shadowed.
fn shadowed(folder: &Path) -> [(&'static str, &str); 3] {
    [
        ("RUSTBTL_VERBS_FOLDER", folder.to_str().expect("UTF-8")),
        ("RUSTBTL_VERBS_PROCESS", "0"),
        ("RUSTBTL_VERBS_PROCESSES", "1"),
    ]
}

fn text(output: &Output) -> String {
    let [said, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{said}{errors}{}", output.status)
}

#[test]
fn a_program_notices_nothing_of_rebuilds_under_traffic() {
    let Some(folder) = built("rebuilds") else { return };
    let output = run(&folder, "30", &shadowed(&folder));
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
    assert_eq!(names, 3, "files of the shadow's are there");
}

#[test]
fn a_folder_without_numbers_is_refused() {
    let Some(folder) = built("no-numbers") else { return };
    let output = run(&folder, "0", &[("RUSTBTL_VERBS_FOLDER", "/nowhere")]);
    let said = text(&output);
    assert!(said.contains("RUSTBTL_VERBS_PROCESS and RUSTBTL_VERBS_PROCESSES are not"), "{said}");
}

/// What a program asks for (tests/refusals.c), and what it reads once.
const REFUSALS: [(&str, &str, &str); 17] = [
    ("memory window", "a memory window (ibv_alloc_mw)", "Use the keys of regions."),
    (
        "extended sends",
        "an extended queue pair (ibv_create_qp_ex, ibv_wr_*, XRC)",
        "Use ibv_create_qp and ibv_post_send.",
    ),
    (
        "XRC receiver",
        "an extended queue pair (ibv_create_qp_ex, ibv_wr_*, XRC)",
        "Use ibv_create_qp and ibv_post_send.",
    ),
    ("opened pair", "a shared queue pair (ibv_open_qp, XRC)", "Use RC."),
    ("extended SRQ", "an extended shared receive queue (XRC, tag matching)", "Use ibv_create_srq."),
    ("XRC domain", "an XRC domain (ibv_open_xrcd)", "Use RC."),
    ("device memory", "memory of a device (ibv_alloc_dm)", "Use memory of the process."),
    ("work queue", "a work queue (ibv_create_wq)", "Use queue pairs."),
    ("thread domain", "a thread domain (ibv_alloc_td)", "Do without."),
    ("parent domain", "a parent domain (ibv_alloc_parent_domain)", "Use ibv_alloc_pd."),
    ("dmabuf", "memory of another device (ibv_reg_dmabuf_mr)", "Use memory of the process."),
    ("unreliable pair", "a queue pair that is neither RC nor UD", "Use one of these."),
    ("imported", "an object of another process (ibv_import_*)", "Open the device."),
    ("changed region", "changing a region (ibv_rereg_mr)", "Register another one."),
    ("multicast", "a multicast group (ibv_attach_mcast)", "Send to each."),
    ("operation", "a request with operation 7", "Use sends, RDMA and atomics."),
    ("vendor", "the interface of one vendor (mlx5dv)", "With UCX: UCX_TLS=rc_v,ud_v."),
];

#[test]
fn what_cannot_be_made_again_is_refused_with_its_reason_and_what_to_use() {
    let Some(folder) = built("refusals") else { return };
    let output = run_program(&folder, "refusals", &[], &shadowed(&folder));
    let said = text(&output);
    assert!(output.status.success() && said.contains("all is well"), "{said}");
    for (name, what, instead) in REFUSALS {
        let refused = format!("{name}: refused, errno {}\n", libc::EOPNOTSUPP);
        assert_eq!(said.matches(&refused).count(), 2, "{name}: {said}");
        let reason = format!(
            "rustbtl: shadow verbs: {what} cannot be checkpointed and is refused. {instead}\n"
        );
        assert_eq!(said.matches(&reason).count(), 1, "{reason}: {said}");
    }
    assert_eq!(said.matches(": refused, ").count(), 2 * REFUSALS.len(), "{said}");
}

#[test]
fn nothing_is_refused_where_it_is_not_asked_for() {
    let Some(folder) = built("not-refused") else { return };
    let output = run_program(&folder, "refusals", &["dmabuf"], &[]);
    let said = text(&output);
    assert!(output.status.success() && !said.contains("rustbtl"), "{said}");
    let passed_on = format!("dmabuf: refused, errno {}\n", libc::EBADF);
    assert_eq!(said.matches(&passed_on).count(), 2, "{said}");
}
