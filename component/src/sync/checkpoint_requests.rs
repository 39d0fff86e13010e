//! Requests of the program's threads for a checkpoint (`MPIX_Correlated_checkpoint`), and their
//! answers. The checkpoint thread passes them on to the coordinator.

use rustbtl_coordination::control::CheckpointId;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointRequest {
    /// A checkpoint of all sets, from which the job can be restarted; otherwise of the own set.
    pub all: bool,
    /// The job ends when the checkpoint is complete.
    pub then_exit: bool,
    /// Come back when the checkpoint is complete, not when it is ordered.
    pub wait: bool,
}

/// The checkpoint, or why there is none.
pub type Outcome = Result<CheckpointId, String>;

#[derive(Debug)]
struct Asked {
    number: u32,
    request: CheckpointRequest,
    sent: bool,
    outcome: Option<Outcome>,
}

#[derive(Debug, Default)]
struct Inner {
    asked: Vec<Asked>,
    last: u32,
    /// No answer will come any more.
    over: Option<String>,
}

/// CheckpointRequests of the program's threads and what came of them.
#[derive(Debug, Default)]
pub struct CheckpointRequests {
    inner: Mutex<Inner>,
    answered: Condvar,
}

impl CheckpointRequests {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ask, have the checkpoint thread woken by `ring`, and wait for the answer.
    pub fn ask(&self, request: CheckpointRequest, ring: impl FnOnce()) -> Outcome {
        let mut inner = self.lock();
        inner.last += 1;
        let number = inner.last;
        inner.asked.push(Asked { number, request, sent: false, outcome: None });
        ring();
        loop {
            let at = inner.asked.iter().position(|asked| asked.number == number);
            let Some(at) = at else { return Err("the request was lost".into()) };
            if inner.asked[at].outcome.is_some() {
                return inner.asked.remove(at).outcome.unwrap_or(Ok(CheckpointId(0)));
            }
            if let Some(why) = inner.over.clone() {
                inner.asked.remove(at);
                return Err(why);
            }
            inner = self.answered.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Requests that the guardian was not sent.
    pub fn unsent(&self) -> Vec<(u32, CheckpointRequest)> {
        let mut inner = self.lock();
        let new = inner.asked.iter_mut().filter(|asked| !asked.sent);
        new.map(|asked| {
            asked.sent = true;
            (asked.number, asked.request)
        })
        .collect()
    }

    /// The answer to one of them.
    pub fn answer(&self, number: u32, outcome: Outcome) {
        let mut inner = self.lock();
        if let Some(asked) = inner.asked.iter_mut().find(|asked| asked.number == number) {
            asked.outcome = Some(outcome);
        }
        self.answered.notify_all();
    }

    /// The process was restored from this checkpoint, of all sets or of its own: who waited for
    /// such a one has it. Other requests are sent, again where they were.
    pub fn restored(&self, id: CheckpointId, of_all: bool) {
        let mut inner = self.lock();
        for asked in inner.asked.iter_mut().filter(|asked| asked.sent) {
            let CheckpointRequest { all, then_exit, .. } = asked.request;
            if of_all || !all && !then_exit {
                asked.outcome.get_or_insert(Ok(id));
            } else {
                asked.sent = asked.outcome.is_some();
            }
        }
        self.answered.notify_all();
    }

    /// Nobody answers any more.
    pub fn end(&self, why: &str) {
        self.lock().over = Some(why.to_owned());
        self.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_gets_the_answer_to_its_own_request() {
        let requests = CheckpointRequests::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| requests.ask(CheckpointRequest::default(), || ())))
                .collect();
            let mut seen = Vec::new();
            while seen.len() < 4 {
                seen.extend(requests.unsent());
                std::thread::yield_now();
            }
            for (number, _) in seen {
                requests.answer(number, Ok(CheckpointId(u64::from(number))));
            }
            let mut ids: Vec<_> =
                threads.into_iter().map(|thread| thread.join().unwrap().unwrap().0).collect();
            ids.sort_unstable();
            assert_eq!(ids, [1, 2, 3, 4]);
        });
        assert!(requests.unsent().is_empty());
    }

    #[test]
    fn who_waited_for_the_checkpoint_that_the_process_is_restored_from_has_it() {
        let requests = CheckpointRequests::default();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                requests
                    .ask(CheckpointRequest { wait: true, ..CheckpointRequest::default() }, || ())
            });
            while requests.unsent().is_empty() {
                std::thread::yield_now();
            }
            requests.restored(CheckpointId(7), true);
            assert_eq!(thread.join().unwrap(), Ok(CheckpointId(7)));
        });
        requests.end("the job ends");
        assert_eq!(
            requests.ask(CheckpointRequest::default(), || ()),
            Err("the job ends".to_owned())
        );
    }

    #[test]
    fn a_checkpoint_of_one_set_is_no_answer_to_who_wants_one_of_all() {
        let requests = CheckpointRequests::default();
        let all = CheckpointRequest { all: true, wait: true, ..CheckpointRequest::default() };
        std::thread::scope(|scope| {
            let own = scope.spawn(|| requests.ask(CheckpointRequest::default(), || ()));
            let both = scope.spawn(|| requests.ask(all, || ()));
            let mut sent = 0;
            while sent < 2 {
                sent += requests.unsent().len();
            }
            requests.restored(CheckpointId(7), false);
            assert_eq!(own.join().unwrap(), Ok(CheckpointId(7)));
            let again = requests.unsent();
            assert_eq!(again.len(), 1);
            assert_eq!(again[0].1, all);
            requests.answer(again[0].0, Ok(CheckpointId(8)));
            assert_eq!(both.join().unwrap(), Ok(CheckpointId(8)));
        });
    }
}
