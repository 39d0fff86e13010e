//! Groups of processes that Linux makes by session (`sched_autogroup_enabled`): none while jobs of
//! many ranks run on few processors.
//!
//! On Linux 6.18 a group whose threads sleep and yield thousands of times a second may keep all
//! processors for minutes: its virtual time does not grow (`tests/LEDGER.md`, the machine). Nothing
//! else runs meanwhile, no daemon, no thread of the kernel.

use crate::sys;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const SWITCH: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Does this kernel make them?
pub fn are_on() -> bool {
    fs::read_to_string(SWITCH).is_ok_and(|text| text.trim() == "1")
}

/// As long as it lives, there are none; if that may be changed.
pub struct NoGroups {
    /// It switches them on again when its input ends, however this process does.
    restores: Option<Child>,
}

impl NoGroups {
    /// Switches them off, and says so.
    pub fn begin() -> Self {
        if !are_on() {
            return Self { restores: None };
        }
        if sys::euid() != 0 {
            eprintln!(
                "xtask: scheduling groups by session are on, and only root may switch them off: \
                 on Linux 6.18 jobs may stand for up to a minute (sysctl kernel.\
                 sched_autogroup_enabled=0)"
            );
            return Self { restores: None };
        }
        let mut restores = Command::new("/bin/sh");
        restores.args(["-c", &format!("cat > /dev/null; echo 1 > {SWITCH}")]);
        // Not ended with us by a signal to all that a terminal has started.
        restores.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let restores = restores.spawn().ok().filter(|_| fs::write(SWITCH, "0").is_ok());
        if restores.is_some() {
            println!("xtask: no scheduling groups by session until this ends ({SWITCH} is 0)");
        }
        Self { restores }
    }
}

impl Drop for NoGroups {
    fn drop(&mut self) {
        if let Some(restores) = &mut self.restores {
            drop(restores.stdin.take());
            let _ = restores.wait();
        }
    }
}
