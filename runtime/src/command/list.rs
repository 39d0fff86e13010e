//! `rustbtl list DIR`: what is there to restart from.

use crate::command::bytes;
use crate::guardian::images::ImageStore;
use crate::store;
use crate::store::{Kind, StoredCheckpoint};
use std::path::Path;

/// Lists the checkpoints in a directory; with `verify`, reads every image. Fails if something is
/// damaged.
pub fn list(directory: &Path, verify: bool, store: &dyn ImageStore) -> Result<(), String> {
    let store::StoredCheckpoints { checkpoints, unfinished, mut problems, foreign } =
        store::list(directory)?;
    if !checkpoints.is_empty() {
        println!(
            "{:<40} {:>6} {:<7} {:>6} {:>12} {:>12}",
            "job", "number", "kind", "images", "on disk", "memory"
        );
    }
    for checkpoint in &checkpoints {
        let manifest = &checkpoint.manifest;
        let sum = |of: fn(&store::Image) -> u64| bytes(manifest.images.iter().map(of).sum());
        println!(
            "{:<40} {:>6} {:<7} {:>6} {:>12} {:>12}",
            manifest.job,
            manifest.checkpoint,
            if manifest.kind == Kind::Global { "global" } else { "set" },
            manifest.images.len(),
            sum(|image| image.bytes),
            sum(|image| image.raw_bytes),
        );
        problems.extend(checkpoint.missing());
        problems.extend(if verify {
            damaged(checkpoint, store)
        } else {
            incomplete(checkpoint, store)
        });
    }
    for folder in unfinished {
        println!("{} is unfinished: the job ended while it was taken", folder.display());
    }
    for folder in &foreign {
        println!("left out: {folder}");
    }
    if checkpoints.is_empty() && problems.is_empty() {
        println!("{} has no checkpoints", directory.display());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Images that refer to others which are not there, or are not the expected ones.
fn incomplete(checkpoint: &StoredCheckpoint, store: &dyn ImageStore) -> Vec<String> {
    each(checkpoint, |image| {
        let file = checkpoint.image(image.rank);
        // One that is not there itself is reported already.
        store.inspect(&file).err().filter(|_| file.exists())
    })
}

/// Images whose content, or that of the images they refer to, is not what was written; all are
/// read.
pub fn damaged(checkpoint: &StoredCheckpoint, store: &dyn ImageStore) -> Vec<String> {
    each(checkpoint, |image| {
        let file = checkpoint.image(image.rank);
        match store.check(&file) {
            Ok(found) if found.checksum == image.checksum => None,
            Ok(_) => {
                Some(format!("{}: its checksum is not that of its checkpoint", file.display()))
            }
            Err(problem) => Some(problem),
        }
    })
}

/// The problems of the images of a checkpoint; several images are read at a time.
fn each(
    checkpoint: &StoredCheckpoint,
    problem: impl Fn(&store::Image) -> Option<String> + Sync,
) -> Vec<String> {
    let images = &checkpoint.manifest.images;
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let part = images.len().div_ceil(threads).max(1);
    let read = |images: &[store::Image]| images.iter().filter_map(&problem).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let parts: Vec<_> =
            images.chunks(part).map(|images| scope.spawn(|| read(images))).collect();
        let joined = parts.into_iter().map(|part| part.join());
        joined
            .flat_map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
