//! The epoll set of a process.

/// What a number in the epoll set means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watched {
    /// Of the listening socket with this index.
    Listener(usize),
    /// Somebody who has proved nothing yet.
    Stranger(usize),
    /// An attempt to reach the peer with this index.
    Dial(usize),
    /// An open connection.
    Connection(u32),
}

impl Watched {
    /// As the kernel keeps it.
    pub fn token(self) -> u64 {
        match self {
            Self::Listener(i) => (1 << 32) | i as u64,
            Self::Stranger(i) => (2 << 32) | i as u64,
            Self::Dial(i) => (3 << 32) | i as u64,
            Self::Connection(i) => (4 << 32) | u64::from(i),
        }
    }

    /// The reverse.
    pub fn of(token: u64) -> Option<Self> {
        let index = token as u32;
        match token >> 32 {
            1 => Some(Self::Listener(index as usize)),
            2 => Some(Self::Stranger(index as usize)),
            3 => Some(Self::Dial(index as usize)),
            4 => Some(Self::Connection(index)),
            _ => None,
        }
    }
}
