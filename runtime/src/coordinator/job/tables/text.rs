//! Lists in messages.

/// Ranks that are named; of further ones the number.
pub(crate) const NAMED_MAX: usize = 8;

/// The first of them, and how many more there are.
pub(crate) fn some_of(mut all: Vec<String>, between: &str) -> String {
    let more = all.len().saturating_sub(NAMED_MAX);
    all.truncate(NAMED_MAX);
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all.join(between)
}
