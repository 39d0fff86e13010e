//! How the data of a step travels: in memory that all members share, or as messages (K6).
//!
//! A snapshot of the set may be restored onto several nodes, where its memory is not common any
//! more. Threads of a restored process run again before it knows whether that is so. So each
//! snapshot *holds* the carrier while all members are suspended: it notes whose flags are up, and
//! until [`Carrier::go_on`] or [`Carrier::part`] nobody reads more than that, and who has put
//! something waits to learn whether it is to be sent, too.

use core::sync::atomic::{AtomicU64, Ordering};

/// Nothing more lies in memory.
const MESSAGES: u64 = 1;
/// Nobody knows yet whether the memory is still common.
const HELD: u64 = 1 << 1;
/// The last hold has noted whose flags were up in the memory that there is.
const NOTED: u64 = 1 << 2;
/// That memory has parted: who was raising a flag at that moment has raised it in his node's copy
/// since, and sent a message, so it is not looked up again.
const FIXED: u64 = 1 << 3;
/// This member has come to the end of [`Carrier::share`]. Before that all that it reads was sent to
/// it, also when others are further, and have raised flags.
const USED: u64 = 1 << 4;
/// One hold, in the upper bits.
const HOLD: u64 = 1 << 5;

/// Where what a writer puts in a step is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In the memory that this member sees.
    Memory,
    /// It comes as a message.
    Message,
    /// Nobody knows yet: ask again.
    Unknown,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Carrier {
    state: AtomicU64,
    /// How many steps' flags each member had raised in what was last common.
    up: Box<[AtomicU64]>,
    /// How often the memory has parted.
    parted: AtomicU64,
}

impl Carrier {
    /// Of members that have no memory yet.
    pub fn new(size: u32) -> Self {
        let up = (0..size).map(|_| AtomicU64::new(0)).collect();
        Self { state: AtomicU64::new(MESSAGES), up, parted: AtomicU64::new(0) }
    }

    fn state(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        let _ = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| Some(change(state)));
    }

    /// Does nothing lie in memory?
    #[inline]
    pub fn is_messages(&self) -> bool {
        self.state() & MESSAGES != 0
    }

    /// Does nobody know yet whether the memory is still common?
    #[inline]
    pub fn is_held(&self) -> bool {
        self.state() & HELD != 0
    }

    /// Where is what this member puts in this step? Its writer asks *after* it has raised its flag:
    /// then a snapshot in between loses nothing and repeats nothing. So does a reader who has seen
    /// the flag: what was raised since a snapshot may be sent as well.
    #[inline]
    pub fn way(&self, writer: u32, number: u64) -> Way {
        let state = self.state();
        if state & (MESSAGES | HELD) == 0 {
            Way::Memory
        } else {
            self.way_now(state, writer, number)
        }
    }

    #[cold]
    fn way_now(&self, state: u64, writer: u32, number: u64) -> Way {
        if state & (MESSAGES | USED) == MESSAGES {
            return Way::Message;
        }
        let up = self.up.get(writer as usize).map_or(0, |up| up.load(Ordering::Relaxed));
        match number < up {
            true => Way::Memory,
            false if state & MESSAGES != 0 => Way::Message,
            false => Way::Unknown,
        }
    }

    /// To be handed to [`Carrier::share`].
    pub fn partings(&self) -> u64 {
        self.parted.load(Ordering::Acquire)
    }

    /// All members have the memory, and know that of each other. `partings`: when they began to
    /// find out: if it has parted since, some have used it meanwhile and others not. `None`: that
    /// is not known yet: ask again.
    pub fn share(&self, partings: u64) -> Option<bool> {
        loop {
            let state = self.state();
            if state & HELD != 0 {
                return None;
            }
            if self.partings() != partings {
                self.change(|state| state | USED);
                return Some(false);
            }
            let common = state & !MESSAGES | USED;
            // Fails where it was held in between, whatever came of that.
            let order = (Ordering::AcqRel, Ordering::Acquire);
            if self.state.compare_exchange(state, common, order.0, order.1).is_ok() {
                return Some(true);
            }
        }
    }

    /// The memory is given back; to be called when nobody finds it any more.
    pub fn forget_memory(&self) {
        self.change(|state| state & !(NOTED | FIXED | USED));
    }

    /// All members are suspended for a snapshot. `up`: of each member the number of the step after
    /// the last one for which it has raised its flag; `None`: there is no memory.
    pub fn hold(&self, up: Option<impl Iterator<Item = u64>>) {
        let is_fixed = self.state() & FIXED != 0;
        let noted = if up.is_some() { NOTED } else { 0 };
        if let Some(up) = up
            && !is_fixed
        {
            self.up.iter().zip(up).for_each(|(slot, up)| slot.store(up, Ordering::Relaxed));
        }
        self.change(|state| ((state & !NOTED) | noted | HELD).wrapping_add(HOLD));
    }

    /// The memory is as common as it was.
    pub fn go_on(&self) {
        self.change(|state| state & !HELD);
    }

    /// The members lie on several nodes since the snapshot.
    pub fn part(&self) {
        self.parted.fetch_add(1, Ordering::Release);
        self.change(|state| {
            let fixed = if state & NOTED != 0 { FIXED } else { 0 };
            (state & !HELD) | MESSAGES | fixed
        });
    }
}
