//! What of adapters is in no image of a process: their descriptors, and what is mapped from them.

use crate::state::{State, async_fd};
use crate::system::DEVICES;
use core::ffi::c_int;
use core::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// Is this a descriptor of an adapter, by where its link points?
fn is_adapters(link: &[u8]) -> bool {
    link == b"anon_inode:[infinibandevent]"
        || DEVICES.iter().any(|device| link.starts_with(device.as_bytes()))
}

/// All descriptors of adapters that are open now.
pub fn descriptors(state: &mut State) -> Vec<c_int> {
    let mut all = real_descriptors(state);
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let fd = entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok());
        let link = std::fs::read_link(entry.path());
        if link.is_ok_and(|link| is_adapters(link.as_os_str().as_bytes())) {
            all.extend(fd);
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Those of real objects: an adapter in software may have others than the kernel's.
fn real_descriptors(state: &mut State) -> Vec<c_int> {
    let mut all = Vec::new();
    for &id in state.seen_contexts.keys() {
        if let Some(real) = state.shadow.real_context(rustbtl_shadow::ContextId(id)) {
            all.push(async_fd(real));
        }
    }
    all.extend(state.shadow.host.channels.real_descriptors());
    all
}

/// All memory that is mapped from adapters now.
pub fn memory() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_adapters =
        maps.lines().filter(|line| DEVICES.iter().any(|device| line.contains(device)));
    let range = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?)
    };
    of_adapters.filter_map(range).collect()
}
