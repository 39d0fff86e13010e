//! Connections of mpirun to other nodes from which nothing comes.

use std::str::FromStr;

/// A connection of mpirun to the daemon of another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SilentConnection {
    /// mpirun's number of it.
    pub(crate) id: u32,
    /// So long nothing has come.
    pub(crate) ms: u64,
    /// The interface of mpirun's node is connected to something.
    pub(crate) has_carrier: bool,
}

/// What mpirun has measured: `COUNT SILENT ID:MS ID:MS! …`, with `!` where there is no carrier.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Measurement {
    /// Connections to other nodes.
    pub(crate) count: usize,
    /// Of these, such as were silent for a part of the timeout that is not by chance.
    pub(crate) silent: usize,
    /// These, as many as there was room for.
    pub(crate) connections: Vec<SilentConnection>,
}

impl FromStr for Measurement {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut number = || words.next().and_then(|word| word.parse().ok()).ok_or(());
        let (count, silent) = (number()?, number()?);
        let connections = words.map(connection).collect::<Option<Vec<_>>>().ok_or(())?;
        let possible = silent <= count && connections.len() <= silent;
        possible.then_some(Self { count, silent, connections }).ok_or(())
    }
}

fn connection(word: &str) -> Option<SilentConnection> {
    let (id, ms) = word.split_once(':')?;
    let (ms, has_carrier) = ms.strip_suffix('!').map_or((ms, true), |ms| (ms, false));
    Some(SilentConnection { id: id.parse().ok()?, ms: ms.parse().ok()?, has_carrier })
}

/// What is known of all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSilence {
    /// Heartbeats since mpirun was asked, without an answer.
    pub(crate) unanswered: u32,
    /// Nothing has come from any other node since then.
    pub(crate) cut_since_ms: Option<u64>,
    /// Nobody is given up before that.
    pub(crate) grace_until_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mpirun_has_measured_is_read_and_nonsense_is_not() {
        let connection = |id, ms, has_carrier| SilentConnection { id, ms, has_carrier };
        for (text, count, silent, connections) in [
            ("0 0", 0, 0, vec![]),
            ("3 1 17:4100", 3, 1, vec![connection(17, 4100, true)]),
            (
                "2 2 17:4100! 9:2000",
                2,
                2,
                vec![connection(17, 4100, false), connection(9, 2000, true)],
            ),
            ("500 499 17:1", 500, 499, vec![connection(17, 1, true)]),
        ] {
            assert_eq!(text.parse(), Ok(Measurement { count, silent, connections }), "{text}");
        }
        for text in ["", "1", "1 x", "1 2", "2 1 3:4 5:6", "1 1 3", "1 1 3:x", "1 1 3:4 "] {
            assert_eq!(text.parse::<Measurement>(), Err(()), "{text}");
        }
    }
}
