//! Compiles the restorer (`glue-c/restorer/`): one freestanding executable, embedded in this crate.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../glue-c/restorer");
    let source = folder.join("restorer.c");
    println!("cargo::rerun-if-changed={}", folder.display());
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let program = Path::new(&out).join("restorer");
    let mut compiler: Command = cc::Build::new().get_compiler().to_command();
    // cc's own flags are for libraries: only its choice of the compiler is wanted.
    let mut command = Command::new(compiler.get_program());
    compiler.env_clear();
    let flags = "-std=gnu11 -O2 -Wall -Wextra -Werror -ffreestanding -nostdlib -static -no-pie \
        -fPIC -fno-stack-protector -fno-builtin -fcf-protection=none \
        -fno-asynchronous-unwind-tables -mgeneral-regs-only -Wl,-n -Wl,--build-id=none \
        -Wl,-z,noseparate-code -Wl,-z,noexecstack -Wl,-e,restorer_start";
    command.args(flags.split_whitespace());
    command.arg(format!("-Wl,-T,{}", folder.join("restorer.ld").display()));
    command.arg("-o").arg(&program).arg(&source);
    let done = command.status().expect("a C compiler is needed (apt install gcc)");
    assert!(done.success(), "compiling {} failed", source.display());
    assert!(fs::metadata(&program).is_ok_and(|file| file.len() < 1 << 20), "{}", program.display());
}
