//! `tests/LEDGER.md` says for each promise which test proves it. A reference is
//! `test: PATH` or `test: PATH::name`, several separated by commas, up to the end of the cell:
//! PATH is a file or folder from the top of the repository, `name` is a word in that file.

use std::path::Path;

/// References of a ledger, with the line each is in.
pub fn references(ledger: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in ledger.lines().enumerate().filter(|(_, text)| text.starts_with('|')) {
        for cell in text.split('|') {
            let Some((_, list)) = cell.split_once("test:") else { continue };
            let items = list.replace("test:", ",");
            let items = items.split([',', ';']).map(|item| item.trim().trim_matches('`'));
            found.extend(items.filter(|item| !item.is_empty()).map(|item| (line + 1, item.into())));
        }
    }
    found
}

/// References to what does not exist.
pub fn dead_references(ledger: &str, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (line, reference) in references(ledger) {
        let (path, name) = match reference.split_once("::") {
            Some((path, name)) => (path, Some(name)),
            None => (reference.as_str(), None),
        };
        let file = root.join(path);
        if !file.exists() {
            found.push(format!("line {line}: there is no {path}"));
        } else if let Some(name) = name {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let word = |c: char| !(c.is_alphanumeric() || c == '_');
            let last = name.rsplit("::").next().unwrap_or(name);
            if !text.split(word).any(|found| found == last) {
                found.push(format!("line {line}: there is no {last} in {path}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_from_cells() {
        let ledger = "`test:` names the file.\n\n\
            | promise | kind | where |\n|---|---|---|\n\
            | one | unit | test: a/b.rs |\n| two | sim | test: `c.rs::d`, e.rs; see above? |\n";
        let expected =
            [(5, "a/b.rs"), (6, "c.rs::d"), (6, "e.rs"), (6, "see above?")].map(own).to_vec();
        assert_eq!(references(ledger), expected);
    }

    fn own((line, text): (usize, &str)) -> (usize, String) {
        (line, text.to_owned())
    }

    #[test]
    fn dead_references_are_found() {
        let ledger = "| a | unit | test: src/licence.rs::is_allowed |\n\
            | b | unit | test: src/licence.rs::no_such_name |\n\
            | c | unit | test: src/no_such_file.rs |\n";
        let found = dead_references(ledger, Path::new(env!("CARGO_MANIFEST_DIR")));
        let expected = [
            "line 2: there is no no_such_name in src/licence.rs",
            "line 3: there is no src/no_such_file.rs",
        ];
        assert_eq!(found, expected);
    }
}
