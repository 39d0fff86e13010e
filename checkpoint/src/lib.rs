//! What is stored so that a set can come back; today the payload log of sender-based logging.
//!
//! Pure data structures: memory comes from the driver through [`SegmentMemory`], and neither time
//! nor threads exist here. `DESIGN.md` in this folder names the parts.
#![forbid(unsafe_code)]

pub mod payload_log;

pub use payload_log::PayloadLog;
pub use payload_log::config::{LogCounters, LogLimits, Place, SegmentMemory, Trimmed};
