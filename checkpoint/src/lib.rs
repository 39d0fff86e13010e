//! What is stored so that a set can be rolled back: the payload log, the image format, and what
//! files held.
//!
//! Pure data structures: memory comes from the driver through [`SegmentMemory`], and neither time
//! nor threads exist here. `DESIGN.md` in this folder names the parts.
#![forbid(unsafe_code)]

pub mod file_undo;
pub mod image;
pub mod payload_log;

pub use payload_log::PayloadLog;
pub use payload_log::config::{LogCounters, LogLimits, SegmentMemory, SegmentSource, Trimmed};
