//! A guardian for experiments: `guard [ORDER] [new] [lz4] [keep] GENERATIONS MILLISECONDS PROGRAM…`
//! starts a program, checkpoints and restores it so many times, at that interval, and exits as it
//! does.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Subject;
use rustbtl_process::dump::{Compression, WriteOptions};
use rustbtl_process::restore::Ids;
use std::process::Command;
use std::time::Duration;

fn main() {
    let mut words = std::env::args().skip(1).peekable();
    let mut ids = Ids::SameIfPermitted;
    let mut options = WriteOptions { sync: false, ..WriteOptions::default() };
    let mut order = "fork".to_owned();
    let mut keeps = false;
    while let Some(word) = words.peek().filter(|word| word.parse::<u32>().is_err()).cloned() {
        match word.as_str() {
            "new" => ids = Ids::New,
            "lz4" => options.compression = Compression::Lz4,
            "keep" => keeps = true,
            _ => order = word,
        }
        words.next();
    }
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let (generations, pause) = (number(), Duration::from_millis(number()));
    let folder = std::env::temp_dir().join(format!("guard-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    let mut subject = Subject::start(&mut command, &output);
    for generation in 0..generations {
        std::thread::sleep(pause);
        let outcome = subject.checkpoint(&order, &image, &options);
        eprintln!("{outcome:?}");
        if outcome.is_err() {
            break;
        }
        if keeps {
            continue;
        }
        subject.kill();
        let (restored, child) = Subject::restore(&image, &output, ids);
        eprintln!("generation {}: {child:?}", generation + 1);
        subject = restored;
    }
    let (status, text) = subject.finish(600);
    println!("{text}status {status:#x}");
    let _ = std::fs::remove_dir_all(&folder);
    std::process::exit(i32::from(status != 0));
}
