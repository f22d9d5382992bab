//! Zones of NUMA nodes: memory bound to a node, pages by node, requests that fall back to another.
//!
//! A machine of one node has two of ours: node 0, and any. One of two nodes or more is used as such.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use hugepool_proto::v1;
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

#[test]
fn a_node_that_is_not_here_is_refused_at_the_start() {
    let zones = ["--zone", "normal=8MiB,backing=shm,node=1023"];
    let mut daemon = Daemon::spawn(&[&["--section-size", "4MiB"][..], &zones].concat());
    let (status, said) = daemon.wait();
    assert!(!status.success());
    assert!(said.contains("node"), "{said}");
}
