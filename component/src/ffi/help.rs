//! Telling the user what is wrong, through Open MPI's help system, and ending the job.

use crate::ffi::table::Glue;
use core::ptr::null;
use std::ffi::CString;
use std::path::Path;

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

impl Glue {
    /// Show the text `topic` of `help-mca-vprotocol-correlated.txt`, with at most four arguments.
    #[cold]
    pub fn show(&self, topic: &str, arguments: &[&str]) {
        let topic = c_string(topic);
        let owned: Vec<CString> = arguments.iter().map(|text| c_string(text)).collect();
        let at = |i: usize| owned.get(i).map_or(null(), |text| text.as_ptr());
        // SAFETY: all strings live to the end of the call.
        unsafe { (self.help)(topic.as_ptr(), at(0), at(1), at(2), at(3)) };
    }

    /// Have a file removed when this process has ended, even if it is killed.
    pub fn remove_at_end(&self, path: &Path) {
        let path = c_string(&path.display().to_string());
        // SAFETY: it lives to the end of the call.
        unsafe { (self.cleanup)(path.as_ptr()) };
    }

    /// The same as [`Glue::show`], then end the job.
    #[cold]
    pub fn fatal(&self, topic: &str, arguments: &[&str]) -> ! {
        self.show(topic, arguments);
        self.end()
    }

    /// End the job with an error; the user has seen why.
    #[cold]
    pub fn end(&self) -> ! {
        // SAFETY: no arguments.
        unsafe { (self.abort)() };
        std::process::abort()
    }
}
