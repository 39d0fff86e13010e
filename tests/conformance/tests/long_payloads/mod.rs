//! Long payloads beside the frames: exposed, announced by the next frame, read by the receiver, and
//! withdrawn. What is read is what was exposed; after a channel is down nothing is written to.

use rustbtl_component::transports::{Pulled, Transport};
use rustbtl_conformance::{id, payload};
use std::collections::{BTreeMap, VecDeque};

/// Ids that are in use at a time, of one end.
const SLOTS: u64 = 24;
/// Bytes of the memory that stays, of each end.
const HOME_BYTES: usize = 1 << 14;

/// Something that an end exposes.
struct Exposed {
    to: usize,
    bytes: Vec<u8>,
    /// In the memory that stays: where.
    home: Option<usize>,
}

/// Something that is being read.
struct Reading {
    from: usize,
    id: u64,
    into: Vec<u8>,
    expected: Vec<u8>,
}

/// An id, and the number of the frame that has announced it.
type Announced = (u64, Option<u64>);

#[derive(Default)]
struct OfEnd {
    /// What it exposes, by its id.
    exposed: BTreeMap<u64, Exposed>,
    readings: Vec<Reading>,
    home: Vec<u8>,
    next: u64,
}

/// See the module's documentation.
pub struct Payloads {
    ends: Vec<OfEnd>,
    /// By sender and receiver.
    announced: BTreeMap<(usize, usize), VecDeque<Announced>>,
    /// Memory that was read into when a channel was lost, and what was in it then.
    lost: Vec<(Vec<u8>, Vec<u8>)>,
    /// Who could not read from whom: the channel is lost, which was not reported yet.
    refused: Vec<(usize, usize)>,
}

impl Payloads {
    pub fn new(nodes: usize) -> Self {
        let home = |at| OfEnd { home: payload(at, at, 0, HOME_BYTES), ..OfEnd::default() };
        let ends = (0..nodes).map(home).collect();
        Self { ends, announced: BTreeMap::new(), lost: Vec::new(), refused: Vec::new() }
    }

    /// Expose so many bytes, if there is an id for them.
    pub fn expose<T: Transport>(
        &mut self,
        end: &mut T,
        (from, to): (usize, usize),
        bytes: usize,
        lasts: bool,
    ) {
        let own = &mut self.ends[from];
        let name = ((own.next / SLOTS + 1) << 32) | (own.next % SLOTS);
        own.next += 1;
        if own.exposed.keys().any(|other| *other as u32 == name as u32) {
            return;
        }
        let at = (own.next as usize * 511) % (HOME_BYTES - bytes);
        let data = match lasts {
            true => own.home[at..at + bytes].to_vec(),
            false => payload(from, to, name, bytes),
        };
        let place = match lasts {
            true => own.home[at..at + bytes].as_ptr() as usize,
            false => data.as_ptr() as usize,
        };
        let start = own.home.as_ptr() as usize;
        let home = lasts.then_some(start..start + HOME_BYTES);
        // SAFETY: the bytes stay until they are withdrawn, and the rest as long as the end.
        if unsafe { end.expose(id(to), name, place..place + bytes, home) } {
            own.exposed.insert(name, Exposed { to, bytes: data, home: lasts.then_some(at) });
            self.announced.entry((from, to)).or_default().push_back((name, None));
        }
    }

    /// A frame was accepted: it announces all that was exposed before.
    pub fn announced(&mut self, from: usize, to: usize, frame: u64) {
        let all = self.announced.entry((from, to)).or_default();
        all.iter_mut().for_each(|(_, by)| *by = by.or(Some(frame)));
    }

    /// A frame has arrived: what it announces is read.
    pub fn arrived<T: Transport>(&mut self, end: &mut T, (from, at): (usize, usize), frame: u64) {
        let all = self.announced.entry((from, at)).or_default();
        while all.front().is_some_and(|(_, by)| by.is_some_and(|by| by <= frame)) {
            let Some((name, _)) = all.pop_front() else { return };
            let exposed = &self.ends[from].exposed[&name];
            assert_eq!(exposed.to, at);
            let expected = match exposed.home {
                Some(place) => self.ends[from].home[place..][..exposed.bytes.len()].to_vec(),
                None => exposed.bytes.clone(),
            };
            let mut into = vec![0; expected.len()];
            // SAFETY: the memory lives until it is read, and longer.
            let pulled = unsafe { end.pull(id(from), name, 0, into.as_mut_ptr(), into.len()) };
            // It was exposed before the frame, by a queue pair that may have failed since.
            match pulled == Pulled::Started {
                true => self.ends[at].readings.push(Reading { from, id: name, into, expected }),
                false => self.refused.push((at, from)),
            }
        }
    }

    /// What is read: its sender needs it no more.
    pub fn finish<T: Transport>(&mut self, ends: &mut [T], at: usize) {
        while let Some((peer, name)) = ends[at].pulled() {
            let readings = &mut self.ends[at].readings;
            let found = readings.iter().position(|of| id(of.from) == peer && of.id == name);
            let reading = readings.swap_remove(found.expect("nobody reads it"));
            assert!(reading.into == reading.expected, "other bytes were read");
            ends[reading.from].withdraw(id(at), name);
            self.ends[reading.from].exposed.remove(&name);
        }
    }

    /// An end has lost a channel: it withdraws and uses its memory for other things at once, and
    /// waits for nothing any more.
    pub fn down<T: Transport>(&mut self, end: &mut T, at: usize, other: usize) {
        let own = &mut self.ends[at];
        own.exposed.retain(|name, exposed| {
            if exposed.to == other {
                end.withdraw(id(other), *name);
                exposed.bytes.fill(0xEE);
            }
            exposed.to != other
        });
        self.announced.remove(&(at, other));
        self.refused.retain(|refused| *refused != (at, other));
        let (lost, kept) = own.readings.drain(..).partition(|reading| reading.from == other);
        own.readings = kept;
        let lost: Vec<Reading> = lost;
        self.lost.extend(lost.into_iter().map(|reading| (reading.into.clone(), reading.into)));
    }

    /// Has everything that was announced been read? And nothing else been written to.
    pub fn all_are_read(&self) -> bool {
        let untouched = self.lost.iter().all(|(then, now)| then == now);
        assert!(untouched, "written to after the channel was down");
        assert!(self.refused.is_empty(), "refused, and the channel is not down");
        self.ends.iter().all(|end| end.readings.is_empty())
    }
}
