//! NUMA: which nodes there are, how far apart, and who runs where.

use std::ops::RangeInclusive;
use std::path::Path;

/// Nodes that are looked at; the kernel has no more.
pub(crate) const MAX_NODES: u32 = 1024;

/// How far a node is from itself, in the firmware's measure.
const LOCAL_DISTANCE: u32 = 10;
/// How far another one is where the firmware does not say.
const REMOTE_DISTANCE: u32 = 20;

/// Where a process stands in its `stat`, of the fields behind its name: the processor that it ran on
/// last.
const STAT_PROCESSOR: usize = 36;

/// The nodes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    number: u32,
    processors: Vec<RangeInclusive<u32>>,
    /// To each node, in the order of nodes.
    distances: Vec<u32>,
}

impl Nodes {
    /// Those of this machine; none where it does not say.
    pub fn read() -> Nodes {
        Nodes::read_at(Path::new("/"))
    }

    fn read_at(root: &Path) -> Nodes {
        let folder = root.join("sys/devices/system/node");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let online = ranges(&read("online")).unwrap_or_default();
        let numbers = online.into_iter().flatten().take(MAX_NODES as usize);
        let node = |number| {
            let distances = read(&format!("node{number}/distance"));
            let distances = distances.split_whitespace().map(str::parse);
            Node {
                number,
                processors: ranges(&read(&format!("node{number}/cpulist"))).unwrap_or_default(),
                distances: distances.collect::<Result<_, _>>().unwrap_or_default(),
            }
        };
        Nodes {
            nodes: numbers.map(node).collect(),
        }
    }

    /// How many there are; 1 where the machine does not say.
    pub fn count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Whether `node` is one of them; node 0 is, where the machine says nothing.
    pub(crate) fn has(&self, node: u32) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|one| one.number == node) || (self.nodes.is_empty() && node == 0)
    }

    /// How far `to` is from `from`, as the firmware tells it: 10 is a node from itself.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        if from == to {
            return LOCAL_DISTANCE;
        }
        let at = |number| self.nodes.iter().position(|node| node.number == number);
        let known = at(from).zip(at(to));
        let known = known.and_then(|(from, to)| self.nodes[from].distances.get(to));
        known.copied().unwrap_or(REMOTE_DISTANCE)
    }

    /// The processors of a node; none where the machine does not say.
    pub(crate) fn processors_of(&self, node: u32) -> &[RangeInclusive<u32>] {
        let found = self.nodes.iter().find(|known| known.number == node);
        found.map_or(&[], |known| &known.processors)
    }

    /// The node of the processor that a process runs on, or ran on last; `None` where there is no
    /// such process, or the machine does not say.
    pub fn of_process(&self, pid: u32) -> Option<u32> {
        self.of_process_at(Path::new("/"), pid)
    }

    fn of_process_at(&self, root: &Path, pid: u32) -> Option<u32> {
        let stat = std::fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
        // The name is in brackets and may have brackets and spaces in it.
        let (_, fields) = stat.rsplit_once(')')?;
        let processor: u32 = fields
            .split_whitespace()
            .nth(STAT_PROCESSOR)?
            .parse()
            .ok()?;
        let has_it = |node: &&Node| node.processors.iter().any(|run| run.contains(&processor));
        Some(self.nodes.iter().find(has_it)?.number)
    }
}

/// The runs of a list such as `0-1,4`; an empty one is of a node with memory alone.
fn ranges(list: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let run = first.parse().ok()?..=last.parse().ok()?;
            (!run.is_empty()).then_some(run)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeRoot;

    fn two_nodes() -> FakeRoot {
        let root = FakeRoot::new("nodes");
        let folder = "sys/devices/system/node";
        root.write(&format!("{folder}/online"), "0,2\n");
        root.write(&format!("{folder}/node0/cpulist"), "0-1,6\n");
        root.write(&format!("{folder}/node0/distance"), "10 32\n");
        root.write(&format!("{folder}/node2/cpulist"), "2-5\n");
        root.write(&format!("{folder}/node2/distance"), "31 10\n");
        root
    }

    fn stat(root: &FakeRoot, pid: u32, processor: u32) {
        // 13 fields up to the times, then as many as it takes to the processor.
        let before = vec!["0"; STAT_PROCESSOR - 1].join(" ");
        let text = format!("{pid} (a) (b) c) S {before} {processor} 0 0 0\n");
        root.write(&format!("proc/{pid}/stat"), &text);
    }

    #[test]
    fn nodes_are_read_with_their_processors_and_distances() {
        let root = two_nodes();
        let nodes = Nodes::read_at(root.path());
        assert_eq!(nodes.count(), 2);
        assert_eq!([0, 1, 2].map(|node| nodes.has(node)), [true, false, true]);
        assert_eq!([nodes.distance(0, 2), nodes.distance(2, 0)], [32, 31]);
        assert_eq!([nodes.distance(7, 7), nodes.distance(0, 7)], [10, 20]);
        assert_eq!(nodes.processors_of(0), [0..=1, 6..=6]);
        assert_eq!(nodes.processors_of(7), []);
        for (pid, processor, node) in [(1, 0, Some(0)), (2, 6, Some(0)), (3, 4, Some(2))] {
            stat(&root, pid, processor);
            assert_eq!(nodes.of_process_at(root.path(), pid), node);
        }
        stat(&root, 4, 99);
        assert_eq!(nodes.of_process_at(root.path(), 4), None);
        assert_eq!(nodes.of_process_at(root.path(), 5), None);
    }

    #[test]
    fn this_machine_has_a_node_and_this_process_runs_on_one_of_them() {
        let nodes = Nodes::read();
        assert!(nodes.count() >= 1);
        if let Some(node) = nodes.of_process(std::process::id()) {
            assert!(nodes.nodes.iter().any(|one| one.number == node));
        }
        assert_eq!(Nodes::default().count(), 1);
        assert_eq!([0, 1].map(|node| Nodes::default().has(node)), [true, false]);
        assert_eq!(Nodes::default().of_process(std::process::id()), None);
    }

    #[test]
    fn lists_are_runs() {
        assert_eq!(ranges("0\n"), Some(vec![0..=0]));
        assert_eq!(ranges("0-1,4,6-7"), Some(vec![0..=1, 4..=4, 6..=7]));
        assert_eq!(ranges("\n"), Some(vec![]));
        for nonsense in ["a", "3-1", "1-", "0-4294967296"] {
            assert_eq!(ranges(nonsense), None, "{nonsense:?}");
        }
    }
}
