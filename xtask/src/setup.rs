//! `cargo xtask setup`: the Debian packages that building, testing and showing need.

use std::fs;
use std::process::Command;
use std::sync::Mutex;

use crate::error::{Context, Result, fail};
use crate::{run, sys};

/// Package, and what of ours would not work without it.
const PACKAGES: [(&str, &str); 23] = [
    ("openmpi-bin", "mpirun, orted and ompi_info: what the component is loaded into"),
    ("libopenmpi-dev", "headers of the MCA, mpicc"),
    ("gcc", "glue-c/ and the link of the component"),
    ("g++", "C++ programs among the tests"),
    ("gfortran", "Fortran programs among the tests"),
    ("libc6-dev", "C headers"),
    ("make", "programs among the tests"),
    ("autoconf", "test of --with-rustbtl in a source tree of Open MPI"),
    ("binutils", "nm and readelf: checks of what was linked"),
    ("iproute2", "ip: the network of emulated nodes"),
    ("util-linux", "setpriv and unshare: tests without root"),
    ("procps", "ps: tests that nothing is left behind"),
    ("strace", "tests that an idle rank makes no system calls"),
    ("hpcc", "the program of `cargo xtask demo --traffic`"),
    ("netpipe-openmpi", "latency and bandwidth of a program that we did not write"),
    ("scalapack-mpi-test", "test programs that we did not write"),
    ("libglobalarrays-dev", "a program over Global Arrays among the tests"),
    ("libarmci-mpi-dev", "what those are built on"),
    ("python3-mpi4py", "Python programs among the tests"),
    ("python3-numpy", "arrays for those"),
    ("ibverbs-utils", "a program that speaks verbs, and that we did not write"),
    ("librsvg2-bin", "rsvg-convert: pictures as PNG"),
    ("fonts-dejavu-core", "letters in those pictures"),
];

/// Package, and what it is for.
type Package = (&'static str, &'static str);

/// More where Open MPI is 5.0: Debian 13.
const PRRTE_PACKAGES: [Package; 2] = [
    ("libpmix-dev", "headers of PMIx: the component of mpirun"),
    ("libevent-dev", "headers of libevent, which PRRTE's include"),
];

/// The same for `cargo xtask bench` alone.
const BENCH_PACKAGES: [(&str, &str); 2] = [
    ("valgrind", "callgrind: instructions of a message"),
    ("ucx-utils", "ucx_perftest: what UCX does on this machine"),
];

/// The same for the virtual machine with Soft-RoCE adapters.
const RDMA_PACKAGES: [Package; 3] = [
    ("busybox-static", "its first process"),
    ("rdma-core", "providers of libibverbs"),
    ("perftest", "programs that speak verbs, and that we did not write"),
];

/// The same for jobs under Slurm.
const SLURM_PACKAGES: [(&str, &str); 4] = [
    ("munge", "munged: how Slurm's daemons know each other"),
    ("slurmctld", "its controller"),
    ("slurmd", "its daemon of a node"),
    ("slurm-client", "sbatch, srun, scancel"),
];

/// Fails if something is missing that only root can install.
pub fn check() -> Result<()> {
    if sys::euid() == 0 { Ok(()) } else { run() }
}

/// Installs what is missing; without root says what to install.
pub fn run() -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let more: &[Package] = if has_openmpi_5(&release) { &PRRTE_PACKAGES } else { &[] };
    install(&[PACKAGES.as_slice(), more].concat())
}

/// Does this release of Debian have Open MPI 5.0?
fn has_openmpi_5(release: &str) -> bool {
    let number = release.lines().find_map(|line| line.strip_prefix("VERSION_ID="));
    number.and_then(|text| text.trim_matches('"').parse::<u32>().ok()).is_some_and(|n| n >= 13)
}

/// Installs what measuring needs and nothing else does.
pub fn run_for_bench() -> Result<()> {
    install(&BENCH_PACKAGES)
}

/// Installs what tests under Slurm need and nothing else does.
pub fn run_for_slurm() -> Result<()> {
    install(&SLURM_PACKAGES)
}

/// Installs what tests over Soft-RoCE need and nothing else does.
pub fn run_for_rdma() -> Result<()> {
    install(&RDMA_PACKAGES)
}

/// The same for other packages.
pub fn install(packages: &[Package]) -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock();
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    if sys::euid() != 0 {
        let why: String =
            missing.iter().map(|(name, why)| format!("  {name:20} {why}\n")).collect();
        fail!(
            "missing Debian packages:\n{why}Install them as root and come back:\n  \
             apt-get update && apt-get install -y --no-install-recommends {}",
            names.join(" ")
        );
    }
    eprintln!("setup: installing {}", names.join(" "));
    apt(&["update"])?;
    apt(&[&["install", "-y", "--no-install-recommends"], names.as_slice()].concat())
}

fn apt(arguments: &[&str]) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    run::to_stderr(&mut apt)?;
    run::check(&mut apt)
}

/// The lines of the table whose package is not installed.
fn missing(packages: &[Package]) -> Result<Vec<Package>> {
    let names: Vec<&str> = packages.iter().map(|(name, _)| *name).collect();
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${Package} ${Status}\\n"]).args(&names);
    // It fails when a package is unknown; what it knows is still on its output.
    let output = query.output().context(|| {
        let names = names.join(" ");
        format!("asking dpkg-query (is this Debian? elsewhere install the likes of: {names})")
    })?;
    let known = String::from_utf8_lossy(&output.stdout);
    Ok(packages.iter().copied().filter(|(name, _)| !is_installed(&known, name)).collect())
}

fn is_installed(known: &str, package: &str) -> bool {
    known.lines().any(|line| {
        line.split_once(' ')
            .is_some_and(|(name, status)| name == package && status.ends_with(" installed"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_open_mpi_5_needs_is_for_debian_13() {
        assert!(has_openmpi_5("NAME=\"Debian\"\nVERSION_ID=\"13\"\n"));
        assert!(!has_openmpi_5("VERSION_ID=\"12\"\n") && !has_openmpi_5(""));
    }

    #[test]
    fn a_package_counts_only_when_it_is_fully_installed() {
        let known = "hpcc install ok installed\nstrace deinstall ok config-files\n";
        assert!(is_installed(known, "hpcc"));
        assert!(!is_installed(known, "strace"));
        assert!(!is_installed(known, "hpc"));
    }
}
