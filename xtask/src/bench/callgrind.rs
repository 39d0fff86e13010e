//! Instructions per message under callgrind: a figure that noise does not move.

use std::collections::BTreeMap;
use std::fs;

use super::experiments::Side;
use super::launch::Bench;
use super::measured::Value;
use crate::error::{Context, Result, fail};
use crate::paths;

/// Messages of the two runs whose difference counts.
const MESSAGES: [u32; 2] = [64, 320];
const BYTES: u64 = 8;
/// What each rank is counted for.
const PARTS: [(usize, &str); 2] = [(0, "send"), (1, "receive")];

/// Instructions by function: `object:function`.
type Counts = BTreeMap<String, f64>;

/// `send` and `receive`: instructions of a message; `send/OBJECT:FUNCTION`: the part of these that
/// are the function's own.
pub fn measure(bench: &Bench, side: &Side) -> Result<Vec<Value>> {
    if paths::find_program("valgrind").is_none() {
        fail!("valgrind is not installed (apt-get install valgrind)");
    }
    let few = count(bench, side, MESSAGES[0])?;
    let many = count(bench, side, MESSAGES[1])?;
    let messages = f64::from(MESSAGES[1] - MESSAGES[0]);
    let mut values = Vec::new();
    for (rank, part) in PARTS {
        let functions = per_message(&few[rank], &many[rank], messages);
        let value = |metric: String, value| Value { metric, size: BYTES, value };
        values.push(value(part.into(), functions.values().sum()));
        let own = functions.into_iter().filter(|(_, n)| *n >= 0.5);
        values.extend(own.map(|(name, n)| value(format!("{part}/{name}"), n)));
    }
    Ok(values)
}

fn per_message(few: &Counts, many: &Counts, messages: f64) -> Counts {
    let before = |name: &String| few.get(name).copied().unwrap_or(0.0);
    many.iter().map(|(name, n)| (name.clone(), (n - before(name)) / messages)).collect()
}

/// One run; the counts of both ranks.
fn count(bench: &Bench, side: &Side, messages: u32) -> Result<Vec<Counts>> {
    let folder = bench.scratch.join("callgrind");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    let out = format!("--callgrind-out-file={}/%q{{OMPI_COMM_WORLD_RANK}}", folder.display());
    let words = [
        "valgrind".into(),
        "--quiet".into(),
        "--tool=callgrind".into(),
        "--toggle-collect=measured_*".into(),
        out,
        bench.program("count").display().to_string(),
        messages.to_string(),
        BYTES.to_string(),
        "/dev/shm/rustbtl-count".into(),
    ];
    bench.job((1, 2), side, &words, &folder, &[])?;
    PARTS
        .iter()
        .map(|(rank, _)| {
            let file = folder.join(rank.to_string());
            let text = fs::read_to_string(&file).context(|| file.display().to_string())?;
            Ok(understand(&text))
        })
        .collect()
}

/// Own instructions of each function, from callgrind's output (format: its manual, "Callgrind
/// Format Specification"): `ob=` and `fn=` say whose the cost lines are that follow; the line after
/// `calls=` is the cost of what was called, which is counted there already.
fn understand(text: &str) -> Counts {
    let mut names = BTreeMap::new();
    let mut counts = Counts::new();
    let (mut object, mut function) = (String::new(), String::new());
    let mut of_call = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            let path = full_name(&mut names, 'o', name);
            object = path.rsplit('/').next().unwrap_or("").to_string();
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = full_name(&mut names, 'f', name);
        } else if let Some((key, name)) = line.split_once('=').filter(|(k, _)| k.starts_with('c')) {
            match key {
                "cob" => drop(full_name(&mut names, 'o', name)),
                "cfn" => drop(full_name(&mut names, 'f', name)),
                "calls" => of_call = true,
                _ => (),
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost = line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
            if !std::mem::take(&mut of_call) {
                *counts.entry(format!("{object}:{function}")).or_default() += cost.unwrap_or(0.0);
            }
        }
    }
    counts
}

/// Names are written out once, as `(7) name`; later they are `(7)`.
fn full_name(names: &mut BTreeMap<(char, String), String>, kind: char, text: &str) -> String {
    let Some((id, name)) = text.split_once(')') else { return text.to_string() };
    let key = (kind, id.to_string());
    match name.trim() {
        "" => names.get(&key).cloned().unwrap_or_default(),
        name => {
            names.insert(key, name.to_string());
            name.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version: 1\nevents: Ir\nob=(1) /lib/libmpi.so.40\nfl=(1) a.c\n\
        fn=(1) MPI_Send\n10 5\n+2 3\ncob=(2) /x/ours.so\ncfn=(2) push\ncalls=4 0\n12 100\n* 2\n\n\
        ob=(2)\nfn=(2)\n0 40\n\nfn=(1)\n3 1\ntotals: 51\n";

    #[test]
    fn own_cost_is_counted_once_and_names_are_remembered() {
        let counts = understand(TEXT);
        assert_eq!(counts["libmpi.so.40:MPI_Send"], 10.0);
        assert_eq!(counts["ours.so:push"], 40.0);
        assert_eq!(counts["ours.so:MPI_Send"], 1.0);
        assert_eq!(counts.values().sum::<f64>(), 51.0);
    }

    #[test]
    fn what_is_done_once_goes_out_of_the_difference() {
        let few = Counts::from([("bind".into(), 900.0), ("push".into(), 640.0)]);
        let many = Counts::from([("bind".into(), 900.0), ("push".into(), 3200.0)]);
        let each = per_message(&few, &many, 256.0);
        assert_eq!((each["bind"], each["push"]), (0.0, 10.0));
    }
}
