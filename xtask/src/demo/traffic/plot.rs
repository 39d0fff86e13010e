//! The few shapes of SVG that the figure is made of.

use std::fmt::Write;

/// A colour, red, green and blue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    /// Between this colour (`part` = 0) and another (`part` = 1).
    pub fn towards(self, other: Colour, part: f64) -> Colour {
        let part = part.clamp(0.0, 1.0);
        let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part) as u8;
        Colour(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }

    /// True if white letters can be read on it and black ones cannot.
    pub fn is_dark(self) -> bool {
        let light = |v: u8, weight: f64| f64::from(v) * weight;
        light(self.0, 0.299) + light(self.1, 0.587) + light(self.2, 0.114) < 140.0
    }

    fn text(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

/// Where a text is held.
#[derive(Clone, Copy)]
pub enum Anchor {
    /// At its left end.
    Start,
    /// In its middle.
    Middle,
    /// At its right end.
    End,
}

/// Style of a text.
#[derive(Clone, Copy)]
pub struct Letters {
    /// Height in pixels.
    pub size: f64,
    /// Colour.
    pub colour: Colour,
    /// Bold or not.
    pub bold: bool,
    /// Where it is held.
    pub anchor: Anchor,
}

/// A figure that is being drawn.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    /// An empty white figure.
    pub fn new(width: f64, height: f64) -> Svg {
        let mut svg = Svg { body: String::new(), width, height };
        svg.rectangle(0.0, 0.0, width, height, Colour(255, 255, 255));
        svg
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: Colour) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{}"/>"#,
            colour.text()
        );
    }

    /// The outline of a rectangle.
    pub fn frame(&mut self, x: f64, y: f64, width: f64, height: f64, line: f64, colour: Colour) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" {}/>"#,
            format_args!(r#"fill="none" stroke="{}" stroke-width="{line}""#, colour.text())
        );
    }

    /// A text; `y` is the line that it stands on.
    pub fn text(&mut self, x: f64, y: f64, letters: Letters, text: &str) {
        self.turned_text(x, y, letters, text, 0.0);
    }

    /// A text turned by some degrees.
    pub fn turned_text(&mut self, x: f64, y: f64, letters: Letters, text: &str, degrees: f64) {
        let anchor = match letters.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if letters.bold { "bold" } else { "normal" };
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" {} {}>{}</text>"#,
            format_args!(r#"font-size="{}" font-weight="{weight}""#, letters.size),
            format_args!(
                r#"fill="{}" text-anchor="{anchor}" transform="rotate({degrees} {x:.1} {y:.1})""#,
                letters.colour.text()
            ),
            escape(text)
        );
    }

    /// The whole document.
    pub fn finish(self) -> String {
        let (w, h) = (self.width, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
             viewBox=\"0 0 {w} {h}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n{}</svg>\n",
            self.body
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_mix() {
        let (white, black) = (Colour(255, 255, 255), Colour(0, 0, 0));
        assert_eq!(white.towards(black, 2.0), black);
        assert!(black.is_dark() && !white.is_dark());
    }

    #[test]
    fn letters_that_mean_something_to_xml_are_escaped() {
        assert_eq!(escape("a<b&c"), "a&lt;b&amp;c");
    }
}
