//! The `rustbtl` program.

use rustbtl_runtime::cli;
use rustbtl_runtime::guardian::process_images::ProcessImages;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    cli::main(Arc::new(ProcessImages::from_environment()))
}
