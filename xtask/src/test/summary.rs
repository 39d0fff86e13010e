//! Counting and showing, for tiers that run beside each other: one line a case under its tier, the
//! reason under a failed one; at the end each tier's time, what was left out, and the sum.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::screen::Screen;
use crate::error::{Failure, Result};

/// Lines of a reason that are shown, from its beginning and from its end.
const FIRST_LINES: usize = 25;
const LAST_LINES: usize = 25;
/// What of a reason is shown again at the end of a run: its first line and so many last ones, of
/// so many characters.
const BRIEF_LINES: usize = 12;
const BRIEF_CHARS: usize = 300;

/// All tiers of a run.
pub struct Summary {
    only: Option<String>,
    start: Instant,
    state: Mutex<TierState>,
}

/// What has passed and failed so far.
#[derive(Default)]
struct TierState {
    screen: Screen,
    passed: usize,
    failed: Vec<String>,
    left_out: Vec<String>,
    times: Vec<(String, Duration)>,
}

impl Summary {
    /// Nothing yet; with `only`, cases whose name lacks the text are left out.
    pub fn new(only: Option<String>) -> Summary {
        Summary { only, start: Instant::now(), state: Mutex::default() }
    }

    /// Begins a tier; its name is shown with its first case.
    pub fn tier(&self, name: impl Into<String>) -> Tier<'_> {
        let number = self.state().screen.add();
        let start = Instant::now();
        Tier { summary: self, name: name.into(), number, start, failed: 0, is_headed: false }
    }

    /// Shows the sum; true if all is well.
    pub fn finish(&self) -> bool {
        let state = self.state();
        print!("{}", state.sum(self.start.elapsed()));
        println!("{} passed, {} failed", state.passed, state.failed.len());
        state.failed.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, TierState> {
        // A case that panics has left it whole: all changes are single steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TierState {
    fn sum(&self, total: Duration) -> String {
        let mut text = String::new();
        if self.times.len() > 1 {
            text += "\nwall time of each tier\n";
            let line = |(name, time): &(String, Duration)| {
                format!("  {:7.1} s  {name}\n", time.as_secs_f64())
            };
            text.extend(self.times.iter().map(line));
            let minutes = total.as_secs_f64() / 60.0;
            text += &format!("  {:7.1} s  in total ({minutes:.1} min)\n", total.as_secs_f64());
        }
        text.push('\n');
        text.extend(self.left_out.iter().map(|what| format!("left out: {what}\n")));
        text.extend(self.failed.iter().map(|name| format!("failed: {name}\n")));
        text
    }
}

/// One tier of a run: cases that follow each other.
pub struct Tier<'a> {
    summary: &'a Summary,
    name: String,
    number: usize,
    start: Instant,
    failed: usize,
    is_headed: bool,
}

impl Tier<'_> {
    /// Runs one case and shows how it went; true if it passed.
    pub fn check(&mut self, name: &str, case: impl FnOnce() -> Result<()>) -> bool {
        self.count(name, || case().map(|()| (1, String::new())))
    }

    /// Runs a case that stands for several; it says for how many, and how to show that.
    pub fn count(&mut self, name: &str, case: impl FnOnce() -> Result<(usize, String)>) -> bool {
        if self.summary.only.as_ref().is_some_and(|text| !name.contains(text.as_str())) {
            return true;
        }
        self.run(name, case)
    }

    /// [`Tier::check`] of what others need, also if it is not named.
    pub fn prepare(&mut self, name: &str, case: impl FnOnce() -> Result<()>) -> bool {
        self.run(name, || case().map(|()| (1, String::new())))
    }

    fn run(&mut self, name: &str, case: impl FnOnce() -> Result<(usize, String)>) -> bool {
        let announced = self.announce(name);
        let start = Instant::now();
        let done = case();
        let seconds = start.elapsed().as_secs_f64();
        let back = if announced { "\r" } else { "" };
        let text = match &done {
            Ok((_, note)) => format!("{back}  ok    {name}{note} ({seconds:.1} s)\n"),
            Err(Failure(reason)) => {
                format!("{back}  FAIL  {name} ({seconds:.1} s)\n{}\n", shorten(reason))
            }
        };
        self.show(&text);
        let mut state = self.summary.state();
        match &done {
            Ok((number, _)) => state.passed += number,
            Err(Failure(reason)) => {
                self.failed += 1;
                state.failed.push(format!("{}: {name}\n{}", self.name, brief(reason)));
            }
        }
        done.is_ok()
    }

    /// Says what is not done, and why; it is said again at the end of the run.
    pub fn skip(&mut self, what: &str) {
        self.show(&format!("  skip  {what}\n"));
        self.summary.state().left_out.push(what.to_string());
    }

    /// Has everything passed so far?
    pub fn is_good(&self) -> bool {
        self.failed == 0
    }

    /// The name of a case that begins, where it can be replaced when the case has ended.
    fn announce(&mut self, name: &str) -> bool {
        let is_seen = self.summary.state().screen.is_seen(self.number);
        let shows = is_seen && io::stdout().is_terminal();
        if shows {
            self.show(&format!("  ..    {name}"));
        }
        shows
    }

    fn show(&mut self, text: &str) {
        let head = if self.is_headed { String::new() } else { format!("\n{}\n", self.name) };
        self.is_headed = true;
        let mut state = self.summary.state();
        print_now(&state.screen.write(self.number, &format!("{head}{text}")));
    }
}

impl Drop for Tier<'_> {
    fn drop(&mut self) {
        let mut state = self.summary.state();
        print_now(&state.screen.end(self.number));
        if self.is_headed {
            let time = self.start.elapsed();
            state.times.push((self.name.clone(), time));
        }
    }
}

fn print_now(text: &str) {
    print!("{text}");
    let _ = io::stdout().flush();
}

/// What of it is enough to know what happened: of a long run often nothing but the end is kept.
fn brief(reason: &str) -> String {
    let cut = |line: &str| line.chars().take(BRIEF_CHARS).collect::<String>();
    let lines: Vec<String> = reason.lines().map(cut).collect();
    excerpt(&lines.join("\n"), 1, BRIEF_LINES, "        ")
}

/// What is shown when it happens.
fn shorten(reason: &str) -> String {
    excerpt(reason, FIRST_LINES, LAST_LINES, "          ")
}

/// The first and the last lines, set in: what failed is said first, what came of it last.
fn excerpt(reason: &str, first: usize, last: usize, margin: &str) -> String {
    let lines: Vec<&str> = reason.lines().collect();
    let (first, rest) = lines.split_at(lines.len().min(first));
    let (left_out, last) = rest.split_at(rest.len().saturating_sub(last));
    let gap = (!left_out.is_empty()).then(|| format!("… {} lines …", left_out.len()));
    let shown = first.iter().copied().chain(gap.as_deref()).chain(last.iter().copied());
    let text: String = shown.map(|line| format!("{margin}{line}\n")).collect();
    text.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::failure;
    use std::thread;

    #[test]
    fn cases_are_counted_and_a_filter_leaves_some_out() {
        let summary = Summary::new(Some("want".into()));
        let mut tier = summary.tier("tier");
        assert!(tier.check("wanted", || Ok(())));
        assert!(tier.check("other", || Err(failure!("never run"))));
        assert!(tier.is_good());
        assert!(!tier.check("want too", || Err(failure!("bad"))));
        assert!(!tier.is_good());
        drop(tier);
        let state = summary.state();
        assert_eq!((state.passed, state.failed.len()), (1, 1));
        drop(state);
        assert!(!summary.finish());
    }

    #[test]
    fn tiers_beside_each_other_lose_no_count() {
        let summary = Summary::new(None);
        thread::scope(|scope| {
            for name in ["one", "two", "three"] {
                let mut tier = summary.tier(name);
                scope.spawn(move || {
                    for case in 0..50 {
                        tier.count("case", || Ok((2, String::new())));
                        tier.check("now and then bad", || {
                            if case % 10 == 0 { Err(failure!("bad")) } else { Ok(()) }
                        });
                    }
                });
            }
        });
        let state = summary.state();
        assert_eq!((state.passed, state.failed.len(), state.times.len()), (435, 15, 3));
    }

    #[test]
    fn the_end_says_what_was_left_out_and_how_long_all_took() {
        let summary = Summary::new(None);
        summary.tier("one").skip("this: not there");
        summary.tier("two").check("case", || Ok(()));
        let text = summary.state().sum(Duration::from_secs(90));
        assert!(text.contains("s  one\n") && text.contains("s  two\n"), "{text}");
        assert!(text.contains("   90.0 s  in total (1.5 min)\n"), "{text}");
        assert!(text.ends_with("\n\nleft out: this: not there\n"), "{text}");
    }

    #[test]
    fn the_middle_of_a_long_reason_is_left_out() {
        let long = (0..100).map(|n| format!("{n}\n")).collect::<String>();
        let shown = shorten(&long);
        assert!(shown.contains("\n          24\n          … 50 lines …\n          75\n"));
        assert!(shown.starts_with("          0\n") && shown.ends_with("99"));
        assert_eq!(shorten("a\nb"), "          a\n          b");
        let brief = brief(&format!("{}\n{long}", "x".repeat(400)));
        assert!(brief.starts_with(&format!("        {}\n        … 88 lines …\n", "x".repeat(300))));
        assert!(brief.contains(" lines …\n        88\n") && brief.ends_with("\n        99"));
    }
}
