//! `rustbtl report JOBDIR`: what has happened to a job, from its list of events, as a drawing.
//!
//! 1. Events may be unknown, lack fields, or stop in the middle: what is there is shown.
//! 2. A row never has two states at a time, and its times are in order.

use crate::command::events;
use crate::command::timeline_svg::draw;
use rustbtl_process::private_files::{Folder, open_to_show, read_all};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// More ranks than this are shown by node.
const RANKS_MAX: usize = 48;
/// Between the nodes on which a rank has been.
const ARROW: &str = " → ";
/// Longest list of events that is read.
const EVENTS_BYTES_MAX: u64 = 1 << 30;
const TIMELINE: &str = "timeline.svg";

/// What a rank does. The order tells which one a node shows whose ranks differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReportState {
    /// Before MPI_Init is over.
    Starting,
    /// It has ended.
    Ended,
    /// The program runs.
    Computing,
    /// It is suspended for a checkpoint.
    Pause,
    /// Its agent or guardian cannot be reached.
    Unreachable,
    /// It executes again what it has executed before the failure.
    Replaying,
    /// It is being restored from its image.
    Restoring,
    /// It has failed.
    Failed,
}

/// A rank or a node.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Row {
    /// Its label.
    pub label: String,
    /// From this time (ms since 1970) on it is in this state; none: it is not there.
    pub changes: Vec<(u64, ReportState)>,
    /// How much of recoveries of others it has waited, in the order of time.
    pub waits: Vec<WaitSpan>,
}

/// How much of a time a rank has waited inside MPI, or the ranks of a node on an average.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitSpan {
    /// Milliseconds since 1970.
    pub from: u64,
    /// The same.
    pub to: u64,
    /// So many milliseconds between the two; when in particular is not known.
    pub waited_ms: u64,
}

impl Row {
    fn now(&self) -> Option<ReportState> {
        self.changes.last().map(|(_, state)| *state)
    }

    fn at(&self, time: u64) -> Option<ReportState> {
        let after = self.changes.partition_point(|(from, _)| *from <= time);
        after.checked_sub(1).map(|last| self.changes[last].1)
    }

    fn become_at(&mut self, time: u64, state: ReportState) {
        let time = self.changes.last().map_or(time, |(last, _)| time.max(*last));
        if self.now() == Some(state) {
            return;
        }
        self.changes.retain(|(from, _)| *from < time);
        self.changes.push((time, state));
    }

    /// A short state within the one at that time.
    fn interrupt(&mut self, from: u64, to: u64, state: ReportState) {
        if self.at(from) == Some(ReportState::Computing) && from < to {
            let later = self.changes.iter().position(|(at, _)| *at > from);
            let place = later.unwrap_or(self.changes.len());
            let end = later.map_or(to, |later| to.min(self.changes[later].0));
            let back = (later.is_none() || end == to).then_some((end, ReportState::Computing));
            self.changes.splice(place..place, [(from, state)].into_iter().chain(back));
        }
    }
}

/// A checkpoint, from its order to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointSpan {
    /// Its number.
    pub number: u64,
    /// When it was ordered.
    pub from: u64,
    /// When it was complete or aborted.
    pub to: Option<u64>,
    /// It is complete.
    pub complete: bool,
}

/// Everything that is drawn.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Timeline {
    /// Name of the job.
    pub job: String,
    /// Ranks or nodes.
    pub rows: Vec<Row>,
    /// In the order of their beginning.
    pub checkpoints: Vec<CheckpointSpan>,
    /// Losses of nodes and other events without a duration.
    pub marks: Vec<(u64, String)>,
    /// First and last time.
    pub span: (u64, u64),
}

#[derive(Default)]
struct Reader {
    timeline: Timeline,
    ranks: BTreeMap<u64, Row>,
    nodes: BTreeMap<u64, String>,
    sets: BTreeMap<u64, BTreeSet<u64>>,
    all_ready: bool,
    /// Of ranks that run while others are rolled back: when they have answered last, and how many
    /// milliseconds they had waited by then.
    waited: BTreeMap<u64, (u64, u64)>,
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

impl Reader {
    fn change(&mut self, ranks: impl IntoIterator<Item = u64>, time: u64, state: ReportState) {
        for rank in ranks {
            self.ranks.entry(rank).or_default().become_at(time, state);
            if state != ReportState::Computing {
                self.waited.remove(&rank);
            }
        }
    }

    /// The ranks that an event is about: it lists them, or names their set.
    fn about(&self, event: &Value) -> Vec<u64> {
        if event["ranks"].is_array() {
            return numbers(&event["ranks"]);
        }
        let set = event["set"].as_u64().and_then(|set| self.sets.get(&set));
        set.into_iter().flatten().copied().collect()
    }

    fn handle(&mut self, event: &Value) {
        let Some(time) = event["unix_ms"].as_u64() else { return };
        let (first, last) = self.timeline.span;
        let first = if last == 0 { time } else { first.min(time) };
        self.timeline.span = (first, last.max(time));
        let text = |key: &str| event[key].as_str().unwrap_or("?").to_owned();
        let rank = event["rank"].as_u64();
        match event["event"].as_str().unwrap_or_default() {
            "guardian" => self.guardian(time, rank, &text("node")),
            "rank" => self.hello(time, rank, event["set"].as_u64()),
            "ready" => {
                self.all_ready = true;
                let starting = |row: &Row| row.now() == Some(ReportState::Starting);
                let ready = self.ranks.iter().filter(|(_, row)| starting(row));
                let ready: Vec<u64> = ready.map(|(&rank, _)| rank).collect();
                self.change(ready, time, ReportState::Computing);
            }
            "checkpoint_started" | "checkpoint_completed" | "checkpoint_aborted" => {
                self.checkpoint(time, event)
            }
            "node_lost" => {
                self.timeline.marks.push((time, format!("{} lost", text("node"))));
                self.change(self.about(event), time, ReportState::Failed);
            }
            "rank_failed" => {
                if let Some(set) = event["set"].as_u64() {
                    self.sets.entry(set).or_default().extend(numbers(&event["ranks"]));
                }
                self.change(self.about(event), time, ReportState::Failed);
            }
            "rank_placed" => {
                for rank in self.about(event) {
                    self.moves(rank, &text("node"));
                }
                self.change(self.about(event), time, ReportState::Restoring);
            }
            "set_restarted" => self.change(self.about(event), time, ReportState::Replaying),
            "replay_completed" => self.change(self.about(event), time, ReportState::Computing),
            "ranks_waited" => self.ranks_waited(time, event),
            "guardian_disconnected" => {
                let alive = |row: &Row| {
                    matches!(row.now(), Some(ReportState::Computing | ReportState::Pause))
                };
                let rank = rank.filter(|rank| self.ranks.get(rank).is_some_and(alive));
                self.change(rank, time, ReportState::Unreachable);
            }
            "ended" => self.change(rank, time, ReportState::Ended),
            "agent_gone" => self.timeline.marks.push((time, format!("agent of {}", text("node")))),
            "job_finished" => self.timeline.marks.push((time, "finish".to_owned())),
            _ => {}
        }
    }

    fn ranks_waited(&mut self, time: u64, event: &Value) {
        let at = time.saturating_sub(event["ms_ago"].as_u64().unwrap_or(0));
        for (rank, ms) in numbers(&event["ranks"]).into_iter().zip(numbers(&event["waited_ms"])) {
            let before = self.waited.insert(rank, (at, ms));
            let Some((from, ms_before)) = before.filter(|(from, _)| *from < at) else {
                continue;
            };
            if let Some(row) = self.ranks.get_mut(&rank) {
                let waited_ms = ms.saturating_sub(ms_before).min(at - from);
                row.waits.push(WaitSpan { from, to: at, waited_ms });
            }
        }
        if numbers(&event["rolled_back"]).is_empty() {
            // What is waited until the next recovery is the program's own.
            self.waited.clear();
        }
    }

    /// A rank is on this node now; the nodes before are part of its label.
    fn moves(&mut self, rank: u64, node: &str) {
        let route = self.nodes.entry(rank).or_default();
        if route.is_empty() {
            *route = node.to_owned();
        } else if route.rsplit(ARROW).next() != Some(node) {
            *route = format!("{route}{ARROW}{node}");
        }
    }

    fn guardian(&mut self, time: u64, rank: Option<u64>, node: &str) {
        let Some(rank) = rank else { return };
        self.moves(rank, node);
        match self.ranks.get(&rank).and_then(Row::now) {
            None => self.change([rank], time, ReportState::Starting),
            Some(ReportState::Unreachable) => self.change([rank], time, ReportState::Computing),
            Some(_) => {}
        }
    }

    fn hello(&mut self, time: u64, rank: Option<u64>, set: Option<u64>) {
        let Some(rank) = rank else { return };
        if let Some(set) = set {
            self.sets.entry(set).or_default().insert(rank);
        }
        match self.ranks.get(&rank).and_then(Row::now) {
            None => self.change([rank], time, ReportState::Starting),
            Some(ReportState::Failed | ReportState::Restoring) => {
                self.change([rank], time, ReportState::Replaying)
            }
            Some(_) => {}
        }
    }

    fn checkpoint(&mut self, time: u64, event: &Value) {
        let Some(number) = event["checkpoint"].as_u64() else { return };
        if event["event"] == "checkpoint_started" {
            self.timeline.checkpoints.push(CheckpointSpan {
                number,
                from: time,
                to: None,
                complete: false,
            });
            return;
        }
        let complete = event["event"] == "checkpoint_completed";
        let open = self.timeline.checkpoints.iter_mut().rev();
        let mut open =
            open.filter(|checkpoint| checkpoint.number == number && checkpoint.to.is_none());
        let Some(checkpoint) = open.next() else { return };
        (checkpoint.to, checkpoint.complete) = (Some(time), complete);
        let from = checkpoint.from;
        let ns = |key: &str| event[key].as_u64().unwrap_or(0);
        let pause = (ns("coordination_ns") + ns("pause_ns")).div_ceil(1_000_000);
        // The set is not always named: then the pause of a set is not shown.
        let ranks = self.about(event);
        let all: Vec<u64> = self.ranks.keys().copied().collect();
        for rank in if ranks.is_empty() { all } else { ranks } {
            if let Some(row) = self.ranks.get_mut(&rank) {
                row.interrupt(from, from.saturating_add(pause).min(time), ReportState::Pause);
            }
        }
    }

    fn finish(mut self, job: String) -> Timeline {
        self.timeline.job = job;
        let node = |rank: &u64| self.nodes.get(rank).cloned().unwrap_or_else(|| "?".to_owned());
        self.timeline.rows = if self.ranks.len() <= RANKS_MAX {
            let named = |(rank, row): (&u64, &Row)| Row {
                label: format!("rank {rank}, {}", node(rank)),
                changes: row.changes.clone(),
                waits: row.waits.clone(),
            };
            self.ranks.iter().map(named).collect()
        } else {
            let mut groups: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
            for (rank, row) in &self.ranks {
                groups.entry(node(rank)).or_default().push(row);
            }
            groups.into_iter().map(|(label, rows)| combined(label, &rows)).collect()
        };
        self.timeline
    }
}

/// One row for several: the worst state of any at each time.
fn combined(label: String, rows: &[&Row]) -> Row {
    let times: BTreeSet<u64> =
        rows.iter().flat_map(|row| row.changes.iter().map(|(time, _)| *time)).collect();
    let mut spans: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
    for wait in rows.iter().flat_map(|row| &row.waits) {
        spans.entry((wait.from, wait.to)).or_default().push(wait.waited_ms);
    }
    let average = |((from, to), ms): ((u64, u64), Vec<u64>)| WaitSpan {
        from,
        to,
        waited_ms: ms.iter().sum::<u64>() / ms.len() as u64,
    };
    let waits = spans.into_iter().map(average).collect();
    let mut all = Row { label, changes: Vec::new(), waits };
    for time in times {
        if let Some(state) = rows.iter().filter_map(|row| row.at(time)).max() {
            all.become_at(time, state);
        }
    }
    all
}

/// The timeline of a list of events.
pub fn read(job: &str, events: &str) -> Timeline {
    let mut reader = Reader::default();
    for event in events::read(events) {
        reader.handle(&event);
    }
    reader.finish(job.to_owned())
}

/// The list of events in a job's folder.
fn events_file(folder: &Path) -> Result<PathBuf, String> {
    let file = if folder.is_dir() { folder.join("events.jsonl") } else { folder.to_owned() };
    if file.is_file() {
        return Ok(file);
    }
    Err(format!(
        "{} is not there: give the folder of a job, a folder in what was given to mpirun as \
         vprotocol_correlated_checkpoint_dir",
        file.display()
    ))
}

/// Nothing that somebody else has put there is written through.
fn write_beside(events: &Path, text: &str) -> std::io::Result<()> {
    let (folder, _) = Folder::of(events)?;
    folder.create_file_anew(TIMELINE)?.write_all(text.as_bytes())
}

/// Draws the timeline of a job, and prints where it is.
pub fn report(folder: &Path, output: Option<&Path>) -> Result<(), String> {
    let file = events_file(folder)?;
    let shown = |error: std::io::Error| format!("{}: {error}", file.display());
    let full = file.canonicalize().map_err(shown)?;
    let read_file = open_to_show(&full).and_then(|file| read_all(file, &full, EVENTS_BYTES_MAX));
    let events = read_file.map_err(|error| error.to_string())?;
    let events = String::from_utf8_lossy(&events);
    let job = full.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let timeline = read(&job, &events);
    if timeline.rows.is_empty() {
        return Err(format!("{} has no events of ranks", file.display()));
    }
    let drawn = draw(&timeline);
    let output = match output {
        Some(output) => fs::write(output, drawn).map(|()| output.to_owned()),
        None => write_beside(&full, &drawn).map(|()| full.with_file_name(TIMELINE)),
    };
    println!("{}", output.map_err(|error| format!("the timeline: {error}"))?.display());
    print!("{}", crate::command::recoveries::table(&events));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReportState::{
        Computing, Ended, Failed, Pause, Replaying, Restoring, Starting, Unreachable,
    };
    use serde_json::json;

    const JOB: &str = r#"
{"event":"guardian","node":"n0","rank":0,"unix_ms":1000}
{"event":"guardian","node":"n1","rank":1,"unix_ms":1010}
{"event":"rank","pid":7,"rank":0,"set":0,"unix_ms":1020}
{"event":"rank","pid":8,"rank":1,"set":1,"unix_ms":1030}
{"event":"ready","ranks":2,"unix_ms":1100}
{"event":"line","kind":"global","line":1,"unix_ms":2000}
{"event":"complete","line":1,"coordination_ns":20000000,"pause_ns":80000000,"unix_ms":2500}
{"event":"node_lost","node":"n1","ranks":[1],"unix_ms":3000}
{"event":"fallen","set":1,"ranks":[1],"unix_ms":3001}
{"event":"line","kind":"global","line":2,"unix_ms":3002}
{"event":"aborted","line":2,"reason":"x","unix_ms":3003}
{"event":"placed","set":1,"node":"n2","line":1,"incarnation":1,"unix_ms":3100}
{"event":"back","set":1,"unix_ms":3400}
{"event":"caught_up","set":1,"unix_ms":4200}
{"event":"finish","last":0,"unix_ms":5000}
{"event":"ended","rank":0,"status":0,"unix_ms":5010}
{"event":"ended","rank":1,"status":0,"unix_ms":5020}
{"event":"end","unix_ms":5100}
{"event":"fal"#;

    #[test]
    fn a_recovery_is_drawn_from_its_events() {
        let timeline = read("j", JOB);
        assert_eq!(timeline.span, (1000, 5100));
        let paused = [(2000, Pause), (2100, Computing)];
        let changes =
            [vec![(1000, Starting), (1100, Computing)], paused.to_vec(), vec![(5010, Ended)]];
        assert_eq!(timeline.rows[0].changes, changes.concat());
        assert_eq!(
            (&*timeline.rows[0].label, &*timeline.rows[1].label),
            ("rank 0, n0", "rank 1, n1 → n2")
        );
        let back = [(3000, Failed), (3100, Restoring), (3400, Replaying), (4200, Computing)];
        let changes = [vec![(1010, Starting), (1100, Computing)], paused.to_vec(), back.to_vec()];
        assert_eq!(timeline.rows[1].changes, [changes.concat(), vec![(5020, Ended)]].concat());
        let span =
            |number, from, to, complete| CheckpointSpan { number, from, to: Some(to), complete };
        assert_eq!(timeline.checkpoints, [span(1, 2000, 2500, true), span(2, 3002, 3003, false)]);
        let marks = [(3000, "n1 lost".to_owned()), (5000, "finish".to_owned())];
        assert_eq!(timeline.marks, marks);
    }

    #[test]
    fn a_rank_that_can_be_reached_again_computes() {
        let events = r#"{"event":"guardian","node":"n0","rank":0,"unix_ms":1}
{"event":"ready","unix_ms":2}
{"event":"gone","rank":0,"unix_ms":3}
{"event":"guardian","node":"n0","rank":0,"unix_ms":4}"#;
        let wanted = [(1, Starting), (2, Computing), (3, Unreachable), (4, Computing)];
        assert_eq!(read("j", events).rows[0].changes, wanted);
    }

    #[test]
    fn a_pause_ends_where_something_worse_begins() {
        let mut row = Row { changes: vec![(0, Computing), (50, Failed)], ..Row::default() };
        row.interrupt(40, 90, Pause);
        assert_eq!(row.changes, [(0, Computing), (40, Pause), (50, Failed)]);
        row.interrupt(60, 70, Pause);
        assert_eq!(row.changes.len(), 3, "a failed rank does not pause");
    }

    #[test]
    fn who_waits_for_a_recovery_is_known_from_its_beginning_to_its_end_and_not_in_between() {
        let line = |event: Value| event.to_string() + "\n";
        let waited = |time: u64, ago: u64, ranks: &[u64], ms: &[u64], rolled_back: &[u64]| {
            line(json!({
                "v": 2, "event": "ranks_waited", "ranks": ranks, "waited_ms": ms,
                "rolled_back": rolled_back, "ms_ago": ago, "unix_ms": time
            }))
        };
        let mut events = String::new();
        for rank in 0..3 {
            let node = format!("n{rank}");
            events += &line(json!({
                "v": 2, "event": "guardian", "node": node, "rank": rank, "unix_ms": 1
            }));
        }
        let span = |from, to, waited_ms| WaitSpan { from, to, waited_ms };
        events += &line(json!({"v": 2, "event": "ready", "unix_ms": 2}));
        events += &waited(1002, 2, &[0, 2], &[50, 60], &[1]);
        events += &waited(1100, 0, &[0, 2], &[120, 999], &[1]);
        events += &waited(2000, 0, &[0, 1, 2], &[1020, 0, 1060], &[]);
        let first = [span(1000, 1100, 70), span(1100, 2000, 900)];
        // Rank 2 says it has waited longer than there was time.
        let other = [span(1000, 1100, 100), span(1100, 2000, 61)];
        let rows = read("j", &events).rows;
        assert_eq!(
            (&rows[0].waits[..], &rows[1].waits[..], &rows[2].waits[..]),
            (&first[..], &[][..], &other[..])
        );
        // Another recovery, in which rank 2 fails, too.
        events += &waited(5000, 0, &[0, 2], &[2000, 1100], &[1]);
        let failed = json!({"v": 2, "event": "rank_failed", "ranks": [2], "unix_ms": 5100});
        events += &line(failed);
        events += &waited(5200, 0, &[0], &[2100], &[1, 2]);
        events += &waited(5300, 0, &[0, 1, 2], &[2150, 3, 4], &[]);
        let rows = read("j", &events).rows;
        assert_eq!(rows[0].waits[2..], [span(5000, 5200, 100), span(5200, 5300, 50)]);
        assert_eq!(rows[2].waits, other);
        let node = combined("n".into(), &[&rows[0], &rows[2]]);
        assert_eq!(
            node.waits[..3],
            [span(1000, 1100, 85), span(1100, 2000, 480), span(5000, 5200, 100)]
        );
    }

    #[test]
    fn many_ranks_are_shown_by_node_and_the_worst_counts() {
        let mut events = String::new();
        for rank in 0..60 {
            let node = rank / 30;
            events += &format!(
                "{{\"event\":\"guardian\",\"node\":\"n{node}\",\"rank\":{rank},\"unix_ms\":1}}\n"
            );
        }
        events += "{\"event\":\"ready\",\"unix_ms\":2}\n";
        events += "{\"event\":\"fallen\",\"set\":9,\"ranks\":[31],\"unix_ms\":3}\n";
        let timeline = read("j", &events);
        assert_eq!(timeline.rows.len(), 2);
        assert_eq!(timeline.rows[0].changes, [(1, Starting), (2, Computing)]);
        assert_eq!(timeline.rows[1].changes, [(1, Starting), (2, Computing), (3, Failed)]);
    }

    #[test]
    fn nonsense_makes_no_rows() {
        for text in ["", "x", "{}", "[1]", "{\"event\":\"rank\",\"unix_ms\":1}", "{\"event\":7}"] {
            assert_eq!(read("j", text).rows, [], "{text}");
        }
    }
}
