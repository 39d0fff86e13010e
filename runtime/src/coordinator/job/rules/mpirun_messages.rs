//! Messages of mpirun once the job runs: a text line each, a key, a blank, a value.

use crate::coordinator::job::state::Job;
use crate::coordinator::job::tables::checkpoint_requests::Requester;
use crate::coordinator::job::tables::mpirun_orders::from_mpirun;
use crate::settings::Printed;
use rustbtl_fragments::ids::PeerId;
use serde_json::json;

/// `RANK NUMBER NUMBER`.
pub(crate) fn rank_and_two(text: &str) -> Option<(PeerId, [u64; 2])> {
    let (rank, rest) = text.split_once(' ')?;
    let (one, other) = rest.split_once(' ')?;
    Some((PeerId(rank.parse().ok()?), [one.parse().ok()?, other.parse().ok()?]))
}

impl Job {
    /// A text line from mpirun.
    pub fn handle_mpirun(&mut self, now: u64, line: &str) {
        match line.split_once(' ') {
            Some((from_mpirun::CAME, what)) => return self.output_came(what),
            Some((from_mpirun::PRINTED, what)) => return self.was_printed(what),
            Some((from_mpirun::REACHED, what)) => return self.output_reached(what),
            Some((from_mpirun::QUIET, what)) => return self.measured(now, what),
            _ => {}
        }
        if self.defer_message(now, line) {
            return;
        }
        match line.split_once(' ').unwrap_or((line, "")) {
            // A signal that the user has chosen for this.
            (from_mpirun::CHECKPOINT, what) => {
                let exit = what == "exit";
                self.log(json!({
                    "event": "checkpoint_requested", "signal": true, "all": true, "then_exit": exit
                }));
                self.request(now, Requester::Signal, None, exit, true);
            }
            // It has left the node out, and waits for our decision.
            (from_mpirun::LOST, node) if !node.is_empty() => self.node_lost(now, node),
            // The guardian has ended as if by a signal. What mpirun does about it is our decision.
            (from_mpirun::GUARDIAN, rank) if rank.parse::<u32>().is_ok() => {
                self.guardian_ended(now, PeerId(rank.parse().unwrap_or_default()));
            }
            _ => self.protocol_error(line),
        }
    }

    pub(crate) fn protocol_error(&mut self, line: &str) {
        self.log(json!({"event": "protocol_error", "from": "mpirun", "what": line}));
    }

    /// So much of a rank's output has arrived at mpirun, and no more will: its node is lost. What
    /// else was forwarded is printed again.
    fn output_came(&mut self, what: &str) {
        let Some((id, [out, err])) = rank_and_two(what) else {
            return self.protocol_error(&format!("came {what}"));
        };
        let Some(rank) = self.ranks.get_mut(&id).filter(|rank| rank.ended.is_none()) else {
            return;
        };
        // Without a daemon of its own, others' output is counted, too.
        let Some([before_out, before_err]) = rank.own_way.take() else { return };
        let bytes = [before_out.saturating_add(out), before_err.saturating_add(err)];
        let before = core::mem::replace(&mut rank.printed, Printed { bytes, exact: true });
        self.changed = true;
        self.log(json!({
            "event": "output", "rank": id.0, "came": bytes, "handed_on": before.bytes
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::job::config::JobConfig;
    use crate::coordinator::job::state::Effect;
    use rustbtl_coordination::control::FromNode;
    use rustbtl_fragments::ids::Incarnation;
    use serde_json::Value;

    #[test]
    fn a_signal_that_cannot_be_obeyed_is_reported_to_the_user() {
        let mut job = Job::new("j".into(), JobConfig { size: 2, ..JobConfig::default() });
        job.handle_mpirun(1, "checkpoint stay");
        let notice = std::iter::from_fn(|| job.next_effect()).find_map(|effect| match effect {
            Effect::NotifyUser(text) => Some(text),
            _ => None,
        });
        assert!(notice.is_some_and(|text| text.contains("vprotocol_correlated_checkpoint_dir")));
        job.handle_mpirun(2, "dance");
        let effect = job.next_effect();
        assert!(matches!(effect, Some(Effect::Log(event)) if event["event"] == "protocol_error"));
        assert_eq!(job.next_effect(), None);
    }

    fn job() -> Job {
        let mut job = Job::new("j".into(), JobConfig { size: 3, ..JobConfig::default() });
        for (rank, node) in [(0, "n0"), (1, "n1.domain"), (2, "n1.domain")] {
            let (rank, incarnation) = (PeerId(rank), Incarnation::default());
            let message = FromNode::Guardian { rank, size: 3, incarnation, pid: 1 };
            job.handle(0, node, message);
        }
        while job.next_effect().is_some() {}
        job
    }

    fn effects(job: &mut Job) -> (Value, String) {
        let Some(Effect::Log(event)) = job.next_effect() else { panic!("an event") };
        let Some(Effect::Mpirun(order)) = job.next_effect() else { panic!("an answer") };
        assert_eq!(job.next_effect(), None);
        (event, order.to_string())
    }

    #[test]
    fn mpirun_is_notified_that_ranks_are_not_recovered() {
        let mut job = job();
        job.handle_mpirun(7, "lost n1");
        let Some(Effect::Log(event)) = job.next_effect() else { panic!("an event") };
        assert_eq!(event, json!({"event": "node_lost", "node": "n1", "ranks": [1, 2]}));
        let (event, order) = effects(&mut job);
        assert_eq!(event["event"], "not_recovered");
        let wanted = "fail node n1 was lost while the job started\nThere is nothing to restart the \
                      job from: no checkpoint of all its ranks was complete";
        assert_eq!(order, wanted);
    }

    #[test]
    fn what_has_arrived_of_the_output_of_a_lost_node_counts_once() {
        let mut job = job();
        let rank = PeerId(1);
        job.handle(0, "n1", FromNode::OutputViaDaemon { rank, out: 100, err: 7 });
        job.handle(0, "n1", FromNode::OutputOffsets { rank, out: 180, err: 7 });
        job.handle_mpirun(1, "came 1 50 0");
        let Some(Effect::Log(event)) = job.next_effect() else { panic!("an event") };
        let wanted = json!({"event": "output", "rank": 1, "came": [150, 7], "handed_on": [180, 7]});
        assert_eq!(event, wanted);
        assert_eq!(job.ranks[&rank].printed, Printed { bytes: [150, 7], exact: true });
        // It does not go through the daemon any more; the other ranks never reported that they did.
        for line in ["came 1 60 0", "came 2 60 0", "came 9 1 1"] {
            job.handle_mpirun(2, line);
        }
        assert_eq!(job.ranks[&rank].printed.bytes, [150, 7]);
        assert_eq!(job.ranks[&PeerId(2)].printed, Printed::default());
        assert_eq!(job.next_effect(), None);
    }

    #[test]
    fn a_node_without_ranks_is_no_loss() {
        let mut job = job();
        job.handle_mpirun(7, "lost n2");
        let (event, order) = effects(&mut job);
        assert_eq!(event["ranks"], json!([]));
        assert_eq!(order, "recovered");
    }

    #[test]
    fn protocol_errors_are_logged_and_change_nothing() {
        for line in ["", "lost", "found n1", "guardian x", "came", "came 1 x", "came 1 2"] {
            let mut job = job();
            job.handle_mpirun(7, line);
            let Some(Effect::Log(event)) = job.next_effect() else { panic!("{line}") };
            assert_eq!((&event["event"], &event["what"]), (&json!("protocol_error"), &json!(line)));
            assert_eq!(job.next_effect(), None);
        }
    }
}
