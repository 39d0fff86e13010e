//! What files held at a checkpoint: the record of what a process changes in them afterwards, by
//! which it is undone when the process is rolled back (docs/adr/0031). Nothing here touches a file.
//!
//! Source: undo logging (Gray, Reuter, *Transaction Processing*, 1993, chapter 10): what is to be
//! overwritten is recorded first, and undone in the opposite order.
//!
//! An *epoch* is the time from one snapshot of a process to the next; each has a journal, a
//! sequence of entries. To roll back to a snapshot, the journals of its epoch and of all later ones
//! are undone, the newest first.
//!
//! Invariants (the tests name them):
//! 1. An entry is in the journal before the change that it undoes is made.
//! 2. Of each byte that a file had when the epoch began, the journal has what it was then, before
//!    it is changed for the first time; once.
//! 3. Undoing may end anywhere and be begun anew: the outcome is the same.
//! 4. What is not undone has an entry that says so (`Missing`).
//! 5. Damaged or arbitrary bytes are never undone: a journal ends at its first entry that is not
//!    whole, since the change after it was not made.
//! 6. Which files a process reads in an epoch is noted before it reads them. A file that is not
//!    what it was at the snapshot, and that is read after it, is never passed over: what the
//!    process computes from it would be wrong.
//! 7. Of what several of the processes that are rolled back have changed, the oldest record is
//!    undone last, whoever made it: entries have a time.
//! 8. What a process reads again while others continue is what it had read before, or all are
//!    rolled back: also where others write it only meanwhile.
//! 9. What a process that is rolled back alone puts back, processes that go on have not read since
//!    it was changed, and read it when it has been written again.

mod entry;
mod ranges;
mod rollback;
mod tracker;

pub use entry::{CONTENT_PLACE_BYTES, ENTRY_BYTES_MAX, Entry, HEAD_BYTES, Head};
pub use ranges::Ranges;
pub use rollback::{Shape, Step, steps};
pub use tracker::{FileId, Need, Tracker};

/// Content is recorded in pieces of at most so many bytes.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;
