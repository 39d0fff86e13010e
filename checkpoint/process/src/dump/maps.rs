//! Mappings of the frozen process: its own list, with what smaps adds.

use crate::error::ProcessImageError;
use crate::proc_files::{self, MapLine};
use std::collections::BTreeMap;
use std::fs;

/// What smaps has of a mapping.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Pages of its own: anonymous or in swap.
    pub own_kib: u64,
    /// Pages that are there.
    pub resident_kib: u64,
    /// Two letters each.
    pub flags: Vec<[u8; 2]>,
    /// Protected by a key.
    pub key: u64,
}

impl Usage {
    /// Is the flag set?
    pub fn has(&self, flag: &[u8; 2]) -> bool {
        self.flags.contains(flag)
    }
}

/// By first address.
pub fn usage(pid: u32) -> Result<BTreeMap<u64, Usage>, ProcessImageError> {
    let path = format!("/proc/{pid}/smaps");
    let text = fs::read(&path).map_err(ProcessImageError::system(path))?;
    Ok(parse(&text))
}

fn parse(text: &[u8]) -> BTreeMap<u64, Usage> {
    let mut found = BTreeMap::new();
    let mut start = None;
    for line in proc_files::lines(text) {
        let value = |key: &str| {
            line.strip_prefix(key.as_bytes()).map(|text| proc_files::number(text, 10).unwrap_or(0))
        };
        if line.first().is_some_and(|byte| byte.is_ascii_uppercase()) {
            let Some(usage) = start.and_then(|start| found.get_mut(&start)) else { continue };
            let usage: &mut Usage = usage;
            if let Some(kib) = value("Rss:") {
                usage.resident_kib = kib;
            } else if let Some(kib) = value("Anonymous:").or(value("Swap:")) {
                usage.own_kib += kib;
            } else if let Some(key) = value("ProtectionKey:") {
                usage.key = key;
            } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                let words = flags.split(|byte| *byte == b' ');
                usage.flags = words.filter_map(|word| word.try_into().ok()).collect();
            }
        } else if let Some(map) = MapLine::parse(line) {
            start = Some(map.start);
            found.insert(map.start, Usage::default());
        }
    }
    found
}

/// The parts of `range` that are in none of `holes`.
pub fn without(range: (u64, u64), holes: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut parts = vec![range];
    for (from, to) in holes {
        parts = parts
            .into_iter()
            .flat_map(|(start, end)| [(start, end.min(*from)), (start.max(*to), end)])
            .filter(|(start, end)| start < end)
            .collect();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_is_parsed() {
        let text = b"1000-3000 rw-p 00000000 00:00 0  [heap]\nRss:  8 kB\nAnonymous: 4 kB\n\
            Swap: 4 kB\nProtectionKey:         1\nVmFlags: rd wr dc \n";
        let usage = &parse(text)[&0x1000];
        assert_eq!((usage.resident_kib, usage.own_kib, usage.key), (8, 8, 1));
        assert!(usage.has(b"dc") && !usage.has(b"io"));
    }

    #[test]
    fn holes_are_left_out() {
        assert_eq!(without((10, 20), &[(12, 14), (0, 11), (19, 30)]), [(11, 12), (14, 19)]);
        assert_eq!(without((10, 20), &[(5, 25)]), []);
        assert_eq!(without((10, 20), &[(30, 40)]), [(10, 20)]);
    }
}
