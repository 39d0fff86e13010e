//! Two processes in one: they meet by what they publish, and exchange messages and memory.

use crate::btl::core::{Above, Core};
use crate::btl::frame::{Way, What};
use crate::btl::operation::{Atomic, Change};
use crate::btl::outbox::Message;
use crate::btl::state::{Arrived, News, Outcome, Place, Settings, State};
use crate::ffi::table::Name;
use crate::transports::Transport;
use crate::transports::shm::SegmentOptions;
use crate::transports::tcp::TcpConfig;
use rustbtl_fragments::ids::PeerId;

const JOB: u32 = (77 << 16) | 1;

fn name(rank: u32) -> Name {
    Name { job: JOB, rank }
}

/// Ranks 0 and 1, on one node or two.
fn pair(one_node: bool, encrypt: bool) -> [State; 2] {
    [0, 1].map(|rank| {
        let local = if one_node { vec![0, 1] } else { vec![rank] };
        let place = Place { me: name(rank), size: 2, node: "n".into(), local };
        let tcp = TcpConfig { if_include: "lo".into(), encrypt, ..TcpConfig::default() };
        let segment = SegmentOptions { ring_bytes: 4096, ..SegmentOptions::default() };
        State::open(place, Settings { shm: true, segment, tcp }).unwrap()
    })
}

/// What each of them calls the other, and how it is reached.
fn meet(states: &mut [State; 2]) -> [(PeerId, Way); 2] {
    let cards = [states[0].card(), states[1].card()];
    for state in states.iter_mut() {
        if let Some(leader) = state.leader() {
            state.attach(&cards[leader as usize]).unwrap();
        }
    }
    [0, 1].map(|me: usize| {
        states[me].meet(name(1 - me as u32), &cards[1 - me]).unwrap().expect("of this mpirun")
    })
}

fn message(tag: u8, bytes: &[u8]) -> Message {
    let what = What::Message(tag);
    Message { what, first: (bytes.as_ptr(), bytes.len()), second: (core::ptr::null(), 0) }
}

/// The next message, while both make progress.
fn receive(to: usize, states: &mut [State; 2]) -> (u8, Vec<u8>) {
    loop {
        for state in states.iter_mut() {
            state.send_waiting();
        }
        let other = &mut states[1 - to];
        assert!(other.peek_node().is_none() && other.peek_network().is_none());
        let state = &mut states[to];
        if let Some(arrived) = state.peek_node().or_else(|| state.peek_network()) {
            let (start, len) = arrived.payload;
            // SAFETY: it is there until it is consumed.
            let bytes = unsafe { core::slice::from_raw_parts(start, len) }.to_vec();
            state.consume(arrived);
            return (arrived.tag, bytes);
        }
    }
}

#[test]
fn neighbours_use_memory_and_others_the_network() {
    for one_node in [true, false] {
        let mut states = pair(one_node, false);
        let ways = meet(&mut states);
        let way = if one_node { Way::Node } else { Way::Network };
        assert_eq!(ways, [(PeerId(1), way), (PeerId(0), way)]);
        assert_eq!(states[0].accessible(PeerId(1)).is_some(), one_node);
        let all: Vec<Vec<u8>> = (0..200u32).map(|i| vec![i as u8; 3 * i as usize]).collect();
        for (number, bytes) in all.iter().enumerate() {
            // SAFETY: the bytes outlive the transports' use of them.
            let sent = unsafe { states[0].send(way, PeerId(1), message(66, bytes), number) };
            assert_ne!(sent, Outcome::Down);
        }
        for bytes in &all {
            assert_eq!(receive(1, &mut states), (66, bytes.clone()));
        }
    }
}

#[test]
fn what_is_put_is_there_before_the_next_message() {
    for encrypt in [false, true] {
        let mut states = pair(false, encrypt);
        meet(&mut states);
        for len in [1, 20_000, 128 << 10, (128 << 10) + 1, 3 << 20] {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut into = vec![0; len];
            let address = into.as_mut_ptr() as u64;
            // SAFETY: both stay until the message behind has come.
            unsafe { states[0].put(PeerId(1), address, (from.as_ptr(), len), 0) };
            // SAFETY: as above.
            unsafe { states[0].send(Way::Network, PeerId(1), message(67, b"end"), 0) };
            assert_eq!(receive(1, &mut states), (67, b"end".to_vec()));
            assert!(from == into, "{len} bytes, encrypted: {encrypt}");
        }
    }
}

#[test]
fn a_process_that_vanishes_is_lost_and_one_that_says_goodbye_is_not() {
    for goodbye in [false, true] {
        let mut states = pair(false, false);
        meet(&mut states);
        // SAFETY: a constant.
        unsafe { states[0].send(Way::Network, PeerId(1), message(65, b"x"), 1) };
        receive(1, &mut states);
        let [mut left, other] = states;
        let other = Core::new(other, false);
        let end = std::thread::spawn(move || {
            if goodbye {
                other.with(State::close);
            }
            drop(other);
        });
        let news = loop {
            assert!(left.peek_network().is_none());
            if let Some(news) = left.next_news(true) {
                break Some(news);
            }
            // SAFETY: a constant.
            let sent = unsafe { left.send_now(Way::Network, PeerId(1), &message(65, b"y")) };
            if goodbye && sent == Outcome::Down {
                break None;
            }
        };
        end.join().unwrap();
        match news {
            Some(News::Lost(who, reason)) => assert!(!goodbye && who == name(1), "{reason}"),
            other => assert!(goodbye && other.is_none(), "{other:?}"),
        }
    }
}

/// Both make progress until this cookie of `of` is over.
fn until_over(states: &mut [State; 2], of: usize, cookie: usize) {
    loop {
        for state in states.iter_mut() {
            assert!(state.peek_node().is_none() && state.peek_network().is_none());
            state.send_waiting();
        }
        while let Some((over, accepted)) = states[of].next_over() {
            assert!(accepted);
            if over == cookie {
                return;
            }
            assert_eq!(over, 0);
        }
    }
}

#[test]
fn memory_is_written_and_read_by_asking_whatever_the_way_and_the_length() {
    for (one_node, encrypt) in [(true, false), (false, false), (false, true)] {
        let mut states = pair(one_node, encrypt);
        let [(to, way), _] = meet(&mut states);
        for len in [0, 1, 3000, 20_000, 128 << 10, 3 << 20] {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut there = vec![0; len];
            let mut back = vec![0; len];
            let address = there.as_mut_ptr() as u64;
            // SAFETY: all three live until it is over.
            unsafe { states[0].ask_write((way, to), address, (from.as_ptr(), len), 5) };
            until_over(&mut states, 0, 5);
            assert!(there == from, "{len} bytes, one node: {one_node}");
            // SAFETY: as above.
            unsafe { states[0].ask_read((way, to), address, (back.as_mut_ptr(), len), 6) };
            until_over(&mut states, 0, 6);
            assert!(back == from, "{len} bytes, one node: {one_node}");
        }
    }
}

#[test]
fn changes_find_what_those_before_have_left_when_no_room_makes_them_wait() {
    for one_node in [true, false] {
        let mut states = pair(one_node, false);
        let [(to, way), _] = meet(&mut states);
        let mut there = 100u64;
        let mut before = vec![0u64; 1000];
        let change = Change::Add;
        let address = (&raw mut there) as u64;
        let add = Atomic { change, narrow: false, address, operand: 2, compare: 0 };
        for (number, into) in before.iter_mut().enumerate() {
            let into = (&raw mut *into).cast();
            // SAFETY: both live until all are over.
            let asked = unsafe { states[0].ask_change((way, to), add, into, number + 1) };
            assert_ne!(asked, Outcome::Down);
        }
        let mut over = Vec::new();
        while over.len() < 1000 {
            for state in states.iter_mut() {
                assert!(state.peek_node().is_none() && state.peek_network().is_none());
                state.send_waiting();
            }
            over.extend(core::iter::from_fn(|| states[0].next_over()).filter(|one| one.0 != 0));
        }
        let expected: Vec<_> = (1..=1000).map(|number| (number, true)).collect();
        assert_eq!(over, expected);
        assert_eq!(before, (0..1000).map(|n| 100 + 2 * n).collect::<Vec<_>>());
        assert_eq!(there, 2100);
    }
}

#[test]
fn who_finishes_without_an_answer_that_is_owed_is_lost() {
    let mut states = pair(false, false);
    meet(&mut states);
    // SAFETY: a constant.
    unsafe { states[0].send(Way::Network, PeerId(1), message(65, b"x"), 1) };
    receive(1, &mut states);
    let mut room = 0u64;
    let into = (&raw mut room).cast();
    // SAFETY: the room lives; the address is never used, the answer never comes.
    unsafe { states[0].ask_read((Way::Network, PeerId(1)), into as u64, (into, 8), 1) };
    let [mut left, mut other] = states;
    // It has the question in its socket, and does not look.
    let end = std::thread::spawn(move || {
        while !other.network.close() {
            std::thread::yield_now();
        }
    });
    let news = loop {
        assert!(left.peek_network().is_none());
        if let Some(news) = left.next_news(true) {
            break news;
        }
    };
    end.join().unwrap();
    assert!(matches!(news, News::Lost(who, _) if who == name(1)));
}

/// What has arrived of each tag, and what is over.
#[derive(Default)]
struct Seen {
    arrived: std::sync::Mutex<std::collections::BTreeMap<u8, Vec<u32>>>,
    over: std::sync::Mutex<Vec<usize>>,
}

impl Above for Seen {
    fn arrived(&self, message: &Arrived) {
        let (start, len) = message.payload;
        // SAFETY: valid during the call.
        let bytes = unsafe { core::slice::from_raw_parts(start, len) };
        let number = u32::from_ne_bytes(bytes.try_into().unwrap());
        self.arrived.lock().unwrap().entry(message.tag).or_default().push(number);
    }
    fn over(&self, cookie: usize, accepted: bool) {
        assert!(accepted);
        self.over.lock().unwrap().push(cookie);
    }
    fn lost(&self, _: Name, reason: &str) {
        panic!("{reason}");
    }
    fn notice(&self, text: &str) {
        panic!("{text}");
    }
}

#[test]
fn threads_that_send_ask_and_make_progress_together_lose_and_reorder_nothing() {
    const MESSAGES: u32 = 3000;
    const TAGS: [u8; 3] = [70, 71, 72];
    for one_node in [true, false] {
        let mut states = pair(one_node, false);
        let ways = meet(&mut states);
        let cores = states.map(|state| Core::new(state, true));
        let seen = [Seen::default(), Seen::default()];
        let mut sum = 0u64;
        let address = (&raw mut sum) as u64;
        let change = Change::Add;
        let add = Atomic { change, narrow: false, address, operand: 1, compare: 0 };
        let numbers: Vec<u32> = (0..MESSAGES).collect();
        let is_complete = |seen: &Seen| {
            let arrived = seen.arrived.lock().unwrap();
            TAGS.iter().all(|tag| arrived.get(tag).is_some_and(|all| all.len() == numbers.len()))
        };
        std::thread::scope(|scope| {
            for me in 0..2 {
                for tag in TAGS {
                    let (core, seen, numbers) = (&cores[me], &seen, &numbers);
                    let (to, way) = ways[me];
                    scope.spawn(move || {
                        for number in numbers {
                            let piece = ((&raw const *number).cast(), 4);
                            let second = (core::ptr::null(), 0);
                            let message =
                                Message { what: What::Message(tag), first: piece, second };
                            // SAFETY: the numbers outlive the transports' use of them.
                            let sent = unsafe { core.send(way, to, message, 1) };
                            assert_ne!(sent, Outcome::Down);
                            if me == 0 && number % 10 == 0 {
                                let into = core::ptr::null_mut();
                                // SAFETY: the sum lives until all of it is over.
                                core.with(|state| unsafe {
                                    state.ask_change((way, to), add, into, 2)
                                });
                            }
                            core.progress(&seen[me]);
                        }
                    });
                }
            }
            let asked = TAGS.len() * numbers.len() / 10;
            let is_over = || seen[0].over.lock().unwrap().iter().filter(|&&one| one == 2).count();
            while !is_complete(&seen[0]) || !is_complete(&seen[1]) || is_over() < asked {
                for me in 0..2 {
                    cores[me].progress(&seen[me]);
                }
            }
            assert_eq!(is_over(), asked);
        });
        for one in &seen {
            for (tag, arrived) in &*one.arrived.lock().unwrap() {
                assert!(*arrived == numbers, "tag {tag}, one node: {one_node}");
            }
        }
        assert_eq!(sum, (TAGS.len() * numbers.len() / 10) as u64);
    }
}
