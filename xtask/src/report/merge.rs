//! From the ranks' documents to the job's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::format::{Counters, ReportedJob, ReportedRank, Set, VERSION};
use crate::cluster::ClusterOptions;
use crate::error::{Context, Result, fail};

/// Reads every `rank-<N>.json` of the folder, in order of rank.
pub fn read_ranks(folder: &Path) -> Result<Vec<ReportedRank>> {
    let mut ranks: Vec<ReportedRank> = Vec::new();
    let entries = fs::read_dir(folder).context(|| format!("reading {}", folder.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !(name.starts_with("rank-") && name.ends_with(".json")) {
            continue;
        }
        let text = fs::read_to_string(entry.path()).context(|| format!("reading {name}"))?;
        let rank: ReportedRank = serde_json::from_str(&text)
            .context(|| format!("understanding {name}, written by the component"))?;
        if rank.version != VERSION {
            fail!("{name} has version {}, not {VERSION}: build both again", rank.version);
        }
        ranks.push(rank);
    }
    ranks.sort_by_key(|r| r.rank);
    Ok(ranks)
}

fn add(sum: &mut Counters, part: &Counters) {
    for (name, value) in part {
        *sum.entry(name.clone()).or_default() += value;
    }
}

fn sets(ranks: &[ReportedRank]) -> Vec<Set> {
    let mut members: BTreeMap<u32, Vec<&ReportedRank>> = BTreeMap::new();
    for rank in ranks {
        members.entry(rank.set).or_default().push(rank);
    }
    members.into_iter().map(|(set, ranks)| sum_of_set(set, &ranks)).collect()
}

fn sum_of_set(set: u32, ranks: &[&ReportedRank]) -> Set {
    let mut counters = Counters::new();
    ranks.iter().for_each(|rank| add(&mut counters, &rank.counters));
    let nodes: BTreeSet<&str> = ranks.iter().map(|r| r.node.as_str()).collect();
    let node = nodes.into_iter().collect::<Vec<_>>().join(",");
    Set { set, node, ranks: ranks.iter().map(|r| r.rank).collect(), counters }
}

/// The document about a job.
pub fn job(
    options: &ClusterOptions,
    ranks: Vec<ReportedRank>,
    exit: i32,
    seconds: f64,
) -> ReportedJob {
    let mut total = Counters::new();
    ranks.iter().for_each(|rank| add(&mut total, &rank.counters));
    let word = |w: &std::ffi::OsString| w.to_string_lossy().into_owned();
    ReportedJob {
        version: VERSION,
        nodes: options.nodes,
        ppn: options.ppn,
        policy: ranks.first().map_or_else(|| "none".into(), |r| r.policy.clone()),
        command: options.command.iter().map(word).collect(),
        exit,
        seconds,
        sets: sets(&ranks),
        ranks,
        total,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, set: u32, log: u64) -> ReportedRank {
        let text = format!(
            r#"{{"version":1,"rank":{rank},"size":4,"node":"n{set}","set":{set},
                "policy":"node","transport":{{"0":"shm"}},"counters":{{"log_bytes":{log}}},
                "peers":[]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn counters_are_summed_by_set_and_in_total() {
        let ranks = vec![rank(0, 0, 1), rank(1, 0, 2), rank(2, 1, 4), rank(3, 1, 8)];
        let sets = sets(&ranks);
        assert_eq!(sets.len(), 2);
        assert_eq!((sets[0].ranks.as_slice(), sets[0].counters["log_bytes"]), (&[0, 1][..], 3));
        assert_eq!((sets[1].node.as_str(), sets[1].counters["log_bytes"]), ("n1", 12));
    }

    #[test]
    fn a_set_over_several_nodes_names_them_all() {
        let (a, mut b) = (rank(0, 0, 1), rank(1, 0, 1));
        b.node = "n1".into();
        assert_eq!(sum_of_set(0, &[&a, &b]).node, "n0,n1");
    }
}
