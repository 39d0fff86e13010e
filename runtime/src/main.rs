//! The `rustbtl` command.
fn main() {}
