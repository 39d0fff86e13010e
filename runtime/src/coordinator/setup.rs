//! What mpirun's component tells the coordinator on its standard input: a line per word, a key,
//! a blank, a value; `go` ends it. Nothing after that but the end of mpirun.

use std::path::PathBuf;

/// Longest line that is read.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Everything that was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// `dir`: where lines go.
    pub directory: Option<PathBuf>,
    /// `log`: where events go if there is no directory.
    pub log: Option<PathBuf>,
    /// `interval`: milliseconds between global lines, 0: none.
    pub interval_ms: u64,
    /// `set_interval`: milliseconds between lines of a set, 0: none.
    pub set_interval_ms: u64,
    /// `keep`: lines to keep.
    pub keep: usize,
    /// `restore`: the line that the job restarts from.
    pub restore: Option<PathBuf>,
    /// `size`: ranks, known when mpirun launches them.
    pub size: u32,
    /// `arg`: the programs' command line, a word each.
    pub command: Vec<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            directory: None,
            log: None,
            interval_ms: 0,
            set_interval_ms: 0,
            keep: 2,
            restore: None,
            size: 0,
            command: Vec::new(),
        }
    }
}

impl Setup {
    /// One line; true: it was the last.
    ///
    /// # Errors
    /// The line makes no sense.
    pub fn take(&mut self, line: &str) -> Result<bool, String> {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let path = || -> Result<Option<PathBuf>, String> {
            let path = PathBuf::from(value);
            if path.is_absolute() { Ok(Some(path)) } else { Err(format!("{key}: {value:?}")) }
        };
        let number = || value.parse::<u64>().map_err(|_| format!("{key}: {value:?} is no number"));
        match key {
            "dir" => self.directory = path()?,
            "log" => self.log = path()?,
            "restore" => self.restore = path()?,
            "interval" => self.interval_ms = number()?,
            "set_interval" => self.set_interval_ms = number()?,
            "keep" => self.keep = usize::try_from(number()?).unwrap_or(usize::MAX).max(1),
            "size" => self.size = u32::try_from(number()?).map_err(|_| "size".to_owned())?,
            "arg" => self.command.push(value.to_owned()),
            "go" => return Ok(true),
            _ => return Err(format!("{key:?} is unknown")),
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mpirun_says_is_understood_and_nonsense_is_not() {
        let mut setup = Setup::default();
        for line in ["dir /a b", "interval 1500", "keep 0", "size 4", "arg ./x", "arg ", "arg a b"]
        {
            assert_eq!(setup.take(line), Ok(false), "{line}");
        }
        assert_eq!(setup.take("go"), Ok(true));
        assert_eq!(setup.directory, Some("/a b".into()));
        assert_eq!((setup.interval_ms, setup.keep, setup.size), (1500, 1, 4));
        assert_eq!(setup.command, ["./x", "", "a b"]);
        for line in ["dir relative", "size x", "size 5000000000", "what", ""] {
            assert!(setup.take(line).is_err(), "{line}");
        }
    }
}
