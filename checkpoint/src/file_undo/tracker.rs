//! What of which files is recorded in this epoch.

use super::ranges::Ranges;
use core::ops::Range;
use std::collections::BTreeMap;

/// A file, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileId {
    /// Its device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// What has to be recorded before a change is made (invariants 1 and 2).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Need {
    /// These parts of the file.
    pub content: Vec<Range<u64>>,
    /// Its size, and whether it is going to be less.
    pub size: Option<(u64, bool)>,
    /// That it is not put back: there is no room for its content (invariant 4).
    pub missing: bool,
}

impl Need {
    /// Nothing.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.size.is_none() && !self.missing
    }
}

#[derive(Clone, Debug, Default)]
struct File {
    /// When the epoch began.
    size: u64,
    saved: Ranges,
    /// The journal has its size.
    grown: bool,
    /// And that it was made shorter.
    shrunk: bool,
    /// There is nothing to be put back: it was made in this epoch.
    fresh: bool,
    missing: bool,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Tracker {
    files: BTreeMap<FileId, File>,
    /// Content in journals of this epoch and of earlier ones that are kept.
    spent: u64,
    budget: u64,
}

impl Tracker {
    /// So many bytes of content may be recorded in all journals together.
    pub fn new(budget: u64) -> Self {
        Self { files: BTreeMap::new(), spent: 0, budget }
    }

    /// A snapshot is taken next. Journals that are kept have so much content.
    pub fn begin_epoch(&mut self, kept_bytes: u64) {
        self.files.clear();
        self.spent = kept_bytes;
    }

    /// Content that is recorded.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// How much may still be recorded.
    pub fn left(&self) -> u64 {
        self.budget.saturating_sub(self.spent)
    }

    /// Journals with so much content were removed.
    pub fn released(&mut self, bytes: u64) {
        self.spent = self.spent.saturating_sub(bytes);
    }

    /// So much is going to be copied. Is there room for it?
    pub fn spend(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.left();
        self.spent += if fits { bytes } else { 0 };
        fits
    }

    /// Has anything been recorded of it?
    pub fn knows(&self, id: FileId) -> bool {
        self.files.contains_key(&id)
    }

    /// It is going to be written to; it has this size.
    pub fn opened(&mut self, id: FileId, size: u64) {
        self.files.entry(id).or_insert_with(|| File { size, ..File::default() });
    }

    /// The file did not exist when the epoch began.
    pub fn created(&mut self, id: FileId) {
        self.files.insert(id, File { fresh: true, ..File::default() });
    }

    /// It is gone for good, and its inode may be another's next.
    pub fn forget(&mut self, id: FileId) {
        self.files.remove(&id);
    }

    /// Was it made in this epoch?
    pub fn is_fresh(&self, id: FileId) -> bool {
        self.files.get(&id).is_some_and(|file| file.fresh)
    }

    /// Its size was recorded when the process was suspended.
    pub fn sized(&mut self, id: FileId, size: u64) {
        let file = self.files.entry(id).or_insert_with(|| File { size, ..File::default() });
        file.grown = true;
    }

    /// Its content was recorded then, too, or is not put back.
    pub fn begun(&mut self, id: FileId, size: u64, is_saved: bool) {
        self.sized(id, size);
        let Some(file) = self.files.get_mut(&id) else { return };
        if is_saved {
            file.saved.add(0..size);
            self.spent = self.spent.saturating_add(size);
        } else {
            file.missing = true;
        }
    }

    /// It is not put back: its content could not be recorded.
    pub fn give_up(&mut self, id: FileId, size: u64) {
        let file = self.files.entry(id).or_insert_with(|| File { size, ..File::default() });
        file.missing = true;
    }

    /// Bytes are going to be written; the file has this size now.
    pub fn write(&mut self, id: FileId, size: u64, range: Range<u64>) -> Need {
        // Also where another process has made it longer since: who writes behind what there was is
        // seen by that.
        let grows = !range.is_empty() && range.end > self.size_at_begin(id).unwrap_or(size);
        self.change(id, size, range, grows, false)
    }

    fn size_at_begin(&self, id: FileId) -> Option<u64> {
        self.files.get(&id).map(|file| file.size)
    }

    /// It is going to have another size.
    pub fn resize(&mut self, id: FileId, size: u64, to: u64) -> Need {
        self.change(id, size, to..u64::MAX, to > size, to < size)
    }

    /// Anything may be written to it from now on, and nobody will see it.
    pub fn whole(&mut self, id: FileId, size: u64) -> Need {
        self.change(id, size, 0..u64::MAX, true, false)
    }

    fn change(
        &mut self,
        id: FileId,
        size: u64,
        range: Range<u64>,
        grows: bool,
        shrinks: bool,
    ) -> Need {
        let left = self.left();
        let file = self.files.entry(id).or_insert_with(|| File { size, ..File::default() });
        let mut need = Need::default();
        if file.fresh {
            return need;
        }
        if grows && !file.grown || shrinks && !file.shrunk {
            need.size = Some((file.size, shrinks));
            file.grown = true;
            file.shrunk |= shrinks;
        }
        if file.missing {
            return need;
        }
        let wanted = range.start.min(file.size)..range.end.min(file.size);
        let content = file.saved.add(wanted);
        let bytes: u64 = content.iter().map(|range| range.end - range.start).sum();
        if bytes > left {
            file.missing = true;
            need.missing = true;
            return need;
        }
        self.spent += bytes;
        need.content = content;
        need
    }

    /// Nor does one from here on.
    pub fn is_settled_from(&self, id: FileId, at: u64) -> bool {
        self.files.get(&id).is_some_and(|file| file.grown && at >= file.size)
    }

    /// No later write in this epoch needs anything; `appends`: one that only ever appends.
    pub fn is_settled(&self, id: FileId, appends: bool) -> bool {
        self.files.get(&id).is_some_and(|file| {
            let content = appends || file.missing || file.saved.reach(file.size);
            file.fresh || file.grown && content
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { device: 1, inode: 2 };

    fn content(need: &Need) -> Vec<(u64, u64)> {
        need.content.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn each_byte_is_recorded_once_before_it_is_changed() {
        let mut tracker = Tracker::new(1000);
        let need = tracker.write(FILE, 100, 10..20);
        assert_eq!((content(&need), need.size), (vec![(10, 20)], None), "2");
        assert!(tracker.write(FILE, 100, 12..18).is_empty());
        let need = tracker.write(FILE, 100, 0..30);
        assert_eq!(content(&need), [(0, 10), (20, 30)]);
        assert_eq!(tracker.spent(), 30);
        // What was not there when the epoch began is not recorded.
        let need = tracker.write(FILE, 100, 90..200);
        assert_eq!((content(&need), need.size), (vec![(90, 100)], Some((100, false))));
        assert!(tracker.write(FILE, 200, 200..300).is_empty());
        assert!(!tracker.is_settled(FILE, false) && tracker.is_settled(FILE, true));
        let need = tracker.resize(FILE, 300, 0);
        assert_eq!((content(&need), need.size), (vec![(30, 90)], Some((100, true))));
        assert!(tracker.is_settled(FILE, false) && tracker.whole(FILE, 0).is_empty());
        tracker.begin_epoch(7);
        assert_eq!((tracker.spent(), tracker.is_settled(FILE, true)), (7, false));
        tracker.opened(FILE, 100);
        assert_eq!(
            tracker.write(FILE, 300, 100..200).size,
            Some((100, false)),
            "others were first"
        );
    }

    #[test]
    fn a_file_of_this_epoch_needs_nothing() {
        let mut tracker = Tracker::new(1000);
        tracker.created(FILE);
        assert!(tracker.write(FILE, 0, 0..10).is_empty() && tracker.resize(FILE, 10, 0).is_empty());
        assert!(tracker.is_fresh(FILE) && tracker.is_settled(FILE, false));
        tracker.forget(FILE);
        assert!(!tracker.is_fresh(FILE));
    }

    #[test]
    fn what_has_no_room_is_said_once() {
        let mut tracker = Tracker::new(50);
        assert_eq!(content(&tracker.write(FILE, 100, 0..40)), [(0, 40)]);
        let need = tracker.write(FILE, 100, 40..120);
        assert_eq!(need, Need { content: vec![], size: Some((100, false)), missing: true }, "4");
        assert!(tracker.write(FILE, 120, 50..60).is_empty());
        assert_eq!(tracker.spent(), 40);
        assert!(tracker.is_settled(FILE, false));
        let other = FileId { inode: 3, ..FILE };
        assert_eq!(content(&tracker.write(other, 10, 0..10)), [(0, 10)], "others still have room");
    }
}
