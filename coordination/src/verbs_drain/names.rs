//! What names of verbs stand for, at the coordinator, and at a guardian for a coordinator that
//! takes its place. A name is of one generation at a time: so there is one entry for each object
//! that exists at once, not for each that ever did.

use core::fmt;
use std::collections::BTreeMap;

/// A name or value has no more bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// So many names a job can have.
pub const NAMES_MAX: usize = 1 << 20;

/// Why a name is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameRefused {
    /// So many bytes.
    TooLong(usize),
    /// So many are there.
    TooMany(usize),
}

impl fmt::Display for NameRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(bytes) => {
                write!(f, "a name of its verbs has {bytes} bytes; {NAME_BYTES_MAX} are possible")
            }
            Self::TooMany(count) => write!(
                f,
                "the job has {count} names of verbs already: too many queue pairs and regions"
            ),
        }
    }
}

impl core::error::Error for NameRefused {}

/// Opaque names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<Vec<u8>, (u64, Vec<u8>)>);

impl Names {
    /// A name stands for this from now on. Generations of keys wrap around: the last one counts.
    ///
    /// # Errors
    /// It is too long, or there are too many; nothing changes then.
    pub fn publish(
        &mut self,
        name: Vec<u8>,
        generation: u64,
        value: Vec<u8>,
    ) -> Result<(), NameRefused> {
        let bytes = name.len().max(value.len());
        if bytes > NAME_BYTES_MAX {
            return Err(NameRefused::TooLong(bytes));
        }
        if self.0.len() >= NAMES_MAX && !self.0.contains_key(&name) {
            return Err(NameRefused::TooMany(self.0.len()));
        }
        self.0.insert(name, (generation, value));
        Ok(())
    }

    /// What it stands for; empty: nobody has said.
    pub fn find(&self, name: &[u8], generation: u64) -> Vec<u8> {
        let known = self.0.get(name).filter(|&&(known, _)| known == generation);
        known.map_or(Vec::new(), |(_, value)| value.clone())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64, &[u8])> {
        self.0.iter().map(|(name, (generation, value))| (&name[..], *generation, &value[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_its_last_generation() {
        let mut names = Names::default();
        names.publish(vec![1], 1, vec![10]).unwrap();
        names.publish(vec![1], 2, vec![20]).unwrap();
        names.publish(vec![2], 1, vec![30]).unwrap();
        assert_eq!(names.find(&[1], 2), [20]);
        assert!(names.find(&[1], 1).is_empty() && names.find(&[3], 1).is_empty());
        names.publish(vec![1], 0, vec![40]).unwrap();
        assert_eq!(names.iter().count(), 2);
        assert!(names.find(&[1], 2).is_empty() && names.find(&[1], 0) == [40]);
    }

    #[test]
    fn long_names_and_too_many_are_refused() {
        let mut names = Names::default();
        let long = vec![0; NAME_BYTES_MAX + 1];
        let too_long = Err(NameRefused::TooLong(NAME_BYTES_MAX + 1));
        assert_eq!(names.publish(long.clone(), 0, vec![]), too_long);
        assert_eq!(names.publish(vec![], 0, long), too_long);
        let name = |number: usize| number.to_le_bytes().to_vec();
        for number in 0..NAMES_MAX {
            names.publish(name(number), 0, vec![]).unwrap();
        }
        let too_many = Err(NameRefused::TooMany(NAMES_MAX));
        assert_eq!(names.publish(name(NAMES_MAX), 0, vec![]), too_many);
        // In place of one that is there.
        assert_eq!(names.publish(name(0), 1, vec![]), Ok(()));
        assert_eq!(names.iter().count(), NAMES_MAX);
    }
}
