//! Points of a checkpoint at which tests make a guardian wait, so that something can fail there.
//! While the folder that [`FAILPOINTS`] names has a file `POINT-RANK`, the guardian of this rank
//! waits at this point; it makes a file `POINT-RANK.reached`. Without the variable nobody waits.

use crate::settings::FAILPOINTS;
use rustbtl_fragments::ids::PeerId;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Before the rank is sent `Begin`: the others of its set stop sending and wait for it.
pub const BEGIN: &str = "begin";
/// Before it is restored from its image, and its files are put back.
pub const RESTORE: &str = "restore";
/// Before it is sent `Endpoints`: its program runs already, if it is not in MPI.
pub const ENDPOINTS: &str = "endpoints";
/// Before its image is written: its snapshot is taken, and the program runs again.
pub const IMAGE: &str = "image";

/// Waits at this point, if a test has set it.
pub fn at(point: &str, rank: PeerId) {
    if let Some(folder) = std::env::var_os(FAILPOINTS) {
        wait(folder.as_ref(), point, rank);
    }
}

fn wait(folder: &Path, point: &str, rank: PeerId) {
    let file = folder.join(format!("{point}-{rank}"));
    if !file.exists() {
        return;
    }
    let _ = fs::write(file.with_extension("reached"), "");
    while file.exists() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guardian_reports_that_it_waits_and_goes_on_when_the_file_is_removed() {
        let folder =
            std::env::temp_dir().join(format!("rustbtl-failpoints-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("image-2"), "").unwrap();
        // Another rank, another point.
        wait(&folder, IMAGE, PeerId(1));
        wait(&folder, BEGIN, PeerId(2));
        let there = folder.clone();
        let waiting = thread::spawn(move || wait(&there, IMAGE, PeerId(2)));
        while !folder.join("image-2.reached").exists() {
            thread::yield_now();
        }
        assert!(!waiting.is_finished());
        fs::remove_file(folder.join("image-2")).unwrap();
        waiting.join().unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
