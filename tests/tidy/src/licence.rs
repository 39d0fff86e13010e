//! May a BSD-3-Clause program contain a crate? Reads the SPDX expressions of `Cargo.toml`:
//! `AND`, `OR` (and its old form `/`), `WITH`, parentheses.

use crate::layers::is_ours;
use serde_json::Value;

/// Licences that may be in. Keep in step with deny.toml.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages whose licence does not allow it.
pub fn wrong_licences(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut found = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or_default();
        let right = if is_ours(package) {
            licence == "BSD-3-Clause"
        } else {
            is_allowed(licence) == Some(true)
        };
        if !right {
            let name = package["name"].as_str().unwrap_or_default();
            found.push(format!("{name}: \"{licence}\""));
        }
    }
    found
}

/// Does the expression leave a choice that is allowed? `None`: it is not an expression.
pub fn is_allowed(expression: &str) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let allowed = any_of(&words, &mut at)?;
    (at == words.len()).then_some(allowed)
}

fn any_of(words: &[&str], at: &mut usize) -> Option<bool> {
    let mut allowed = all_of(words, at)?;
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        allowed |= all_of(words, at)?;
    }
    Some(allowed)
}

fn all_of(words: &[&str], at: &mut usize) -> Option<bool> {
    let mut allowed = one(words, at)?;
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        allowed &= one(words, at)?;
    }
    Some(allowed)
}

fn one(words: &[&str], at: &mut usize) -> Option<bool> {
    let word = *words.get(*at)?;
    *at += 1;
    match word {
        "(" => {
            let allowed = any_of(words, at)?;
            let closes = words.get(*at) == Some(&")");
            *at += 1;
            closes.then_some(allowed)
        }
        ")" | "AND" | "OR" | "WITH" => None,
        name if words.get(*at) == Some(&"WITH") => {
            let exception = words.get(*at + 1)?;
            *at += 2;
            Some(ALLOWED.contains(&format!("{name} WITH {exception}").as_str()))
        }
        name => Some(ALLOWED.contains(&name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_understood() {
        let table = [
            ("MIT", Some(true)),
            ("GPL-3.0-only", Some(false)),
            ("MIT OR GPL-3.0-only", Some(true)),
            ("MIT AND GPL-3.0-only", Some(false)),
            ("MIT/Apache-2.0", Some(true)),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true)),
            ("(MIT OR Apache-2.0) AND LGPL-2.1-or-later", Some(false)),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", Some(true)),
            ("GPL-2.0-only WITH LLVM-exception", Some(false)),
            ("MIT OR Apache-2.0 OR LGPL-2.1-or-later", Some(true)),
            ("GPL-3.0-only AND MIT OR MIT", Some(true)),
            ("", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT Apache-2.0", None),
        ];
        for (expression, expected) in table {
            assert_eq!(is_allowed(expression), expected, "{expression}");
        }
    }

    #[test]
    fn a_crate_without_a_fitting_licence_is_found() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "good", "source": "registry", "license": "MIT" },
            { "name": "bad", "source": "registry", "license": "GPL-3.0-only" },
            { "name": "none", "source": "registry", "license": null },
            { "name": "ours", "source": null, "license": "MIT" },
        ] });
        let expected = ["bad: \"GPL-3.0-only\"", "none: \"\"", "ours: \"MIT\""];
        assert_eq!(wrong_licences(&metadata), expected);
    }
}
