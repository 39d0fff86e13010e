//! What happens to a cluster at given moments: checkpoints, failures.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::faults::Fault;
use super::victim::Victim;

/// Something that is done to the running job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// `rustbtl checkpoint --all`.
    Checkpoint,
    /// This process is killed.
    Kill(Victim),
    /// It is polled how far the job is.
    Poll,
    /// This breaks.
    Break(Fault),
    /// mpirun gets this signal.
    Signal(i32),
    /// Every process on every node is killed, mpirun first.
    KillAll,
}

/// Events in the order of their time.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    events: VecDeque<(Duration, Event)>,
}

impl Timeline {
    /// From now on.
    pub fn new(events: impl IntoIterator<Item = (Duration, Event)>) -> Self {
        let mut events: Vec<_> = events.into_iter().collect();
        events.sort_by_key(|(at, _)| *at);
        Self { start: Instant::now(), events: events.into() }
    }

    /// Something that was not foreseen.
    pub fn add(&mut self, after: Duration, event: Event) {
        let at = self.start.elapsed() + after;
        let place = self.events.partition_point(|(other, _)| *other <= at);
        self.events.insert(place, (at, event));
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<Instant> {
        self.events.front().map(|(at, _)| self.start + *at)
    }

    /// What has not happened yet.
    pub fn pending(&self) -> impl Iterator<Item = Event> {
        self.events.iter().map(|(_, event)| *event)
    }

    /// The next event whose time has come.
    pub fn due(&mut self) -> Option<Event> {
        if self.next_at()? > Instant::now() {
            return None;
        }
        self.events.pop_front().map(|(_, event)| event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_time_and_not_early() {
        let second = Duration::from_secs(1);
        let mut timeline = Timeline::new([
            (600 * second, Event::Checkpoint),
            (Duration::from_millis(1), Event::KillAll),
            (Duration::ZERO, Event::Checkpoint),
        ]);
        assert_eq!(timeline.due(), Some(Event::Checkpoint));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(timeline.due(), Some(Event::KillAll));
        assert_eq!(timeline.due(), None);
        assert!(timeline.next_at().unwrap() > Instant::now() + 500 * second);
        timeline.add(Duration::ZERO, Event::KillAll);
        assert_eq!(timeline.due(), Some(Event::KillAll));
    }
}
