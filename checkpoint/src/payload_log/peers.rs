//! Table from peers to their chains: pages of it exist only where a peer was ever sent to.

use rustbtl_fragments::ids::PeerId;

const PAGE: usize = 64;

/// The live records to one destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// Index of its set in the log; `NONE` where nothing was ever sent.
    pub set: u32,
    /// Id of the oldest record; 0: none.
    pub head: u64,
    /// Id of the youngest record; 0: none.
    pub tail: u64,
}

/// No index.
pub const NONE: u32 = u32::MAX;

const EMPTY: Chain = Chain { set: NONE, head: 0, tail: 0 };

/// All chains of a log.
#[derive(Clone, Default)]
pub struct Peers {
    pages: Vec<Option<Box<[Chain; PAGE]>>>,
}

impl Peers {
    #[inline]
    pub fn get(&self, peer: PeerId) -> Chain {
        let index = peer.0 as usize;
        match self.pages.get(index / PAGE) {
            Some(Some(page)) => page[index % PAGE],
            _ => EMPTY,
        }
    }

    /// The entry of a peer, made if need be.
    #[inline]
    pub fn entry(&mut self, peer: PeerId) -> &mut Chain {
        let index = peer.0 as usize;
        if self.pages.len() <= index / PAGE {
            self.pages.resize_with(index / PAGE + 1, || None);
        }
        &mut self.pages[index / PAGE].get_or_insert_with(|| Box::new([EMPTY; PAGE]))[index % PAGE]
    }

    /// Every peer that has an entry.
    pub fn iter(&self) -> impl Iterator<Item = (PeerId, Chain)> + '_ {
        self.pages.iter().enumerate().flat_map(|(number, page)| {
            page.iter().flat_map(move |page| {
                page.iter()
                    .enumerate()
                    .filter(|(_, chain)| chain.set != NONE)
                    .map(move |(at, chain)| (PeerId((number * PAGE + at) as u32), *chain))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_were_never_sent_to_have_no_entry() {
        let mut peers = Peers::default();
        assert_eq!(peers.get(PeerId(1_000_000)), EMPTY);
        peers.entry(PeerId(1000)).set = 3;
        peers.entry(PeerId(2)).set = 1;
        let seen: Vec<_> = peers.iter().map(|(peer, chain)| (peer.0, chain.set)).collect();
        assert_eq!(seen, [(2, 1), (1000, 3)]);
        assert_eq!(peers.get(PeerId(1001)), EMPTY);
    }
}
