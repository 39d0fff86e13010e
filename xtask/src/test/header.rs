//! The first line of a program in tests/mpi: how it may be run (tests/mpi/README.md).

/// `/* ranks: 2,3,4 ; nodes: 1,2,3 ; args: a | b ; exit: 0 ; output: OK ; stock: passes */`
#[derive(Debug, PartialEq)]
pub struct Header {
    /// Numbers of ranks to try.
    pub ranks: Vec<u32>,
    /// Numbers of nodes to try.
    pub nodes: Vec<u32>,
    /// One run for each list of arguments.
    pub arguments: Vec<Vec<String>>,
    /// The exit code that means passed; `None`: any but 0.
    pub exit: Option<i32>,
    /// A regular expression that a whole line of the output must match.
    pub output: String,
    /// Environment of the ranks.
    pub environment: Vec<String>,
    /// Stock Open MPI is known not to pass.
    pub stock_fails: bool,
    /// Options of the cluster without which stock Open MPI does not pass.
    pub stock_options: Vec<String>,
    /// To be preloaded by other tests: no program.
    pub is_library: bool,
    /// Megabytes of memory without which the program cannot run.
    pub memory_mb: u64,
}

impl Header {
    /// Understands the first line of a source.
    pub fn read(source: &str) -> Header {
        let line = source.lines().next().unwrap_or_default();
        let comment = line.trim_start_matches("/*").trim_start_matches("//");
        let fields: Vec<(&str, &str)> = comment
            .trim_end()
            .trim_end_matches("*/")
            .split(';')
            .filter_map(|field| field.split_once(':'))
            .map(|(key, value)| (key.trim(), value.trim()))
            .collect();
        let get = |key: &str, default: &'static str| {
            fields.iter().find(|(k, _)| *k == key).map_or(default, |(_, value)| value).to_string()
        };
        let numbers =
            |text: String| text.split(',').filter_map(|n| n.trim().parse().ok()).collect();
        let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        Header {
            ranks: numbers(get("ranks", "2,3,4")),
            nodes: numbers(get("nodes", "1,2,3")),
            arguments: get("args", "").split('|').map(words).collect(),
            exit: if get("exit", "0") == "nonzero" { None } else { get("exit", "0").parse().ok() },
            output: get("output", "OK"),
            environment: words(&get("env", "")),
            stock_fails: get("stock", "passes").starts_with("fails"),
            stock_options: words(&get("stock args", "")),
            is_library: get("library", "no") == "yes",
            memory_mb: get("memory", "0").parse().unwrap_or(0),
        }
    }

    /// Pairs of nodes and ranks with at least one rank on each node.
    pub fn shapes(&self) -> Vec<(u32, u32)> {
        let with = |&nodes: &u32| {
            self.ranks.iter().filter(move |&&ranks| ranks >= nodes).map(move |&r| (nodes, r))
        };
        self.nodes.iter().flat_map(with).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_understood() {
        let header = Header::read(
            "/* ranks: 2,4 ; nodes: 1,3 ; args: 2 x | 4 ; exit: nonzero ; env: A=1 ; \
             stock: fails */",
        );
        assert_eq!(header.shapes(), [(1, 2), (1, 4), (3, 4)]);
        assert_eq!(header.arguments, [vec!["2".to_string(), "x".into()], vec!["4".into()]]);
        assert_eq!((header.exit, header.stock_fails), (None, true));
        assert_eq!((header.output.as_str(), header.environment.len()), ("OK", 1));
    }

    #[test]
    fn without_a_header_there_are_defaults() {
        let header = Header::read("#include <mpi.h>\n");
        assert_eq!(header.shapes().len(), 3 + 3 + 2);
        assert_eq!(header.arguments, [Vec::<String>::new()]);
        assert_eq!(header.exit, Some(0));
    }
}
