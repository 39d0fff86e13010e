//! The drawing of `rustbtl report`: a row per rank or node, time from left to right, as SVG.

use crate::command::report::{ReportState, Row, Timeline};
use std::fmt::Write;

const LEFT: f64 = 130.0;
const WIDTH: f64 = 960.0;
const TOP: f64 = 64.0;
const RIGHT: f64 = 24.0;
/// Ticks on the axis, about.
const TICKS: f64 = 10.0;

/// Every state with its colour and its name.
const STATES: [(ReportState, &str, &str); 8] = [
    (ReportState::Starting, "#d9d9d9", "starting"),
    (ReportState::Computing, "#5b9a68", "computing"),
    (ReportState::Pause, "#e0c84a", "pause for a checkpoint"),
    (ReportState::Unreachable, "#b9a7cf", "unreachable"),
    (ReportState::Failed, "#c0392b", "failed"),
    (ReportState::Restoring, "#e08b3c", "restoring"),
    (ReportState::Replaying, "#4a8fc0", "replaying"),
    (ReportState::Ended, "none", "ended"),
];

/// Ranks that wait while others are rolled back: as much of a bar's height as of its time.
const WAITING: (&str, &str) = ("#d5dfc9", "waiting (share)");

fn colour(state: ReportState) -> &'static str {
    STATES.iter().find(|(other, _, _)| *other == state).map_or("none", |(_, colour, _)| colour)
}

/// For text in XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Seconds between ticks: 1, 2 or 5 times a power of ten.
fn step(seconds: f64) -> f64 {
    let raw = (seconds / TICKS).max(1e-3);
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= raw);
    factor.unwrap_or(10.0) * power
}

/// Where things are.
struct Scale {
    first: u64,
    ms: f64,
    row: f64,
    bottom: f64,
}

impl Scale {
    fn new(timeline: &Timeline) -> Self {
        let (first, last) = timeline.span;
        // Many rows are thin.
        let row = (900.0 / timeline.rows.len().max(1) as f64).clamp(9.0, 22.0);
        let bottom = TOP + row * timeline.rows.len() as f64;
        Self { first, ms: last.saturating_sub(first).max(1) as f64, row, bottom }
    }

    fn x(&self, time: u64) -> f64 {
        LEFT + WIDTH * (time.saturating_sub(self.first) as f64 / self.ms).min(1.0)
    }
}

fn bars(out: &mut String, scale: &Scale, number: usize, row: &Row, end: u64) {
    let top = TOP + scale.row * number as f64;
    let (middle, height) = (top + scale.row * 0.7, scale.row * 0.8);
    let size = (scale.row * 0.6).min(12.0);
    let label = escape(&row.label);
    let x = LEFT - 8.0;
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{middle:.1}\" font-size=\"{size:.1}\" \
         text-anchor=\"end\">{label}</text>"
    );
    for (at, &(from, state)) in row.changes.iter().enumerate() {
        let to = row.changes.get(at + 1).map_or(end, |(next, _)| *next);
        let (x, colour) = (scale.x(from), colour(state));
        if colour == "none" {
            continue;
        }
        // What has happened is visible, however short it was.
        let width = (scale.x(to) - x).max(0.8);
        let name = STATES.iter().find(|(other, _, _)| *other == state).map_or("", |s| s.2);
        let seconds = to.saturating_sub(from) as f64 / 1e3;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"><title>{label}: {name}, {seconds:.3} s</title></rect>"
        );
    }
}

/// Over the bars of a row.
fn waits(out: &mut String, scale: &Scale, number: usize, row: &Row) {
    let top = TOP + scale.row * number as f64;
    let label = escape(&row.label);
    for wait in &row.waits {
        let ms = wait.to.saturating_sub(wait.from);
        if wait.waited_ms == 0 || ms == 0 {
            continue;
        }
        let height = scale.row * 0.8 * (wait.waited_ms as f64 / ms as f64).min(1.0);
        let x = scale.x(wait.from);
        let width = (scale.x(wait.to) - x).max(0.8);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{}\"><title>{label}: waiting, {:.3} s of {:.3} s</title></rect>",
            WAITING.0,
            wait.waited_ms as f64 / 1e3,
            ms as f64 / 1e3
        );
    }
}

fn checkpoints(out: &mut String, scale: &Scale, timeline: &Timeline) {
    let height = scale.bottom - TOP + 6.0;
    for checkpoint in &timeline.checkpoints {
        let (x, end) =
            (scale.x(checkpoint.from), scale.x(checkpoint.to.unwrap_or(timeline.span.1)));
        let (colour, what) = match (checkpoint.complete, checkpoint.to) {
            (true, _) => ("#1f4e79", "complete"),
            (false, Some(_)) => ("#c0392b", "aborted"),
            (false, None) => ("#888888", "under way"),
        };
        let (width, y, number) = ((end - x).max(1.0), TOP - 6.0, checkpoint.number);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\" fill-opacity=\"0.18\">\
             <title>checkpoint {number}: {what}</title></rect>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"11\" fill=\"{colour}\">{number}</text>",
            TOP - 10.0
        );
    }
    for (time, what) in &timeline.marks {
        let (x, bottom, what) = (scale.x(*time), scale.bottom, escape(what));
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#333\" \
             stroke-dasharray=\"3 2\"><title>{what}</title></line>"
        );
    }
}

fn axis(out: &mut String, scale: &Scale) {
    let seconds = scale.ms / 1e3;
    let step = step(seconds);
    let mut at = 0.0;
    while at <= seconds {
        let x = LEFT + WIDTH * at / seconds;
        let (bottom, text) = (scale.bottom + 6.0, scale.bottom + 20.0);
        let shown = (at * 1e3).round() / 1e3;
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#000\" \
             stroke-opacity=\"0.15\"/>\n<text x=\"{x:.1}\" y=\"{text:.1}\" font-size=\"11\" \
             text-anchor=\"middle\">{shown} s</text>"
        );
        at += step;
    }
}

fn legend(out: &mut String, scale: &Scale, timeline: &Timeline) {
    let y = scale.bottom + 36.0;
    let mut x = LEFT;
    let seen = |state: ReportState| {
        timeline.rows.iter().any(|row| row.changes.iter().any(|(_, other)| *other == state))
    };
    let waited = timeline.rows.iter().flat_map(|row| &row.waits).any(|wait| wait.waited_ms > 0);
    let states = STATES.into_iter().filter(|(state, ..)| seen(*state));
    let states = states.map(|(_, colour, name)| (colour, name)).chain(waited.then_some(WAITING));
    for (colour, name) in states.filter(|(colour, _)| *colour != "none") {
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" font-size=\"12\">{name}</text>",
            x + 17.0,
            y + 10.5
        );
        x += 40.0 + 7.0 * name.len() as f64;
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"24\" font-size=\"12\" text-anchor=\"end\">\
         numbers on top: checkpoints; dashed: losses</text>",
        LEFT + WIDTH
    );
}

/// The whole drawing.
pub fn draw(timeline: &Timeline) -> String {
    let scale = Scale::new(timeline);
    let (width, height) = (LEFT + WIDTH + RIGHT, scale.bottom + 64.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width} {height:.0}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escape(&timeline.job)
    );
    axis(&mut out, &scale);
    for (number, row) in timeline.rows.iter().enumerate() {
        bars(&mut out, &scale, number, row, timeline.span.1);
        waits(&mut out, &scale, number, row);
    }
    checkpoints(&mut out, &scale, timeline);
    legend(&mut out, &scale, timeline);
    out += "</svg>\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::report::read;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!([0.5, 3.0, 12.0, 60.0, 7200.0].map(step), [0.05, 0.5, 2.0, 10.0, 1000.0]);
    }

    /// If a change is meant: look at the drawing, then put it in place of the file.
    #[test]
    fn golden_drawing_of_a_recovery_that_keeps_others_waiting() {
        let drawing = draw(&read("job", include_str!("golden/recovery.jsonl")));
        assert_eq!(drawing, include_str!("golden/recovery.svg"), "drawn:\n{drawing}");
    }

    #[test]
    fn what_has_happened_is_in_the_drawing() {
        let events = "{\"event\":\"guardian\",\"node\":\"a<b\",\"rank\":0,\"unix_ms\":10}\n\
                      {\"event\":\"ready\",\"unix_ms\":1010}\n\
                      {\"event\":\"rank_failed\",\"set\":0,\"ranks\":[0],\"unix_ms\":2010}\n\
                      {\"event\":\"end\",\"unix_ms\":3010}\n";
        let drawing = draw(&read("j & k", events));
        for text in ["j &amp; k", "rank 0, a&lt;b: computing, 1.000 s", "failed, 1.000 s", ">3 s<"]
        {
            assert!(drawing.contains(text), "{text}: {drawing}");
        }
        assert!(!drawing.contains("replaying"), "nothing is explained that is not there");
        assert_eq!(drawing.matches("<text").count(), drawing.matches("</text>").count());
    }
}
