//! Programs that were built with MPICH, over Open MPI with our component, through wi4mpi
//! (docs/adr/0045): what the user guide says works, beside the same binaries over stock ob1.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use super::job::TestJob;
use super::mpi::{self, Over};
use super::summary::Tier;
use super::trees::recovery;
use crate::error::{Result, fail};
use crate::{paths, run};

/// Names the folder that wi4mpi was installed to.
const FOLDER: &str = "RUSTBTL_WI4MPI";
/// Names MPICH's compiler, if it is not called as in Debian.
const COMPILER: &str = "RUSTBTL_MPICH_CC";

/// Of our programs those that pass, with two ranks.
const PASSING: [&str; 9] = [
    "ring",
    "order",
    "sizes",
    "wildcards",
    "probe",
    "coll_rooted",
    "comm_churn",
    "cancel",
    "rma_active",
];

/// Where things are.
pub struct Wi4mpi {
    /// From MPICH's interface to Open MPI's.
    translation: PathBuf,
    /// Empty libraries with the names of MPICH's.
    stand_ins: PathBuf,
    /// Open MPI's libraries.
    libraries: PathBuf,
    /// Compiles with MPICH.
    pub compiler: String,
}

impl Wi4mpi {
    /// Why there is none, or where it is.
    fn find() -> Result<Wi4mpi> {
        let Some(folder) = env::var_os(FOLDER) else {
            fail!("{FOLDER} does not name the folder of a wi4mpi");
        };
        let compiler = env::var(COMPILER).unwrap_or_else(|_| "mpicc.mpich".into());
        if Command::new(&compiler).arg("-v").output().is_err() {
            fail!("there is no {compiler} ({COMPILER} names MPICH's compiler)");
        }
        let folder = PathBuf::from(folder).join("libexec/wi4mpi");
        let translation = folder.join("libwi4mpi_MPICH_OMPI.so");
        if !translation.is_file() {
            fail!("{} is not there", translation.display());
        }
        let folders = run::output(Command::new("mpicc").arg("--showme:libdirs"))?;
        let libraries = folders.split_whitespace().map(PathBuf::from);
        let has_mpi = |folder: &PathBuf| folder.join("libmpi.so").is_file();
        let Some(libraries) = libraries.into_iter().find(has_mpi) else {
            fail!("mpicc names no folder with libmpi.so: {folders}");
        };
        Ok(Wi4mpi { translation, stand_ins: folder.join("fakelibMPICH"), libraries, compiler })
    }

    /// The ranks of the job are MPICH's binaries.
    pub fn job(&self, job: TestJob) -> TestJob {
        let [c, fortran] = ["libmpi.so", "libmpi_mpifh.so"]
            .map(|name| self.libraries.join(name).display().to_string());
        let variables = [
            "WI4MPI_FROM=MPICH".to_owned(),
            "WI4MPI_TO=OMPI".to_owned(),
            format!("WI4MPI_RUN_MPI_C_LIB={c}"),
            format!("WI4MPI_RUN_MPIIO_C_LIB={c}"),
            format!("WI4MPI_RUN_MPI_F_LIB={fortran}"),
            format!("WI4MPI_RUN_MPIIO_F_LIB={fortran}"),
            format!("LD_LIBRARY_PATH={}", self.stand_ins.display()),
            format!("LD_PRELOAD={}:{c}", self.translation.display()),
        ];
        variables.iter().fold(job, |job, variable| job.with(&["--env", variable]))
    }
}

/// The tier.
pub fn run(tier: &mut Tier) {
    let wi4mpi = match Wi4mpi::find() {
        Ok(wi4mpi) => wi4mpi,
        Err(why) => {
            let what = "MPICH's programs through wi4mpi, nothing of it is proved";
            return tier.skip(&format!("{what}: {why}"));
        }
    };
    let over = Over::Mpich(&wi4mpi);
    for name in PASSING {
        tier.check(&format!("wi4mpi: {name}: stock ob1"), || passes(&over, name, &["--plain"]));
        tier.check(&format!("wi4mpi: {name}: our component"), || passes(&over, name, &[]));
    }
    recovery::run_programs(tier, &over, "wi4mpi: ");
}

fn passes(over: &Over, name: &str, options: &[&str]) -> Result<()> {
    let program = mpi::compile_over(&paths::root().join(format!("tests/mpi/{name}.c")), over)?;
    let outcome = over.job(TestJob::new(1, 2, &[program])).with(options).run()?;
    outcome.must(outcome.code == 0, "the job should end well")?;
    let said = |word: &str| outcome.stdout.contains(word);
    outcome.must(said("OK") || said("HASH"), "the program should say that it has passed")
}
