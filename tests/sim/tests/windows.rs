//! Seeds of jobs with windows.

use rustbtl_sim::options::Tier;
use rustbtl_sim::run::run_many;

#[test]
fn windows() {
    run_many(Tier::Windows, 1500);
}
