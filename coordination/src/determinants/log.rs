//! The determinants of one set on their way to their replicas: agents of other sets.
//!
//! Source: DESIGN §5 (persist before send). All processes of the set record into one order, so
//! that what is stable is a beginning of it, and closed under "happened before". Data owned by the
//! driver (a ring that the ranks of a node share); time and transports are its own as well.
//!
//! Invariants:
//! * S1 `stable` counts determinants that every replica has, and nothing else.
//! * S2 A replica gets everything since the oldest checkpoint that the set may be rolled back to,
//!   in order and without gaps.
//! * S3 Acknowledgements of another incarnation, or of an agent that is no replica, change nothing.

use super::codec;
use super::replay_decisions::Numbered;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use rustbtl_fragments::little_endian::LittleEndian;
use rustbtl_fragments::send_gate::{Marks, Recorded};
use std::collections::{BTreeMap, VecDeque};

/// An agent as a replica: its set, and which start of it (another start has forgotten everything).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReplicaId {
    /// The set that it runs with.
    pub set: SetId,
    /// Which start.
    pub start: u64,
}

/// One determinant in the order of its set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeterminantRecord {
    /// Its place in the order.
    pub at: u64,
    /// Whose.
    pub rank: PeerId,
    /// What.
    pub numbered: Numbered,
}

/// Determinants for a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeterminantBatch {
    /// Whose.
    pub set: SetId,
    /// In which incarnation the set recorded them (or inherited them from an earlier one).
    pub incarnation: Incarnation,
    /// Before these places the replica has everything.
    pub from: u64,
    /// With the batch it has everything before this place.
    pub upto: u64,
    /// The replica is of use from this place on; until then an earlier one is.
    pub inherits: u64,
    /// Those of places `from..upto` that no checkpoint covers.
    pub records: Vec<DeterminantRecord>,
}

/// What a replica has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchAck {
    /// Whose report.
    pub replica: ReplicaId,
    /// Whose determinants.
    pub set: SetId,
    /// Of which incarnation.
    pub incarnation: Incarnation,
    /// Everything before this place.
    pub upto: u64,
}

#[derive(Clone, Copy, Debug)]
struct ReplicaProgress {
    replica: ReplicaId,
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
    records: VecDeque<DeterminantRecord>,
    replicas: Vec<ReplicaProgress>,
    wanted: usize,
    batch_records_max: usize,
}

impl DeterminantLog {
    /// The log of a set in an incarnation that knows these determinants of earlier ones (none at
    /// the job's start). `copies`: replicas that must have a determinant before it is stable.
    pub fn new(
        set: SetId,
        incarnation: Incarnation,
        past: impl IntoIterator<Item = (PeerId, Numbered)>,
        copies: usize,
        batch_records_max: usize,
    ) -> Self {
        let mut log = Self {
            set,
            incarnation,
            recorded: 0,
            records: VecDeque::new(),
            replicas: Vec::new(),
            wanted: copies,
            batch_records_max: batch_records_max.max(1),
        };
        past.into_iter().for_each(|(rank, numbered)| log.record(rank, numbered));
        log
    }

    /// The log of a set whose machine was lost in the middle of an incarnation: the places of
    /// what is left, and of what is recorded next, stay the same.
    pub fn resumed(
        set: SetId,
        incarnation: Incarnation,
        records: impl IntoIterator<Item = DeterminantRecord>,
        recorded: u64,
        copies: usize,
        batch_records_max: usize,
    ) -> Self {
        let mut log = Self::new(set, incarnation, None, copies, batch_records_max);
        log.records.extend(records);
        log.recorded = recorded;
        log
    }

    /// A process has recorded a determinant.
    pub fn record(&mut self, rank: PeerId, numbered: Numbered) {
        self.records.push_back(DeterminantRecord { at: self.recorded, rank, numbered });
        self.recorded += 1;
    }

    /// The next place holds nothing that is replayed.
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
        if self.replicas.len() < self.wanted {
            return 0;
        }
        self.replicas.iter().map(|copy| copy.acked).min().unwrap_or(0)
    }

    /// So many replicas must have a determinant before it is stable. 0: the owner of this machine
    /// stores it well enough.
    pub fn set_required_replicas(&mut self, copies: usize) {
        self.wanted = copies;
    }

    /// Place of the next determinant.
    pub fn next(&self) -> u64 {
        self.recorded
    }

    /// What is held: everything that no checkpoint covers, in its order.
    pub fn records(&self) -> impl Iterator<Item = &DeterminantRecord> + '_ {
        self.records.iter()
    }

    /// The same, from this place on.
    pub fn records_from(&self, from: u64) -> impl Iterator<Item = &DeterminantRecord> + '_ {
        // Mostly the last ones are asked for; a search in all of them misses the cache each time.
        let count = self.records.iter().rev().take_while(|record| record.at >= from).count();
        self.records.range(self.records.len() - count..)
    }

    /// These agents are the replicas from now on. A new one gets everything; until it has what is
    /// recorded now, nothing that was recorded since it came is stable.
    pub fn set_replicas(&mut self, replicas: &[ReplicaId]) {
        self.replicas.retain(|copy| replicas.contains(&copy.replica));
        for &replica in replicas {
            if self.replicas.iter().all(|copy| copy.replica != replica) {
                let inherits = self.recorded;
                let copy = ReplicaProgress { replica, inherits, opened: false, sent: 0, acked: 0 };
                self.replicas.push(copy);
            }
        }
    }

    /// The replicas.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.replicas.iter().map(|copy| copy.replica)
    }

    /// The connection to a replica was lost: what it has not acknowledged is sent again.
    pub fn resend(&mut self, replica: ReplicaId) {
        for copy in self.replicas.iter_mut().filter(|copy| copy.replica == replica) {
            copy.sent = copy.acked;
            copy.opened = false;
        }
    }

    /// The next batch, and to whom it is sent.
    pub fn poll_output(&mut self) -> Option<(ReplicaId, DeterminantBatch)> {
        let recorded = self.recorded;
        let copy = self.replicas.iter_mut().find(|copy| !copy.opened || copy.sent < recorded)?;
        let from = copy.sent;
        let first = self.records.partition_point(|record| record.at < from);
        let records: Vec<DeterminantRecord> =
            self.records.iter().skip(first).take(self.batch_records_max).cloned().collect();
        let rest = self.records.len() - first > records.len();
        let upto = match records.last() {
            Some(last) if rest => last.at + 1,
            _ => recorded,
        };
        copy.sent = upto;
        copy.opened = true;
        let (set, incarnation, inherits) = (self.set, self.incarnation, copy.inherits);
        Some((copy.replica, DeterminantBatch { set, incarnation, from, upto, inherits, records }))
    }

    /// A replica reports what it has. True: more is stable.
    pub fn on_ack(&mut self, ack: &BatchAck) -> bool {
        if ack.set != self.set || ack.incarnation != self.incarnation {
            return false;
        }
        let before = self.stable();
        for copy in self.replicas.iter_mut().filter(|copy| copy.replica == ack.replica) {
            copy.acked = copy.acked.max(ack.upto.min(copy.sent));
        }
        self.stable() > before
    }

    /// The oldest checkpoint that the set may be rolled back to has these clocks: what is before is
    /// dropped.
    pub fn trim(&mut self, clocks: &BTreeMap<PeerId, u64>) {
        self.records.retain(|record| !is_covered(record, clocks));
    }

    /// Records that are held, for the report.
    pub fn held(&self) -> usize {
        self.records.len()
    }
}

pub(super) fn is_covered(record: &DeterminantRecord, clocks: &BTreeMap<PeerId, u64>) -> bool {
    clocks.get(&record.rank).is_some_and(|clock| record.numbered.number < *clock)
}

/// First bytes of an encoded batch: name and version.
const MAGIC: [u8; 4] = *b"Dtm1";

impl DeterminantBatch {
    /// For sending it to the replica.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        self.set.0.append(&mut out);
        u32::from(self.incarnation.0).append(&mut out);
        for word in [self.from, self.upto, self.inherits] {
            word.append(&mut out);
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
        let (word, long) = (|at| u32::read_at(head, at), |at| u64::read_at(head, at));
        if head[..4] != MAGIC {
            return Err(codec::CodecError::Kind(head[0]));
        }
        let incarnation = u16::try_from(word(8)).map_err(|_| codec::CodecError::Range)?;
        let (from, upto, inherits) = (long(12), long(20), long(28));
        let mut records: Vec<DeterminantRecord> = Vec::new();
        while !rest.is_empty() {
            let at = from.checked_add(codec::take(&mut rest)?).filter(|at| *at < upto);
            let at = at.ok_or(codec::CodecError::Range)?;
            if records.last().is_some_and(|last| last.at >= at) {
                return Err(codec::CodecError::Range);
            }
            let rank = PeerId(codec::take_u32(&mut rest)?);
            let number = codec::take(&mut rest)?;
            let determinant = codec::decode(&mut rest)?;
            records.push(DeterminantRecord {
                at,
                rank,
                numbered: Numbered { number, determinant },
            });
        }
        let (set, incarnation) = (SetId(word(4)), Incarnation(incarnation));
        Ok(Self { set, incarnation, from, upto, inherits, records })
    }
}
