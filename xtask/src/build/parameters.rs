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

const PREFIX: &str = "mca:vprotocol:correlated:param:";

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

const OLD: &str = "
## Deprecated names

Names of version 0.1.0. They are still understood; use the new ones.

| deprecated | now |
|---|---|
";

/// Shows the page, or writes it.
pub fn run(options: &ParametersOptions) -> Result<()> {
    ensure_fresh()?;
    let page = page(&registered()?);
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
    if there != page(&registered()?) {
        fail!("docs/parameters.md is not current: run `cargo xtask parameters --write`");
    }
    Ok(())
}

fn file() -> PathBuf {
    paths::root().join("docs/parameters.md")
}

/// All parameters by their names.
pub fn registered() -> Result<BTreeMap<String, Fields>> {
    let mut info = Command::new("ompi_info");
    info.args(["--param", "vprotocol", "correlated", "--level", "9", "--parsable"]);
    // What the user has set must not be taken for a default.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OMPI_MCA_") {
            info.env_remove(name);
        }
    }
    info.env(COMPONENT_PATH, format!("{}:SYSTEM_DEFAULT", paths::mca().display()));
    let all = parse(&run::output(&mut info)?);
    if all.is_empty() {
        fail!("ompi_info lists no parameter of the component");
    }
    Ok(all)
}

fn parse(text: &str) -> BTreeMap<String, Fields> {
    let mut all: BTreeMap<String, Fields> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':'))
        else {
            continue;
        };
        let Some((key, value)) = rest.split_once(':') else { continue };
        all.entry(name.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
    }
    all
}

fn page(all: &BTreeMap<String, Fields>) -> String {
    let (mut text, mut old) = (HEAD.to_owned(), String::new());
    for (name, fields) in all {
        let field = |key: &str| fields.get(key).map_or("", String::as_str);
        let short = name.strip_prefix("vprotocol_correlated_").unwrap_or(name);
        if let Some(of) = field("synonym_of").strip_prefix("name:") {
            old += &format!("| `{name}` | `{of}` |\n");
            continue;
        }
        let default = match field("value") {
            "" => "–".to_owned(),
            value => format!("`{value}`"),
        };
        let help = field("help").replace('|', "\\|");
        text += &format!(
            "| `{short}` | {} | {default} | {} | {help} |\n",
            field("type"),
            field("level")
        );
    }
    text + OLD + &old
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
        let page = page(&parse(text));
        assert!(page.contains("| `a` | int | `7` | 3 | One: a\\|b. |\n"), "{page}");
        assert!(page.contains("| `vprotocol_correlated_b` | `vprotocol_correlated_a` |"), "{page}");
    }
}
