//! Objects by number.

/// Numbers are not used twice: what an adapter still reports of an old object finds nothing.
#[derive(Debug)]
pub(crate) struct Table<T>(Vec<Option<T>>);

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The number that the next one gets.
    pub(crate) fn next(&self) -> u32 {
        self.0.len() as u32
    }

    pub(crate) fn insert(&mut self, object: T) -> u32 {
        self.0.push(Some(object));
        self.next() - 1
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.0.get(at as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.0.get_mut(at as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        self.0.get_mut(at as usize)?.take()
    }

    /// Numbers of those that exist, in order of their creation.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.iter().map(|(at, _)| at).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let live = |(at, object): (usize, &'_ Option<T>)| object.as_ref().map(|_| at as u32);
        self.0.iter().enumerate().filter_map(live).filter_map(|at| Some((at, self.get(at)?)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}
