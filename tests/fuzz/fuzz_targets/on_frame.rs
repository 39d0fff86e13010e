//! Arbitrary bytes as frames into an engine in the middle of its work.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rustbtl_sim::decoder::feed(data));
