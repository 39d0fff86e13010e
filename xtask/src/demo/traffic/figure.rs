//! The figure: who sends how much to whom, and how much of it is logged.

use super::plot::{Anchor, Colour, Letters, Svg};
use super::units;
use crate::report::{ReportedJob, ReportedRank};

const INK: Colour = Colour(33, 37, 41);
const PALE_INK: Colour = Colour(108, 117, 125);
const PAPER: Colour = Colour(255, 255, 255);
const NOTHING: Colour = Colour(241, 243, 245);
const INSIDE: (Colour, Colour) = (Colour(222, 238, 246), Colour(12, 92, 140));
const OUTSIDE: (Colour, Colour) = (Colour(255, 234, 214), Colour(196, 62, 6));
const NOT_LOGGED: Colour = Colour(148, 186, 208);
const LOGGED: Colour = Colour(210, 104, 56);

const WIDTH: f64 = 1240.0;
const HEIGHT: f64 = 740.0;
const MATRIX: (f64, f64) = (120.0, 184.0);
const MATRIX_SIZE: f64 = 480.0;
const BARS: (f64, f64) = (710.0, 148.0);
const BAR_WIDTH: f64 = 300.0;

const fn letters(size: f64, colour: Colour, bold: bool, anchor: Anchor) -> Letters {
    Letters { size, colour, bold, anchor }
}

/// Draws the traffic of the job whose sets are nodes, and the logs of all jobs.
pub fn draw(jobs: &[&ReportedJob]) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let title = letters(25.0, INK, true, Anchor::Start);
    svg.text(48.0, 56.0, title, "What leaves a node is logged; what stays inside is not");
    let nodes = jobs.iter().find(|job| job.policy == "node").or(jobs.first());
    if let Some(job) = nodes {
        let about = format!(
            "{} on {} emulated nodes with {} ranks each; payload bytes, counted by the component",
            job.command.first().map_or("program", String::as_str),
            job.nodes,
            job.ppn
        );
        svg.text(48.0, 84.0, letters(15.0, PALE_INK, false, Anchor::Start), &about);
        matrix(&mut svg, job);
        scale(&mut svg, largest(job));
    }
    bars(&mut svg, jobs);
    svg.finish()
}

fn sent(from: &ReportedRank, to: u32) -> u64 {
    from.peers.iter().find(|peer| peer.rank == to).map_or(0, |peer| peer.sent_bytes)
}

fn largest(job: &ReportedJob) -> u64 {
    job.ranks.iter().flat_map(|r| &r.peers).map(|p| p.sent_bytes).max().unwrap_or(0).max(1)
}

/// Shade of a cell: linear in the bytes, with a start that can be told from nothing.
fn shade(bytes: u64, largest: u64, (light, full): (Colour, Colour)) -> Colour {
    if bytes == 0 {
        return NOTHING;
    }
    light.towards(full, bytes as f64 / largest as f64)
}

fn matrix(svg: &mut Svg, job: &ReportedJob) {
    let (left, top) = MATRIX;
    let side = MATRIX_SIZE / job.ranks.len().max(1) as f64;
    let largest = largest(job);
    let head = letters(16.0, INK, true, Anchor::Start);
    svg.text(48.0, 124.0, head, "Bytes from rank (row) to rank (column), sets: node");
    for (row, from) in job.ranks.iter().enumerate() {
        for (column, to) in job.ranks.iter().enumerate() {
            let bytes = sent(from, to.rank);
            let kind = if from.set == to.set { INSIDE } else { OUTSIDE };
            let colour = shade(bytes, largest, kind);
            let (x, y) = (left + side * column as f64, top + side * row as f64);
            svg.rectangle(x + 1.0, y + 1.0, side - 2.0, side - 2.0, colour);
            cell_text(svg, x, y, side, colour, bytes);
        }
    }
    for (i, rank) in job.ranks.iter().enumerate() {
        let middle = side * (i as f64 + 0.5);
        let plain = |anchor| letters(14.0, INK, false, anchor);
        svg.text(left + middle, top - 10.0, plain(Anchor::Middle), &rank.rank.to_string());
        svg.text(left - 10.0, top + middle + 5.0, plain(Anchor::End), &rank.rank.to_string());
    }
    node_frames(svg, job, side);
}

fn cell_text(svg: &mut Svg, x: f64, y: f64, side: f64, colour: Colour, bytes: u64) {
    if bytes == 0 || side < 55.0 {
        return;
    }
    let ink = if colour.is_dark() { PAPER } else { INK };
    let letters = letters(13.0, ink, false, Anchor::Middle);
    svg.text(x + side / 2.0, y + side / 2.0 + 5.0, letters, &units::bytes(bytes));
}

/// A frame around each node's own square, and the node's name at the left and above.
fn node_frames(svg: &mut Svg, job: &ReportedJob, side: f64) {
    let (left, top) = MATRIX;
    let mut start = 0;
    while start < job.ranks.len() {
        let node = &job.ranks[start].node;
        let size = job.ranks[start..].iter().take_while(|r| &r.node == node).count();
        let (from, length) = (side * start as f64, side * size as f64);
        svg.frame(left + from, top + from, length, length, 3.0, INK);
        let name = letters(14.0, INK, true, Anchor::Middle);
        svg.text(left + from + length / 2.0, top - 28.0, name, node);
        let middle = top + from + length / 2.0;
        svg.turned_text(left - 40.0, middle, name, node, -90.0);
        start += size;
    }
}

/// Colour scale below the matrix.
fn scale(svg: &mut Svg, largest: u64) {
    let (left, top) = (MATRIX.0, MATRIX.1 + MATRIX_SIZE + 22.0);
    let kinds = [(INSIDE, "inside a set: not logged"), (OUTSIDE, "leaves its set: logged")];
    for (i, (kind, text)) in kinds.into_iter().enumerate() {
        let x = left + 245.0 * i as f64;
        for step in 0..40 {
            let colour = kind.0.towards(kind.1, f64::from(step) / 39.0);
            svg.rectangle(x + f64::from(step) * 1.5, top, 2.5, 14.0, colour);
        }
        let plain = letters(13.0, INK, false, Anchor::Start);
        svg.text(x + 68.0, top + 12.0, plain, text);
    }
    let note = format!("palest to darkest: 0 to {}; grey: nothing", units::bytes(largest));
    svg.text(left, top + 36.0, letters(12.0, PALE_INK, false, Anchor::Start), &note);
}

/// One bar per way to make sets: all bytes that were sent, the logged part in the log's colour.
fn bars(svg: &mut Svg, jobs: &[&ReportedJob]) {
    let (left, top) = BARS;
    let count = |job: &ReportedJob, name: &str| job.total.get(name).copied().unwrap_or(0);
    let all =
        |job: &ReportedJob| count(job, "sent_internal_bytes") + count(job, "sent_outgoing_bytes");
    let longest = jobs.iter().map(|job| all(job)).max().unwrap_or(0).max(1) as f64;
    svg.text(left, 124.0, letters(16.0, INK, true, Anchor::Start), "Kept in the senders' logs");
    for (i, job) in jobs.iter().enumerate() {
        let y = top + 140.0 * i as f64;
        let (total, logged) = (all(job), count(job, "log_bytes"));
        let width = |bytes: u64| BAR_WIDTH * 1.5 * bytes as f64 / longest;
        let bold = letters(15.0, INK, true, Anchor::Start);
        svg.text(left, y + 16.0, bold, &format!("sets: {}", job.policy));
        let plain = letters(13.0, PALE_INK, false, Anchor::Start);
        svg.text(left + 110.0, y + 16.0, plain, meaning(&job.policy));
        svg.rectangle(left, y + 28.0, width(total), 34.0, NOT_LOGGED);
        svg.rectangle(left, y + 28.0, width(logged), 34.0, LOGGED);
        let text = format!(
            "{} logged of {} sent ({})",
            units::bytes(logged),
            units::bytes(total),
            units::percent(logged, total)
        );
        svg.text(left, y + 84.0, letters(14.0, INK, false, Anchor::Start), &text);
    }
    let y = top + 140.0 * jobs.len() as f64 + 10.0;
    let notes = [
        (LOGGED, "kept in the sender's memory until the receiver has checkpointed"),
        (NOT_LOGGED, "stays inside a set: no copy is made"),
    ];
    for (i, (colour, text)) in notes.into_iter().enumerate() {
        let y = y + 26.0 * i as f64;
        svg.rectangle(left, y, 14.0, 14.0, colour);
        svg.text(left + 24.0, y + 12.0, letters(13.0, INK, false, Anchor::Start), text);
    }
}

fn meaning(policy: &str) -> &'static str {
    match policy {
        "core" => "every rank its own: plain message logging",
        "node" => "the ranks of a node fail together",
        "all" => "one set: coordinated checkpointing",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;
    use crate::report::Counters;

    fn rank(rank: u32, policy: &str) -> ReportedRank {
        let set_of = |rank: u32| match policy {
            "core" => rank,
            "node" => rank / 2,
            _ => 0,
        };
        let text = format!(
            r#"{{"version":1,"rank":{rank},"size":6,"node":"n{}","set":{},"policy":"{policy}",
                "counters":{{}},"peers":[]}}"#,
            rank / 2,
            set_of(rank)
        );
        let mut made: ReportedRank = serde_json::from_str(&text).unwrap();
        for to in (0..6).filter(|&to| to != rank && !(rank == 5 && to == 0)) {
            let bytes = u64::from((rank * 7 + to * 13) % 11 + 1) * 4_300_000;
            let text = format!(
                r#"{{"rank":{to},"set":{},"sent_messages":9,"sent_bytes":{bytes},
                    "received_messages":0,"received_bytes":0}}"#,
                set_of(to)
            );
            made.peers.push(serde_json::from_str(&text).unwrap());
        }
        made
    }

    /// Made-up numbers, to see the figure without a cluster.
    fn job(policy: &str) -> ReportedJob {
        let ranks: Vec<ReportedRank> = (0..6).map(|r| rank(r, policy)).collect();
        let mut total = Counters::new();
        for from in &ranks {
            for peer in &from.peers {
                let inside = peer.set == from.set;
                let name = if inside { "sent_internal_bytes" } else { "sent_outgoing_bytes" };
                *total.entry(name.into()).or_default() += peer.sent_bytes;
            }
        }
        total.insert("log_bytes".into(), total.get("sent_outgoing_bytes").copied().unwrap_or(0));
        ReportedJob {
            version: 1,
            nodes: 3,
            ppn: 2,
            policy: policy.into(),
            command: vec!["hpcc".into()],
            exit: 0,
            seconds: 1.0,
            ranks,
            sets: Vec::new(),
            total,
        }
    }

    #[test]
    fn the_figure_shows_every_rank_node_and_policy() {
        let jobs = ["core", "node", "all"].map(job);
        let svg = draw(&jobs.each_ref());
        for text in [">n0<", ">n2<", ">5<", "sets: core", "sets: all", "0 B logged"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        let file = paths::target().join("xtask-test-figure.svg");
        std::fs::write(file, svg).unwrap();
    }
}
