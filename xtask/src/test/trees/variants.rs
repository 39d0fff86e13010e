//! Ways to build Open MPI other than its default: what could be different in them is used once.

use std::process::Command;

use super::{recovery, restart};
use crate::error::{Result, fail};
use crate::run;
use crate::test::mpi::{self, Over};
use crate::test::summary::Tier;
use crate::tree::{Installed, Variant, Version};

/// Runs it all: is it what it is meant to be, messages, checkpoints, restart, recovery.
pub fn run(tier: &mut Tier, version: Version, variant: Variant, installed: &Installed) {
    tier.check("it is built as it was asked for", || is_as_requested(version, variant, installed));
    tier.check("a job goes on from a checkpoint", || restart::goes_on(installed));
    recovery::run(tier, &Over::Tree(installed));
    mpi::run_some(tier, &Over::Tree(installed), |name| name == "ring");
}

/// Where the components are, whether ULFM is there, and that nobody else sees the Rust core.
fn is_as_requested(version: Version, variant: Variant, installed: &Installed) -> Result<()> {
    let files = variant == Variant::Dso;
    // PRRTE's have a prefix.
    for name in ["mca_vprotocol_correlated.so", "*mca_errmgr_correlated.so"] {
        let mut find = Command::new("find");
        let found = run::output(find.arg(installed.prefix.join("lib")).args(["-name", name]))?;
        if found.trim().is_empty() == files {
            let should = if files { "a file" } else { "a part of a library" };
            fail!("{name} should be {should}; found: `{}`", found.trim());
        }
    }
    let info = run::output(&mut installed.command("ompi_info"))?;
    if (variant == Variant::NoFt) != info.contains("FT MPI support: no") && version == Version::V50
    {
        fail!("ULFM is there, or is not, against what was asked for:\n{info}");
    }
    let component = if files { "openmpi/mca_vprotocol_correlated.so" } else { "libmpi.so" };
    let library = installed.prefix.join("lib").join(component);
    let symbols = run::output(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(&library))?;
    if let Some(shown) = symbols.lines().find(|line| line.contains(" rustbtl_")) {
        fail!("{} shows a function of ours: {shown}", library.display());
    }
    Ok(())
}
