//! Curves in a plane with two logarithmic axes, as SVG.

use std::fmt::Write;

use super::stats::Spread;

/// Width and height in pixels.
const SIZE: (f64, f64) = (900.0, 600.0);
/// The plane: left, top, right, bottom.
const PLANE: (f64, f64, f64, f64) = (112.0, 84.0, 868.0, 524.0);
const INK: &str = "#212529";
const PALE: &str = "#6c757d";
const GRID: &str = "#dee2e6";
const FAINT: &str = "#f1f3f5";

/// A curve through points with their spread.
pub struct Curve {
    /// In the legend.
    pub name: String,
    /// `#rrggbb`.
    pub colour: &'static str,
    /// SVG's dashes; empty: a full line.
    pub dash: &'static str,
    /// Position and value, both above 0.
    pub points: Vec<(f64, Spread)>,
}

/// A figure with curves.
pub struct Chart {
    /// Above everything.
    pub title: String,
    /// Below the title: machine, versions, what is protected.
    pub subtitle: String,
    /// What is to the right.
    pub across: &'static str,
    /// How a value on that axis is written, and which mark is the next one.
    pub across_marks: (fn(f64) -> String, f64),
    /// What is upwards.
    pub upwards: &'static str,
    /// How a value on the upward axis is written.
    pub write: fn(f64) -> String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// A logarithmic axis: `from`..`to` lie at the pixels `start`..`end`.
#[derive(Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let part = (value / self.from).ln() / (self.to / self.from).ln();
        self.start + part.clamp(-0.02, 1.02) * (self.end - self.start)
    }
}

impl Chart {
    /// The whole document; `None` if there is nothing to draw.
    pub fn draw(&self) -> Option<String> {
        let spreads = || self.curves.iter().flat_map(|c| &c.points);
        let lowest = spreads().map(|(_, s)| s.low.min(s.median)).reduce(f64::min)?;
        let highest = spreads().map(|(_, s)| s.high.max(s.median)).reduce(f64::max)?;
        let least = spreads().map(|(x, _)| *x).reduce(f64::min)?;
        let most = spreads().map(|(x, _)| *x).reduce(f64::max)?;
        let (left, top, right, bottom) = PLANE;
        let x = Axis { from: least, to: most.max(least * 2.0), start: left, end: right };
        let (from, to) = (mark_below(lowest), mark_above(highest).max(lowest * 2.0));
        let y = Axis { from, to, start: bottom, end: top };
        let mut svg = String::new();
        self.words(&mut svg);
        self.grid(&mut svg, x, y);
        for curve in &self.curves {
            draw_curve(&mut svg, curve, x, y);
        }
        self.legend(&mut svg);
        let (width, height) = SIZE;
        Some(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{svg}</svg>\n"
        ))
    }

    fn words(&self, svg: &mut String) {
        let (left, top, right, bottom) = PLANE;
        text(svg, (left, 36.0), (21.0, INK, "start", "bold"), &self.title, "");
        text(svg, (left, 60.0), (13.0, PALE, "start", "normal"), &self.subtitle, "");
        let middle = ((left + right) / 2.0, bottom + 52.0);
        text(svg, middle, (14.0, INK, "middle", "normal"), self.across, "");
        let (x, y) = (24.0, (top + bottom) / 2.0);
        let turned = format!(" transform=\"rotate(-90 {x} {y})\"");
        text(svg, (x, y), (14.0, INK, "middle", "normal"), self.upwards, &turned);
    }

    fn grid(&self, svg: &mut String, x: Axis, y: Axis) {
        let (left, top, right, bottom) = PLANE;
        for (value, large) in marks(y.from, y.to) {
            let at = y.at(value);
            stroke(svg, (left, at), (right, at), if large { GRID } else { FAINT });
            let many = y.to / y.from > 300.0;
            if large || !many {
                let label = (self.write)(value);
                text(svg, (left - 10.0, at + 4.5), (13.0, INK, "end", "normal"), &label, "");
            }
        }
        let mut value = x.from;
        while value <= x.to * 1.001 {
            let at = x.at(value);
            stroke(svg, (at, top), (at, bottom), GRID);
            let label = (self.across_marks.0)(value);
            text(svg, (at, bottom + 22.0), (13.0, INK, "middle", "normal"), &label, "");
            value *= self.across_marks.1;
        }
        stroke(svg, (left, bottom), (right, bottom), INK);
        stroke(svg, (left, top), (left, bottom), INK);
    }

    /// Both times and bandwidths grow with the size: the upper left is free.
    fn legend(&self, svg: &mut String) {
        let (left, top) = (PLANE.0 + 18.0, PLANE.1 + 14.0);
        let longest = self.curves.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
        let (width, height) = (64.0 + 8.2 * longest as f64, 12.0 + 24.0 * self.curves.len() as f64);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width:.0}\" height=\"{height:.0}\" \
             fill=\"#ffffff\" stroke=\"{GRID}\" rx=\"4\"/>"
        );
        for (i, curve) in self.curves.iter().enumerate() {
            let y = top + 19.0 + 24.0 * i as f64;
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {y:.1} h34\" stroke=\"{}\" stroke-width=\"2.5\" \
                 stroke-dasharray=\"{}\"/>\n<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3.5\" \
                 fill=\"{}\"/>",
                left + 10.0,
                curve.colour,
                curve.dash,
                left + 27.0,
                curve.colour
            );
            text(svg, (left + 54.0, y + 5.0), (14.0, INK, "start", "normal"), &curve.name, "");
        }
    }
}

/// The band between the quartiles, the line through the medians, a dot for each.
fn draw_curve(svg: &mut String, curve: &Curve, x: Axis, y: Axis) {
    let place = |value: f64, size: f64| format!("{:.1},{:.1} ", x.at(size), y.at(value));
    let upper = curve.points.iter().map(|(size, s)| place(s.high, *size));
    let lower = curve.points.iter().rev().map(|(size, s)| place(s.low, *size));
    let band: String = upper.chain(lower).collect();
    let line: String = curve.points.iter().map(|(size, s)| place(s.median, *size)).collect();
    let _ = writeln!(
        svg,
        "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.15\"/>\n<polyline points=\"{}\" \
         fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\" stroke-linejoin=\"round\" \
         stroke-dasharray=\"{}\"/>",
        band.trim_end(),
        curve.colour,
        line.trim_end(),
        curve.colour,
        curve.dash
    );
    for (size, s) in &curve.points {
        let (cx, cy) = (x.at(*size), y.at(s.median));
        let _ = writeln!(
            svg,
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{}\"/>",
            curve.colour
        );
    }
}

/// Marks of an axis: 1, 2, 5 of each power of ten; true for 1.
fn marks(from: f64, to: f64) -> Vec<(f64, bool)> {
    let (first, last) = (from.log10().floor() as i32, to.log10().ceil() as i32);
    let of_power =
        |power: i32| [1.0, 2.0, 5.0].map(|digit| (digit * 10f64.powi(power), digit == 1.0));
    let inside = |(value, _): &(f64, bool)| *value >= from * 0.999 && *value <= to * 1.001;
    (first..=last).flat_map(of_power).filter(inside).collect()
}

fn mark_below(value: f64) -> f64 {
    let all = marks(value / 20.0, value);
    all.last().map_or(value, |(mark, _)| *mark)
}

fn mark_above(value: f64) -> f64 {
    marks(value, value * 20.0).first().map_or(value, |(mark, _)| *mark)
}

fn stroke(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

fn text(
    svg: &mut String,
    (x, y): (f64, f64),
    (size, colour, anchor, weight): (f64, &str, &str, &str),
    words: &str,
    more: &str,
) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{colour}\" \
         text-anchor=\"{anchor}\" font-weight=\"{weight}\"{more}>{words}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_logarithmic() {
        let axis = Axis { from: 1.0, to: 100.0, start: 0.0, end: 200.0 };
        assert_eq!((axis.at(1.0), axis.at(10.0), axis.at(100.0)), (0.0, 100.0, 200.0));
    }

    #[test]
    fn marks_are_1_2_5_and_enclose_the_values() {
        let values: Vec<f64> = marks(0.1, 2.0).iter().map(|(v, _)| *v).collect();
        assert_eq!(values.len(), 5);
        assert!((mark_below(0.13) - 0.1).abs() < 1e-12);
        assert_eq!((mark_above(1300.0), mark_above(5.0)), (2000.0, 5.0));
    }

    #[test]
    fn without_points_there_is_no_figure() {
        let chart = Chart {
            title: "a < b".into(),
            subtitle: String::new(),
            across: "",
            across_marks: (|v| v.to_string(), 4.0),
            upwards: "",
            write: |v| v.to_string(),
            curves: Vec::new(),
        };
        assert!(chart.draw().is_none());
        let spread = Spread { low: 1.0, median: 1.0, high: 1.0 };
        let curve =
            Curve { name: "c".into(), colour: "#000000", dash: "", points: vec![(1.0, spread)] };
        let svg = Chart { curves: vec![curve], ..chart }.draw().unwrap();
        assert!(svg.contains("a &lt; b") && svg.contains("</svg>") && !svg.contains("NaN"));
    }
}
