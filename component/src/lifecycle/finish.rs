//! The end of the process' communication: nothing that was accepted may be lost.

use crate::engine::shared::Shared;
use crate::engine::transport_set::TransportSet;
use crate::lifecycle::report;
use crate::os::{now_ns, yield_now};
use crate::progress::progress_thread;
use std::path::Path;

/// How long accepted frames may take to leave. Peers are alive: they are in MPI_Finalize, too.
const FLUSH_NS_MAX: u64 = 30_000_000_000;
/// How long goodbyes may take.
const CLOSE_NS_MAX: u64 = 5_000_000_000;

/// Push out what was accepted, write the report, say goodbye.
pub fn finish(shared: &'static Shared, report: Option<&Path>) {
    progress_thread::end();
    crate::files::recorder::stop();
    let give_up = now_ns() + FLUSH_NS_MAX;
    shared.enter().finishing = true;
    loop {
        let mut driver = shared.enter();
        let happened = driver.poll();
        let flushed = driver.engine.is_flushed() && driver.host.transports.flush_all();
        shared.deliver(driver);
        if flushed || now_ns() > give_up {
            break;
        }
        if happened == 0 {
            yield_now();
        }
    }
    let mut driver = shared.enter();
    if let Some(directory) = report {
        report::write(&mut driver, directory);
    }
    let give_up = now_ns() + CLOSE_NS_MAX;
    while !driver.host.transports.close() && now_ns() < give_up {
        driver.poll();
        yield_now();
    }
    driver.host.transports = TransportSet::default();
}
