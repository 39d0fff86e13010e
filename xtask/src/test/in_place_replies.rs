//! Programs that await the reply in the buffer of the request, as ScaLAPACK's BLACS does
//! (docs/adr/0022): a replaying rank has the replies already.

use super::node_failure::{repeats, repeats_late};
use super::summary::Tier;
use super::workloads::{OVERLAP, OVERLAP_LATE, OVERLAP_LONG, Shape};

/// What it sends again is compared; and a rank that is rolled back afterwards depends on it.
const CASES: [(Shape, &[&str]); 3] = [
    ((2, 1), &["--kill-rank-after-checkpoint", "1@1"]),
    (
        (4, 1),
        &[
            "--kill-rank-after-checkpoint",
            "0@1",
            "--kill-rank-after-checkpoint",
            "1@1",
            "--kill-rank-after-checkpoint",
            "2@1",
            "--kill-rank-after-checkpoint",
            "3@1",
        ],
    ),
    (
        (2, 2),
        &["--kill-rank-after-checkpoint", "3@1", "--kill-at-event", "replay_completed@1=rank:0"],
    ),
];
const ANSWERED: u64 = 6000;
const ANSWERED_LONG: u64 = 600;

/// Part of the tier of failing nodes.
pub fn tests(tier: &mut Tier) {
    for (shape, faults) in CASES {
        let title = format!("live recovery: in-place replies: {} × {}", shape.0, shape.1);
        tier.check(&title, || repeats(&OVERLAP, ANSWERED, shape, faults));
    }
    let one_and_the_other =
        ["--kill-rank-after-checkpoint", "1@1", "--kill-at-event", "replay_completed@1=rank:0"];
    tier.check("live recovery: long in-place replies: 2 × 1", || {
        repeats(&OVERLAP_LONG, ANSWERED_LONG, (2, 1), &one_and_the_other)
    });
    for (who, killed) in [("who asks", "1@1"), ("who answers", "0@1")] {
        tier.check(&format!("live recovery: late in-place replies, {who}: 2 × 1"), || {
            let faults = ["--kill-rank-after-checkpoint", killed];
            repeats_late(&OVERLAP_LATE, ANSWERED, (2, 1), &faults)
        });
    }
}
