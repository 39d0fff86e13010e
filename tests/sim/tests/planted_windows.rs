//! Bugs of one-sided communication that are planted are caught.

use rustbtl_sim::options::{Planted, Tier};
use rustbtl_sim::run::all_caught;

/// One test: the panic hook is the process's.
#[test]
fn planted_bugs_of_windows_are_caught() {
    let plan = [
        (Planted::WindowOrderForgotten, Tier::Windows, 98, 5000),
        (Planted::WindowTickIgnored, Tier::Windows, 318, 5000),
        (Planted::WindowCompletesEarly, Tier::Windows, 2230, 5000),
        (Planted::WindowBarrierHeld, Tier::Windows, 74, 5000),
        (Planted::WindowNotWithheld, Tier::Windows, 48, 5000),
        (Planted::WindowWithheldAlone, Tier::Windows, 166, 5000),
        (Planted::WindowRecordDropped, Tier::Windows, 89, 5000),
        (Planted::WindowEpochsIgnored, Tier::Windows, 18, 5000),
        (Planted::WindowTrimmedEarly, Tier::Windows, 57, 5000),
        (Planted::WindowRepliesNotLogged, Tier::Windows, 5, 5000),
        (Planted::WindowRecordedLate, Tier::Windows, 74, 5000),
        (Planted::GateRemoved, Tier::Windows, 6, 5000),
    ];
    all_caught(&plan);
}
