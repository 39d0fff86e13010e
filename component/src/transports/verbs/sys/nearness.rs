//! Which adapters are near: on a NUMA node with a processor that this process may run on. What a
//! farther one reads or writes goes over the link between sockets.

use std::fs;
use std::path::Path;

/// The same adapters, near ones first, otherwise in their order. One of which the kernel does not
/// say where it is counts as near. `adapters` and `nodes`: the kernel's folders of them.
pub(super) fn near_first(
    mut names: Vec<String>,
    adapters: &Path,
    nodes: &Path,
    may_run_on: impl Fn(usize) -> bool,
) -> Vec<String> {
    names.sort_by_cached_key(|name| {
        let node = node_of(&adapters.join(name));
        node.and_then(|node| processors_of(nodes, node))
            .is_some_and(|processors| !processors.into_iter().any(&may_run_on))
    });
    names
}

/// A machine with one node, or a virtual one, says -1.
fn node_of(adapter: &Path) -> Option<u32> {
    fs::read_to_string(adapter.join("device/numa_node")).ok()?.trim().parse().ok()
}

/// `None`: there is no such node, or it has memory only.
fn processors_of(nodes: &Path, node: u32) -> Option<Vec<usize>> {
    let list = fs::read_to_string(nodes.join(format!("node{node}/cpulist"))).ok()?;
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    let ranges = list.trim().split(',').filter_map(range);
    Some(ranges.flatten().collect()).filter(|all: &Vec<usize>| !all.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Two sockets: adapters of the first, of the second, of none that is known, and of one without
    /// processors.
    fn machine(test: &str) -> PathBuf {
        let name = format!("rustbtl-nearness-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("nodes/node0/cpulist", "0-1,4\n");
        write("nodes/node1/cpulist", "2,3,5-7\n");
        write("nodes/node2/cpulist", "\n");
        write("adapters/mlx5_0/device/numa_node", "0\n");
        write("adapters/mlx5_1/device/numa_node", "1\n");
        write("adapters/rxe0/device/numa_node", "-1\n");
        write("adapters/cxl/device/numa_node", "2\n");
        folder
    }

    fn ordered(folder: &Path, names: &[&str], processors: &[usize]) -> Vec<String> {
        let names = names.iter().copied().map(str::to_owned).collect();
        let (adapters, nodes) = (folder.join("adapters"), folder.join("nodes"));
        near_first(names, &adapters, &nodes, |processor| processors.contains(&processor))
    }

    #[test]
    fn near_adapters_come_first_and_the_others_stay() {
        let folder = machine("order");
        let two = ["mlx5_0", "mlx5_1"];
        assert_eq!(ordered(&folder, &two, &[0, 1]), two);
        assert_eq!(ordered(&folder, &two, &[6]), ["mlx5_1", "mlx5_0"]);
        assert_eq!(ordered(&folder, &two, &[4, 5]), two, "near both");
        assert_eq!(ordered(&folder, &two, &[]), two, "near none");
        let all = ["mlx5_0", "rxe0", "none", "cxl", "mlx5_1"];
        assert_eq!(ordered(&folder, &all, &[2]), ["rxe0", "none", "cxl", "mlx5_1", "mlx5_0"]);
        let _ = fs::remove_dir_all(folder);
    }

    #[test]
    fn where_the_kernel_says_nothing_the_order_is_the_librarys() {
        let nowhere = Path::new("/nowhere");
        let names = ["b", "a"].map(str::to_owned).to_vec();
        assert_eq!(near_first(names.clone(), nowhere, nowhere, |_| false), names);
    }
}
