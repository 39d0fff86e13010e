//! The suite over TCP on the loopback interface, and tests of what only sockets can suffer.

use rustbtl_component::transports::tcp::{Tcp, TcpConfig};
use rustbtl_conformance::{Fabric, conformance, id};

struct Loopback(TcpConfig);

impl Fabric for Loopback {
    type End = Tcp;

    fn ends(&self, n: usize) -> Vec<Tcp> {
        let one = |i| Tcp::new(TcpConfig { me: id(i), ..self.0.clone() }).expect("listen");
        let mut ends: Vec<Tcp> = (0..n).map(one).collect();
        let endpoints: Vec<_> = ends.iter().map(Tcp::address).collect();
        for (i, end) in ends.iter_mut().enumerate() {
            for (j, endpoint) in endpoints.iter().enumerate().filter(|&(j, _)| j != i) {
                end.add_peer(id(j), endpoint.clone());
            }
        }
        ends
    }

    fn pulls(&self) -> bool {
        false
    }
}

fn on(network: &str) -> TcpConfig {
    TcpConfig { if_include: network.to_owned(), ..TcpConfig::default() }
}

/// Small everything: partial writes and moved frames all the time.
fn cramped() -> TcpConfig {
    TcpConfig {
        socket_buffer_bytes: 64 << 10,
        receive_buffer_bytes: 1,
        eager_bytes_max: 1000,
        chunk_bytes_max: 400_000,
        ..on("127.0.0.0/8")
    }
}

fn encrypted(config: TcpConfig) -> TcpConfig {
    TcpConfig { encrypt: true, ..config }
}

conformance!(ipv4, Loopback(on("127.0.0.0/8")));
conformance!(ipv6, Loopback(on("::1/128")));
conformance!(small_buffers, Loopback(cramped()));
conformance!(encrypted, Loopback(encrypted(on("127.0.0.0/8"))));
conformance!(encrypted_small_buffers, Loopback(encrypted(cramped())));

// ---- what only sockets can suffer --------------------------------------------------------------

use core::ptr::NonNull;
use rustbtl_component::transports::tcp::TcpPeer;
use rustbtl_component::transports::{Event, Payload, Sent, Transport};
use rustbtl_conformance::{Driver, TIMEOUT, frame, payload};
use rustbtl_fragments::wire::{HEADER_BYTES, Header};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn pair() -> Driver<Tcp> {
    Driver::new(&Loopback(on("127.0.0.0/8")), 2)
}

fn address(driver: &mut Driver<Tcp>, at: usize) -> std::net::SocketAddr {
    driver.end(at).address().addresses[0]
}

fn notices(driver: &Driver<Tcp>, at: usize) -> Vec<String> {
    let text = |event: &Event| match event {
        Event::Notice(text) => Some(text.clone()),
        _ => None,
    };
    driver.events[at].iter().filter_map(text).collect()
}

fn ups(driver: &Driver<Tcp>, at: usize) -> Vec<u16> {
    let incarnation = |event: &Event| match event {
        Event::Up(_, incarnation) => Some(*incarnation),
        _ => None,
    };
    driver.events[at].iter().filter_map(incarnation).collect()
}

/// The connection of an unauthenticated peer ends without a byte of frames; traffic of the pair
/// continues.
fn is_refused(driver: &mut Driver<Tcp>, mut connection: TcpStream) {
    connection.set_nonblocking(true).unwrap();
    let mut byte = [0; 4096];
    driver.until("the refusal", |d| {
        d.end(1).peek();
        !matches!(connection.read(&mut byte), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    });
    driver.send(0, 1, 100);
    driver.send(1, 0, 100);
    driver.settle(0);
    driver.settle(1);
}

#[test]
fn garbage_is_refused_with_a_notice_and_disturbs_nobody() {
    let mut driver = pair();
    let target = address(&mut driver, 1);
    driver.send(0, 1, 8);
    driver.settle(1);
    let huge_length = [[0xFF; 4], [0xB2; 4]].concat().repeat(16);
    for garbage in [vec![0; 64], b"GET / HTTP/1.1\r\n\r\n".repeat(8), huge_length] {
        let mut connection = TcpStream::connect(target).unwrap();
        connection.write_all(&garbage).unwrap();
        is_refused(&mut driver, connection);
    }
    assert_eq!(notices(&driver, 1).len(), 3, "{:?}", notices(&driver, 1));
    assert!(notices(&driver, 1)[0].contains("127.0.0.1"));
}

#[test]
fn a_truncated_handshake_is_forgotten() {
    let mut driver = pair();
    let target = address(&mut driver, 1);
    let mut connection = TcpStream::connect(target).unwrap();
    connection.write_all(b"rustbtl/").unwrap();
    connection.shutdown(std::net::Shutdown::Write).unwrap();
    is_refused(&mut driver, connection);
}

#[test]
fn slow_unauthenticated_peers_time_out_and_their_number_is_bounded() {
    let quick = TcpConfig { handshake_ms_max: 50, ..on("127.0.0.0/8") };
    let mut driver = Driver::new(&Loopback(quick), 2);
    let target = address(&mut driver, 1);
    let mut connections: Vec<TcpStream> = Vec::new();
    for n in 0..200 {
        let mut connection = TcpStream::connect(target).unwrap();
        if n % 2 == 0 {
            connection.write_all(b"r").unwrap();
        }
        connections.push(connection);
        driver.step_all();
    }
    for connection in connections {
        is_refused(&mut driver, connection);
    }
    let said = notices(&driver, 1).len();
    assert!((1..60).contains(&said), "{said} notices for 200 connections");
}

#[test]
fn a_wrong_secret_is_refused_by_both_ends() {
    let quick = TcpConfig { connect_ms_max: 200, ..on("127.0.0.0/8") };
    let mut driver = Driver::new(&Loopback(quick), 2);
    let endpoint = TcpPeer { secret: [1; 32], ..driver.end(1).address() };
    driver.end(0).add_peer(id(1), endpoint);
    assert_eq!(driver.offer(0, 1, 8, 0), Sent::Full(0));
    driver.until("giving up", |d| d.loss(0, 1).is_some());
    let (said_goodbye, reason) = driver.loss(0, 1).unwrap();
    assert!(!said_goodbye && reason.contains("secret"), "{reason}");
    assert!(driver.inbox[1].is_empty() && ups(&driver, 1).is_empty());
}

#[test]
fn another_version_is_reported_at_both_ends() {
    let config = |version| TcpConfig { version, ..on("127.0.0.0/8") };
    let mut old = Tcp::new(TcpConfig { me: id(0), ..config(7) }).unwrap();
    let new = Tcp::new(TcpConfig { me: id(1), ..config(9) }).unwrap();
    old.add_peer(id(1), new.address());
    let mut driver = Driver::of(vec![old, new]);
    assert_eq!(driver.offer(0, 1, 8, 0), Sent::Full(0));
    driver.until("giving up", |d| d.loss(0, 1).is_some() && !notices(d, 1).is_empty());
    assert!(driver.loss(0, 1).unwrap().1.contains("version"), "{:?}", driver.events[0]);
    assert!(notices(&driver, 1)[0].contains("version"));
    assert!(notices(&driver, 0)[0].contains("version"));
}

#[test]
fn nobody_listening_is_down_with_the_address_after_a_bounded_time() {
    let quick = TcpConfig { connect_ms_max: 100, ..on("127.0.0.0/8") };
    let mut driver = Driver::new(&Loopback(quick), 2);
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = TcpPeer { addresses: vec![unused], ..driver.end(1).address() };
    driver.end(0).add_peer(id(1), endpoint);
    assert_eq!(driver.offer(0, 1, 8, 0), Sent::Full(0));
    driver.until("giving up", |d| d.loss(0, 1).is_some());
    let (_, reason) = driver.loss(0, 1).unwrap();
    assert!(reason.contains(&unused.to_string()) && reason.contains("refused"), "{reason}");
}

#[test]
fn the_next_address_is_tried_when_one_does_not_work() {
    let mut driver = pair();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // An address of another process of this job: the handshake shows that it is not the one that is
    // meant.
    let other = driver.end(0).address().addresses[0];
    let mut endpoint = driver.end(1).address();
    endpoint.addresses = vec![unused, other, endpoint.addresses[0]];
    driver.end(0).add_peer(id(1), endpoint);
    driver.send(0, 1, 8);
    driver.settle(1);
    assert!(notices(&driver, 0).is_empty() && notices(&driver, 1).is_empty());
}

#[test]
fn simultaneous_connects_end_in_one_connection() {
    for round in 0..200 {
        let mut driver = pair();
        // Different interleavings of the two handshakes.
        for _ in 0..round % 5 {
            driver.step(0);
        }
        assert_eq!(driver.offer(0, 1, 8, 0), Sent::Full(0));
        for _ in 0..round % 7 {
            driver.step(round % 2);
        }
        driver.offer(1, 0, 8, 0);
        driver.until("both ways", |d| {
            for (from, to) in [(0, 1), (1, 0)] {
                if d.sent(from, to) == 0 {
                    d.offer(from, to, 8, 0);
                }
            }
            d.sent(0, 1) == 1 && d.sent(1, 0) == 1
        });
        driver.settle(0);
        driver.settle(1);
        for _ in 0..200 {
            driver.step_all();
        }
        assert_eq!((ups(&driver, 0).len(), ups(&driver, 1).len()), (1, 1), "round {round}");
        assert!(driver.loss(0, 1).is_none() && driver.loss(1, 0).is_none());
    }
}

/// As above with a thread for each end, so that the handshakes really race.
#[test]
fn racing_connects_end_in_one_connection() {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    for _ in 0..100 {
        let (start, done) = (Barrier::new(2), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for (me, mut end) in Loopback(on("127.0.0.0/8")).ends(2).into_iter().enumerate() {
                let (start, done) = (&start, &done);
                scope.spawn(move || {
                    let other = 1 - me;
                    let header = frame(me, other, 0, 0);
                    let (mut sent, mut got, mut ups, mut polls) = (false, false, 0, 0);
                    start.wait();
                    let since = Instant::now();
                    while polls < 200 {
                        if !sent {
                            let offered = end.send(id(other), &header, Payload::Bytes(&[]), 0);
                            sent = offered == Sent::Accepted;
                            assert_ne!(offered, Sent::Down);
                        }
                        if let Some(frame) = end.peek() {
                            end.consume(frame);
                            assert!(!got, "twice");
                            got = true;
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                        while let Some(event) = end.event() {
                            assert!(matches!(event, Event::Up(..)), "{event:?}");
                            ups += 1;
                        }
                        if done.load(Ordering::SeqCst) >= 2 {
                            polls += 1;
                        }
                        std::thread::yield_now();
                        assert!(since.elapsed() < TIMEOUT, "stuck: sent {sent}, got {got}");
                    }
                    assert_eq!(ups, 1);
                    done.fetch_add(1, Ordering::SeqCst);
                    while done.load(Ordering::SeqCst) < 4 {
                        std::thread::yield_now();
                    }
                });
            }
        });
    }
}

#[test]
fn all_to_all_connects_at_once() {
    const N: usize = 12;
    let mut driver = Driver::new(&Loopback(on("127.0.0.0/8")), N);
    let pairs = || (0..N).flat_map(|a| (0..N).filter(move |&b| b != a).map(move |b| (a, b)));
    driver.until("all pairs", |d| {
        let mut left = false;
        for (from, to) in pairs() {
            if d.sent(from, to) == 0 {
                left |= d.offer(from, to, 64, 0) != Sent::Accepted;
            }
        }
        !left
    });
    for at in 0..N {
        driver.settle(at);
        assert_eq!(ups(&driver, at).len(), N - 1);
    }
}

#[test]
fn a_peer_in_a_new_incarnation_is_up_again() {
    let mut driver = pair();
    driver.send(0, 1, 8);
    driver.send(1, 0, 8);
    driver.settle(0);
    driver.settle(1);
    let old = driver.ends[1].take().unwrap();
    let known = driver.end(0).address();
    drop(old);
    let mut restarted =
        Tcp::new(TcpConfig { me: id(1), incarnation: 1, ..on("127.0.0.0/8") }).unwrap();
    restarted.add_peer(id(0), known);
    let endpoint = restarted.address();
    driver.ends[1] = Some(restarted);
    driver.until("the loss", |d| d.loss(0, 1).is_some());
    assert_eq!(driver.offer(0, 1, 8, 0), Sent::Down);
    driver.end(0).add_peer(id(1), endpoint);
    driver.end(0).reconnect(id(1));
    driver.until("up again", |d| ups(d, 0) == [0, 1]);
    driver.send(0, 1, 8);
    driver.send(1, 0, 8);
    driver.until("both", |d| d.inbox[0].len() == 2 && d.inbox[1].len() == 2);
}

#[test]
fn a_restarted_peer_replaces_a_connection_that_seems_to_be_open() {
    let mut driver = pair();
    driver.send(1, 0, 8);
    driver.settle(0);
    // The old one is neither driven nor closed: a failed node.
    let _frozen = driver.ends[1].take().unwrap();
    let known = driver.end(0).address();
    let mut restarted =
        Tcp::new(TcpConfig { me: id(1), incarnation: 4, ..on("127.0.0.0/8") }).unwrap();
    restarted.add_peer(id(0), known);
    driver.ends[1] = Some(restarted);
    driver.send(1, 0, 8);
    driver.until("the second frame", |d| d.inbox[0].len() == 2);
    assert_eq!(ups(&driver, 0), [0, 4]);
    assert!(!driver.loss(0, 1).unwrap().0);
}

#[test]
fn an_impossible_frame_length_from_a_peer_breaks_only_its_connection() {
    let mut driver = Driver::new(&Loopback(on("127.0.0.0/8")), 3);
    driver.send(1, 0, 8);
    driver.settle(0);
    let mut header = frame(1, 0, 1, 0);
    header[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let sent = driver.end(1).send(id(0), &header, Payload::Bytes(&[]), 0);
    assert_eq!(sent, Sent::Accepted);
    driver.until("the break", |d| d.loss(0, 1).is_some());
    assert!(driver.loss(0, 1).unwrap().1.contains("4294967295"), "{:?}", driver.events[0]);
    driver.send(2, 0, 8);
    driver.until("the other peer", |d| d.inbox[0].len() == 2);
}

#[test]
fn held_frames_are_sent_by_flush() {
    let mut driver = pair();
    driver.send(0, 1, 8);
    driver.settle(1);
    let mut accepted = 0;
    for _ in 0..50 {
        if driver.offer(0, 1, 8, 0) == Sent::Accepted {
            accepted += 1;
        }
    }
    assert_eq!(accepted, 50, "small frames are gathered");
    let start = Instant::now();
    while !driver.end(0).flush() {
        assert!(start.elapsed() < TIMEOUT);
    }
    // Only the receiver is driven from here on.
    while driver.inbox[1].len() < 51 {
        driver.step(1);
        assert!(start.elapsed() < TIMEOUT, "{} of 51", driver.inbox[1].len());
    }
    driver.check(1);
    std::thread::sleep(Duration::from_millis(1));
    assert!(!driver.step(1));
}

/// Drives the receiving end, and gives buffers for direct placement.
struct DirectReceiver {
    memory: Vec<u8>,
    /// Bytes of the payload that is being read there.
    open: usize,
    placed: Vec<(u64, Vec<u8>)>,
}

impl DirectReceiver {
    fn new() -> Self {
        Self { memory: vec![0; 400_000], open: 0, placed: Vec::new() }
    }

    /// One poll; `accepts(sequence)`: is this frame placed directly?
    fn step(&mut self, driver: &mut Driver<Tcp>, accepts: impl Fn(u64) -> bool) {
        driver.step(1);
        let tcp = driver.end(1);
        if let Some((from, head)) = tcp.placed() {
            let header = Header::decode_alone(&head).unwrap();
            assert_eq!(from, id(0));
            self.placed.push((header.sequence, self.memory[..self.open].to_vec()));
            self.open = 0;
        }
        if let Some((from, head)) = tcp.unplaced() {
            let header = Header::decode_alone(&head).unwrap();
            assert!(from == id(0) && self.open == 0, "one payload of a connection at a time");
            let into = accepts(header.sequence).then(|| {
                self.open = header.length as usize - HEADER_BYTES;
                self.memory[..self.open].fill(0);
                NonNull::new(self.memory.as_mut_ptr()).unwrap()
            });
            // SAFETY: the memory has 400,000 bytes, is read when the payload has arrived, and lives
            // longer than the connection is driven.
            unsafe { tcp.place(into) };
        }
    }
}

/// Frames of all lengths between two ends; those of an odd number are placed directly if the
/// transport asks.
fn direct_placement(config: TcpConfig) {
    let mut driver = Driver::new(&Loopback(config), 2);
    let mut receiver = DirectReceiver::new();
    // The last frame is a header alone, after a payload that is placed directly.
    let lengths =
        [300_000, 8, 100_000, 399_999, 20_000, 16_384, 0, 350_000, 131_072, 131_072, 1, 350_000, 0];
    let mut taken = 0;
    let (mut sent, total) = (0, 41 * lengths.len());
    let start = Instant::now();
    while receiver.placed.len() + driver.inbox[1].len() < total {
        driver.step(0);
        if sent < total {
            match driver.offer(0, 1, lengths[sent % lengths.len()], taken) {
                Sent::Accepted => (sent, taken) = (sent + 1, 0),
                Sent::Full(n) => taken = n,
                Sent::Down => panic!("down: {:?}", driver.events[0]),
            }
        }
        receiver.step(&mut driver, |sequence| sequence % 2 == 1);
        assert!(start.elapsed() < TIMEOUT, "{} of {total}", driver.inbox[1].len());
    }
    let mut seen = vec![0; total];
    let inbox = driver.inbox[1].iter().map(|arrival| (arrival.sequence, &arrival.payload));
    for (sequence, bytes) in inbox.chain(receiver.placed.iter().map(|(at, bytes)| (*at, bytes))) {
        let expected = payload(0, 1, sequence, lengths[sequence as usize % lengths.len()]);
        assert!(*bytes == expected, "frame {sequence} is damaged");
        seen[sequence as usize] += 1;
    }
    assert!(seen.iter().all(|&times| times == 1), "each frame once: {seen:?}");
    assert!(receiver.placed.iter().all(|(sequence, _)| sequence % 2 == 1));
    assert!(!receiver.placed.is_empty(), "no payload was placed directly");
}

#[test]
fn long_payloads_are_placed_directly_and_others_come_as_frames() {
    direct_placement(TcpConfig { chunk_bytes_max: 400_000, ..on("127.0.0.0/8") });
}

#[test]
fn payloads_are_placed_in_pieces_through_small_buffers() {
    direct_placement(cramped());
}

/// Found in MPI programs: the message of a barrier after a long one, to a process that sends
/// nothing before it has received that.
#[test]
fn a_frame_of_a_header_alone_behind_a_placed_payload_needs_no_further_bytes() {
    let mut driver = Driver::new(&Loopback(cramped()), 2);
    driver.send(0, 1, 8);
    driver.settle(1);
    let mut receiver = DirectReceiver::new();
    for turn in 1..=20 {
        let mut taken = 0;
        let start = Instant::now();
        // The receiver polls only when the kernel's buffers are full.
        for bytes in [399_999, 0] {
            loop {
                match driver.offer(0, 1, bytes, taken) {
                    Sent::Accepted => break,
                    Sent::Full(n) => taken = n,
                    Sent::Down => panic!("down: {:?}", driver.events[0]),
                }
                driver.step(0);
                receiver.step(&mut driver, |_| true);
                assert!(start.elapsed() < TIMEOUT, "{taken} bytes are sent");
            }
            taken = 0;
        }
        // Payloads that had arrived as a whole came as frames.
        while receiver.placed.len() + driver.inbox[1].len() < 2 * turn + 1 {
            driver.step(0);
            receiver.step(&mut driver, |_| true);
            let (placed, frames) = (receiver.placed.len(), driver.inbox[1].len());
            assert!(start.elapsed() < TIMEOUT, "turn {turn}: {placed} placed, {frames} frames");
        }
    }
    assert!(!receiver.placed.is_empty(), "no payload was placed directly");
    assert!(driver.end(1).take_received() && !driver.end(1).take_received());
}

#[test]
fn a_payload_whose_connection_breaks_is_never_placed_and_nothing_is_written_afterwards() {
    let mut driver = Driver::new(&Loopback(cramped()), 2);
    driver.send(0, 1, 8);
    driver.settle(1);
    let mut receiver = DirectReceiver::new();
    let mut taken = 0;
    let start = Instant::now();
    // The first half of a frame.
    while receiver.open == 0 {
        match driver.offer(0, 1, 399_999, taken) {
            Sent::Full(n) => taken = n,
            other => panic!("{other:?}: the sockets take all of it at once"),
        }
        driver.step(0);
        receiver.step(&mut driver, |_| true);
        assert!(start.elapsed() < TIMEOUT, "{taken} bytes are sent");
    }
    driver.ends[0] = None;
    while driver.loss(1, 0).is_none() {
        receiver.step(&mut driver, |_| true);
        assert!(start.elapsed() < TIMEOUT);
    }
    assert!(receiver.placed.is_empty() && !driver.end(1).has_placed());
    let before = receiver.memory.clone();
    for _ in 0..1000 {
        driver.step(1);
    }
    assert!(driver.end(1).placed().is_none() && driver.end(1).unplaced().is_none());
    assert!(receiver.memory == before);
}

/// Send frame number `sequence` from 0 to 1: determinants for the frame after it.
fn piggyback(driver: &mut Driver<Tcp>, sequence: u64, bytes: usize) {
    let mut header = Header::decode_alone(&frame(0, 1, sequence, bytes)).unwrap();
    header.kind = rustbtl_fragments::wire::FrameType::Piggyback;
    let data = payload(0, 1, sequence, bytes);
    let sent = driver.end(0).send(id(1), &header.encode(), Payload::Bytes(&data), 0);
    assert_eq!(sent, Sent::Accepted);
}

/// Drive the receiver only.
fn receives(driver: &mut Driver<Tcp>, frames: usize) {
    let start = Instant::now();
    while driver.inbox[1].len() < frames {
        driver.step(1);
        assert!(start.elapsed() < TIMEOUT, "stuck");
    }
}

#[test]
fn determinants_leave_with_the_frame_behind_them_or_at_the_next_progress() {
    let mut driver = pair();
    driver.send(0, 1, 8);
    driver.settle(1);
    // Short, and too long to be gathered.
    for (sequence, bytes) in [(1, 8), (3, 20_000)] {
        driver.step(0);
        piggyback(&mut driver, sequence, 40);
        for _ in 0..100 {
            assert!(!driver.step(1), "alone");
        }
        let (header, data) = (frame(0, 1, sequence + 1, bytes), payload(0, 1, sequence + 1, bytes));
        let sent = driver.end(0).send(id(1), &header, Payload::Bytes(&data), 0);
        assert_eq!(sent, Sent::Accepted);
        receives(&mut driver, sequence as usize + 2);
    }
    piggyback(&mut driver, 5, 40);
    assert!(driver.end(0).holds());
    driver.step(0);
    receives(&mut driver, 6);
    driver.check(1);
}
