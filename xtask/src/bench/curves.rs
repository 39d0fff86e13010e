//! Latency and bandwidth over the size of a message, as in the paper's Figure 4.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::chart::{Chart, Curve};
use super::measured::Measured;
use super::stats::Spread;
use crate::error::{Context, Result};
use crate::run;

/// A curve's side, name, colour and dashes.
type Style = (&'static str, &'static str, &'static str, &'static str);

/// Marks of an axis of bytes.
const SIZES: (fn(f64) -> String, f64) = (|bytes| super::judge::size(bytes.round() as u64), 4.0);

const STOCK: Style = ("stock", "stock Open MPI", "#6c757d", "7 4");
const OURS: Style = ("ours", "ours", "#0c5c8c", "");
const CORE: Style = ("core", "ours, plain message logging", "#c43e06", "");

/// The figures: file name, and its curves for latency and bandwidth.
pub fn all(measured: &Measured, subtitle: &str) -> Vec<(&'static str, Chart)> {
    let shm = ("shm-latency", "shm-stream", "shared memory");
    let tcp = ("tcp-latency", "tcp-stream", "TCP between two emulated nodes");
    let node = ("ours", "ours, protected (a node is a set)", OURS.2, OURS.3);
    let logged = ("ours", "ours, protected, payload logged", OURS.2, OURS.3);
    vec![
        ("shm-latency", latency(measured, shm, &[STOCK, node, CORE], subtitle)),
        ("shm-bandwidth", bandwidth(measured, shm, &[STOCK, node, CORE], subtitle)),
        ("tcp-latency", latency(measured, tcp, &[STOCK, logged], subtitle)),
        ("tcp-bandwidth", bandwidth(measured, tcp, &[STOCK, logged], subtitle)),
    ]
}

type Source = (&'static str, &'static str, &'static str);

fn latency(measured: &Measured, from: Source, styles: &[Style], subtitle: &str) -> Chart {
    Chart {
        title: format!("Half round trip, {}", from.2),
        subtitle: subtitle.to_string(),
        across: "size of the message",
        across_marks: SIZES,
        upwards: "time",
        write: write_time,
        curves: styles.iter().map(|style| curve(measured, from, style, |_, us| us)).collect(),
    }
}

fn bandwidth(measured: &Measured, from: Source, styles: &[Style], subtitle: &str) -> Chart {
    // Bytes a microsecond are megabytes a second.
    let mut curves: Vec<Curve> =
        styles.iter().map(|style| curve(measured, from, style, |bytes, us| bytes / us)).collect();
    let raw = points(measured, from.1, "bare", "readv", |_, mbs| mbs);
    if !raw.is_empty() {
        let name = "one process_vm_readv".to_string();
        curves.push(Curve { name, colour: "#adb5bd", dash: "2 3", points: raw });
    }
    Chart {
        title: format!("Bandwidth, ping-pong, {}", from.2),
        subtitle: subtitle.to_string(),
        across: "size of the message",
        across_marks: SIZES,
        upwards: "bandwidth",
        write: write_speed,
        curves,
    }
}

/// A mark of an axis of microseconds.
pub fn write_time(us: f64) -> String {
    match us {
        us if us >= 999.0 => format!("{:.0} ms", us / 1e3),
        us if us < 0.99 => format!("{:.0} ns", us * 1e3),
        us => format!("{us:.0} µs"),
    }
}

/// A mark of an axis of megabytes a second.
fn write_speed(mbs: f64) -> String {
    match mbs {
        mbs if mbs >= 999.0 => format!("{:.0} GB/s", mbs / 1e3),
        mbs if mbs < 0.99 => format!("{:.0} kB/s", mbs * 1e3),
        mbs => format!("{mbs:.0} MB/s"),
    }
}

/// From the latency of small and the ping-pong bandwidth of large messages, in microseconds.
fn curve(measured: &Measured, from: Source, style: &Style, value: fn(f64, f64) -> f64) -> Curve {
    let (side, name, colour, dash) = *style;
    let mut points_of = points(measured, from.0, side, "latency", value);
    let large = points(measured, from.1, side, "stream", |_, mbs| mbs);
    points_of.extend(large.into_iter().map(|(bytes, mbs)| {
        let mut ends = [mbs.low, mbs.median, mbs.high].map(|mbs| value(bytes, bytes / mbs));
        ends.sort_by(f64::total_cmp);
        (bytes, Spread { low: ends[0], median: ends[1], high: ends[2] })
    }));
    points_of.sort_by(|a, b| a.0.total_cmp(&b.0));
    Curve { name: name.into(), colour, dash, points: points_of }
}

fn points(
    measured: &Measured,
    experiment: &str,
    side: &str,
    metric: &str,
    value: fn(f64, f64) -> f64,
) -> Vec<(f64, Spread)> {
    // Nothing has a logarithm at 0; 8 is between the marks.
    let sizes = measured.sizes(experiment, side, metric).into_iter().filter(|s| *s > 0);
    sizes
        .filter_map(|size| {
            let series = measured.series(experiment, side, metric, size);
            let values: Vec<f64> = series.iter().map(|(_, v)| value(size as f64, *v)).collect();
            Some((size as f64, Spread::of(&values)?))
        })
        .collect()
}

/// Draws what there are numbers of; gives the SVG files.
pub fn draw(measured: &Measured, subtitle: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    let mut files = Vec::new();
    for (name, mut chart) in all(measured, subtitle) {
        chart.curves.retain(|curve| curve.points.len() > 1);
        let Some(text) = chart.draw() else { continue };
        let svg = folder.join(name).with_extension("svg");
        fs::write(&svg, text).context(|| svg.display().to_string())?;
        let png = svg.with_extension("png");
        let mut convert = Command::new("rsvg-convert");
        run::check(convert.args(["--zoom", "2", "--output"]).arg(&png).arg(&svg))
            .context(|| format!("the PNG (the figure is in {})", svg.display()))?;
        files.push(svg);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::run;
    use super::*;

    #[test]
    fn marks_have_a_unit_that_suits_them() {
        assert_eq!([0.2, 50.0, 2000.0].map(write_time), ["200 ns", "50 µs", "2 ms"]);
        assert_eq!([0.1, 50.0, 2000.0].map(write_speed), ["100 kB/s", "50 MB/s", "2 GB/s"]);
    }

    #[test]
    fn small_latencies_and_large_bandwidths_join_to_one_curve() {
        let mut small = run("ours", 0, "latency 0 1\nlatency 1024 2\n");
        small.experiment = "shm-latency";
        let mut large = run("ours", 0, "stream 65536 1000\n");
        large.experiment = "shm-stream";
        let measured = Measured { runs: vec![small, large] };
        let charts = all(&measured, "");
        let medians = |chart: &Chart| -> Vec<(f64, f64)> {
            chart.curves[1].points.iter().map(|(x, s)| (*x, s.median)).collect()
        };
        assert_eq!(medians(&charts[0].1), [(1024.0, 2.0), (65536.0, 65.536)]);
        assert_eq!(medians(&charts[1].1), [(1024.0, 512.0), (65536.0, 1000.0)]);
    }
}
