//! Zones of NUMA nodes: memory bound to a node, pages by node, requests that fall back to another.
//!
//! A machine of one node has two of ours: node 0, and any. One of two nodes or more is used as such.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use hugepool::{Client, Options, Page};
use hugepool_proto::v1;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use support::Daemon;
use support::grpc::{self, verify, want};

fn is_bound_here() -> bool {
    // A kernel without policies has no such file, and refuses to bind.
    std::path::Path::new("/proc/self/numa_maps").exists()
}

/// The other node of this machine, or any.
fn other_node() -> i32 {
    i32::from(std::path::Path::new("/sys/devices/system/node/node1").exists()) - 1
}

async fn nodes(daemon: &Daemon) -> v1::GetStatusResponse {
    let mut admin = grpc::admin(daemon).await;
    let status = admin.get_status(v1::GetStatusRequest {}).await;
    status.unwrap().into_inner()
}

#[tokio::test]
async fn each_node_keeps_its_books_and_counts_who_came_from_another() {
    if !is_bound_here() {
        return support::skipped("numa", "this kernel has no memory policies");
    }
    // Any node, or node 1.
    let other = match other_node() {
        1 => "movable=8MiB,kind=movable,backing=shm,node=1",
        _ => "movable=8MiB,kind=movable,backing=shm",
    };
    let zones = ["--zone", "normal=8MiB,backing=shm,node=0", "--zone", other];
    let daemon = Daemon::start(&[&["--section-size", "4MiB"][..], &zones].concat());
    let status = nodes(&daemon).await;
    assert!(status.nr_machine_nodes >= 1);
    let numbers: Vec<i32> = status.nodes.iter().map(|node| node.node).collect();
    let mut expected = [0, if other_node() == 1 { 1 } else { -1 }];
    expected.sort_unstable();
    assert_eq!(numbers, expected);

    // More movable pages than one zone has: the rest comes from the other.
    let mut pages = grpc::pages(&daemon).await;
    let reply = pages.alloc_bulk(want(1, 3000, 0)).await.unwrap();
    let nr_lent = u64::from(reply.into_inner().nr_pages);
    assert!(nr_lent > 2048, "{nr_lent}");
    let status = nodes(&daemon).await;
    let sum = |of: fn(&v1::Node) -> u64| status.nodes.iter().map(of).sum::<u64>();
    assert_eq!(sum(|node| node.hit_pages + node.miss_pages), nr_lent);
    assert_eq!(sum(|node| node.miss_pages), sum(|node| node.foreign_pages));
    assert!(sum(|node| node.miss_pages) > 0 && sum(|node| node.hit_pages) > 0);
    let whole = status.pages.unwrap();
    let part = |of: fn(&v1::PageCounts) -> u64| {
        let parts = status.nodes.iter().filter_map(|node| node.pages.as_ref());
        (parts.map(of).sum::<u64>(), of(&whole))
    };
    for (parts, whole) in [
        part(|pages| pages.present),
        part(|pages| pages.managed),
        part(|pages| pages.free),
        part(|pages| pages.lent),
    ] {
        assert_eq!(parts, whole);
    }
    verify(&mut grpc::admin(&daemon).await).await;
}

/// How many pages of zones this process has mapped, by node.
fn mapped_by_node() -> BTreeMap<String, u64> {
    let mut by_node = BTreeMap::new();
    let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
    for line in maps
        .lines()
        .filter(|line| line.contains("/memfd:hugepool-zone"))
    {
        for word in line.split_whitespace() {
            if let Some((node, pages)) = word.split_once('=')
                && node
                    .strip_prefix('N')
                    .is_some_and(|nr| nr.parse::<u32>().is_ok())
            {
                *by_node.entry(node.to_owned()).or_default() += pages.parse::<u64>().unwrap();
            }
        }
    }
    by_node
}

/// The last node; of one there is no other that pages could lie on, and what is seen is that they can
/// be had at all by a daemon that is confined. Seen to fail without the policy among its system calls.
#[tokio::test]
async fn the_pages_of_a_zone_lie_on_its_node() {
    if !is_bound_here() {
        return support::skipped("numa", "this kernel has no memory policies");
    }
    let node = other_node().max(0);
    for (backing, page_bytes) in [("hugetlb", 2 << 20), ("shm", 4096)] {
        let free = format!(
            "/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages"
        );
        let nr_free = std::fs::read_to_string(free).map_or(0, |text| text.trim().parse().unwrap());
        if backing == "hugetlb" && nr_free < 16 {
            support::skipped("the_pages_of_a_zone_lie_on_its_node", "no huge pages");
            continue;
        }
        let zone = format!("normal=0,reserve=64MiB,backing={backing},node={node}");
        // Two threads fill it, and it comes after the daemon has been confined.
        let daemon = Daemon::start(&["--section-size", "32MiB", "--zone", &zone]);
        let mut admin = grpc::admin(&daemon).await;
        let add = v1::AddSectionsRequest {
            zone: "normal".into(),
            count: 1,
            ..Default::default()
        };
        let added = admin.add_sections(add).await.unwrap().into_inner();
        assert!(added.results[0].ok, "{:?}", added.results);
        let client = Client::attach(Options::default().runtime_dir(daemon.path())).unwrap();
        let mut pages: Vec<Page> = Vec::new();
        while client.alloc_pages_bulk_list(1024, &mut pages).populated > 0 {}
        for page in &mut pages {
            page[0] = 1;
        }
        let nr_mapped = pages.iter().map(|page| page.pfn() * 4096 / page_bytes);
        let nr_mapped = u64::try_from(nr_mapped.collect::<BTreeSet<_>>().len()).unwrap();
        assert!(nr_mapped > 0);
        let expected = BTreeMap::from([(format!("N{node}"), nr_mapped)]);
        assert_eq!(mapped_by_node(), expected, "{backing}");
    }
}

/// Does `work` where nobody may choose where memory comes from, as in a container that is not let; so
/// do the processes that it starts.
fn without_policies(work: impl FnOnce() + Send) {
    let calls = [libc::SYS_set_mempolicy, libc::SYS_get_mempolicy];
    let filter = SeccompFilter::new(
        calls.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let filter: BpfProgram = filter.unwrap().try_into().unwrap();
    std::thread::scope(|scope| {
        let confined = scope.spawn(|| {
            seccompiler::apply_filter(&filter).unwrap();
            work();
        });
        confined.join().unwrap();
    });
}

/// Seen to fail with a refusal taken for an error, and with nothing said.
#[test]
fn where_nobody_may_choose_the_zone_has_memory_all_the_same_and_it_is_said() {
    without_policies(|| {
        let zone = ["--zone", "normal=8MiB,backing=shm,node=0"];
        let mut daemon = Daemon::start(&[&["--section-size", "4MiB"][..], &zone].concat());
        let client = Client::attach(Options::default().runtime_dir(daemon.path())).unwrap();
        client.alloc_page().unwrap()[0] = 1;
        drop(client);
        daemon.signal(nix::sys::signal::Signal::SIGTERM);
        let (status, said) = daemon.wait();
        assert!(status.success());
        assert!(said.contains("no memory policies for us"), "{said}");
    });
}

#[test]
fn a_node_that_is_not_here_is_refused_at_the_start() {
    for backing in ["shm", "hugetlb"] {
        let zone = format!("normal=0,reserve=8MiB,backing={backing},node=1023");
        let mut daemon = Daemon::spawn(&["--section-size", "4MiB", "--zone", &zone]);
        let (status, said) = daemon.wait();
        assert!(!status.success());
        assert!(said.contains("node"), "{said}");
    }
}
