//! What the component says of its work where the MCA parameter `verbose` wants it. Levels are Open
//! MPI's. At level 0 nothing is computed.

use crate::ffi::table::Glue;
use core::sync::atomic::{AtomicU32, Ordering};
use std::ffi::CString;

/// What a program does that replay cannot repeat.
pub const NOTICE: u32 = 1;
/// What is opened and chosen at the start; each checkpoint, restart and rollback.
pub const INFO: u32 = 20;
/// In addition: how each peer is reached.
pub const TRACE: u32 = 60;

/// `verbose`, read once.
static LEVEL: AtomicU32 = AtomicU32::new(0);

/// The value of the parameter.
pub fn set_level(level: u32) {
    LEVEL.store(level, Ordering::Relaxed);
}

/// Is this said?
pub fn is_said(level: u32) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level
}

impl Glue {
    /// Say this if the level is high enough; `text` is not called otherwise.
    #[inline]
    pub fn verbose(&self, level: u32, text: impl FnOnce() -> String) {
        if is_said(level) {
            self.say(level, &text());
        }
    }

    #[cold]
    fn say(&self, level: u32, text: &str) {
        let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
        // SAFETY: a C string that lives to the end of the call.
        unsafe { (self.verbose)(level as i32, text.as_ptr()) };
    }
}
