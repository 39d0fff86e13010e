//! The file of policy `file:PATH`: one correlated set a line.
//!
//! ```text
//! # two racks; rank 8 is on the first one
//! 0-3, 8
//! 4-7 9
//! ```
//!
//! World ranks and ranges, separated by commas or blanks; `#` starts a comment; lines without
//! ranks are skipped. Invariants:
//! 1. Every rank of the world is in exactly one set, or the file is refused.
//! 2. A set's id is the lowest rank among its members.
//! 3. Work and memory are bounded by the text and the world's size, whatever the text says: a
//!    range is checked against the world before it is walked, and the first repeated rank ends it.

use core::fmt;
use rustbtl_fragments::ids::{PeerId, SetId};

/// Longest text that is read.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Largest world.
pub const WORLD_RANKS_MAX: u32 = 1 << 24;

/// Why a set file was refused. Lines count from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetFileError {
    /// No rank in it.
    Empty {
        /// Ranks that it should have.
        world_size: u32,
    },
    /// Longer than [`TEXT_BYTES_MAX`].
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// More ranks than [`WORLD_RANKS_MAX`].
    WorldTooLarge {
        /// How many.
        world_size: u32,
    },
    /// Neither a rank nor a range.
    Junk {
        /// Where.
        line: usize,
        /// What stands there, shortened.
        text: String,
    },
    /// A range from high to low.
    Reversed {
        /// Where.
        line: usize,
        /// Its first rank.
        first: u32,
        /// Its last, which is lower.
        last: u32,
    },
    /// No such rank.
    OutOfRange {
        /// Where.
        line: usize,
        /// Which.
        rank: u64,
        /// Ranks there are.
        world_size: u32,
    },
    /// A rank for the second time.
    Repeated {
        /// Which.
        rank: PeerId,
        /// Where it was first.
        first_line: usize,
        /// Where it is again.
        line: usize,
    },
    /// Ranks in no line.
    Missing {
        /// Which, in the format of the file, shortened.
        ranks: String,
        /// How many.
        count: u32,
    },
}

impl fmt::Display for SetFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { world_size } => write!(
                f,
                "the set file names no rank; write one correlated set a line, for example \"0-{}\"",
                world_size.saturating_sub(1)
            ),
            Self::TooLong { bytes } => write!(
                f,
                "the set file has {bytes} bytes, more than {TEXT_BYTES_MAX}; is it the right file?"
            ),
            Self::WorldTooLarge { world_size } => write!(
                f,
                "a world of {world_size} ranks is too large for a set file (at most \
                 {WORLD_RANKS_MAX}); choose another policy"
            ),
            Self::Junk { line, text } => write!(
                f,
                "line {line} of the set file: \"{text}\" is neither a rank nor a range like 4-7"
            ),
            Self::Reversed { line, first, last } => write!(
                f,
                "line {line} of the set file: the range {first}-{last} runs backwards; write \
                 {last}-{first}"
            ),
            Self::OutOfRange { line, rank, world_size } => write!(
                f,
                "line {line} of the set file: there is no rank {rank}, the job has {world_size} \
                 (ranks 0 to {}); remove it or start more processes",
                world_size.saturating_sub(1)
            ),
            Self::Repeated { rank, first_line, line } if first_line == line => write!(
                f,
                "line {line} of the set file names rank {rank} twice; remove one of the two"
            ),
            Self::Repeated { rank, first_line, line } => write!(
                f,
                "rank {rank} is in line {first_line} of the set file and again in line {line}; \
                 remove it from one of them"
            ),
            Self::Missing { ranks, count: 1 } => {
                write!(f, "rank {ranks} is in no line of the set file; add it to one")
            }
            Self::Missing { ranks, count } => write!(
                f,
                "{count} ranks are in no line of the set file: {ranks}; add each to one line"
            ),
        }
    }
}

impl core::error::Error for SetFileError {}

/// Set of each world rank, from the text of a set file.
///
/// # Errors
/// The first thing that is wrong, with its line. Ranks that miss are reported last.
pub fn parse_set_file(text: &str, world_size: u32) -> Result<Vec<SetId>, SetFileError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(SetFileError::TooLong { bytes: text.len() });
    }
    if world_size > WORLD_RANKS_MAX {
        return Err(SetFileError::WorldTooLarge { world_size });
    }
    // Line of each rank, 0: none yet. Lines become sets at the end.
    let mut line_of = vec![0_usize; world_size as usize];
    let mut any = false;
    for (line, content) in text.lines().enumerate().map(|(at, content)| (at + 1, content)) {
        let content = content.split('#').next().unwrap_or_default();
        let separator = |c: char| c == ',' || c.is_whitespace();
        for item in content.split(separator).filter(|item| !item.is_empty()) {
            any = true;
            let (first, last) = range(item, line, world_size)?;
            for rank in first..=last {
                let seen = &mut line_of[rank as usize];
                if *seen != 0 {
                    let rank = PeerId(rank);
                    return Err(SetFileError::Repeated { rank, first_line: *seen, line });
                }
                *seen = line;
            }
        }
    }
    if !any {
        return Err(SetFileError::Empty { world_size });
    }
    let missing = || (0..world_size).filter(|&rank| line_of[rank as usize] == 0);
    let count = missing().count() as u32;
    if count > 0 {
        return Err(SetFileError::Missing { ranks: abbreviated(missing()), count });
    }
    let lines = line_of.iter().copied().max().unwrap_or(0);
    let mut lowest = vec![None; lines + 1];
    let sets = line_of.iter().zip(0..);
    Ok(sets.map(|(&line, rank)| *lowest[line].get_or_insert(SetId(rank))).collect())
}

/// `7` or `4-7`, within the world.
fn range(item: &str, line: usize, world_size: u32) -> Result<(u32, u32), SetFileError> {
    let junk = || SetFileError::Junk { line, text: shown(item) };
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let number = |digits: &str| -> Result<u64, SetFileError> {
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(junk());
        }
        // A number too large for 64 bits is out of range like any other that is too large.
        Ok(digits.parse().unwrap_or(u64::MAX))
    };
    let rank = |rank: u64| match u32::try_from(rank) {
        Ok(rank) if rank < world_size => Ok(rank),
        _ => Err(SetFileError::OutOfRange { line, rank, world_size }),
    };
    let (first, last) = (number(first)?, number(last)?);
    let (first, last) = (rank(first)?, rank(last)?);
    if first > last {
        return Err(SetFileError::Reversed { line, first, last });
    }
    Ok((first, last))
}

/// A text for a message: printable and short.
pub(crate) fn shown(text: &str) -> String {
    const CHARS: usize = 40;
    let mut out: String = text.chars().take(CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS).is_some() {
        out.push('…');
    }
    out
}

/// Ranks as ranges; after a few of them only how many there are.
fn abbreviated(ranks: impl Iterator<Item = u32>) -> String {
    const RANGES: usize = 8;
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut more = 0_u32;
    for rank in ranks {
        let follows = ranges.last().is_some_and(|&(_, last)| last + 1 == rank);
        if more == 0 && follows {
            ranges.last_mut().into_iter().for_each(|range| range.1 = rank);
        } else if ranges.len() < RANGES {
            ranges.push((rank, rank));
        } else {
            more += 1;
        }
    }
    let text: Vec<String> = ranges
        .iter()
        .map(|&(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    let text = text.join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}
