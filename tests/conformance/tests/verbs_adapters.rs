//! The suite over real verbs: adapters of this machine, or of the virtual machine with Soft-RoCE
//! (`cargo xtask test --rdma`). Ignored where nobody asks for it: there is no adapter then.
//!
//! `RUSTBTL_ADAPTERS` lists those to use; the ends take them in turn.

use rustbtl_component::transports::tcp::{Tcp, TcpConfig};
use rustbtl_component::transports::verbs::sys::Libibverbs;
use rustbtl_component::transports::verbs::{Sizes, VerbsConfig, VerbsTransport, choose};
use rustbtl_conformance::{Driver, Fabric, id, suite};

type End = VerbsTransport<Libibverbs, Tcp>;

struct Adapters {
    /// Each end has a second port: that of the next adapter.
    two_rails: bool,
}

impl Fabric for Adapters {
    type End = End;

    /// Ends whose pairs all use their queue pairs.
    fn ends(&self, n: usize) -> Vec<End> {
        let adapters = std::env::var("RUSTBTL_ADAPTERS").expect("RUSTBTL_ADAPTERS=rxe1,rxe2");
        let adapters: Vec<&str> = adapters.split(',').collect();
        let one = |at: usize| {
            let if_include = "127.0.0.0/8".to_owned();
            let tcp = TcpConfig { me: id(at), if_include, ..TcpConfig::default() };
            let tcp = Tcp::new(tcp).expect("listen");
            let verbs = Libibverbs::load().expect("libibverbs");
            let if_include = adapters[at % adapters.len()].to_owned();
            let config = VerbsConfig { if_include, ..VerbsConfig::default() };
            let choice = choose(&verbs, &config).expect("valid").expect("an active port");
            let sizes = Sizes { read_bytes_min: 1, ..Sizes::default() };
            let mut end = VerbsTransport::new(verbs, choice, sizes, tcp).expect("an adapter");
            if self.two_rails {
                let if_include = adapters[(at + 1) % adapters.len()].to_owned();
                let config = VerbsConfig { if_include, ..VerbsConfig::default() };
                let choice = choose(&verbs, &config).expect("valid").expect("an active port");
                end.add_rail(verbs, choice).expect("an adapter");
            }
            end
        };
        let mut ends: Vec<End> = (0..n).map(one).collect();
        let addresses: Vec<_> = ends.iter().map(End::address).collect();
        for (at, end) in ends.iter_mut().enumerate() {
            for (other, address) in addresses.iter().enumerate().filter(|&(other, _)| other != at) {
                end.add_peer(id(other), address).expect("it is reached");
            }
        }
        switched(ends)
    }

    fn pulls(&self) -> bool {
        true
    }

    fn knows_what_is_withdrawn(&self) -> bool {
        false
    }

    fn large_bytes(&self) -> usize {
        (4 << 20) + 13
    }
}

fn switched(ends: Vec<End>) -> Vec<End> {
    let n = ends.len();
    let mut driver = Driver::of(ends);
    for a in 0..n {
        for b in 0..a {
            driver.send(a, b, 0);
        }
    }
    for to in 0..n {
        driver.settle(to);
    }
    let uses = |d: &Driver<End>, at: usize, to: usize| {
        d.ends[at].as_ref().is_some_and(|end| end.uses_queues(id(to)) == (true, true))
    };
    driver.until("queue pairs", |d| (0..n).all(|a| (0..n).all(|b| a == b || uses(d, a, b))));
    driver.ends.into_iter().flatten().collect()
}

macro_rules! over_adapters {
    ($($test:ident)+) => { $(
        #[test]
        #[ignore = "needs adapters: cargo xtask test --rdma"]
        fn $test() {
            suite::$test(&Adapters { two_rails: false });
        }
    )+ };
}

/// A long payload is read by both ports of each end, one after another.
#[test]
#[ignore = "needs adapters: cargo xtask test --rdma"]
fn a_payload_is_read_over_two_rails() {
    let fabric = Adapters { two_rails: true };
    suite::exposed_memory_can_be_pulled(&fabric);
    suite::a_large_payload_is_pulled_whole(&fabric);
    let mut driver = Driver::new(&fabric, 2);
    let data = rustbtl_conformance::payload(0, 1, 1, 8 << 20);
    let mut into = vec![0; data.len()];
    assert!(suite::expose(&mut driver, 0, 1, 1, &data));
    suite::pull(&mut driver, 1, 0, 1, 0, &mut into);
    assert!(into == data);
    let [first, second] = driver.end(1).pieces_read();
    assert!(first >= 16 && second >= 16, "{first} {second}");
}

over_adapters! {
    frames_of_a_pair_keep_their_order
    every_size_up_to_the_limits_arrives_whole
    packed_payloads_arrive_like_contiguous_ones
    a_full_channel_says_so_and_drains
    both_directions_at_once_do_not_block_each_other
    ends_that_sleep_in_turn_lose_nothing
    many_peers_are_served_in_turn
    a_new_peer_is_served_while_another_floods
    what_happens_between_peek_and_consume_does_no_harm
    all_to_all_traffic_arrives_once
    a_peeked_frame_stays_until_it_is_consumed
    nothing_arrives_where_nothing_was_sent
    an_unknown_peer_is_down
    exposed_memory_can_be_pulled
    wrong_ids_ranges_and_pullers_are_refused
    a_large_payload_is_pulled_whole
    many_exposures_at_a_time_do_not_mix
    a_goodbye_is_reported_after_the_last_frame
    a_crash_is_reported_and_is_no_goodbye
    a_close_after_a_close_is_harmless
}
