//! The tables that the demo prints.

use super::runs::TrafficRun;
use super::units;
use crate::report::ReportedJob;

/// Rows of words, columns aligned: the first to the left, the others to the right.
fn lay_out(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).map(|w| w.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (c, (word, &width)) in row.iter().zip(&widths).enumerate() {
            text += &if c == 0 { format!("  {word:width$}") } else { format!("  {word:>width$}") };
        }
        text.push('\n');
    }
    text
}

fn heads(first: &str, stock: &TrafficRun, protected: &[TrafficRun]) -> Vec<String> {
    let mut row = vec![first.to_string(), stock.name.clone()];
    row.extend(protected.iter().map(|run| run.name.clone()));
    row
}

/// HPCC's own checks, all of which have passed.
pub fn verification(stock: &TrafficRun, protected: &[TrafficRun]) -> String {
    let mut rows = vec![heads("", stock, protected)];
    for (i, (name, _)) in stock.results.checks.iter().enumerate() {
        let mut row = vec![name.to_string()];
        for run in std::iter::once(stock).chain(protected) {
            row.push(run.results.checks.get(i).map_or("–".into(), |(_, value)| value.clone()));
        }
        rows.push(row);
    }
    let mut row = vec!["verdict".to_string()];
    row.extend(std::iter::repeat_n("PASSED".to_string(), protected.len() + 1));
    rows.push(row);
    format!("HPCC's own verification\n{}\n", lay_out(&rows))
}

/// HPCC's name of a number, what it is, and the factor to a readable unit.
const SPEEDS: [(&str, &str, f64); 7] = [
    ("HPL_Tflops", "HPL, Gflop/s", 1000.0),
    ("PTRANS_GBs", "PTRANS, GB/s", 1.0),
    ("MPIRandomAccess_GUPs", "RandomAccess, M updates/s", 1000.0),
    ("MPIFFT_Gflops", "FFT, Gflop/s", 1.0),
    ("MaxPingPongLatency_usec", "longest ping-pong latency, µs", 1.0),
    ("MinPingPongLatency_usec", "shortest ping-pong latency, µs", 1.0),
    ("RandomlyOrderedRingBandwidth_GBytes", "random ring bandwidth, GB/s", 1.0),
];

/// What HPCC has measured.
pub fn speed(stock: &TrafficRun, protected: &[TrafficRun]) -> String {
    let mut rows = vec![heads("", stock, protected)];
    for (name, title, factor) in SPEEDS {
        let mut row = vec![title.to_string()];
        let all = std::iter::once(stock).chain(protected);
        row.extend(all.map(|run| format!("{:.2}", factor * run.results.number(name))));
        rows.push(row);
    }
    let mut row = vec!["whole run, s".to_string()];
    let all = std::iter::once(stock).chain(protected);
    row.extend(all.map(|run| format!("{:.1}", run.seconds)));
    rows.push(row);
    let note = "one run each, all nodes on this one machine: an impression, not a benchmark";
    format!("What HPCC measured ({note})\n{}\n", lay_out(&rows))
}

fn counter(job: &ReportedJob, name: &str) -> u64 {
    job.total.get(name).copied().unwrap_or(0)
}

/// What was logged under each way to make sets.
pub fn logs(protected: &[TrafficRun]) -> String {
    let heads = ["sets", "number", "sent inside", "sent outside", "logged", "peak", "not logged"];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for job in protected.iter().filter_map(|run| run.job.as_ref()) {
        let (inside, outside) =
            (counter(job, "sent_internal_bytes"), counter(job, "sent_outgoing_bytes"));
        let logged = counter(job, "log_bytes");
        rows.push(vec![
            job.policy.clone(),
            job.sets.len().to_string(),
            units::bytes(inside),
            units::bytes(outside),
            units::bytes(logged),
            units::bytes(counter(job, "log_bytes_peak")),
            units::percent((inside + outside).saturating_sub(logged), inside + outside),
        ]);
    }
    let mut text = format!("Payload that senders keep for a restart\n{}", lay_out(&rows));
    for job in protected.iter().filter_map(|run| run.job.as_ref()) {
        text += &format!(
            "  {}: {} messages inside sets, {} leave them\n",
            job.policy,
            units::count(counter(job, "sent_internal_messages")),
            units::count(counter(job, "sent_outgoing_messages"))
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "10".into()], vec!["long".into(), "5".into()]];
        assert_eq!(lay_out(&rows), "  a     10\n  long   5\n");
    }
}
