//! How much memory a process' payload log may take: what the user says, or a share of the node's.
//!
//! A log needs as much as leaves the set between two checkpoints, and asks for one when half of its
//! budget is used. A fixed default fits no node: it is half of the memory of one with many ranks,
//! and needless checkpoints on one with few. So by default an eighth of the node's memory is for
//! logs, and each rank has its part.

use core::fmt;

/// The logs of a node take at most this part of its memory.
const SHARE: u64 = 8;
/// Below this a log asks for checkpoints all the time.
const AUTO_BYTES_MIN: u64 = 64 << 20;
/// What is in the log is in images, too: more makes these large.
const AUTO_BYTES_MAX: u64 = 4 << 30;
/// Where the node's memory is not known.
const AUTO_BYTES_UNKNOWN: u64 = 1 << 30;

/// A text that is no budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBudget;

impl fmt::Display for BadBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "it is neither auto, nor -1, nor a number of bytes, which may end with k, m or g",
        )
    }
}

/// The budget in bytes of each of `ranks` processes of a node that has `node_bytes` for the job.
/// "auto" or nothing: the share; "0": everything is spilled; "-1": no limit.
pub fn budget(text: &str, node_bytes: Option<u64>, ranks: u32) -> Result<u64, BadBudget> {
    match text.trim() {
        "" | "auto" => Ok(auto(node_bytes, ranks)),
        "-1" => Ok(u64::MAX),
        text => bytes(text).ok_or(BadBudget),
    }
}

fn auto(node_bytes: Option<u64>, ranks: u32) -> u64 {
    let share = node_bytes.map(|bytes| bytes / SHARE / u64::from(ranks.max(1)));
    share.map_or(AUTO_BYTES_UNKNOWN, |bytes| bytes.clamp(AUTO_BYTES_MIN, AUTO_BYTES_MAX))
}

fn bytes(text: &str) -> Option<u64> {
    let unit = match text.as_bytes().last()? {
        b'k' | b'K' => 1 << 10,
        b'm' | b'M' => 1 << 20,
        b'g' | b'G' => 1 << 30,
        _ => 1,
    };
    let digits = if unit == 1 { text } else { &text[..text.len() - 1] };
    // `parse` takes a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_bytes_is_taken_as_it_is() {
        let given = |text| budget(text, Some(256 << 30), 64);
        assert_eq!(given("1073741824"), Ok(1 << 30));
        assert_eq!(
            [given("3k"), given("64m"), given("8G")],
            [Ok(3 << 10), Ok(64 << 20), Ok(8 << 30)]
        );
        assert_eq!(given("0"), Ok(0));
        assert_eq!(given("-1"), Ok(u64::MAX));
        for text in ["much", "-2", "+1", "1.5g", "g", "1t", "99999999999g", "18446744073709551616"]
        {
            assert_eq!(given(text), Err(BadBudget), "{text}");
        }
    }

    #[test]
    fn by_default_the_ranks_of_a_node_share_an_eighth_of_its_memory() {
        let auto = |node: u64, ranks| budget("auto", Some(node << 30), ranks).unwrap();
        assert_eq!(auto(256, 64), 512 << 20);
        assert_eq!(auto(24, 2), 3 << 29);
        assert_eq!(auto(16, 128), AUTO_BYTES_MIN);
        assert_eq!(auto(1024, 1), AUTO_BYTES_MAX);
        assert_eq!(auto(1, 0), 128 << 20);
        assert_eq!(budget("", None, 3), Ok(AUTO_BYTES_UNKNOWN));
    }
}
