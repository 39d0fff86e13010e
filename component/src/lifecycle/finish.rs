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
    let give_up = now_ns() + FLUSH_NS_MAX;
    shared.enter().finishing = true;
    loop {
        let mut process = shared.enter();
        let happened = process.poll();
        let flushed = process.engine.is_flushed() && process.host.transports.flush_all();
        shared.deliver(process);
        if flushed || now_ns() > give_up {
            break;
        }
        if happened == 0 {
            yield_now();
        }
    }
    let mut process = shared.enter();
    if let Some(directory) = report {
        report::write(&mut process, directory);
    }
    let give_up = now_ns() + CLOSE_NS_MAX;
    while !process.host.transports.close() && now_ns() < give_up {
        process.poll();
        yield_now();
    }
    process.host.transports = TransportSet::default();
}
