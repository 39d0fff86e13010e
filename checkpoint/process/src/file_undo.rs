//! Journals of what a process changes in files, on the disk (docs/adr/0031). The process writes
//! them ([`Journal`]); whoever restores it undoes them ([`roll_back`]).
//!
//! Source: `rustbtl_checkpoint::file_undo`, which says what is in them, and in which order they are
//! undone. A process has a private folder, `set-S.rank-R`, in a private folder of its job; in it
//! are `epoch-N`, what has been removed from other places, `saved-N-…`, and `reads-N`: which files
//! it reads; and `held`. Beside the folders of processes is, while a rollback is under way, what
//! several of them have changed in the same files (`common`).

mod common;
mod held;
mod journal;
mod not_again;
mod others;
mod readers;
mod rollback;
mod shared;
mod watched;

pub use common::is_over;
pub use held::{holders, is_any_held_below, is_any_held_in, is_held, release};
pub use journal::Journal;
pub use rollback::{NotPutBack, Rollback, RolledBack, roll_back};
pub use watched::WatchedReads;

/// The folder of a job that has no checkpoint directory begins so: nothing in it outlives the job.
pub const TEMPORARY: &str = ".rustbtl-";

/// Name of the file in which is noted what is read in an epoch; a rollback does not shorten it.
fn reads_name(epoch: u64) -> String {
    format!("reads-{epoch}")
}

/// Name of the journal of an epoch.
fn journal_name(epoch: u64) -> String {
    format!("epoch-{epoch}")
}

/// Epoch of a journal, or of what was saved in it.
fn epoch_of(name: &str, kind: &str) -> Option<u64> {
    let number = name.strip_prefix(kind)?;
    number.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests;
