//! What messages of the collective clock consist of: counters, targets, groups of processes.

use super::codec::Field;
use super::frame::ControlError;
use rustbtl_fragments::ids::PeerId;

/// Processes at equal distances.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberRun {
    /// The lowest.
    pub first: u32,
    /// From one to the next, 0 where there is only one.
    pub stride: u32,
    /// How many.
    pub count: u32,
}

impl MemberRun {
    /// The highest; more than a `u32` holds if the run is nonsense.
    fn last(self) -> u64 {
        u64::from(self.first) + u64::from(self.stride) * (u64::from(self.count).saturating_sub(1))
    }
}

impl Field for MemberRun {
    fn put(&self, out: &mut Vec<u8>) {
        self.first.put(out);
        self.stride.put(out);
        self.count.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        Ok(Self {
            first: Field::take(from)?,
            stride: Field::take(from)?,
            count: Field::take(from)?,
        })
    }
}

/// The processes of a group, ascending. Rows, columns and blocks of a grid are a few runs: a
/// communicator of the whole job takes 16 bytes, however many processes it has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberRuns(pub Vec<MemberRun>);

impl MemberRuns {
    /// `members` ascending, each once. The same members give the same runs.
    pub fn of(members: &[PeerId]) -> Self {
        let mut runs: Vec<MemberRun> = Vec::new();
        for &PeerId(member) in members {
            if let Some(run) = runs.last_mut() {
                let stride = member.wrapping_sub(run.last() as u32);
                if run.count == 1 || run.stride == stride {
                    *run = MemberRun { stride, count: run.count + 1, ..*run };
                    continue;
                }
            }
            runs.push(MemberRun { first: member, stride: 0, count: 1 });
        }
        Self(runs)
    }

    /// Ascending, each once, all of them ids: what [`MemberRuns::of`] gives. Bytes from elsewhere
    /// may be anything.
    pub fn is_sound(&self) -> bool {
        let mut above = 0;
        !self.0.is_empty()
            && self.0.iter().all(|run| {
                let is_one = run.count == 1 && run.stride == 0;
                let is_more = run.count > 1 && run.stride > 0;
                let fits = u64::from(run.first) >= above && run.last() <= u64::from(u32::MAX);
                above = run.last() + 1;
                fits && (is_one || is_more)
            })
    }

    /// How many processes, of runs that are sound.
    pub fn size(&self) -> u64 {
        self.0.iter().map(|run| u64::from(run.count)).sum()
    }

    /// The highest of them, 0 if there are none.
    pub fn highest(&self) -> u64 {
        self.0.last().map_or(0, |run| run.last())
    }

    /// Is it one of them? Of runs that are sound.
    pub fn contains(&self, member: PeerId) -> bool {
        let at = self.0.partition_point(|run| run.first <= member.0);
        let run = at.checked_sub(1).map(|at| self.0[at]);
        run.is_some_and(|run| {
            let offset = member.0 - run.first;
            u64::from(member.0) <= run.last() && offset.is_multiple_of(run.stride)
        })
    }
}

impl Field for MemberRuns {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        Field::take(from).map(Self)
    }
}

/// The clock of one communicator at one process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClockCounter {
    /// The process's own number for it.
    pub clock: u32,
    /// MPI's context id, without instance.
    pub context: u32,
    /// Hash of its group.
    pub group: u64,
    /// How many collectives the process has entered there.
    pub sequence: u64,
    /// All processes of the communicator, of both groups where it has two.
    pub members: MemberRuns,
}

impl Field for ClockCounter {
    fn put(&self, out: &mut Vec<u8>) {
        self.clock.put(out);
        self.context.put(out);
        self.group.put(out);
        self.sequence.put(out);
        self.members.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        Ok(Self {
            clock: Field::take(from)?,
            context: Field::take(from)?,
            group: Field::take(from)?,
            sequence: Field::take(from)?,
            members: Field::take(from)?,
        })
    }
}

/// Up to where a process has to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockTarget {
    /// The process's own number of the clock.
    pub clock: u32,
    /// Collectives to enter there, all in all.
    pub target: u64,
}

impl Field for ClockTarget {
    fn put(&self, out: &mut Vec<u8>) {
        self.clock.put(out);
        self.target.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        Ok(Self { clock: Field::take(from)?, target: Field::take(from)? })
    }
}

/// What keeps a process from being drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hindrance {
    /// Nothing: it is.
    None,
    /// It has to enter a collective that others are in.
    BelowTarget,
    /// It is inside a collective, or a nonblocking one that it has started is not complete.
    Incomplete,
}

impl Field for Hindrance {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::None => 0,
            Self::BelowTarget => 1,
            Self::Incomplete => 2,
        });
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        match u8::take(from)? {
            0 => Ok(Self::None),
            1 => Ok(Self::BelowTarget),
            2 => Ok(Self::Incomplete),
            _ => Err(ControlError::Damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(members: &[u32]) -> MemberRuns {
        MemberRuns::of(&members.iter().map(|&member| PeerId(member)).collect::<Vec<_>>())
    }

    #[test]
    fn rows_and_columns_are_one_run() {
        let all: Vec<u32> = (0..1000).collect();
        assert_eq!(runs(&all).0, [MemberRun { first: 0, stride: 1, count: 1000 }]);
        let column: Vec<u32> = (0..30).map(|row| 7 + 32 * row).collect();
        assert_eq!(runs(&column).0, [MemberRun { first: 7, stride: 32, count: 30 }]);
        let single = MemberRun { first: u32::MAX, stride: 0, count: 1 };
        assert_eq!(runs(&[u32::MAX]).0, [single]);
    }

    #[test]
    fn runs_have_exactly_their_members() {
        for bits in 1u32..4096 {
            let members: Vec<u32> = (0..12).filter(|at| bits >> at & 1 == 1).collect();
            let runs = runs(&members);
            assert!(runs.is_sound(), "{runs:?}");
            assert_eq!(runs.size(), u64::from(bits.count_ones()));
            assert_eq!(runs.highest(), u64::from(*members.last().unwrap()));
            let contained: Vec<u32> = (0..14).filter(|&at| runs.contains(PeerId(at))).collect();
            assert_eq!(contained, members);
        }
    }

    #[test]
    fn nonsense_is_not_sound() {
        let one = |first, stride, count| MemberRuns(vec![MemberRun { first, stride, count }]);
        let table = [one(0, 0, 0), one(0, 0, 2), one(1, 1, 1), one(9, u32::MAX, 2)];
        table.iter().for_each(|runs| assert!(!runs.is_sound(), "{runs:?}"));
        let twice = MemberRun { first: 3, stride: 0, count: 1 };
        assert!(!MemberRuns(vec![twice, twice]).is_sound());
        assert!(!MemberRuns(vec![]).is_sound());
        assert!(one(9, u32::MAX - 9, 2).is_sound());
    }
}
