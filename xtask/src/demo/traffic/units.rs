//! Numbers for people.

/// Bytes with three digits and a unit of 1000.
pub fn bytes(count: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{count} B"),
        (_, v) if v < 9.995 => format!("{v:.2} {}", units[unit]),
        (_, v) if v < 99.95 => format!("{v:.1} {}", units[unit]),
        (_, v) => format!("{v:.0} {}", units[unit]),
    }
}

/// A count with thin groups of three digits.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole in percent; a whole of nothing has no parts.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "–".into() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_enough() {
        let texts = [0, 999, 1000, 12_345, 123_456, 999_999, 7_654_321].map(bytes);
        let wanted = ["0 B", "999 B", "1.00 kB", "12.3 kB", "123 kB", "1.00 MB", "7.65 MB"];
        assert_eq!(texts, wanted);
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!((percent(1, 4), percent(0, 0)), ("25.0 %".into(), "–".into()));
    }
}
