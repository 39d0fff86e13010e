//! Who may print: one tier at a time, so that a case is always below the name of its tier. What
//! the others have to say waits until that tier has ended.

use std::collections::BTreeMap;
use std::mem;

/// The screen and those that wait for it.
#[derive(Default)]
pub struct Screen {
    next: usize,
    /// The tier whose text is printed at once.
    seen: Option<usize>,
    waiting: BTreeMap<usize, Waiting>,
}

/// Text of a tier that is not seen.
#[derive(Default)]
struct Waiting {
    text: String,
    has_ended: bool,
}

impl Screen {
    /// The number of a new tier.
    pub fn add(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Is what this tier writes printed at once?
    pub fn is_seen(&self, tier: usize) -> bool {
        self.seen.is_none_or(|seen| seen == tier)
    }

    /// What is to be printed now that a tier writes this.
    pub fn write(&mut self, tier: usize, text: &str) -> String {
        if self.is_seen(tier) {
            self.seen = Some(tier);
            return text.to_string();
        }
        self.waiting.entry(tier).or_default().text.push_str(text);
        String::new()
    }

    /// What is to be printed now that a tier has ended: all that waits of others that have ended,
    /// and of the first one that has not, which is seen from now on.
    pub fn end(&mut self, tier: usize) -> String {
        if self.seen != Some(tier) {
            if let Some(waiting) = self.waiting.get_mut(&tier) {
                waiting.has_ended = true;
            }
            return String::new();
        }
        self.seen = None;
        let mut text = String::new();
        for (other, waiting) in mem::take(&mut self.waiting) {
            if waiting.has_ended {
                text.push_str(&waiting.text);
            } else {
                self.waiting.insert(other, waiting);
            }
        }
        if let Some((other, waiting)) = self.waiting.pop_first() {
            text.push_str(&waiting.text);
            self.seen = Some(other);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_is_not_seen_waits_and_nothing_is_lost() {
        let mut screen = Screen::default();
        let [one, two, three] = [screen.add(), screen.add(), screen.add()];
        assert_eq!(screen.write(one, "1a "), "1a ");
        assert_eq!(screen.write(two, "2a "), "");
        assert_eq!(screen.write(three, "3a "), "");
        assert!(screen.is_seen(one) && !screen.is_seen(two));
        assert_eq!(screen.end(three), "");
        assert_eq!(screen.write(one, "1b "), "1b ");
        assert_eq!(screen.end(one), "3a 2a ", "the third has ended, the second goes on");
        assert_eq!(screen.write(two, "2b "), "2b ");
        assert_eq!(screen.end(two), "");
        assert!(screen.is_seen(three), "nobody is");
    }

    #[test]
    fn one_that_has_written_nothing_takes_no_place() {
        let mut screen = Screen::default();
        let [one, two] = [screen.add(), screen.add()];
        assert_eq!(screen.end(one), "");
        assert_eq!(screen.write(two, "2"), "2");
    }
}
