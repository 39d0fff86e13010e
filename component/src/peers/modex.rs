//! Cards of all ranks of the job, fetched in MPI_Init where Open MPI does not bring them to each
//! node by itself: it would ask the daemon of a rank when somebody meets that for the first time,
//! and if its node was lost meanwhile, wait for ever.
//!
//! By the program's thread: PMIx of Open MPI 5.0 can lose an answer where two threads ask for the
//! same process.

use crate::ffi::table::{Glue, Name};
use crate::peers::table;
use crate::peers::table::Peers;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By rank, as they were published.
static FETCHED: Mutex<BTreeMap<u32, Vec<u8>>> = Mutex::new(BTreeMap::new());

fn fetched() -> MutexGuard<'static, BTreeMap<u32, Vec<u8>>> {
    FETCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Have them here, if it takes that.
pub fn fetch_all(glue: &Glue, peers: &Peers) {
    if glue.endpoints_on_demand == 0 {
        return;
    }
    // Everybody begins with another one: nobody's daemon is asked by all at once.
    let others = (1..peers.size()).map(|step| (peers.rank() + step) % peers.size());
    for name in others.map(|rank| peers.name(peers.of_rank(rank))) {
        fetch(glue, name);
    }
}

/// What cannot be had now is asked for later.
fn fetch(glue: &Glue, name: Name) {
    if let Some(endpoint) = table::published(glue, name) {
        fetched().insert(name.rank, endpoint);
    }
}

/// That of a rank, if it was fetched.
pub fn of(rank: u32) -> Option<Vec<u8>> {
    fetched().get(&rank).cloned()
}
