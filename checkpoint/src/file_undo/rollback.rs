//! In which order journals are undone.

/// What is known of the journal of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Of this epoch.
    pub epoch: u64,
    /// Entries in it.
    pub entries: usize,
    /// Entries in front of `Begun`, it included: they belong to the snapshot. 0: there is none.
    pub begun: usize,
}

/// What is done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Undo this entry.
    Undo {
        /// Of this journal.
        epoch: u64,
        /// From 0 on.
        entry: usize,
    },
    /// It is undone: let the journal end in front of it (invariant 3).
    Cut {
        /// Of this journal.
        epoch: u64,
        /// From 0 on.
        entry: usize,
    },
    /// All of it is undone: remove the journal.
    Remove {
        /// Of this epoch.
        epoch: u64,
    },
}

/// The steps of a rollback to the snapshot with which the epoch `to` began. What belongs to that
/// snapshot is undone, too, and stays in its journal: the process continues from there, and may
/// write before it could record it again. It is only content and sizes, so it does not matter how
/// often it is undone.
pub fn steps(journals: &[Shape], to: u64) -> Vec<Step> {
    let mut newest_first: Vec<Shape> =
        journals.iter().copied().filter(|journal| journal.epoch >= to).collect();
    newest_first.sort_unstable_by_key(|journal| core::cmp::Reverse(journal.epoch));
    let mut all = Vec::new();
    for Shape { epoch, entries, begun } in newest_first {
        let stays = if epoch == to { begun } else { 0 };
        for entry in (0..entries).rev() {
            all.push(Step::Undo { epoch, entry });
            if entry >= stays {
                all.push(Step::Cut { epoch, entry });
            }
        }
        if stays == 0 {
            all.push(Step::Remove { epoch });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_change_is_undone_first_and_what_belongs_to_the_snapshot_stays() {
        let shape = |epoch, entries, begun| Shape { epoch, entries, begun };
        let (undo, cut) =
            (|epoch, entry| Step::Undo { epoch, entry }, |epoch, entry| Step::Cut { epoch, entry });
        let journals = [shape(1, 9, 0), shape(2, 3, 2), shape(3, 1, 1)];
        let wanted = [
            undo(3, 0),
            cut(3, 0),
            Step::Remove { epoch: 3 },
            undo(2, 2),
            cut(2, 2),
            undo(2, 1),
            undo(2, 0),
        ];
        assert_eq!(steps(&journals, 2), wanted);
        assert_eq!(steps(&journals, 4), []);
    }
}
