//! What protection costs and what a failure costs, from a few measured numbers. Times in seconds,
//! amounts in bytes.
//!
//! 1. All is to first order: a failure costs the mean of what it can cost, the next one does not
//!    come before it is repaired, and failures of nodes are independent.
//! 2. The interval does not depend on the number of nodes (`Interval::Governed`), nor does the cost
//!    of a checkpoint: each node stores its own images, and a neighbour their replicas.
//! 3. Checkpoints and payload log share `overhead_max` as the component does it.

/// Of the time, for checkpoints: a third of `overhead_max`.
pub const CHECKPOINTS_SHARE: f64 = 0.01;
/// Of the time, for the payload log.
pub const LOG_SHARE: f64 = 0.02;
/// So many times what a rank spends on copies all lose
/// (`component/src/payload_log/cost.rs`, `LOST_BY_ALL_TIMES`).
const LOST_BY_ALL_TIMES: f64 = 2.0;
/// Of the time, for both together.
#[cfg(test)]
const OVERHEAD_MAX: f64 = 0.03;
/// The governed interval is no shorter and no longer.
pub const INTERVAL: (f64, f64) = (3.0, 3600.0);

/// What runs, on what, and what repairs it.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Payload that leaves a rank for other sets, bytes a second.
    pub leaving: f64,
    /// How fast it is copied into the log, bytes a second.
    pub copying: f64,
    /// Memory that a rank's log may take.
    pub budget: f64,
    /// What a checkpoint costs the program: pause, and what it loses while images are stored.
    pub checkpoint: f64,
    /// From a failure to the decision what to do.
    pub detect: f64,
    /// Until the ranks run again: images, processes, channels.
    pub restore: f64,
    /// A set alone repeats what takes so much of the time that it took first: it waits for nobody.
    pub replay: f64,
    /// The part of the time of a recovery for which all others wait: 1 in a tight halo exchange.
    pub coupling: f64,
    /// Until a batch system runs the whole job again, without reading images.
    pub queue: f64,
    /// Mean time between failures of a node.
    pub node_mtbf: f64,
}

/// What a failure costs the job, on an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The failed set alone is rolled back.
    pub alone: f64,
    /// All are, in the job.
    pub global: f64,
    /// As often as logging is suspended the second, else the first.
    pub expected: f64,
    /// The batch system starts the job again, from the same checkpoints.
    pub restart: f64,
}

impl Job {
    /// From the beginning of a checkpoint to that of the next one.
    pub fn interval(&self) -> f64 {
        (self.checkpoint / CHECKPOINTS_SHARE).clamp(INTERVAL.0, INTERVAL.1)
    }

    /// Of the time, lost while logging goes on.
    pub fn log_share(&self) -> f64 {
        LOST_BY_ALL_TIMES * self.leaving / self.copying
    }

    /// How long logging goes on after a checkpoint: until it has cost its share of the interval, or
    /// has filled half of the budget. Infinite if it never does.
    fn logging(&self) -> f64 {
        let interval = self.interval();
        let by_cost = LOG_SHARE / self.log_share() * interval;
        let by_memory = self.budget / 2.0 / self.leaving;
        let on = if by_cost < interval { by_cost.min(by_memory) } else { by_memory };
        // The log begins with the oldest checkpoint that is kept: the one before the last.
        if on < 2.0 * interval { on } else { f64::INFINITY }
    }

    /// The part of the time in which logging is suspended: from then to the next checkpoint.
    pub fn suspended(&self) -> f64 {
        let (on, interval) = (self.logging(), self.interval());
        if on.is_finite() { 1.0 - on / ((on / interval).ceil() * interval) } else { 0.0 }
    }

    /// Memory of the log of a rank, at most.
    pub fn log_bytes(&self) -> f64 {
        self.leaving * self.logging().min(2.0 * self.interval())
    }

    /// Of the time, for everything, while nothing fails.
    pub fn overhead(&self) -> f64 {
        let checkpoints = self.checkpoint / self.interval();
        self.log_share() * (1.0 - self.suspended()) + checkpoints
    }

    /// Per failure, `after` so much of an interval; the mean is that of one half.
    pub fn loss_after(&self, worked: f64) -> Loss {
        let alone = self.coupling * (self.detect + self.restore + self.replay * worked);
        let global = self.detect + self.restore + worked;
        let suspended = self.suspended();
        let expected = suspended * global + (1.0 - suspended) * alone;
        let restart = self.detect + self.queue + self.restore + worked;
        Loss { alone, global, expected, restart }
    }

    /// Per failure.
    pub fn loss(&self) -> Loss {
        self.loss_after(self.interval() / 2.0)
    }

    /// The part of the time that is the program's own, on so many nodes, as they are protected by
    /// default.
    pub fn efficiency(&self, nodes: f64) -> f64 {
        useful(self.overhead(), self.loss().expected, self.node_mtbf / nodes)
    }

    /// The same of stock Open MPI and a batch system, with checkpoints of the same cost, as often
    /// as Young's formula says.
    pub fn efficiency_of_restarts(&self, nodes: f64) -> f64 {
        let mtbf = self.node_mtbf / nodes;
        let interval = (2.0 * self.checkpoint * mtbf).sqrt();
        let loss = self.detect + self.queue + self.restore + interval / 2.0;
        useful(self.checkpoint / interval, loss, mtbf)
    }
}

/// For each `mtbf` of progress there is one loss.
fn useful(overhead: f64, loss: f64, mtbf: f64) -> f64 {
    (1.0 - overhead) / (1.0 + loss / mtbf)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const JOB: Job = Job {
        leaving: 10e6,
        copying: 2e9,
        budget: 1e10,
        checkpoint: 2.0,
        detect: 1.0,
        restore: 2.0,
        replay: 0.5,
        coupling: 1.0,
        queue: 60.0,
        node_mtbf: 1e8,
    };

    fn near(one: f64, other: f64) {
        assert!((one - other).abs() <= 1e-9 * other.abs(), "{one} {other}");
    }

    #[test]
    fn a_program_that_stays_below_the_limits_is_never_suspended() {
        near(JOB.interval(), 200.0);
        near(JOB.log_share(), 0.01);
        near(JOB.log_bytes(), 4e9);
        near(JOB.overhead(), 0.02);
        assert_eq!(JOB.suspended(), 0.0);
        let loss = JOB.loss();
        near(loss.alone, 1.0 + 2.0 + 0.5 * 100.0);
        near(loss.global, 103.0);
        near(loss.restart, 163.0);
        assert_eq!(loss.expected, loss.alone);
        near(Job { coupling: 0.1, ..JOB }.loss().alone, 5.3);
    }

    #[test]
    fn cost_and_memory_suspend_logging_and_what_is_promised_holds() {
        let dear = Job { leaving: 80e6, ..JOB };
        near(dear.suspended(), 0.75);
        near(dear.overhead(), OVERHEAD_MAX);
        let loss = dear.loss();
        near(loss.expected, 0.25 * loss.alone + 0.75 * loss.global);
        let large = Job { budget: 1e9, ..JOB };
        near(large.suspended(), 0.75);
        near(large.log_bytes(), 0.5e9);
        let between = Job { budget: 6e9, ..JOB };
        near(between.suspended(), 0.25);
        near(between.log_bytes(), 3e9);
        let silent = Job { leaving: 0.0, ..JOB };
        assert_eq!((silent.suspended(), silent.log_bytes()), (0.0, 0.0));
    }

    #[test]
    fn the_interval_has_the_bounds_that_the_coordinator_has() {
        let of = |checkpoint| Job { checkpoint, ..JOB }.interval();
        assert_eq!((of(0.001), of(1.0), of(1000.0)), (INTERVAL.0, 100.0, INTERVAL.1));
        let source = include_str!("../../../coordination/src/interval.rs");
        for line in ["GOVERNED_MIN_MS: u64 = 3_000;", "GOVERNED_MAX_MS: u64 = 3_600_000;"] {
            assert!(source.contains(line), "{line} is not there any more: change INTERVAL, too");
        }
        near(CHECKPOINTS_SHARE + LOG_SHARE, OVERHEAD_MAX);
        let source = include_str!("../../../component/src/payload_log/cost.rs");
        let line = format!("LOST_BY_ALL_TIMES: u64 = {LOST_BY_ALL_TIMES:.0};");
        assert!(source.contains(&line), "{line} is not there any more: change it here, too");
    }

    #[test]
    fn youngs_interval_loses_least_of_all_intervals() {
        let (nodes, mtbf) = (1000.0, JOB.node_mtbf / 1000.0);
        let best = JOB.efficiency_of_restarts(nodes);
        let at = |interval: f64| useful(2.0 / interval, 63.0 + interval / 2.0, mtbf);
        let young = (2.0 * 2.0 * mtbf).sqrt();
        near(best, at(young));
        // To first order: it is at the top of a flat curve.
        assert!(best > at(young / 2.0) && best > at(young * 2.0));
    }

    #[test]
    fn more_nodes_lose_more() {
        let all = [10.0, 100.0, 1e3, 1e4];
        assert!(all.is_sorted_by(|a, b| JOB.efficiency(*a) > JOB.efficiency(*b)));
        near(JOB.efficiency(1e4), 0.98 / 1.0053);
    }
}
