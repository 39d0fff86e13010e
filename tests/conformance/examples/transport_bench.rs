//! Figures of a bare transport between two processes: half round trip, message rate, bandwidth.
//!
//! `transport_bench shm|tcp 0|1 DIRECTORY` once with 0 and once with 1; the two find each other
//! through files in DIRECTORY. Large messages go as the engine sends them: announcement, grant,
//! data frames (tcp), or announcement, pull, done (shm). Received bytes are copied to a buffer.

use rustbtl_component::transports::shm::{Segment, SegmentOptions, Shm};
use rustbtl_component::transports::tcp::{Tcp, TcpConfig, TcpPeer};
use rustbtl_component::transports::{Payload, Pulled, Sent, Transport};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_fragments::wire::{ANNOUNCE_BYTES, FrameType, HEADER_BYTES, Header};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn header(kind: FrameType, bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = Header::control(kind, Incarnation(0), Incarnation(0), 0, 0);
    header.length = (HEADER_BYTES + bytes) as u32;
    header.encode()
}

fn publish(path: &Path, bytes: &[u8]) {
    let draft = PathBuf::from(format!("{}.draft", path.display()));
    std::fs::write(&draft, bytes).expect("write");
    std::fs::rename(&draft, path).expect("rename");
}

fn await_file(path: &Path) -> Vec<u8> {
    loop {
        if let Ok(bytes) = std::fs::read(path) {
            return bytes;
        }
        std::thread::yield_now();
    }
}

struct Bench<T> {
    transport: T,
    peer: PeerId,
    me: u32,
    pulls: bool,
    data: Vec<u8>,
    into: Vec<u8>,
}

impl<T: Transport> Bench<T> {
    #[inline]
    fn offer(&mut self, header: &[u8], bytes: usize, from: usize) {
        let mut taken = 0;
        loop {
            let payload = Payload::Bytes(&self.data[from..from + bytes]);
            match self.transport.send(self.peer, header, payload, taken) {
                Sent::Accepted => return,
                Sent::Full(n) => taken = n,
                Sent::Down => panic!("down: {:?}", self.transport.event()),
            }
            // Lets the connection come up; nothing arrives meanwhile by the benchmark's protocol
            // except while both are starting.
            self.transport.peek();
        }
    }

    /// Take one frame; its payload is copied to `at`. Its kind and payload length.
    #[inline]
    fn take(&mut self, at: usize) -> (u8, usize) {
        loop {
            if let Some(frame) = self.transport.peek() {
                // SAFETY: valid until consumed.
                let bytes = unsafe { std::slice::from_raw_parts(frame.start, frame.len) };
                let head = if bytes[5] == FrameType::Announce as u8 {
                    ANNOUNCE_BYTES
                } else {
                    HEADER_BYTES
                };
                let payload = &bytes[head..];
                self.into[at..at + payload.len()].copy_from_slice(payload);
                let out = (bytes[5], payload.len());
                self.transport.consume(frame);
                return out;
            }
        }
    }

    fn send(&mut self, bytes: usize) {
        if bytes <= self.transport.limits().eager_bytes_max as usize {
            self.offer(&header(FrameType::Eager, bytes), bytes, 0);
            return;
        }
        if self.pulls {
            let start = self.data.as_ptr() as usize;
            // SAFETY: `data` stays where it is until withdrawn.
            let ok =
                unsafe { self.transport.expose(self.peer, 1 << 32, start..start + bytes, None) };
            assert!(ok);
        }
        let mut announce = [0; ANNOUNCE_BYTES];
        announce[..HEADER_BYTES].copy_from_slice(&header(FrameType::Announce, 16));
        self.offer(&announce, 0, 0);
        self.take(0);
        if self.pulls {
            self.transport.withdraw(self.peer, 1 << 32);
            return;
        }
        let chunk = self.transport.limits().chunk_bytes_max as usize;
        let mut at = 0;
        while at < bytes {
            let n = chunk.min(bytes - at);
            self.offer(&header(FrameType::Data, n), n, at);
            at += n;
        }
    }

    fn receive(&mut self, bytes: usize) {
        let (kind, got) = self.take(0);
        if kind == FrameType::Eager as u8 {
            assert_eq!(got, bytes);
            return;
        }
        if self.pulls {
            let into = self.into.as_mut_ptr();
            // SAFETY: `into` has room.
            let pulled = unsafe { self.transport.pull(self.peer, 1 << 32, 0, into, bytes) };
            assert_eq!(pulled, Pulled::Done);
            self.offer(&header(FrameType::Done, 0), 0, 0);
            return;
        }
        self.offer(&header(FrameType::Grant, 0), 0, 0);
        let mut at = 0;
        while at < bytes {
            at += self.take(at).1;
        }
    }

    fn pingpong(&mut self, bytes: usize, rounds: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..rounds {
            if self.me == 0 {
                self.send(bytes);
                self.receive(bytes);
            } else {
                self.receive(bytes);
                self.send(bytes);
            }
        }
        start.elapsed().as_nanos() as f64 / rounds as f64 / 2.0
    }

    fn rate(&mut self, bytes: usize, windows: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..windows {
            if self.me == 0 {
                for _ in 0..64 {
                    self.send(bytes);
                }
                self.transport.flush();
                self.receive(0);
            } else {
                for _ in 0..64 {
                    self.receive(bytes);
                }
                self.send(0);
            }
        }
        windows as f64 * 64.0 / start.elapsed().as_secs_f64()
    }

    fn run(&mut self) {
        let median = |mut runs: Vec<f64>| {
            runs.sort_by(f64::total_cmp);
            runs[runs.len() / 2]
        };
        self.pingpong(8, 1000);
        let name = self.transport.name();
        for shift in 0..=22 {
            let bytes = if shift == 0 { 0 } else { 1 << shift };
            let rounds =
                (200_000_000 / (20_000 + bytes * if bytes > 4096 { 1 } else { 8 })).min(10_000);
            let runs = (0..5).map(|_| self.pingpong(bytes, rounds / 5 + 1)).collect();
            let ns = median(runs);
            if self.me == 0 {
                println!(
                    "{name} {bytes:8} B {:10.2} us {:9.0} MB/s",
                    ns / 1e3,
                    bytes as f64 * 1e3 / ns
                );
            }
        }
        for bytes in [8, 256] {
            let rate = median((0..5).map(|_| self.rate(bytes, 2000)).collect());
            if self.me == 0 {
                println!("{name} rate {bytes} B, window 64: {:.3} M/s", rate / 1e6);
            }
        }
        while !self.transport.close() {}
    }
}

fn bench<T: Transport>(transport: T, me: u32, pulls: bool) {
    let (data, into) = (vec![1; 8 << 20], vec![2; 8 << 20]);
    Bench { transport, peer: PeerId(1 - me), me, pulls, data, into }.run();
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, kind, me, directory] = &args[..] else {
        eprintln!("usage: transport_bench shm|tcp 0|1 DIRECTORY");
        std::process::exit(2);
    };
    let me: u32 = me.parse().expect("0 or 1");
    let directory = PathBuf::from(directory);
    let number = |name: &str, default: usize| {
        std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
    };
    let path = |who: u32| directory.join(format!("{kind}.{who}"));
    if kind == "shm" {
        let options = SegmentOptions {
            eager_bytes_max: number("EAGER", 0) as u32,
            ring_bytes: number("RING", 0),
            single_copy: number("CMA", 1) == 1,
            ..SegmentOptions::default()
        };
        let segment = if me == 0 {
            let segment = Segment::create(2, 0, &options).expect("create");
            publish(&path(0), segment.name().as_bytes());
            segment
        } else {
            let name = String::from_utf8(await_file(&path(0))).expect("text");
            Segment::attach(&name, 2, 1, &options).expect("attach")
        };
        bench(Shm::new(segment, &[PeerId(0), PeerId(1)]), me, options.single_copy);
        return;
    }
    let defaults = TcpConfig::default();
    let mut tcp = Tcp::new(TcpConfig {
        me: PeerId(me),
        eager_bytes_max: number("EAGER", defaults.eager_bytes_max as usize) as u32,
        chunk_bytes_max: number("CHUNK", defaults.chunk_bytes_max as usize) as u32,
        receive_buffer_bytes: number("INBOX", defaults.receive_buffer_bytes),
        socket_buffer_bytes: number("SOCKET", 0),
        ..defaults
    })
    .expect("listen");
    publish(&path(me), &tcp.address().encode());
    let card = TcpPeer::decode(&await_file(&path(1 - me))).expect("a card");
    tcp.add_peer(PeerId(1 - me), card);
    bench(tcp, me, false);
}
