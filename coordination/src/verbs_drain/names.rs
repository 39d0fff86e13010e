//! What names of verbs stand for, at the coordinator, and at a guardian for a coordinator that
//! takes its place. A name is of one generation at a time: so there is one entry for each object
//! that exists at once, not for each that ever did.

use std::collections::BTreeMap;

/// Opaque names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<Vec<u8>, (u64, Vec<u8>)>);

impl Names {
    /// A name stands for this from now on. Generations of keys wrap around: the last one counts.
    pub fn publish(&mut self, name: Vec<u8>, generation: u64, value: Vec<u8>) {
        self.0.insert(name, (generation, value));
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
        names.publish(vec![1], 1, vec![10]);
        names.publish(vec![1], 2, vec![20]);
        names.publish(vec![2], 1, vec![30]);
        assert_eq!(names.find(&[1], 2), [20]);
        assert!(names.find(&[1], 1).is_empty() && names.find(&[3], 1).is_empty());
        names.publish(vec![1], 0, vec![40]);
        assert_eq!(names.iter().count(), 2);
        assert!(names.find(&[1], 2).is_empty() && names.find(&[1], 0) == [40]);
    }
}
