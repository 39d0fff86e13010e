//! Output of ranks that have no daemon of mpirun's, because their node was lost: their guardians
//! send it here, and mpirun prints it. Part of [`Job`]: no I/O.
//!
//! ```text
//! guardian ── Output ─────────> coordinator ── print RANK STREAM POSITION HEX ──> mpirun
//!          <── OutputAccepted ──            <── printed RANK STREAM POSITION ──
//! ```
//! 1. Each piece has its position in the stream, and mpirun prints nothing twice. So a guardian may
//!    send again what was not accepted, and the next incarnation of a rank begins there.
//! 2. mpirun answers each piece, and few are on their way to it at a time: neither can ever wait
//!    for the other to read.
//! 3. What an earlier incarnation of a rank sends is dropped as soon as the next one is ordered.
//!
//! Source: docs/adr/0020.

use crate::coordinator::job::rules::mpirun_messages::rank_and_two;
use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use rustbtl_coordination::control::ToNode;
use rustbtl_fragments::ids::{Incarnation, PeerId};

/// Bytes of a piece: as hexadecimal digits they fit in a text line for mpirun
/// (`mpirun_pipe::in_one_line`).
const PIECE_BYTES_MAX: usize = 1700;
/// Pieces on their way to mpirun: less than a pipe holds.
const UNANSWERED_MAX: usize = 8;

impl Job {
    /// A rank has printed this.
    pub(crate) fn output(
        &mut self,
        id: PeerId,
        incarnation: Incarnation,
        stream: u8,
        position: u64,
        bytes: &[u8],
    ) {
        let Some(rank) = self.ranks.get(&id).filter(|_| self.config.prints) else { return };
        if rank.adopted_in == Incarnation(0) || incarnation < rank.adopted_in {
            return;
        }
        if !(1..=2).contains(&stream) {
            return self.protocol_error(&format!("output of rank {id} on stream {stream}"));
        }
        let print = |position: u64, piece: &[u8]| MpirunOrder::Print {
            rank: id,
            stream,
            position,
            bytes: piece.to_vec(),
        };
        if bytes.is_empty() {
            self.relayed_output.waiting.push_back(print(position, &[]));
        }
        let (mut at, mut rest) = (position, bytes);
        while !rest.is_empty() {
            let most = &rest[..rest.len().min(PIECE_BYTES_MAX)];
            // Whole lines, if they are not too long: PMIx of Open MPI 5.0 puts the begin of a line
            // of one rank before the next piece of any other.
            let end = most.iter().rposition(|&byte| byte == b'\n').map_or(most.len(), |at| at + 1);
            let (piece, more) = rest.split_at(end);
            self.relayed_output.waiting.push_back(print(at, piece));
            (at, rest) = (at.saturating_add(piece.len() as u64), more);
        }
        self.print_more();
    }

    fn print_more(&mut self) {
        while self.relayed_output.unanswered < UNANSWERED_MAX {
            let Some(print) = self.relayed_output.waiting.pop_front() else { return };
            self.relayed_output.unanswered += 1;
            self.effects.push_back(Effect::Mpirun(print));
        }
    }

    /// `RANK STREAM POSITION`: mpirun has received a piece, and is at this position now.
    pub(crate) fn was_printed(&mut self, what: &str) {
        let known = rank_and_two(what).and_then(|(id, [stream, position])| {
            let at = usize::try_from(stream).ok()?.checked_sub(1)?;
            let reached = self.ranks.get_mut(&id)?.reached.get_mut(at)?;
            *reached = (*reached).max(Some(position));
            Some(ToNode::OutputAccepted { rank: id, stream: stream as u8, position })
        });
        self.relayed_output.unanswered = self.relayed_output.unanswered.saturating_sub(1);
        match known {
            Some(taken @ ToNode::OutputAccepted { rank, .. }) => {
                self.effects.push_back(Effect::Send(rank, taken));
            }
            _ => self.protocol_error(&format!("printed {what}")),
        }
        self.print_more();
    }

    /// `RANK OUT ERR`: mpirun reports its positions to a coordinator after a failover.
    pub(crate) fn output_reached(&mut self, what: &str) {
        let Some((id, [out, err])) = rank_and_two(what) else {
            return self.protocol_error(&format!("reached {what}"));
        };
        if let Some(rank) = self.ranks.get_mut(&id) {
            rank.reached = [Some(out), Some(err)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::driver::mpirun_pipe::in_one_line;
    use crate::coordinator::job::config::JobConfig;
    use crate::settings::Printed;
    use rustbtl_coordination::control::FromNode;

    const RANK: PeerId = PeerId(1);

    /// Rank 1 was adopted in incarnation 3.
    fn job() -> Job {
        let mut job =
            Job::new("j".into(), JobConfig { size: 2, prints: true, ..JobConfig::default() });
        for rank in [PeerId(0), RANK] {
            let incarnation = Incarnation(0);
            job.handle(0, "n0", FromNode::Guardian { rank, size: 2, incarnation, pid: 1 });
        }
        job.ranks.get_mut(&RANK).unwrap().adopted_in = Incarnation(3);
        while job.next_effect().is_some() {}
        job
    }

    fn output(job: &mut Job, rank: PeerId, incarnation: u16, position: u64, bytes: &[u8]) {
        let (incarnation, bytes) = (Incarnation(incarnation), bytes.to_vec());
        job.handle(0, "n0", FromNode::Output { rank, incarnation, stream: 2, position, bytes });
    }

    fn sent(job: &mut Job) -> Vec<String> {
        let effects = std::iter::from_fn(|| job.next_effect());
        let lines = effects.filter_map(|effect| match effect {
            Effect::Mpirun(order) => Some(order.to_string()),
            Effect::Send(rank, ToNode::OutputAccepted { stream, position, .. }) => {
                Some(format!("taken {rank} {stream} {position}"))
            }
            _ => None,
        });
        lines.collect()
    }

    #[test]
    fn invariant_1_what_mpirun_has_is_known_to_the_guardian_and_to_the_next_incarnation() {
        let mut job = job();
        output(&mut job, RANK, 3, 40, b"");
        output(&mut job, RANK, 3, 40, b"ab\n");
        assert_eq!(sent(&mut job), ["print 1 2 40 ", "print 1 2 40 61620a"]);
        job.handle_mpirun(1, "printed 1 2 40");
        job.handle_mpirun(1, "printed 1 2 43");
        assert_eq!(sent(&mut job), ["taken 1 2 40", "taken 1 2 43"]);
        assert_eq!(job.ranks[&RANK].reached, [None, Some(43)]);
        job.handle_mpirun(1, "reached 1 7 45");
        assert_eq!(job.ranks[&RANK].reached, [Some(7), Some(45)]);
        assert_eq!(job.ranks[&RANK].printed, Printed::default(), "until it fails");
    }

    #[test]
    fn invariant_2_few_pieces_wait_for_an_answer() {
        let mut job = job();
        let long = vec![b'x'; 30 * PIECE_BYTES_MAX + 5];
        output(&mut job, RANK, 3, 100, &long);
        let mut lines = sent(&mut job);
        assert_eq!(lines.len(), UNANSWERED_MAX);
        assert!(lines.iter().all(|line| *line == in_one_line(line)));
        while lines.len() < 31 {
            job.handle_mpirun(1, "printed 1 2 100");
            let more = sent(&mut job);
            assert_eq!(more.len(), 2, "an answer to the guardian, a piece to mpirun");
            lines.extend(more.into_iter().filter(|line| line.starts_with("print ")));
        }
        for (at, line) in lines.iter().enumerate() {
            let position = 100 + at * PIECE_BYTES_MAX;
            assert!(line.starts_with(&format!("print 1 2 {position} 78")), "{at}");
        }
        assert!(lines[30].ends_with(" 7878787878"));
    }

    #[test]
    fn lines_stay_in_one_piece_if_they_are_not_too_long() {
        let mut job = job();
        let mut text = vec![b'x'; PIECE_BYTES_MAX - 5];
        text.extend(b"\nabcdefgh\ni");
        output(&mut job, RANK, 3, 0, &text);
        let lines = sent(&mut job);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("7878780a"), "{lines:?}");
        let position = PIECE_BYTES_MAX - 4;
        assert_eq!(lines[1], format!("print 1 2 {position} 61626364656667680a"));
        assert_eq!(lines[2], format!("print 1 2 {} 69", position + 9));
    }

    #[test]
    fn invariant_3_earlier_incarnations_and_unknown_ranks_print_nothing() {
        let mut job = job();
        output(&mut job, RANK, 2, 0, b"a");
        output(&mut job, PeerId(0), 0, 0, b"a");
        output(&mut job, PeerId(9), 3, 0, b"a");
        assert_eq!(sent(&mut job), [""; 0]);
        output(&mut job, RANK, 4, 0, b"a");
        assert_eq!(sent(&mut job).len(), 1);
        for line in ["printed", "printed 1 3 0", "printed 1 0 0", "printed 9 1 0", "reached 1 x 2"]
        {
            job.handle_mpirun(1, line);
            let Some(Effect::Log(event)) = job.next_effect() else { panic!("{line}") };
            assert_eq!(event["event"], "protocol_error");
        }
        job.config.prints = false;
        output(&mut job, RANK, 4, 0, b"a");
        assert_eq!(sent(&mut job), [""; 0]);
    }
}
