//! The parameter reference (docs/parameters.md), made from what the component itself registers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use super::{COMPONENT_PATH, ensure_fresh};
use crate::error::{Context, Result, fail};
use crate::{paths, run};

/// The command line of `cargo xtask parameters`.
#[derive(Args)]
pub struct ParametersOptions {
    /// Write docs/parameters.md anew
    #[arg(long)]
    write: bool,
}

/// What `ompi_info` says of one parameter: `level`, `type`, `value`, `help` …
pub type Fields = BTreeMap<String, String>;

/// A component, as ompi_info names it: framework, name.
type Registrar = (&'static str, &'static str);
const VPROTOCOL: Registrar = ("vprotocol", "correlated");
const BTL: Registrar = ("btl", "rustbtl");

const HEAD: &str = "\
# Parameters

All MCA parameters of the component, as `ompi_info --param vprotocol correlated --level 9`
lists them.
Set one by `--mca NAME VALUE` on mpirun's command line, by the variable `OMPI_MCA_NAME`,
or in Open MPI's parameter files.
`cargo xtask parameters --write` makes this page from the component.

| parameter `vprotocol_correlated_…` | type | default | level | meaning |
|---|---|---|---|---|
";

const OF_THE_BTL: &str = "
## The BTL

Those of `--mca btl rustbtl,self` (`ompi_info --param btl rustbtl --level 9`), which protects
nothing ([user guide](user-guide.md#i-want-to-keep-ob1)). None of the parameters above counts there.

| parameter `btl_rustbtl_…` | type | default | level | meaning |
|---|---|---|---|---|
";

const OLD: &str = "
## Deprecated names

Names of version 0.1.0. They are still understood; use the new ones.

| deprecated | now |
|---|---|
";

/// Shows the page, or writes it.
pub fn run(options: &ParametersOptions) -> Result<()> {
    ensure_fresh()?;
    let page = page(&registered()?, &registered_by(BTL)?);
    if options.write {
        fs::write(file(), page).context(|| file().display().to_string())
    } else {
        print!("{page}");
        Ok(())
    }
}

/// Fails if docs/parameters.md is not what the component registers.
pub fn check() -> Result<()> {
    let there = fs::read_to_string(file()).context(|| file().display().to_string())?;
    if there != page(&registered()?, &registered_by(BTL)?) {
        fail!("docs/parameters.md is not current: run `cargo xtask parameters --write`");
    }
    Ok(())
}

fn file() -> PathBuf {
    paths::root().join("docs/parameters.md")
}

/// All parameters of the first component by their names.
pub fn registered() -> Result<BTreeMap<String, Fields>> {
    registered_by(VPROTOCOL)
}

fn registered_by(component: Registrar) -> Result<BTreeMap<String, Fields>> {
    let mut info = Command::new("ompi_info");
    info.args(["--param", component.0, component.1, "--level", "9", "--parsable"]);
    // What the user has set must not be taken for a default.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OMPI_MCA_") {
            info.env_remove(name);
        }
    }
    info.env(COMPONENT_PATH, format!("{}:SYSTEM_DEFAULT", paths::mca().display()));
    let all = parse(&run::output(&mut info)?, component);
    if all.is_empty() {
        fail!("ompi_info lists no parameter of {} {}", component.0, component.1);
    }
    Ok(all)
}

fn parse(text: &str, (framework, name): Registrar) -> BTreeMap<String, Fields> {
    let prefix = format!("mca:{framework}:{name}:param:");
    let mut all: BTreeMap<String, Fields> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix(&prefix).and_then(|rest| rest.split_once(':'))
        else {
            continue;
        };
        let Some((key, value)) = rest.split_once(':') else { continue };
        all.entry(name.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
    }
    all
}

fn page(all: &BTreeMap<String, Fields>, of_btl: &BTreeMap<String, Fields>) -> String {
    let old = |(name, fields): (&String, &Fields)| {
        let of = fields.get("synonym_of")?.strip_prefix("name:")?;
        Some(format!("| `{name}` | `{of}` |\n"))
    };
    let old: String = all.iter().filter_map(old).collect();
    let (first, btl) = (rows(all, VPROTOCOL), rows(of_btl, BTL));
    format!("{HEAD}{first}{OF_THE_BTL}{btl}{OLD}{old}")
}

/// The lines of a table: all but deprecated names.
fn rows(all: &BTreeMap<String, Fields>, (framework, component): Registrar) -> String {
    let prefix = format!("{framework}_{component}_");
    let mut text = String::new();
    for (name, fields) in all {
        let field = |key: &str| fields.get(key).map_or("", String::as_str);
        if field("synonym_of").starts_with("name:") {
            continue;
        }
        let short = name.strip_prefix(&prefix).unwrap_or(name);
        let default = match field("value") {
            "" => "–".to_owned(),
            value => format!("`{value}`"),
        };
        let help = field("help").replace('|', "\\|");
        let (kind, level) = (field("type"), field("level"));
        text += &format!("| `{short}` | {kind} | {default} | {level} | {help} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_synonyms_are_distinguished() {
        let text = "mca:vprotocol:correlated:version:x\n\
            mca:vprotocol:correlated:param:vprotocol_correlated_a:value:7\n\
            mca:vprotocol:correlated:param:vprotocol_correlated_a:level:3\n\
            mca:vprotocol:correlated:param:vprotocol_correlated_a:type:int\n\
            mca:vprotocol:correlated:param:vprotocol_correlated_a:help:One: a|b.\n\
            mca:vprotocol:correlated:param:vprotocol_correlated_b:deprecated:yes\n\
            mca:vprotocol:correlated:param:vprotocol_correlated_b:synonym_of:name:\
            vprotocol_correlated_a\n";
        let btl = "mca:btl:rustbtl:param:btl_rustbtl_shm:type:bool\n";
        let page = page(&parse(text, VPROTOCOL), &parse(btl, BTL));
        assert!(page.contains("| `shm` | bool | – |  |  |\n"), "{page}");
        assert!(page.contains("| `a` | int | `7` | 3 | One: a\\|b. |\n"), "{page}");
        assert!(page.contains("| `vprotocol_correlated_b` | `vprotocol_correlated_a` |"), "{page}");
    }
}
