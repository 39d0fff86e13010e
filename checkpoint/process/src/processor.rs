//! What the processor of this machine can: a restore needs at least what the image has.

use std::fs;

/// AMX configuration and data, in masks of extended state.
pub const LARGE_STATE: u64 = 3 << 17;

/// XGETBV of register 0; 0 where there is no such thing.
pub fn enabled_state() -> u64 {
    let has_it = core::arch::x86_64::__cpuid(1).ecx & (1 << 27) != 0;
    if !has_it {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE is set, so that the instruction exists and may be used.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(low) | u64::from(high) << 32
}

/// Flags of the processor that programs choose code by, in alphabetical order.
pub fn flags() -> String {
    const FAMILIES: &[&str] = &[
        "abm",
        "adx",
        "aes",
        "amx",
        "avx",
        "bmi",
        "clflushopt",
        "clwb",
        "cx16",
        "erms",
        "f16c",
        "fma",
        "fsgsbase",
        "fsrm",
        "gfni",
        "lahf_lm",
        "movbe",
        "movdir",
        "pclmulqdq",
        "pku",
        "popcnt",
        "rdpid",
        "rdrand",
        "rdseed",
        "rtm",
        "sha",
        "sse",
        "ssse3",
        "vaes",
        "vpclmulqdq",
        "xsave",
    ];
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let known = |word: &&str| FAMILIES.iter().any(|family| word.starts_with(family));
    let mut words: Vec<&str> = line.split_whitespace().skip(2).filter(known).collect();
    words.sort_unstable();
    words.join(" ")
}
