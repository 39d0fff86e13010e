//! Seeds of jobs with windows, and bugs of one-sided communication that are planted.

use rustbtl_sim::options::{Planted, Tier};
use rustbtl_sim::run::{all_caught, run_many};

#[test]
fn windows() {
    run_many(Tier::Windows, 1500);
}
