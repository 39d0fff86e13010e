//! How the data of a step travels: in memory that all members share, or as messages (K6).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module's documentation. Changed while the member is suspended, wherever it is.
#[derive(Debug)]
pub struct Carrier {
    messages: AtomicBool,
    /// How many steps' flags each member had raised in what was last common.
    up: Box<[AtomicU64]>,
    /// That is of the last memory.
    fixed: AtomicBool,
    /// How often the memory has parted.
    parted: AtomicU64,
}

impl Carrier {
    /// Of members that have no memory yet.
    pub fn new(size: u32) -> Self {
        let up = (0..size).map(|_| AtomicU64::new(0)).collect();
        let (messages, fixed) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { messages, up, fixed, parted: AtomicU64::new(0) }
    }

    /// Does nothing lie in memory?
    #[inline]
    pub fn is_messages(&self) -> bool {
        self.messages.load(Ordering::Acquire)
    }

    /// Must a writer that *has raised its flag* for this step send a message, too? Asked in this
    /// order, a snapshot between the two loses nothing and repeats nothing.
    #[inline]
    pub fn sends(&self, me: u32, number: u64) -> bool {
        self.comes_as_message(me, number)
    }

    /// Does what this member puts in this step come as a message?
    #[inline]
    pub fn comes_as_message(&self, writer: u32, number: u64) -> bool {
        self.is_messages() && self.is_later(writer, number)
    }

    #[cold]
    fn is_later(&self, writer: u32, number: u64) -> bool {
        self.up.get(writer as usize).is_none_or(|up| number >= up.load(Ordering::Relaxed))
    }

    /// To be handed to [`Carrier::share`].
    pub fn partings(&self) -> u64 {
        self.parted.load(Ordering::Acquire)
    }

    /// All members have the memory, and know that of each other. `partings`: when they began to
    /// find out: if it has parted since, some have used it meanwhile and others not.
    pub fn share(&self, partings: u64) -> bool {
        let common = self.partings() == partings;
        if common {
            self.fixed.store(false, Ordering::Release);
            self.messages.store(false, Ordering::Release);
        }
        common
    }

    /// The members lie on several nodes now. `up`: of each member the number of the step after the
    /// last one for which it had raised its flag, at that moment; `None`: there is no memory.
    ///
    /// It counts once: who was raising a flag at that moment has raised it in his node's copy
    /// since, and sent a message.
    pub fn part(&self, up: Option<impl Iterator<Item = u64>>) {
        if let Some(up) = up
            && !self.fixed.swap(true, Ordering::AcqRel)
        {
            self.up.iter().zip(up).for_each(|(slot, up)| slot.store(up, Ordering::Relaxed));
        }
        self.messages.store(true, Ordering::Release);
        self.parted.fetch_add(1, Ordering::Release);
    }
}
