//! What the epoll set watches.

/// What a number in the epoll set means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EpollToken {
    Listener(usize),
    PendingConnection(usize),
    Dial(usize),
    Connection(u32),
}

impl EpollToken {
    /// The number.
    pub(super) fn token(self) -> u64 {
        match self {
            Self::Listener(i) => (1 << 32) | i as u64,
            Self::PendingConnection(i) => (2 << 32) | i as u64,
            Self::Dial(i) => (3 << 32) | i as u64,
            Self::Connection(i) => (4 << 32) | u64::from(i),
        }
    }

    /// What has this number.
    pub(super) fn of(token: u64) -> Option<Self> {
        let index = token as u32;
        match token >> 32 {
            1 => Some(Self::Listener(index as usize)),
            2 => Some(Self::PendingConnection(index as usize)),
            3 => Some(Self::Dial(index as usize)),
            4 => Some(Self::Connection(index)),
            _ => None,
        }
    }
}
