//! The determinants of one set on their way to their keepers: agents of other sets.
//!
//! Source: DESIGN §5 (persist before send). All processes of the set record into one order, so
//! that what is stable is a beginning of it, and closed under "happened before". Data owned by the
//! driver (a ring that the ranks of a node share); time and transports are its own as well.
//!
//! Invariants:
//! * S1 `stable` counts determinants that every keeper has, and nothing else.
//! * S2 A keeper gets everything since the oldest line that the set may go back to, in order and
//!   without gaps.
//! * S3 Acknowledgements of another incarnation, or of an agent that is no keeper, change nothing.

use super::codec;
use super::decisions::Numbered;
use rustbtl_fragments::send_gate::{Marks, Recorded};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::{BTreeMap, VecDeque};

/// An agent as a keeper: its set, and which start of it (another start has forgotten everything).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReplicaId {
    /// The set that it lives with.
    pub set: SetId,
    /// Which start.
    pub start: u64,
}

/// One determinant in the order of its set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its place in the order.
    pub at: u64,
    /// Whose.
    pub rank: PeerId,
    /// What.
    pub numbered: Numbered,
}

/// Determinants for a keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Whose.
    pub set: SetId,
    /// In which incarnation the set recorded them (or inherited them from an earlier one).
    pub incarnation: Incarnation,
    /// Before these places the keeper has everything.
    pub from: u64,
    /// With the batch it has everything before this place.
    pub upto: u64,
    /// The keeper is of use from this place on; until then an earlier one is.
    pub inherits: u64,
    /// Those of places `from..upto` that no line covers.
    pub records: Vec<Record>,
}

/// What a keeper has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// Who says it.
    pub keeper: ReplicaId,
    /// Whose determinants.
    pub set: SetId,
    /// Of which incarnation.
    pub incarnation: Incarnation,
    /// Everything before this place.
    pub upto: u64,
}

#[derive(Clone, Copy, Debug)]
struct Shipment {
    keeper: ReplicaId,
    inherits: u64,
    opened: bool,
    sent: u64,
    acked: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct DeterminantLog {
    set: SetId,
    incarnation: Incarnation,
    recorded: u64,
    records: VecDeque<Record>,
    keepers: Vec<Shipment>,
    wanted: usize,
    batch_records_max: usize,
}

impl DeterminantLog {
    /// The shipper of a set in an incarnation that knows these determinants of its past (none at
    /// the job's start). `copies`: keepers that must have a determinant before it is stable.
    pub fn new(
        set: SetId,
        incarnation: Incarnation,
        past: impl IntoIterator<Item = (PeerId, Numbered)>,
        copies: usize,
        batch_records_max: usize,
    ) -> Self {
        let mut shipper = Self {
            set,
            incarnation,
            recorded: 0,
            records: VecDeque::new(),
            keepers: Vec::new(),
            wanted: copies,
            batch_records_max: batch_records_max.max(1),
        };
        past.into_iter().for_each(|(rank, numbered)| shipper.record(rank, numbered));
        shipper
    }

    /// The shipper of a set whose machine was lost in the middle of an incarnation: the places of
    /// what is left, and of what is recorded next, stay the same.
    pub fn resumed(
        set: SetId,
        incarnation: Incarnation,
        records: impl IntoIterator<Item = Record>,
        recorded: u64,
        copies: usize,
        batch_records_max: usize,
    ) -> Self {
        let mut shipper = Self::new(set, incarnation, None, copies, batch_records_max);
        shipper.records.extend(records);
        shipper.recorded = recorded;
        shipper
    }

    /// A process has recorded a determinant.
    pub fn record(&mut self, rank: PeerId, numbered: Numbered) {
        self.records.push_back(Record { at: self.recorded, rank, numbered });
        self.recorded += 1;
    }

    /// The next place holds nothing that is repeated.
    pub fn skip(&mut self) {
        self.recorded += 1;
    }

    /// For the gate of every process of the set.
    pub fn marks(&self) -> Marks {
        Marks { recorded: Recorded(self.recorded), stable: self.stable() }
    }

    fn stable(&self) -> u64 {
        if self.wanted == 0 {
            return self.recorded;
        }
        if self.keepers.len() < self.wanted {
            return 0;
        }
        self.keepers.iter().map(|copy| copy.acked).min().unwrap_or(0)
    }

    /// So many keepers must have a determinant before it is stable. 0: whoever owns this machine
    /// keeps it well enough.
    pub fn set_copies(&mut self, copies: usize) {
        self.wanted = copies;
    }

    /// Place of the next determinant.
    pub fn next(&self) -> u64 {
        self.recorded
    }

    /// What is held: everything that no line covers, in its order.
    pub fn records(&self) -> impl Iterator<Item = &Record> + '_ {
        self.records.iter()
    }

    /// The same, from this place on.
    pub fn records_from(&self, from: u64) -> impl Iterator<Item = &Record> + '_ {
        self.records.iter().skip(self.records.partition_point(|record| record.at < from))
    }

    /// These agents keep copies from now on. A new one gets everything; until it has what is
    /// recorded now, nothing that was recorded since it came is stable.
    pub fn set_keepers(&mut self, keepers: &[ReplicaId]) {
        self.keepers.retain(|copy| keepers.contains(&copy.keeper));
        for &keeper in keepers {
            if self.keepers.iter().all(|copy| copy.keeper != keeper) {
                let inherits = self.recorded;
                let copy = Shipment { keeper, inherits, opened: false, sent: 0, acked: 0 };
                self.keepers.push(copy);
            }
        }
    }

    /// Who keeps copies.
    pub fn keepers(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.keepers.iter().map(|copy| copy.keeper)
    }

    /// The connection to a keeper was lost: what it has not acknowledged is sent again.
    pub fn resend(&mut self, keeper: ReplicaId) {
        for copy in self.keepers.iter_mut().filter(|copy| copy.keeper == keeper) {
            copy.sent = copy.acked;
            copy.opened = false;
        }
    }

    /// The next batch, and to whom it goes.
    pub fn poll_output(&mut self) -> Option<(ReplicaId, Batch)> {
        let recorded = self.recorded;
        let copy = self.keepers.iter_mut().find(|copy| !copy.opened || copy.sent < recorded)?;
        let from = copy.sent;
        let first = self.records.partition_point(|record| record.at < from);
        let records: Vec<Record> =
            self.records.iter().skip(first).take(self.batch_records_max).cloned().collect();
        let rest = self.records.len() - first > records.len();
        let upto = match records.last() {
            Some(last) if rest => last.at + 1,
            _ => recorded,
        };
        copy.sent = upto;
        copy.opened = true;
        let (set, incarnation, inherits) = (self.set, self.incarnation, copy.inherits);
        Some((copy.keeper, Batch { set, incarnation, from, upto, inherits, records }))
    }

    /// A keeper says what it has. True: more is stable.
    pub fn on_ack(&mut self, ack: &Ack) -> bool {
        if ack.set != self.set || ack.incarnation != self.incarnation {
            return false;
        }
        let before = self.stable();
        for copy in self.keepers.iter_mut().filter(|copy| copy.keeper == ack.keeper) {
            copy.acked = copy.acked.max(ack.upto.min(copy.sent));
        }
        self.stable() > before
    }

    /// The oldest line that the set may go back to has these clocks: what is before is dropped.
    pub fn covered(&mut self, clocks: &BTreeMap<PeerId, u64>) {
        self.records.retain(|record| !is_covered(record, clocks));
    }

    /// Records that are held, for the report.
    pub fn held(&self) -> usize {
        self.records.len()
    }
}

pub(super) fn is_covered(record: &Record, clocks: &BTreeMap<PeerId, u64>) -> bool {
    clocks.get(&record.rank).is_some_and(|clock| record.numbered.number < *clock)
}

/// First bytes of an encoded batch: name and version.
const MAGIC: [u8; 4] = *b"Dtm1";

impl Batch {
    /// For the way to the keeper.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.set.0.to_le_bytes());
        out.extend_from_slice(&u32::from(self.incarnation.0).to_le_bytes());
        for word in [self.from, self.upto, self.inherits] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for record in &self.records {
            codec::put(&mut out, record.at - self.from);
            codec::put(&mut out, u64::from(record.rank.0));
            codec::put(&mut out, record.numbered.number);
            codec::encode(&record.numbered.determinant, &mut out);
        }
        out
    }

    /// Read what `encode` wrote. The length of `bytes` is the batch's.
    ///
    /// # Errors
    /// The bytes are damaged or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::CodecError> {
        let (head, mut rest) = bytes.split_first_chunk::<36>().ok_or(codec::CodecError::Short)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | (u64::from(word(at + 4)) << 32);
        if head[..4] != MAGIC {
            return Err(codec::CodecError::Kind(head[0]));
        }
        let incarnation = u16::try_from(word(8)).map_err(|_| codec::CodecError::Range)?;
        let (from, upto, inherits) = (long(12), long(20), long(28));
        let mut records: Vec<Record> = Vec::new();
        while !rest.is_empty() {
            let at = from.checked_add(codec::take(&mut rest)?).filter(|at| *at < upto);
            let at = at.ok_or(codec::CodecError::Range)?;
            if records.last().is_some_and(|last| last.at >= at) {
                return Err(codec::CodecError::Range);
            }
            let rank = PeerId(codec::take_u32(&mut rest)?);
            let number = codec::take(&mut rest)?;
            let determinant = codec::decode(&mut rest)?;
            records.push(Record { at, rank, numbered: Numbered { number, determinant } });
        }
        let (set, incarnation) = (SetId(word(4)), Incarnation(incarnation));
        Ok(Self { set, incarnation, from, upto, inherits, records })
    }
}
