//! `doctor CHECKPOINT RANK DIFFERENCE`: changes the image of a rank in the folder of a checkpoint
//! as if another machine had written it, and the manifest accordingly. For tests.

#[path = "../../checkpoint/process/tests/common/doctor.rs"]
mod doctor;

use doctor::Difference;
use rustbtl_runtime::guardian::images::{ImageStore, file_name};
use rustbtl_runtime::guardian::process_images::ProcessImages;
use rustbtl_runtime::settings::Images;
use rustbtl_runtime::store::Manifest;
use std::path::Path;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [checkpoint, rank, name] = &words[..] else { panic!("doctor CHECKPOINT RANK DIFFERENCE") };
    let checkpoint = Path::new(checkpoint);
    let found = Difference::ALL.into_iter().find(|(_, known, _)| known == name);
    let (difference, ..) = found.unwrap_or_else(|| panic!("{name} is no difference"));
    let mut manifest = Manifest::read(checkpoint).unwrap();
    let rank: u32 = rank.parse().unwrap();
    let entry = manifest.images.iter_mut().find(|image| image.rank == rank).unwrap();
    let image = checkpoint.join(file_name(rustbtl_fragments::ids::PeerId(rank)));
    difference.doctor(&image);
    let written = ProcessImages::new(Images::default()).check(&image).unwrap();
    (entry.bytes, entry.checksum) = (written.bytes, written.checksum);
    manifest.write(checkpoint).unwrap();
}
