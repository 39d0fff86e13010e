//! Cuts of the network that heal again: which node, in which direction, for how long.

use std::str::FromStr;
use std::time::Duration;

use super::faults::{Fault, Moment, moment_of_event};

/// What does not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The cable is pulled: nothing either way, and the node's interface has no carrier.
    Off,
    /// Nothing either way, as behind a switch that has failed: the interface sees nothing of it.
    Mute,
    /// What is sent to the node.
    To,
    /// What the node sends.
    From,
}

/// A cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Number of the node.
    pub node: u32,
    /// What does not arrive.
    pub direction: Direction,
    /// For so long.
    pub lasts: Duration,
}

/// `EVENT@K=DIRECTION:I+SECS`: a cut when an event is logged for the K-th time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PartitionAtEvent(pub Moment, pub Partition);

impl PartitionAtEvent {
    /// As one of the job's faults.
    pub fn fault(&self) -> (Moment, Fault) {
        (self.0, Fault::Partition(self.1))
    }
}

impl FromStr for PartitionAtEvent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "give it as EVENT@COUNT=DIRECTION:NODE+SECONDS";
        let (moment, what) = text.split_once('=').ok_or(form)?;
        let (direction, rest) = what.split_once(':').ok_or(form)?;
        let (node, lasts) = rest.split_once('+').ok_or(form)?;
        let direction = match direction {
            "off" => Direction::Off,
            "mute" => Direction::Mute,
            "to" => Direction::To,
            "from" => Direction::From,
            other => return Err(format!("`{other}`: choose off, mute, to or from")),
        };
        let node = node.parse().map_err(|_| format!("`{node}` is no number"))?;
        let seconds = lasts.parse().ok().filter(|lasts| (0.0..1e6).contains(lasts));
        let seconds = seconds.ok_or_else(|| format!("`{lasts}` is no number of seconds"))?;
        let lasts = Duration::from_secs_f64(seconds);
        Ok(Self(moment_of_event(moment)?, Partition { node, direction, lasts }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::job_events::Nth;

    #[test]
    fn cuts_are_read_and_nonsense_is_not() {
        let moment = Moment::Event(None, Nth("checkpoint_completed", 1));
        for (text, node, direction, ms) in [
            ("checkpoint_completed@1=off:0+15", 0, Direction::Off, 15_000),
            ("checkpoint_completed@1=mute:2+0.5", 2, Direction::Mute, 500),
            ("checkpoint_completed@1=to:1+2", 1, Direction::To, 2000),
            ("checkpoint_completed@1=from:1+2", 1, Direction::From, 2000),
        ] {
            let partition = Partition { node, direction, lasts: Duration::from_millis(ms) };
            assert_eq!(text.parse(), Ok(PartitionAtEvent(moment, partition)));
        }
        for bad in ["", "x@1=off:0+1", "ready@1", "ready@1=off:0", "ready@1=away:0+1"] {
            assert!(bad.parse::<PartitionAtEvent>().is_err(), "{bad}");
        }
        for bad in ["ready@1=off:x+1", "ready@1=off:0+x", "ready@1=off:0+-1", "ready=off:0+1"] {
            assert!(bad.parse::<PartitionAtEvent>().is_err(), "{bad}");
        }
    }
}
