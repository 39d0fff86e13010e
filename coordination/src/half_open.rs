//! Connections that have not authenticated themselves yet. Anybody can open some, and keep them
//! open without a word: which one gives way when there are too many?
//!
//! 1. Those from addresses at which nothing of the job is known give way first.
//! 2. Among these, or if there are none, the address that has most of them; of its connections the
//!    oldest.
//! 3. A new connection counts like the others, so one from an unknown address never closes one from
//!    a known address, and one address alone closes none but its own while others have fewer.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;

/// What is known of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HalfOpen {
    /// Where it comes from.
    pub address: IpAddr,
    /// Something of the job is known to be there.
    pub is_known: bool,
    /// When it came; any unit.
    pub since: u64,
}

/// Who is one host as far as addresses tell: with IPv6 everybody has 2^64 of them.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            let prefix = u128::from(ip) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
        other => other,
    }
}

/// Are these addresses of the same host, as far as one can tell?
pub fn is_same_host(one: IpAddr, other: IpAddr) -> bool {
    one.to_canonical() == other.to_canonical()
}

/// Which one gives way. `None`: there are none.
pub fn victim(connections: &[HalfOpen]) -> Option<usize> {
    let spares_known = connections.iter().any(|connection| !connection.is_known);
    let eligible = |connection: &HalfOpen| !(spares_known && connection.is_known);
    let mut of: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in connections.iter().filter(|connection| eligible(connection)) {
        *of.entry(origin(connection.address)).or_default() += 1;
    }
    let all = connections.iter().enumerate().filter(|(_, connection)| eligible(connection));
    let rank = |connection: &HalfOpen| {
        let many = of.get(&origin(connection.address)).copied().unwrap_or(0);
        (core::cmp::Reverse(many), connection.since)
    };
    all.min_by_key(|(_, connection)| rank(connection)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(address: &str, is_known: bool, since: u64) -> HalfOpen {
        HalfOpen { address: address.parse().unwrap(), is_known, since }
    }

    #[test]
    fn an_unknown_address_gives_way_to_a_known_one_and_never_the_reverse() {
        let flood: Vec<_> = (0..8).map(|since| at("10.0.0.9", false, since)).collect();
        let mut with_peer = [vec![at("10.0.0.1", true, 0)], flood].concat();
        assert_eq!(victim(&with_peer), Some(1), "the oldest of those that are unknown");
        with_peer.truncate(1);
        with_peer.push(at("10.0.0.9", false, 99));
        assert_eq!(victim(&with_peer), Some(1), "the new one itself");
    }

    #[test]
    fn an_address_that_opens_many_closes_its_own() {
        let mut all = vec![at("10.0.0.1", false, 0)];
        all.extend((1..8).map(|since| at("10.0.0.9", false, since)));
        assert_eq!(victim(&all), Some(1));
        let mapped =
            [at("::ffff:10.0.0.9", false, 3), at("10.0.0.9", false, 2), at("::1", false, 0)];
        assert_eq!(victim(&mapped), Some(1), "an IPv4 address in IPv6 is the same");
        let many = [at("2001:db8::1", false, 4), at("2001:db8::2", false, 3), at("::1", false, 0)];
        assert_eq!(victim(&many), Some(1), "one host has a whole network of IPv6");
        assert!(is_same_host("::ffff:10.0.0.9".parse().unwrap(), "10.0.0.9".parse().unwrap()));
    }

    #[test]
    fn where_all_are_known_the_oldest_of_the_most_gives_way() {
        let all = [at("10.0.0.1", true, 5), at("10.0.0.2", true, 1), at("10.0.0.1", true, 4)];
        assert_eq!(victim(&all), Some(2));
        assert_eq!(victim(&[]), None);
    }

    proptest! {
        #[test]
        fn whatever_is_open_the_rules_hold(
            all in proptest::collection::vec((0u8..4, any::<bool>(), 0u64..9), 1..40)
        ) {
            let all: Vec<HalfOpen> = all
                .into_iter()
                .map(|(host, is_known, since)| at(&format!("10.0.0.{host}"), is_known, since))
                .collect();
            let chosen = all[victim(&all).unwrap()];
            let eligible = |one: &&HalfOpen| !one.is_known || all.iter().all(|one| one.is_known);
            prop_assert!(eligible(&&chosen), "1");
            let of = |host| all.iter().filter(eligible).filter(|one| one.address == host).count();
            for one in all.iter().filter(eligible) {
                prop_assert!(of(one.address) <= of(chosen.address), "2");
                let same = one.address == chosen.address;
                prop_assert!(!same || chosen.since <= one.since, "2");
            }
        }
    }
}
