//! Bugs of one-sided communication that are planted are caught.

use rustbtl_sim::options::{Planted, Tier};
use rustbtl_sim::run::all_caught;

/// One test: the panic hook is the process's.
#[test]
#[ignore = "unfinished: seed 518 fails, cause unknown (DESIGN.md)"]
fn planted_bugs_of_windows_are_caught() {
    let plan = [
        (Planted::WindowOrderForgotten, Tier::Windows, 98, 3000),
        (Planted::WindowTickIgnored, Tier::Windows, 318, 3000),
        (Planted::WindowCompletesEarly, Tier::Windows, 0, 3000),
        (Planted::WindowNotWithheld, Tier::Windows, 0, 3000),
        (Planted::WindowWithheldAlone, Tier::Windows, 0, 3000),
        (Planted::WindowRecordDropped, Tier::Windows, 0, 3000),
        (Planted::WindowEpochsIgnored, Tier::Windows, 0, 3000),
        (Planted::WindowTrimmedEarly, Tier::Windows, 0, 3000),
        (Planted::WindowRepliesNotLogged, Tier::Windows, 0, 3000),
        (Planted::WindowRecordedLate, Tier::Windows, 0, 3000),
        (Planted::GateRemoved, Tier::Windows, 0, 3000),
    ];
    all_caught(&plan);
}
