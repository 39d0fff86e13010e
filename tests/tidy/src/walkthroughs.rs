//! docs/walkthroughs.md tells stories by functions and files. Both have to exist.

use std::fs;
use std::path::Path;

/// Steps whose file is not there, or does not define the function. Rows are
/// `| # | who | what | function | file |`, the last two in backticks; files that are named in the
/// text count, too.
pub fn dead_steps(text: &str, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", _, _, _, function, file, ""] = cells[..]
            && let (Some(function), Some(file)) = (quoted(function), quoted(file))
        {
            let source = fs::read_to_string(root.join(file)).unwrap_or_default();
            if source.is_empty() {
                found.push(format!("line {number}: there is no {file}"));
            } else if !defines(&source, function) {
                found.push(format!("line {number}: {file} defines no {function}"));
            }
            continue;
        }
        let words = line.split('`').skip(1).step_by(2);
        let files = words.filter(|word| word.contains('/') && word.ends_with(".rs"));
        found.extend(
            files
                .filter(|file| !root.join(file).exists())
                .map(|file| format!("line {number}: there is no {file}")),
        );
    }
    found
}

/// How many steps there are.
pub fn steps(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("| ") && line.contains("` | `")).count()
}

fn quoted(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

/// Rust's `fn NAME`, or NAME at the begin of a line of C, behind its type.
fn defines(source: &str, name: &str) -> bool {
    let rust = [format!("fn {name}("), format!("fn {name}<")];
    let c = format!(" {name}(");
    source.lines().any(|line| {
        rust.iter().any(|text| line.contains(text.as_str()))
            || (!line.starts_with([' ', '/', '*', '#'])
                && line.contains(&c)
                && !line.ends_with(';'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_dead_steps_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "| # | who | what | function | file |\n|---|---|---|---|---|\n\
            | 1 | a | b | `dead_steps` | `src/walkthroughs.rs` |\n\
            | 2 | a | b | `no_such_function` | `src/walkthroughs.rs` |\n\
            | 3 | a | b | `steps` | `src/no_such_file.rs` |\n\
            See `src/lib.rs` and `src/nowhere.rs`.\n";
        let expected = [
            "line 4: src/walkthroughs.rs defines no no_such_function",
            "line 5: there is no src/no_such_file.rs",
            "line 6: there is no src/nowhere.rs",
        ];
        assert_eq!(dead_steps(text, root), expected);
        assert_eq!(steps(text), 3);
    }
}
