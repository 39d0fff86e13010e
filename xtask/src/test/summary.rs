//! Counting and showing: one line a case, the reason under a failed one, the sum at the end.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use crate::error::{Failure, Result};

/// Lines of a reason that are shown, from its beginning and from its end.
const FIRST_LINES: usize = 25;
const LAST_LINES: usize = 25;

/// What has passed and failed so far.
pub struct Summary {
    passed: usize,
    failed: Vec<String>,
    tier: String,
    tier_is_shown: bool,
    only: Option<String>,
}

impl Summary {
    /// Nothing yet; with `only`, cases whose name lacks the text are left out.
    pub fn new(only: Option<String>) -> Summary {
        let tier = String::new();
        Summary { passed: 0, failed: Vec::new(), tier, tier_is_shown: true, only }
    }

    /// Begins a tier; its name is shown with its first case.
    pub fn tier(&mut self, name: &str) {
        self.tier = name.to_string();
        self.tier_is_shown = false;
    }

    /// Runs one case and shows how it went; true if it passed.
    pub fn check(&mut self, name: &str, case: impl FnOnce() -> Result<()>) -> bool {
        self.count(name, || case().map(|()| (1, String::new())))
    }

    /// Runs a case that stands for several; it says for how many, and how to show that.
    pub fn count(&mut self, name: &str, case: impl FnOnce() -> Result<(usize, String)>) -> bool {
        if self.only.as_ref().is_some_and(|text| !name.contains(text.as_str())) {
            return true;
        }
        if !self.tier_is_shown {
            println!("\n{}", self.tier);
            self.tier_is_shown = true;
        }
        let back = if io::stdout().is_terminal() {
            print!("  ..    {name}");
            let _ = io::stdout().flush();
            "\r"
        } else {
            ""
        };
        let start = Instant::now();
        let done = case();
        let seconds = start.elapsed().as_secs_f64();
        match &done {
            Ok((number, note)) => {
                self.passed += number;
                println!("{back}  ok    {name}{note} ({seconds:.1} s)");
            }
            Err(Failure(reason)) => {
                self.failed.push(format!("{}: {name}", self.tier));
                println!("{back}  FAIL  {name} ({seconds:.1} s)");
                println!("{}", shorten(reason));
            }
        }
        done.is_ok()
    }

    /// Shows the sum; true if all is well.
    pub fn finish(&self) -> bool {
        println!();
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!("{} passed, {} failed", self.passed, self.failed.len());
        self.failed.is_empty()
    }
}

/// The first and the last lines, set in: what failed is said first, what came of it last.
fn shorten(reason: &str) -> String {
    let lines: Vec<&str> = reason.lines().collect();
    let (first, rest) = lines.split_at(lines.len().min(FIRST_LINES));
    let (left_out, last) = rest.split_at(rest.len().saturating_sub(LAST_LINES));
    let gap = (!left_out.is_empty()).then(|| format!("… {} lines …", left_out.len()));
    let shown = first.iter().copied().chain(gap.as_deref()).chain(last.iter().copied());
    let text: String = shown.map(|line| format!("          {line}\n")).collect();
    text.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::failure;

    #[test]
    fn cases_are_counted_and_a_filter_leaves_some_out() {
        let mut summary = Summary::new(Some("want".into()));
        assert!(summary.check("wanted", || Ok(())));
        assert!(summary.check("other", || Err(failure!("never run"))));
        assert!(!summary.check("want too", || Err(failure!("bad"))));
        assert_eq!((summary.passed, summary.failed.len()), (1, 1));
        assert!(!summary.finish());
    }

    #[test]
    fn the_middle_of_a_long_reason_is_left_out() {
        let long = (0..100).map(|n| format!("{n}\n")).collect::<String>();
        let shown = shorten(&long);
        assert!(shown.contains("\n          24\n          … 50 lines …\n          75\n"));
        assert!(shown.starts_with("          0\n") && shown.ends_with("99"));
        assert_eq!(shorten("a\nb"), "          a\n          b");
    }
}
