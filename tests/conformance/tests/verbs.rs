//! The suite over queue pairs of the fake verbs beside TCP on the loopback interface, from the
//! first frame on and with every queue pair switched.

use rustbtl_component::transports::tcp::{Tcp, TcpConfig};
use rustbtl_component::transports::verbs::fake::{Fake, Nature, World};
use rustbtl_component::transports::verbs::{Sizes, VerbsConfig, VerbsTransport, choose};
use rustbtl_conformance::{Driver, Fabric, conformance, id};

type End = VerbsTransport<Fake, Tcp>;

struct Adapters {
    nature: Nature,
    sizes: Sizes,
    /// Ends are handed out when all pairs use their queue pairs.
    switched: bool,
    /// Each end has a second port: that of another node of the world.
    rails: usize,
}

impl Adapters {
    fn of(&self, n: usize) -> (World, Vec<End>) {
        let world = World::new(n * self.rails, self.nature.clone());
        let one = |node| {
            let if_include = "127.0.0.0/8".to_owned();
            let tcp = TcpConfig { me: id(node), if_include, ..TcpConfig::default() };
            let tcp = Tcp::new(tcp).expect("listen");
            let verbs = world.node(node);
            let choice = choose(&verbs, &VerbsConfig::default()).expect("valid").expect("a port");
            let mut end = VerbsTransport::new(verbs, choice, self.sizes, tcp).expect("an adapter");
            for rail in 1..self.rails {
                let verbs = world.node(rail * n + node);
                let choice = choose(&verbs, &VerbsConfig::default()).expect("valid");
                end.add_rail(verbs, choice.expect("a port")).expect("an adapter");
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
        (world, ends)
    }
}

/// All pairs have sent something, and use their queue pairs now.
fn switch_all(ends: Vec<End>) -> Vec<End> {
    let n = ends.len();
    let mut driver = Driver::of(ends);
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (0..a).map(move |b| (a, b))).collect();
    for &(a, b) in &pairs {
        driver.send(a, b, 0);
    }
    for to in 0..n {
        driver.settle(to);
    }
    let switched = |d: &Driver<End>, at: usize, to: usize| {
        d.ends[at].as_ref().is_some_and(|end| end.uses_queues(id(to)) == (true, true))
    };
    driver.until("queue pairs", |d| {
        pairs.iter().all(|&(a, b)| switched(d, a, b) && switched(d, b, a))
    });
    driver.ends.into_iter().flatten().collect()
}

impl Fabric for Adapters {
    type End = End;

    fn ends(&self, n: usize) -> Vec<End> {
        let ends = self.of(n).1;
        if self.switched { switch_all(ends) } else { ends }
    }

    fn pulls(&self) -> bool {
        self.sizes.read_bytes_min > 0
    }

    fn knows_what_is_withdrawn(&self) -> bool {
        false
    }

    fn large_bytes(&self) -> usize {
        (1 << 20) + 13
    }
}

/// Everything is read that can be.
fn usual() -> Adapters {
    let sizes = Sizes { read_bytes_min: 1, ..Sizes::default() };
    Adapters { nature: Nature::default(), sizes, switched: true, rails: 1 }
}

/// Few of everything: credits, slots and receives are short all the time.
fn cramped() -> Adapters {
    let sizes = Sizes {
        slot_bytes: 1024,
        receives: 12,
        sends: 4,
        grant: 4,
        inline_bytes: 64,
        read_bytes_min: 1,
        bounce_buffers: 2,
        bounce_bytes: 4096,
    };
    let nature = Nature { seed: 7, inline_bytes: 40, steps_per_poll: 1, ..Nature::default() };
    Adapters { nature, sizes, switched: true, rails: 1 }
}

conformance!(infiniband, usual());
// One of the tests counts on frames that are there at once after they were sent.
conformance!(
    from_the_first_frame,
    Adapters {
        switched: false,
        rails: 1,
        nature: Nature { steps_per_poll: 100, ..Nature::default() },
        // Before the queue pairs are there nothing can be offered.
        sizes: Sizes { read_bytes_min: 0, ..Sizes::default() },
    }
);
conformance!(
    roce,
    Adapters { nature: Nature { is_ethernet: true, seed: 3, ..Nature::default() }, ..usual() }
);
conformance!(few_of_everything, cramped());
conformance!(two_rails, Adapters { rails: 2, ..usual() });
conformance!(two_rails_and_few_of_everything, Adapters { rails: 2, ..cramped() });
