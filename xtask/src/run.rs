//! Running other programs, with errors that show the command line.

use std::fmt::Write;
use std::io;
use std::process::{Command, Output, Stdio};

use crate::error::{Context, Result, fail};

/// The command as one would type it.
pub fn line(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for word in command.get_args() {
        let word = word.to_string_lossy();
        let plain = !word.is_empty() && !word.contains([' ', '\'', '"', '$', '*', ';', '&', '|']);
        let _ = if plain { write!(text, " {word}") } else { write!(text, " {word:?}") };
    }
    text
}

/// Runs it on our own descriptors; an exit code other than 0 is a failure.
pub fn check(command: &mut Command) -> Result<()> {
    let status = command.status().context(|| format!("starting `{}`", line(command)))?;
    if !status.success() {
        fail!("`{}` ended with {status}", line(command));
    }
    Ok(())
}

/// Its output; on failure the message holds what it wrote to stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().context(|| format!("starting `{}`", line(command)))?;
    if !status.success() {
        let stderr = String::from_utf8_lossy(&stderr);
        fail!("`{}` ended with {status}:\n{}", line(command), stderr.trim_end());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Sends its stdout to our stderr, so that our stdout holds results only.
pub fn to_stderr(command: &mut Command) -> Result<()> {
    let stderr = sys_stderr().context(|| "copying stderr".into())?;
    command.stdout(Stdio::from(stderr));
    Ok(())
}

fn sys_stderr() -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::AsFd;
    io::stderr().as_fd().try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_can_be_typed_again() {
        let mut command = Command::new("ls");
        command.args(["-l", "a b", ""]);
        assert_eq!(line(&command), "ls -l \"a b\" \"\"");
    }
}
