//! One-sided operations, replies and determinants that decode are the same when they are encoded
//! and decoded again; whatever comes, nothing outside of the window is touched.
#![no_main]

use rustbtl_rma::ids::{CommRank, ContextId};
use rustbtl_rma::machine::{Limits, Rma};
use rustbtl_rma::memory::Memory;
use rustbtl_rma::record::Applied;
use rustbtl_rma::window::{Extent, Flavor, Setup};
use rustbtl_rma::wire::{Operation, Reply};

const BASE: u64 = 4096;
const BYTES: u64 = 512;

struct Fenced(Vec<u8>);

impl Memory for Fenced {
    fn read(&self, address: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0[(address - BASE) as usize..][..into.len()]);
    }
    fn write(&mut self, address: u64, from: &[u8]) {
        self.0[(address - BASE) as usize..][..from.len()].copy_from_slice(from);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(operation) = Operation::decode(data) {
        let mut bytes = Vec::new();
        assert_eq!(operation.encode(&mut bytes), Ok(()));
        assert_eq!(bytes, data);
    }
    if let Ok(reply) = Reply::decode(data) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(bytes, data);
    }
    let mut rest = data;
    while let Ok(run) = Applied::decode(&mut rest) {
        let mut bytes = Vec::new();
        run.encode(&mut bytes);
        assert_eq!(Applied::decode(&mut bytes.as_slice()), Ok(run));
    }
    let mut machine = Rma::new(Limits { part_bytes_max: 64 });
    let extents = vec![Extent { bytes: BYTES, unit: 4 }; 2];
    let (me, base, flavor) = (CommRank(0), BASE, Flavor::Create);
    let setup = Setup { flavor, me, base, extents, no_locks: false };
    machine.create(ContextId(1), setup).expect("new");
    let mut memory = Fenced(vec![0; BYTES as usize]);
    // Several messages, each behind a byte that says how long it is.
    let mut rest = data;
    while let Some((&length, behind)) = rest.split_first() {
        let (message, behind) = behind.split_at(behind.len().min(length.into()));
        rest = behind;
        let _ = machine.on_operation(ContextId(1), CommRank(1), message.to_vec());
        // One operation, and two at a time.
        let mut framed = Vec::new();
        for part in message.chunks(message.len().div_ceil(2).max(1)).chain([message]) {
            framed.extend_from_slice(&(part.len() as u32).to_le_bytes());
            framed.extend_from_slice(part);
        }
        let one = framed.split_off(framed.len() - message.len() - 4);
        let _ = machine.on_operation(ContextId(1), CommRank(1), framed);
        let _ = machine.on_operation(ContextId(1), CommRank(1), one);
        let _ = machine.on_reply(ContextId(1), CommRank(1), message);
        let _ = machine.progress(&mut memory);
    }
    machine.check();
});
