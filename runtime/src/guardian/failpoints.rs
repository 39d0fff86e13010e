//! Where tests make a line wait, so that something can go wrong at a known point of it. While the
//! folder that [`HOLD`] names has a file `POINT-RANK`, the guardian of this rank waits there; a
//! file `POINT-RANK.reached` says that it does. Nobody waits where the variable is not set.

use crate::settings::HOLD;
use rustbtl_fragments::ids::PeerId;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Before the rank is told to begin: the others of its set fall silent and wait for it.
pub const BEGIN: &str = "begin";
/// Before its image is written: its picture is taken, and the program goes on.
pub const IMAGE: &str = "image";

/// Wait at this point, if somebody wants it.
pub fn at(point: &str, rank: PeerId) {
    if let Some(folder) = std::env::var_os(HOLD) {
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
    fn who_is_to_be_held_says_that_it_waits_and_goes_on_when_it_may() {
        let folder = std::env::temp_dir().join(format!("rustbtl-hold-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("image-2"), "").unwrap();
        // Another rank, another point.
        wait(&folder, IMAGE, PeerId(1));
        wait(&folder, BEGIN, PeerId(2));
        let there = folder.clone();
        let held = thread::spawn(move || wait(&there, IMAGE, PeerId(2)));
        while !folder.join("image-2.reached").exists() {
            thread::yield_now();
        }
        assert!(!held.is_finished());
        fs::remove_file(folder.join("image-2")).unwrap();
        held.join().unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
