//! The JSON documents about a job: what each rank writes, and the one they are merged into.

mod format;
mod merge;

#[cfg(test)]
pub use format::Counters;
pub use format::{ReportedJob, ReportedRank};

use std::fs;
use std::path::Path;

use crate::cluster::ClusterOptions;
use crate::error::{Context, Result};

/// Merges the ranks' reports in `folder` and writes the document to `file`.
pub fn write(
    file: &Path,
    folder: &Path,
    options: &ClusterOptions,
    exit: i32,
    seconds: f64,
) -> Result<()> {
    let ranks = if options.plain { Vec::new() } else { merge::read_ranks(folder)? };
    if !options.plain && ranks.len() != options.ranks() as usize {
        eprintln!(
            "xtask: cluster: only {} of {} ranks wrote a report (the others did not finish)",
            ranks.len(),
            options.ranks()
        );
    }
    let job = merge::job(options, ranks, exit, seconds);
    let text = serde_json::to_string_pretty(&job).context(|| "making the report".into())?;
    fs::write(file, text + "\n").context(|| format!("writing the report {}", file.display()))
}

/// Reads a document that [`write()`] has written.
pub fn read(file: &Path) -> Result<ReportedJob> {
    let text = fs::read_to_string(file).context(|| format!("reading {}", file.display()))?;
    serde_json::from_str(&text).context(|| format!("understanding {}", file.display()))
}
