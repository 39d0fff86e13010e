//! The tests. Each is a sentence about the trait.

use crate::driver::{Driver, payload};
use crate::{Fabric, id};
use rustbtl_component::transports::{Pulled, Sent, Transport};
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::HEADER_BYTES;

/// Order per pair, over many laps of any buffer.
pub fn frames_of_a_pair_keep_their_order<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    for n in 0..20_000 {
        driver.send(0, 1, n % 79);
    }
    driver.settle(1);
}

/// Lengths around every boundary, up to both limits.
pub fn every_size_up_to_the_limits_arrives_whole<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    let limits = driver.end(0).limits();
    assert!(limits.eager_bytes_max > 0 && limits.chunk_bytes_max >= limits.eager_bytes_max);
    for bytes in 0..limits.eager_bytes_max.min(3000) as usize {
        driver.send(0, 1, bytes);
    }
    let chunk = limits.chunk_bytes_max as usize;
    let mut bytes = 1;
    while bytes <= chunk {
        for near in bytes.saturating_sub(33)..=(bytes + 33).min(chunk) {
            driver.send(0, 1, near);
        }
        bytes *= 2;
    }
    for _ in 0..20 {
        driver.send(0, 1, chunk);
        driver.send(0, 1, limits.eager_bytes_max as usize);
    }
    driver.settle(1);
}

/// `Payload::Pack`.
pub fn packed_payloads_arrive_like_contiguous_ones<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    let chunk = driver.end(0).limits().chunk_bytes_max as usize;
    for bytes in [0, 1, 31, 32, 33, 64, chunk / 2, chunk, 5, chunk, chunk, 17] {
        driver.send_packed(0, 1, bytes);
        driver.send(0, 1, bytes);
    }
    for n in 0..3000 {
        driver.send_packed(0, 1, n % chunk.min(300));
    }
    driver.settle(1);
}

/// `Full`, and that the channel works afterwards.
pub fn a_full_channel_says_so_and_drains<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    driver.send(0, 1, 8);
    driver.settle(1);
    let chunk = driver.end(0).limits().chunk_bytes_max as usize;
    for bytes in [8, 200.min(chunk), chunk] {
        let mut taken = 0;
        let mut full = false;
        // No frame is consumed, so this ends; 4 GiB would be no bounded channel.
        for _ in 0..(4 << 30) / (bytes + HEADER_BYTES) {
            driver.end(0).flush();
            match driver.offer(0, 1, bytes, 0) {
                Sent::Accepted => {}
                Sent::Full(n) => {
                    (full, taken) = (true, n);
                    break;
                }
                Sent::Down => panic!("down"),
            }
        }
        assert!(full, "a channel without a bound");
        driver.until("the rest", |d| match d.offer(0, 1, bytes, taken) {
            Sent::Accepted => true,
            Sent::Full(n) => {
                taken = n;
                false
            }
            Sent::Down => panic!("down"),
        });
        driver.settle(1);
        driver.send(0, 1, 8);
        driver.settle(1);
    }
}

/// `Full(n)` with `n > 0`: large frames against a slow reader.
pub fn a_frame_taken_in_part_is_finished_by_offering_it_again<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    let chunk = driver.end(0).limits().chunk_bytes_max as usize;
    for n in 0..((64 << 20) / chunk).min(30_000) {
        driver.send(0, 1, chunk - n % 7);
        if n % 5 == 0 {
            driver.send(0, 1, n % 64);
        }
    }
    driver.settle(1);
}

/// Both ends send more than a channel holds before either reads.
pub fn both_directions_at_once_do_not_block_each_other<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    let chunk = driver.end(0).limits().chunk_bytes_max as usize;
    for n in 0..400 {
        driver.send(0, 1, chunk - n % chunk);
        driver.send(1, 0, chunk - 2 * n % chunk);
    }
    driver.settle(0);
    driver.settle(1);
}

/// Programs that sleep between their calls: while one end is awake the other one makes no turn. In
/// every turn of a sender something goes, whatever the sleeper has owed when it fell asleep: at
/// first only one end sends, then only the other one, then both.
pub fn ends_that_sleep_in_turn_lose_nothing<F: Fabric>(fabric: &F) {
    /// Of each end. More than the messages that any channel takes without an answer.
    const TURNS: u64 = 50;
    const STEPS: usize = 100;
    let mut driver = Driver::new(fabric, 2);
    driver.send(0, 1, 8);
    driver.send(1, 0, 8);
    driver.settle(0);
    driver.settle(1);
    let most = (driver.end(0).limits().chunk_bytes_max as usize).min(3000);
    let mut taken = [0; 2];
    let mut offer = |driver: &mut Driver<F::End>, from: usize| {
        let bytes = driver.sent(from, 1 - from) as usize * 61 % most;
        let sent = driver.offer(from, 1 - from, bytes, taken[from]);
        taken[from] = match sent {
            Sent::Accepted => 0,
            Sent::Full(n) => n,
            Sent::Down => panic!("down: {:?}", driver.events[from]),
        };
        sent == Sent::Accepted
    };
    for senders in [&[0][..], &[1], &[0, 1]] {
        let before = [driver.sent(0, 1), driver.sent(1, 0)];
        for _ in 0..TURNS {
            for awake in [0, 1] {
                for step in 0..STEPS {
                    if senders.contains(&awake) {
                        offer(&mut driver, awake);
                    }
                    // It sends more than it reads.
                    if step % 3 != 0 {
                        driver.step(awake);
                    }
                }
            }
        }
        for &from in senders {
            let sent = driver.sent(from, 1 - from) - before[from];
            assert!(sent >= TURNS, "end {from} has only sent {sent} frames of {senders:?}");
        }
    }
    for from in [0, 1] {
        driver.until("room again", |driver| offer(driver, from));
    }
    driver.settle(0);
    driver.settle(1);
}

/// No peer waits until another one's flood ends.
pub fn many_peers_are_served_in_turn<F: Fabric>(fabric: &F) {
    const SENDERS: usize = 7;
    let mut driver = Driver::new(fabric, SENDERS + 1);
    for from in 1..=SENDERS {
        driver.send(from, 0, 8);
    }
    driver.settle(0);
    let before = driver.inbox[0].len();
    for _ in 0..200 {
        for from in 1..=SENDERS {
            if driver.offer(from, 0, 8, 0) == Sent::Accepted {
                driver.end(from).flush();
            }
        }
    }
    // If served one after the other, the last one would be served after 6 * 200 frames.
    let waiting: u64 = (1..=SENDERS).map(|from| driver.sent(from, 0) - 1).sum();
    let mut served = std::collections::BTreeSet::new();
    driver.until("a frame of each", |d| {
        d.step(0);
        served.extend(d.inbox[0][before..].iter().map(|arrival| arrival.from));
        served.len() == SENDERS
    });
    let until_all = driver.inbox[0].len() - before;
    let fair = 64 * SENDERS;
    assert!(until_all <= fair, "served all after {until_all} of {waiting} frames");
    driver.settle(0);
}

/// The first frame of a peer is delivered while another one never stops sending.
pub fn a_new_peer_is_served_while_another_floods<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 3);
    driver.send(1, 0, 8);
    driver.settle(0);
    let flood = |d: &mut Driver<F::End>| {
        let room = |d: &Driver<F::End>| d.sent(1, 0) < d.inbox[0].len() as u64 + 100;
        while room(d) && d.offer(1, 0, 8, 0) == Sent::Accepted {}
        d.end(1).flush();
        d.sent(1, 0) > d.inbox[0].len() as u64 + 2
    };
    driver.until("a flood", |d| flood(d) && d.end(0).peek().is_some());
    let before = driver.inbox[0].len();
    let mut new_peer_sent = false;
    // Only one frame at a time is consumed: the flooded channel is never empty.
    let start = std::time::Instant::now();
    while !driver.inbox[0].iter().any(|arrival| arrival.from == id(2)) {
        flood(&mut driver);
        new_peer_sent |= !new_peer_sent && driver.offer(2, 0, 8, 0) == Sent::Accepted;
        driver.step(2);
        driver.step(0);
        assert!(start.elapsed() < crate::TIMEOUT, "never served");
    }
    let served_after = driver.inbox[0].len() - before;
    assert!(served_after < 20_000, "served after {served_after} frames");
    driver.settle(0);
}

/// Events may be polled while a frame is held, and a peer may fail meanwhile.
pub fn what_happens_between_peek_and_consume_does_no_harm<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 4);
    for from in [3, 2, 1] {
        driver.send(from, 0, 8);
        driver.settle(0);
    }
    for n in 0..20 {
        for from in [1, 2] {
            driver.send(from, 0, 8 + n);
        }
    }
    driver.until("frames", |d| {
        d.step(1);
        d.step(2);
        d.end(0).peek().is_some()
    });
    let mut failing = driver.ends[3].take();
    while let Some(frame) = driver.end(0).peek() {
        // It was the first to send, this one the last: any list of peers changes.
        if let Some(end) = failing.take_if(|_| frame.from == id(1)) {
            fabric.crash(end);
        }
        // SAFETY: the frame is valid until it is consumed.
        let bytes = unsafe { std::slice::from_raw_parts(frame.start, frame.len) }.to_vec();
        while let Some(event) = driver.end(0).event() {
            driver.events[0].push(event);
        }
        driver.end(0).flush();
        fabric.detect_failed_peers(driver.end(0));
        // SAFETY: as above.
        let still = unsafe { std::slice::from_raw_parts(frame.start, frame.len) };
        assert!(bytes == still, "a held frame has changed");
        let again = driver.end(0).peek().expect("it is still there");
        assert_eq!((again.from, again.start), (frame.from, frame.start), "another frame");
        driver.step(0);
    }
    assert!(failing.is_none(), "no frame of end 1 was held");
    driver.settle(0);
    driver.until("the loss", |d| {
        fabric.detect_failed_peers(d.end(0));
        d.loss(0, 3).is_some()
    });
}

/// Every pair at once.
pub fn all_to_all_traffic_arrives_once<F: Fabric>(fabric: &F) {
    const N: usize = 5;
    let mut driver = Driver::new(fabric, N);
    let chunk = driver.end(0).limits().chunk_bytes_max as usize;
    for round in 0..150 {
        for from in 0..N {
            for to in (0..N).filter(|&to| to != from) {
                driver.send(from, to, (round * 131 + from * 17 + to) % chunk);
            }
        }
    }
    for to in 0..N {
        driver.settle(to);
    }
    for _ in 0..1000 {
        assert!(!driver.step_all(), "a frame arrived twice");
    }
}

/// `peek` is idempotent.
pub fn a_peeked_frame_stays_until_it_is_consumed<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 3);
    for from in [1, 2] {
        driver.send(from, 0, 60);
    }
    driver.until("a frame", |d| {
        d.step(1);
        d.step(2);
        d.end(0).peek().is_some()
    });
    let first = driver.end(0).peek().expect("it was there");
    for _ in 0..100 {
        let again = driver.end(0).peek().expect("it is still there");
        assert_eq!((again.from, again.start, again.len), (first.from, first.start, first.len));
    }
    driver.settle(0);
}

/// An idle transport delivers nothing.
pub fn nothing_arrives_where_nothing_was_sent<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 3);
    driver.send(0, 1, 8);
    driver.settle(1);
    for _ in 0..2000 {
        assert!(!driver.step_all());
    }
    assert!(driver.inbox[2].is_empty() && driver.inbox[0].is_empty());
}

/// A peer that the transport does not know.
pub fn an_unknown_peer_is_down<F: Fabric>(fabric: &F) {
    let mut ends = fabric.ends(2);
    let header = crate::frame(0, 1, 0, 0);
    let none = rustbtl_component::transports::Payload::Bytes(&[]);
    assert_eq!(ends[0].send(PeerId(99_999), &header, none, 0), Sent::Down);
}

/// Pull `into` from end `from` at end `at`, until it is there.
pub fn pull<T: Transport>(
    driver: &mut Driver<T>,
    at: usize,
    from: usize,
    send: u64,
    offset: usize,
    into: &mut [u8],
) -> Pulled {
    // SAFETY: `into` is writable and outlives the pull.
    let pulled =
        unsafe { driver.end(at).pull(id(from), send, offset, into.as_mut_ptr(), into.len()) };
    if pulled == Pulled::Started {
        driver.until("a pull", |driver| {
            let over = driver.end(at).pulled();
            assert!(over.is_none_or(|over| over == (id(from), send)), "{over:?}");
            over.is_some()
        });
        return Pulled::Done;
    }
    pulled
}

/// Expose `bytes` at end `at` to end `to`, which knows of it then.
pub fn expose<T: Transport>(
    driver: &mut Driver<T>,
    at: usize,
    to: usize,
    send: u64,
    bytes: &[u8],
) -> bool {
    let range = bytes.as_ptr_range();
    let range = range.start as usize..range.end as usize;
    // SAFETY: the tests keep the bytes until they have withdrawn them or are done pulling.
    let exposed = unsafe { driver.end(at).expose(id(to), send, range, None) };
    if exposed {
        driver.send(at, to, 0);
        driver.settle(to);
    }
    exposed
}

const SEND: u64 = (7 << 32) | 3;

/// expose, pull, withdraw; twice with the same slot.
pub fn exposed_memory_can_be_pulled<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    driver.send(0, 1, 0);
    driver.settle(1);
    let data = payload(0, 1, 1, 100_000);
    let exposed = expose(&mut driver, 0, 1, SEND, &data);
    assert_eq!(exposed, fabric.pulls());
    let mut into = vec![0; 100_000];
    let pulled = pull(&mut driver, 1, 0, SEND, 0, &mut into);
    if !exposed {
        assert_eq!(pulled, Pulled::Refused);
        return;
    }
    assert_eq!(pulled, Pulled::Done);
    assert!(into == data);
    let mut middle = vec![0; 10];
    assert_eq!(pull(&mut driver, 1, 0, SEND, 500, &mut middle), Pulled::Done);
    assert_eq!(middle, data[500..510]);
    driver.end(0).withdraw(id(1), SEND);
    if fabric.knows_what_is_withdrawn() {
        assert_eq!(pull(&mut driver, 1, 0, SEND, 0, &mut into), Pulled::Refused, "withdrawn");
    }
    let next = SEND + (1 << 32);
    let newer = payload(0, 1, 2, 64);
    assert!(expose(&mut driver, 0, 1, next, &newer), "the slot is free again");
    assert_eq!(pull(&mut driver, 1, 0, SEND, 0, &mut middle), Pulled::Refused, "an old id");
    assert_eq!(pull(&mut driver, 1, 0, next, 0, &mut into[..64]), Pulled::Done);
    assert!(into[..64] == newer);
}

/// Only exposed memory can be pulled, and only by the peer that it is exposed to.
pub fn wrong_ids_ranges_and_pullers_are_refused<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 3);
    let data = payload(0, 1, 1, 1000);
    if !expose(&mut driver, 0, 1, SEND, &data) {
        assert!(!fabric.pulls());
        return;
    }
    let mut into = vec![0; 1000];
    for wrong in [SEND + 1, SEND ^ (1 << 32), 3, u64::MAX, 0] {
        assert_eq!(pull(&mut driver, 1, 0, wrong, 0, &mut into), Pulled::Refused, "{wrong:#x}");
    }
    assert_eq!(pull(&mut driver, 2, 0, SEND, 0, &mut into), Pulled::Refused, "not for end 2");
    assert_eq!(pull(&mut driver, 1, 2, SEND, 0, &mut into), Pulled::Refused, "not of end 2");
    assert_eq!(pull(&mut driver, 1, 0, SEND, 1, &mut into), Pulled::Refused, "past the end");
    let far = usize::MAX - 10;
    assert_eq!(pull(&mut driver, 1, 0, SEND, far, &mut into), Pulled::Refused, "overflow");
    assert!(into.iter().all(|&b| b == 0), "a refused pull writes nothing");
    driver.end(0).withdraw(id(1), SEND + (1 << 32));
    driver.end(0).withdraw(id(2), SEND);
    assert_eq!(pull(&mut driver, 1, 0, SEND, 0, &mut into), Pulled::Done, "still on offer");
    assert!(!expose(&mut driver, 0, 1, SEND + (1 << 32), &data), "the slot is taken");
}

/// More than the kernel moves at once.
pub fn a_large_payload_is_pulled_whole<F: Fabric>(fabric: &F) {
    if !fabric.pulls() {
        return;
    }
    let mut driver = Driver::new(fabric, 2);
    // Fresh zero pages cost nothing until written: mark only a few positions.
    let bytes = fabric.large_bytes();
    let mut data = vec![0u8; bytes];
    let places = [0, (1 << 30) - 1, 1 << 30, (2 << 30) - 4096, (2 << 30) + 5, bytes - 1];
    for at in places.into_iter().filter(|at| *at < bytes).chain([bytes / 3, bytes / 2]) {
        data[at] = 0xA5;
    }
    let mut into = vec![0u8; bytes];
    assert!(expose(&mut driver, 0, 1, SEND, &data));
    assert_eq!(pull(&mut driver, 1, 0, SEND, 0, &mut into), Pulled::Done);
    assert!(into == data);
}

/// Slots do not overlap; a full table refuses.
pub fn many_exposures_at_a_time_do_not_mix<F: Fabric>(fabric: &F) {
    if !fabric.pulls() {
        return;
    }
    let mut driver = Driver::new(fabric, 2);
    let sends: Vec<Vec<u8>> = (0..500).map(|n| payload(0, 1, n, 64)).collect();
    let name = |n: usize| (9 << 32) | n as u64;
    for (n, data) in sends.iter().enumerate() {
        assert!(expose(&mut driver, 0, 1, name(n), data));
    }
    for (n, data) in sends.iter().enumerate().rev() {
        let mut into = vec![0; 64];
        assert_eq!(pull(&mut driver, 1, 0, name(n), 0, &mut into), Pulled::Done);
        assert!(into == *data);
        driver.end(0).withdraw(id(1), name(n));
    }
    let far = u64::from(u32::MAX);
    let _ = expose(&mut driver, 0, 1, far, &sends[0]);
    driver.end(0).withdraw(id(1), far);
}

/// Close: everything sent before arrives, then the peer reports a goodbye, once.
pub fn a_goodbye_is_reported_after_the_last_frame<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 2);
    driver.send(1, 0, 8);
    driver.settle(0);
    for n in 0..50 {
        driver.send(0, 1, n);
    }
    driver.until("closing", |d| d.end(0).close());
    // No longer driven: accepted frames must arrive without it.
    drop(driver.ends[0].take());
    driver.until("the goodbye", |d| d.loss(1, 0).is_some());
    assert_eq!(driver.inbox[1].len(), 50, "the goodbye came before the last frame");
    driver.check(1);
    assert!(driver.loss(1, 0).expect("reported").0, "{:?}", driver.events[1]);
    assert_eq!(driver.offer(1, 0, 8, 0), Sent::Down);
    for _ in 0..1000 {
        driver.step(1);
    }
    let downs = driver.events[1]
        .iter()
        .filter(|event| matches!(event, rustbtl_component::transports::Event::Down { .. }));
    assert_eq!(downs.count(), 1);
}

/// A crash is not a goodbye, and frames sent before it may still be read.
pub fn a_crash_is_reported_and_is_no_goodbye<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 3);
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        driver.send(from, to, 8);
    }
    for at in 0..3 {
        driver.settle(at);
    }
    fabric.crash(driver.ends[0].take().expect("not yet crashed"));
    driver.until("the loss", |d| {
        fabric.detect_failed_peers(d.end(1));
        d.loss(1, 0).is_some()
    });
    let (said_goodbye, reason) = driver.loss(1, 0).expect("reported");
    assert!(!said_goodbye && !reason.is_empty(), "{reason}");
    assert_eq!(driver.offer(1, 0, 8, 0), Sent::Down);
    driver.send(1, 2, 8);
    driver.send(2, 1, 8);
    driver.settle(1);
    driver.settle(2);
    assert!(driver.loss(2, 1).is_none() && driver.loss(1, 2).is_none());
}

/// close() until true, and once more.
pub fn a_close_after_a_close_is_harmless<F: Fabric>(fabric: &F) {
    let mut driver = Driver::new(fabric, 3);
    driver.send(0, 1, 8);
    driver.settle(1);
    for at in 0..3 {
        driver.until("closing", |d| d.end(at).close());
    }
    for at in 0..3 {
        driver.until("closing again", |d| d.end(at).close());
    }
    for at in 0..3 {
        for other in (0..3).filter(|&other| other != at) {
            if let Some((said_goodbye, reason)) = driver.loss(at, other) {
                assert!(said_goodbye, "{reason}");
            }
        }
    }
}
