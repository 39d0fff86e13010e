//! `RUSTBTL_LOG`: guardians, agents and the coordinator write one line for each change of state, on
//! their standard error. Off by default: then nothing is computed.

use serde_json::Value;
use std::fmt::Write;
use tracing::Level;

/// The variable: `error`, `warn`, `info`, `debug`, `trace`, or `off`.
const VARIABLE: &str = "RUSTBTL_LOG";

/// Begin, where the user wants it. Once in a process.
pub fn start() {
    let Some(level) = std::env::var(VARIABLE).ok().and_then(|text| text.parse::<Level>().ok())
    else {
        return;
    };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
    let _ = lines.with_target(false).with_writer(std::io::stderr).try_init();
}

/// An event of the coordinator (docs/events.md) as a line: its name, then its fields.
pub fn event(event: &Value) {
    if tracing::enabled!(Level::INFO) {
        tracing::info!("{}", as_line(event));
    }
}

fn as_line(event: &Value) -> String {
    let mut line = event["event"].as_str().unwrap_or("?").to_owned();
    for (key, value) in event.as_object().into_iter().flatten() {
        if !["event", "v", "unix_ms"].contains(&key.as_str()) {
            let _ = write!(line, " {key}={value}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_says_who_and_why() {
        let event = serde_json::json!({
            "v": 2, "event": "checkpoint_aborted", "checkpoint": 3, "reason": "rank 1: full\ndisk",
            "unix_ms": 5
        });
        let line = r#"checkpoint_aborted checkpoint=3 reason="rank 1: full\ndisk""#;
        assert_eq!(as_line(&event), line);
    }
}
