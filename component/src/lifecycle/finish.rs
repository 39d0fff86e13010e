//! The end of the process' communication: nothing that was accepted may be lost.

use crate::engine::driver::Shared;
use crate::lifecycle::report;
use crate::os::{now_ns, yield_now};
use crate::progress::progress_thread;
use crate::transports::Transport;
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
        let flushed = process.engine.is_flushed() && process.host.flush_all();
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
    while !process.host.close() && now_ns() < give_up {
        process.poll();
        yield_now();
    }
    process.host.shm = None;
    process.host.tcp = None;
}

impl crate::engine::host::EngineHost {
    /// True: no transport holds anything back.
    fn flush_all(&mut self) -> bool {
        let shm = self.shm.as_mut().is_none_or(Transport::flush);
        let tcp = self.tcp.as_mut().is_none_or(Transport::flush);
        shm && tcp
    }

    /// True: every transport is closed.
    fn close(&mut self) -> bool {
        let tcp = self.tcp.as_mut().is_none_or(Transport::close);
        let shm = self.shm.as_mut().is_none_or(Transport::close);
        shm && tcp
    }
}
