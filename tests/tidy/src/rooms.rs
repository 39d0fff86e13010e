//! The order of rooms inside the two large folders: a file imports only from rooms below its own,
//! or of its own. Tests may import what they like.

use crate::sources;
use std::fs;
use std::path::Path;

/// A folder whose rooms have an order.
pub struct House {
    /// From the top of the repository.
    pub folder: &'static str,
    /// How its files name it: `crate::…`.
    pub path: &'static str,
    /// Rooms (folders or files, from `folder`), lowest floor first; those of one floor may import
    /// each other.
    pub floors: &'static [&'static [&'static str]],
}

/// Both of them.
pub const HOUSES: [House; 2] = [
    House {
        folder: "component/src",
        path: "crate",
        floors: &[
            &["os", "transports"],
            &["sync"],
            &["ffi"],
            &["payload_log", "peers", "determinants", "files"],
            &["engine", "btl"],
            &["progress", "mpi"],
            &["checkpoint"],
            &["lifecycle"],
            &["exports"],
        ],
    },
    House {
        folder: "runtime/src/coordinator",
        path: "crate::coordinator",
        floors: &[
            &["job::tables", "job::config"],
            &["job::state"],
            &["determinants"],
            &["job::rules"],
            &["driver"],
        ],
    },
];

impl House {
    fn floor_of(&self, module: &str) -> Option<usize> {
        let is_in = |room: &&str| module == *room || module.starts_with(&format!("{room}::"));
        self.floors.iter().position(|floor| floor.iter().any(is_in))
    }

    /// Imports of a file that point upwards: line, what is imported.
    pub fn upward_imports(&self, module: &str, text: &str) -> Vec<(usize, String)> {
        let Some(own) = self.floor_of(module) else { return Vec::new() };
        let start = format!("{}::", self.path);
        let mut found = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            if line.starts_with("mod tests") {
                break;
            }
            let code = line.split("//").next().unwrap_or_default();
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let whole = |&(at, _): &(usize, &str)| !code[..at].ends_with(is_word);
            for (at, _) in code.match_indices(&start).filter(whole) {
                let rest = &code[at + start.len()..];
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
                let target = rest[..end.unwrap_or(rest.len())].trim_end_matches(':');
                if self.floor_of(target).is_some_and(|floor| floor > own) {
                    found.push((number, target.to_owned()));
                }
            }
        }
        found
    }

    /// The same for all its files; and files that are in no room.
    pub fn wrong_imports(&self, root: &Path) -> Vec<String> {
        let folder = root.join(self.folder);
        let mut found = Vec::new();
        for path in sources::files(&folder, &["rs"]) {
            let below = path.strip_prefix(&folder).unwrap_or(&path).with_extension("");
            let words: Vec<_> =
                below.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            let shown = format!("{}/{}", self.folder, words.join("/"));
            let is_test = words.iter().any(|word| word == "tests" || word == "test_world");
            let is_door = matches!(words.last().map(String::as_str), Some("mod" | "lib"));
            if is_test || is_door && words.len() <= 2 {
                continue;
            }
            let module = words.join("::");
            let module = module.strip_suffix("::mod").unwrap_or(&module);
            if self.floor_of(module).is_none() {
                found.push(format!("{shown}: in no room of tests/tidy/src/rooms.rs"));
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            for (line, target) in self.upward_imports(module, &text) {
                found.push(format!("{shown}:{line}: imports {target} from above"));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_upward_import_is_found() {
        let [component, coordinator] = &HOUSES;
        let planted = [
            (component, "sync::lock", "use crate::engine::driver::Process;"),
            (component, "engine::host", "    crate::checkpoint::thread::wake();"),
            (component, "transports::tcp", "use crate::ffi::table::{Glue, DONE};"),
            (component, "lifecycle::start", "use crate::exports::rustbtl_send;"),
            (coordinator, "job::tables::text", "use crate::coordinator::job::state::Job;"),
            (coordinator, "determinants", "use crate::coordinator::job::rules::rollback::X;"),
            (coordinator, "job::rules::status", "crate::coordinator::driver::clock::unix_ms()"),
        ];
        for (house, module, line) in planted {
            assert_eq!(house.upward_imports(module, line).len(), 1, "{module}: {line}");
        }
    }

    #[test]
    fn downward_imports_comments_and_tests_are_fine() {
        let component = &HOUSES[0];
        let fine = [
            "use crate::sync::lock::Lock;",
            "use crate::engine::host::EngineHost;",
            "// crate::checkpoint::thread knows better",
            "mod tests {\n    use crate::exports::rustbtl_send;",
            "use other_crate::checkpoint::X;",
        ];
        for text in fine {
            assert_eq!(component.upward_imports("engine::driver", text), [], "{text}");
        }
    }
}
