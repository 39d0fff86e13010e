//! What mpirun says once the job runs: a line each, a key, a blank, a value.

use super::job::Job;
use super::setup::LINE_BYTES_MAX;
use super::wishes::Wisher;
use serde_json::json;

/// Cut into lines.
#[derive(Debug, Default)]
pub struct Words(Vec<u8>);

impl Words {
    /// More of it.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        if self.0.len() > LINE_BYTES_MAX && !self.0.contains(&b'\n') {
            self.0.clear();
        }
    }

    /// The next line that is whole.
    pub fn next_line(&mut self) -> Option<String> {
        let end = self.0.iter().position(|&byte| byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

impl Job {
    /// A line from mpirun.
    #[allow(clippy::wrong_self_convention, reason = "where the line is from, not what it becomes")]
    pub fn from_mpirun(&mut self, now: u64, line: &str) {
        match line.split_once(' ').unwrap_or((line, "")) {
            // It got a signal that the user has chosen for this.
            ("checkpoint", what) => {
                let exit = what == "exit";
                self.log(json!({"event": "asked", "signal": true, "all": true, "then_exit": exit}));
                self.wish(now, Wisher::Signal, None, exit, true);
            }
            _ => self.log(json!({"event": "nonsense", "from": "mpirun", "what": line})),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Effect;
    use super::super::setup::Setup;
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let mut words = Words::default();
        for (piece, wanted) in [("check", None), ("point exit\nlo", Some("checkpoint exit"))] {
            words.add(piece.as_bytes());
            assert_eq!(words.next_line().as_deref(), wanted);
        }
        words.add(b"st\n\n");
        assert_eq!(words.next_line().as_deref(), Some("lost"));
        assert_eq!(words.next_line().as_deref(), Some(""));
        assert_eq!(words.next_line(), None);
        words.add(&vec![b'x'; LINE_BYTES_MAX + 1]);
        words.add(b"a\n");
        assert_eq!(words.next_line().as_deref(), Some("a"), "what has no end is not kept");
    }

    #[test]
    fn a_signal_that_cannot_be_obeyed_is_told_to_the_user() {
        let mut job = Job::new("j".into(), Setup { size: 2, ..Setup::default() });
        job.from_mpirun(1, "checkpoint stay");
        let told = std::iter::from_fn(|| job.next_effect()).find_map(|effect| match effect {
            Effect::Tell(text) => Some(text),
            _ => None,
        });
        assert!(told.is_some_and(|text| text.contains("vprotocol_correlated_dir")));
        job.from_mpirun(2, "dance");
        let effect = job.next_effect();
        assert!(matches!(effect, Some(Effect::Log(event)) if event["event"] == "nonsense"));
        assert_eq!(job.next_effect(), None);
    }
}
