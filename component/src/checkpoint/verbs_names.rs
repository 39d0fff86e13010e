//! What names of verbs stand for: asked for at the coordinator by whichever thread of the program
//! needs it, answered by the checkpoint thread. That thread never asks: it would wait for itself.
//!
//! A name that nobody has published is asked for again for a while: who has told the program the
//! name has published it, perhaps over a longer way. A question without an answer was lost with a
//! coordinator, and the next one hears of names only by and by: the while begins anew.

use crate::sync::checkpoint_signals::SIGNALS;
use core::sync::atomic::{AtomicBool, Ordering};
use rustbtl_coordination::control::FromRank;
use rustbtl_coordination::verbs_drain::NOBODY;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A name that nobody has published by then, as one coordinator says, is no name.
const UNKNOWN: Duration = Duration::from_secs(2);
/// An answer that has not come by then was lost with a coordinator.
const UNANSWERED: Duration = Duration::from_secs(1);
/// There is no coordinator any more, and nobody has said so.
const GIVEN_UP: Duration = Duration::from_secs(60);
/// Between two questions for the same name.
const AGAIN: Duration = Duration::from_millis(2);
/// What a name stands for has so many bytes.
const VALUE_BYTES: usize = 16;

const NOBODY_KNOWS: &str = "the job runs without protection, and nobody knows any more what the \
                            names of its verbs stand for: connections that are made over verbs \
                            from now on fail";

/// Questions for names that are open, by number, and their answers.
type Answers = BTreeMap<u32, Option<Vec<u8>>>;

/// The number of the last question, and those that are open.
struct Questions {
    answers: Mutex<(u32, Answers)>,
    answered: Condvar,
}

static QUESTIONS: Questions =
    Questions { answers: Mutex::new((0, BTreeMap::new())), answered: Condvar::new() };
/// The checkpoint thread has ended, or there is no coordinator any more.
static NOBODY_ANSWERS: AtomicBool = AtomicBool::new(false);

/// What has come of a question.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    /// This.
    Value(Vec<u8>),
    /// Nobody has published the name.
    Unknown,
    /// None has come in time.
    Lost,
    /// None will ever come.
    Nobody,
}

/// An answer has come.
pub(crate) fn found(number: u32, value: Vec<u8>) {
    if value == NOBODY {
        return nobody_answers();
    }
    let mut answers = QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(answer) = answers.1.get_mut(&number) {
        *answer = Some(value);
    }
    QUESTIONS.answered.notify_all();
}

/// Nobody answers questions any more, also those that are open.
pub(crate) fn nobody_answers() {
    let answers = QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
    NOBODY_ANSWERS.store(true, Ordering::Relaxed);
    drop(answers);
    QUESTIONS.answered.notify_all();
}

/// A question, under its number until this is dropped: it is asked again and again under the same
/// one, so that an answer that comes late is one, too.
struct Question(u32);

impl Question {
    fn new() -> Self {
        let mut answers = QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.0 = answers.0.wrapping_add(1);
        let number = answers.0;
        answers.1.insert(number, None);
        Self(number)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut answers = QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.1.remove(&self.0);
    }
}

/// Ask once.
fn ask(&Question(number): &Question, name: &[u8], generation: u64) -> Answer {
    let mut answers = QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
    if NOBODY_ANSWERS.load(Ordering::Relaxed) {
        return Answer::Nobody;
    }
    let question = FromRank::FindVerbsName { number, name: name.to_vec(), generation };
    let is_sent = SIGNALS.get().is_some_and(|signals| (signals.send)(&question));
    let until = Instant::now() + UNANSWERED;
    while is_sent
        && answers.1.get(&number).is_some_and(Option::is_none)
        && !NOBODY_ANSWERS.load(Ordering::Relaxed)
    {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let waited = QUESTIONS.answered.wait_timeout(answers, left);
        answers = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    match answers.1.get_mut(&number).and_then(Option::take) {
        Some(value) if value.len() == VALUE_BYTES => Answer::Value(value),
        Some(_) => Answer::Unknown,
        None if is_sent && !NOBODY_ANSWERS.load(Ordering::Relaxed) => Answer::Lost,
        None => Answer::Nobody,
    }
}

/// How long somebody asks for one name. Times are those since the first question.
#[derive(Debug, Default)]
struct Patience {
    /// The first answer of this coordinator, which does not know it.
    unknown_since: Option<Duration>,
}

impl Patience {
    /// Is it to be asked for again, `now` that this has come?
    fn goes_on(&mut self, now: Duration, answer: &Answer) -> bool {
        match answer {
            Answer::Value(_) | Answer::Nobody => false,
            Answer::Unknown => now - *self.unknown_since.get_or_insert(now) < UNKNOWN,
            Answer::Lost => {
                self.unknown_since = None;
                now < GIVEN_UP
            }
        }
    }
}

/// Once, and not where there never was anybody.
fn say_that_nobody_knows() {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if SIGNALS.get().is_some() && !IS_SAID.swap(true, Ordering::Relaxed) {
        crate::engine::shared::shared().glue.show("notice", &[NOBODY_KNOWS]);
    }
}

/// What a name stands for. None: nobody knows.
pub(crate) fn find(name: &[u8], generation: u64) -> Option<Vec<u8>> {
    let (begin, mut patience) = (Instant::now(), Patience::default());
    let question = Question::new();
    loop {
        let answer = ask(&question, name, generation);
        if !patience.goes_on(begin.elapsed(), &answer) {
            return match answer {
                Answer::Value(value) => Some(value),
                Answer::Nobody | Answer::Lost => {
                    say_that_nobody_knows();
                    None
                }
                Answer::Unknown => None,
            };
        }
        std::thread::sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_name_that_one_coordinator_does_not_know_is_asked_for_for_two_seconds() {
        let mut patience = Patience::default();
        assert!(patience.goes_on(SECOND / 10, &Answer::Unknown));
        assert!(patience.goes_on(2 * SECOND, &Answer::Unknown));
        assert!(!patience.goes_on(SECOND * 21 / 10, &Answer::Unknown));
    }

    #[test]
    fn after_a_failover_the_next_coordinator_has_as_much_time() {
        let mut patience = Patience::default();
        assert!(patience.goes_on(SECOND / 10, &Answer::Unknown));
        for seconds in 1..20 {
            assert!(patience.goes_on(seconds * SECOND, &Answer::Lost));
        }
        // Long after the first question.
        assert!(patience.goes_on(20 * SECOND, &Answer::Unknown));
        assert!(patience.goes_on(SECOND * 219 / 10, &Answer::Unknown));
        assert!(!patience.goes_on(22 * SECOND, &Answer::Unknown));
    }

    #[test]
    fn nobody_is_asked_for_ever() {
        let mut patience = Patience::default();
        assert!(patience.goes_on(59 * SECOND, &Answer::Lost));
        assert!(!patience.goes_on(60 * SECOND, &Answer::Lost));
        assert!(!Patience::default().goes_on(Duration::ZERO, &Answer::Nobody));
        assert!(!Patience::default().goes_on(Duration::ZERO, &Answer::Value(vec![])));
    }

    #[test]
    fn an_answer_that_comes_late_is_an_answer_to_the_next_question() {
        let question = Question::new();
        found(question.0, vec![7; VALUE_BYTES]);
        let answers = || QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(answers().1.get(&question.0), Some(&Some(vec![7; VALUE_BYTES])));
        let number = question.0;
        drop(question);
        found(number, vec![7; VALUE_BYTES]);
        assert_eq!(answers().1.get(&number), None, "nobody waits for it");
    }

    /// Without a guardian, and when that has gone while somebody waits.
    #[test]
    fn where_nobody_answers_nobody_waits() {
        let begin = Instant::now();
        assert_eq!(find(&[1], 0), None);
        found(1, NOBODY.to_vec());
        assert_eq!(ask(&Question::new(), &[1], 0), Answer::Nobody);
        assert!(begin.elapsed() < SECOND);
    }
}
