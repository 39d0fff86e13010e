//! The pipe from and to mpirun: one text line for each message.

use crate::coordinator::job::config::LINE_BYTES_MAX;
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use std::io::{self, Write};

/// What mpirun has written, cut into text lines.
#[derive(Debug, Default)]
pub struct MpirunInput(Vec<u8>);

impl MpirunInput {
    /// More of it.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        if self.0.len() > LINE_BYTES_MAX && !self.0.contains(&b'\n') {
            self.0.clear();
        }
    }

    /// The next whole text line.
    pub fn next_line(&mut self) -> Option<String> {
        let end = self.0.iter().position(|&byte| byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

/// Separates the lines of a text on its way to mpirun, which turns it into ends of lines.
const LINE_END: &str = "\u{1f}";

/// mpirun reads lines of 4096 bytes at most.
const TEXT_BYTES_MAX: usize = 3500;

/// A text as mpirun's component takes it.
pub(crate) fn in_one_line(text: &str) -> String {
    let mut line = text.replace('\n', LINE_END);
    if line.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|&at| line.is_char_boundary(at));
        line.truncate(end.unwrap_or_default());
        line.push_str(" …");
    }
    line
}

/// Give an order.
pub(crate) fn order(order: &MpirunOrder) {
    send_to_mpirun(&in_one_line(&order.to_string()));
}

/// If mpirun has ended, the end of our input shows it.
pub(crate) fn send_to_mpirun(line: &str) {
    let _ =
        io::stdout().write_all(format!("{line}\n").as_bytes()).and_then(|()| io::stdout().flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let mut input = MpirunInput::default();
        for (piece, wanted) in [("check", None), ("point exit\nlo", Some("checkpoint exit"))] {
            input.add(piece.as_bytes());
            assert_eq!(input.next_line().as_deref(), wanted);
        }
        input.add(b"st\n\n");
        assert_eq!(input.next_line().as_deref(), Some("lost"));
        assert_eq!(input.next_line().as_deref(), Some(""));
        assert_eq!(input.next_line(), None);
        input.add(&vec![b'x'; LINE_BYTES_MAX + 1]);
        input.add(b"a\n");
        assert_eq!(input.next_line().as_deref(), Some("a"), "what has no end is not kept");
    }

    #[test]
    fn a_text_to_mpirun_is_one_line_that_it_can_read() {
        assert_eq!(in_one_line("fail a\nb"), "fail a\u{1f}b");
        let long = in_one_line(&"ä\n".repeat(4000));
        assert!(long.len() < 4095 && long.ends_with(" …") && !long.contains('\n'));
    }
}
