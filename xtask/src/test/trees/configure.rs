//! `--with-rustbtl` in a configure that has nothing but our check: seconds instead of minutes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::minimal_tree;
use crate::error::{Context, Result, fail};
use crate::test::scratch::Scratch;
use crate::{run, tree};

/// Substitutes for what Open MPI's configure has when it comes to our check.
const CONFIGURE_AC: &str = "\
AC_INIT([check], [1])
m4_define([OPAL_VAR_SCOPE_PUSH], [])
m4_define([OPAL_VAR_SCOPE_POP], [])
m4_define([OPAL_SUMMARY_ADD], [echo \"summary: $2: $4\"])
host=${MACHINE-x86_64-pc-linux-gnu} ac_cv_sizeof_void_p=8
m4_include([config/ompi_check_rustbtl.m4])
OMPI_CHECK_RUSTBTL([x], [echo \"decided: build\"], [echo \"decided: skip\"])
AC_OUTPUT
";

/// A way to call configure: arguments, environment, whether it must succeed, what it must say.
struct Case {
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    succeeds: bool,
    says: &'static str,
}

const CASES: [Case; 11] = [
    skips(&[]),
    skips(&["--with-rustbtl=no"]),
    skips(&["--without-rustbtl"]),
    Case {
        arguments: &["--with-rustbtl"],
        environment: &[],
        succeeds: true,
        says: "decided: build",
    },
    Case {
        arguments: &["--with-rustbtl=yes"],
        environment: &[],
        succeeds: true,
        says: "summary: Fault tolerance by rustbtl: yes",
    },
    fails(&["--with-rustbtl=/opt/rustbtl"], &[], "takes yes or no"),
    fails(&["--with-rustbtl"], &[("RUSTC", "OLD")], "1.88"),
    fails(&["--with-rustbtl"], &[("RUSTC", "BROKEN")], "does not compile for"),
    fails(&["--with-rustbtl"], &[("MACHINE", "aarch64-unknown-linux-gnu")], "x86-64 only"),
    fails(&["--with-rustbtl"], &[("MACHINE", "powerpc64le-unknown-linux-gnu")], "not powerpc64le"),
    fails(&["--with-rustbtl"], &[("PATH", "/usr/bin:/bin"), ("NO_RUST", "1")], "was not found"),
];

const fn skips(arguments: &'static [&'static str]) -> Case {
    Case { arguments, environment: &[], succeeds: true, says: "decided: skip" }
}

const fn fails(
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    says: &'static str,
) -> Case {
    Case { arguments, environment, succeeds: false, says }
}

/// Tries all cases, and one with sources that are not complete.
pub fn decides() -> Result<()> {
    let scratch = Scratch::new("tree-configure")?;
    minimal_tree(&scratch)?;
    tree::prepare(&scratch.0)?;
    write(&scratch.0.join("configure.ac"), CONFIGURE_AC)?;
    run::output(Command::new("autoconf").current_dir(&scratch.0))?;
    let wrong = wrong_compilers(&scratch.0)?;
    for case in &CASES {
        try_case(&scratch.0, case, &wrong)?;
    }
    let lock = scratch.0.join("ompi/mca/vprotocol/correlated/rust/Cargo.lock");
    fs::remove_file(&lock).context(|| lock.display().to_string())?;
    try_case(&scratch.0, &fails(&["--with-rustbtl"], &[], "ompi-tree prepare"), &wrong)
}

/// Programs that say they are rustc: too old, or without a standard library.
fn wrong_compilers(folder: &Path) -> Result<[(&'static str, PathBuf); 2]> {
    let make = |name: &str, says: &str| {
        let file = folder.join(name);
        let script = format!("#!/bin/sh\ntest \"$1\" = --version && echo '{says}'\n");
        write(&file, &script)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
            .context(|| file.display().to_string())?;
        Ok(file)
    };
    Ok([
        ("OLD", make("old-rustc", "rustc 1.63.0 (4b91a6ea7 2022-08-08)")?),
        ("BROKEN", make("broken-rustc", "rustc 2.0.0")?),
    ])
}

fn try_case(folder: &Path, case: &Case, wrong: &[(&str, PathBuf)]) -> Result<()> {
    let mut configure = Command::new("sh");
    configure.arg("./configure").args(case.arguments).current_dir(folder);
    for name in ["CARGO", "RUSTC"] {
        configure.env_remove(name); // of the cargo that runs us
    }
    for &(name, value) in case.environment {
        match wrong.iter().find(|(placeholder, _)| *placeholder == value) {
            Some((_, file)) => configure.env(name, file),
            None => configure.env(name, value),
        };
    }
    if case.environment.iter().any(|(name, _)| *name == "NO_RUST") && in_system_path("cargo") {
        return Ok(()); // Debian's own cargo is there: this case cannot be made
    }
    let output = configure.output().context(|| "starting configure".into())?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() != case.succeeds || !text.contains(case.says) {
        fail!(
            "{} with {:?} should {} and say `{}`:\n{text}",
            run::line(&configure),
            case.environment,
            if case.succeeds { "succeed" } else { "fail" },
            case.says
        );
    }
    Ok(())
}

fn in_system_path(name: &str) -> bool {
    ["/usr/bin", "/bin"].iter().any(|folder| Path::new(folder).join(name).exists())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).context(|| file.display().to_string())
}
