//! The table, for a terminal and for a Markdown file.

use super::judge::{self, Line, Verdict};
use super::measured::Measured;
use super::rows::{Goal, Unit};

const HEADS: [&str; 9] =
    ["what", "base", "ours", "ratio", "quartiles", "best", "floor", "goal", "met?"];

/// A section's heading: title, and what is compared in it.
fn heading(line: &Line) -> String {
    format!("{} ({})", line.row.title, line.row.sides)
}

fn what(line: &Line) -> String {
    let row = &line.row;
    let size = match row.unit {
        Unit::Ns => format!("{} messages", row.size),
        Unit::Seconds => String::new(),
        // Of a whole program.
        _ if row.size == 0 && !row.label.is_empty() => String::new(),
        _ => judge::size(row.size),
    };
    [row.label, &size].iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
}

fn cells(line: &Line) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    let value = |v: Option<f64>| or_dash(v.map(|v| judge::show(v, line.row.unit)));
    let goal = match line.row.goal {
        Goal::AtMost(goal) => format!("≤ {goal:.2}"),
        Goal::AtLeast(goal) => format!("≥ {goal:.2}"),
        Goal::Shown => String::new(),
    };
    let met = match line.verdict {
        Verdict::Met => "yes",
        Verdict::Missed => "no",
        Verdict::Shown => "",
        Verdict::Missing => "missing",
    };
    [
        what(line),
        value(line.base),
        value(line.ours),
        or_dash(line.ratio.map(|r| format!("{:.2}", r.median))),
        or_dash(line.ratio.map(|r| format!("{:.2}–{:.2}", r.low, r.high))),
        line.best.map_or(String::new(), |best| format!("{best:.2}")),
        line.floor.map_or(String::new(), |floor| format!("{floor:.2}")),
        goal,
        format!("{met}{}", if line.is_close() { " ~" } else { "" }),
    ]
}

/// For a terminal: columns aligned, a heading above each section.
pub fn text(lines: &[Line]) -> String {
    let rows: Vec<_> = lines.iter().map(cells).collect();
    let heads = HEADS.map(str::to_string);
    let width = |column: usize| {
        let all = rows.iter().chain([&heads]);
        all.map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let write = |row: &[String; 9]| {
        let mut text = String::new();
        for (column, (word, &width)) in row.iter().zip(&widths).enumerate() {
            // Words stand at the left, numbers at the right.
            text += &match column {
                0 => format!("  {word:width$}"),
                8 => format!("  {word}"),
                _ => format!("  {word:>width$}"),
            };
        }
        text.trim_end().to_string() + "\n"
    };
    let mut text = write(&heads);
    let mut last = String::new();
    for (line, row) in lines.iter().zip(&rows) {
        let heading = heading(line);
        if heading != last {
            text += &format!("\n{heading}\n");
            last = heading;
        }
        text += &write(row);
    }
    text
}

/// For Markdown: one table, sections as lines in bold.
pub fn markdown(lines: &[Line]) -> String {
    let mut text = format!("| {} |\n|---|--:|--:|--:|--:|--:|--:|--:|---|\n", HEADS.join(" | "));
    let mut last = String::new();
    for line in lines {
        let heading = heading(line);
        if heading != last {
            text += &format!("| **{heading}** | | | | | | | | |\n");
            last = heading;
        }
        text += &format!("| {} |\n", cells(line).join(" | "));
    }
    text
}

/// How many goals are reached.
pub fn summary(lines: &[Line], measured: &Measured) -> String {
    let with_goal: Vec<_> = lines.iter().filter(|l| l.row.goal != Goal::Shown).collect();
    let count = |verdict| with_goal.iter().filter(|line| line.verdict == verdict).count();
    let close = with_goal.iter().filter(|line| line.is_close()).count();
    let mut text = format!(
        "{} goals: {} met, {} not met, {} not measured (~: {close} lie within the spread)\n",
        with_goal.len(),
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::Missing)
    );
    let (disturbed, runs) = (measured.disturbed(), measured.runs.len());
    if disturbed > 0 {
        text += &format!(
            "{disturbed} of {runs} runs were disturbed: other programs had more than 5 % of the \
             processors. Do not trust these numbers.\n"
        );
    }
    text
}

/// Own instructions of each function, most expensive first; those of ours beside those of stock.
pub fn functions(measured: &Measured, part: &str, side: &str) -> Vec<(String, f64)> {
    let prefix = format!("{part}/");
    let of_side =
        |run: &&super::measured::MeasuredRun| run.experiment == "instructions" && run.side == side;
    let Some(run) = measured.runs.iter().rfind(of_side) else { return Vec::new() };
    let mut found: Vec<_> = run
        .values
        .iter()
        .filter_map(|v| Some((v.metric.strip_prefix(&prefix)?.to_string(), v.value)))
        .collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found
}

/// The functions of all parts and sides, as Markdown.
pub fn functions_markdown(measured: &Measured) -> String {
    let mut text = String::new();
    for (part, title) in [("send", "MPI_Send"), ("receive", "MPI_Recv of a message that is there")]
    {
        for side in ["stock", "ours"] {
            let functions = functions(measured, part, side);
            let sum: f64 = functions.iter().map(|(_, n)| n).sum();
            text += &format!("\n**{title}, {side}: {sum:.0} instructions**\n\n");
            text += "| function | object | own instructions |\n|---|---|--:|\n";
            for (name, n) in functions.iter().filter(|(_, n)| *n >= 1.0) {
                let (object, function) = name.split_once(':').unwrap_or(("", name));
                text += &format!("| `{}` | {object} | {n:.1} |\n", function.replace('|', "\\|"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::run;
    use super::super::{judge, rows};
    use super::*;

    #[test]
    fn both_tables_show_every_row_and_each_section_once() {
        let lines = judge::all(rows::all(), &Measured::default());
        let text = text(&lines);
        assert_eq!(text.matches("TCP between nodes, half round trip").count(), 1);
        let rows = markdown(&lines).lines().filter(|l| !l.starts_with("| **")).count();
        assert_eq!(rows, lines.len() + 2);
        assert!(summary(&lines, &Measured::default()).contains(" 0 met, 0 not met,"));
    }

    #[test]
    fn functions_are_in_order_of_their_cost() {
        let mut one = run("ours", 0, "send/a:f 8 2\nsend/b:g 8 5\nreceive/a:h 8 9\nsend 8 7");
        one.experiment = "instructions";
        let measured = Measured { runs: vec![one] };
        let found = functions(&measured, "send", "ours");
        assert_eq!(found, [("b:g".into(), 5.0), ("a:f".into(), 2.0)]);
    }
}
