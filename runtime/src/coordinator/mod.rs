//! `rustbtl coordinator`: the one process per job. Order of its rooms, lowest first:
//! `job/tables`, `job/config` < `job/state` < `determinants` < `job/rules` < `driver`.

pub(crate) mod determinants;
pub(crate) mod driver;
pub(crate) mod job;
