//! `hugepoolctl` against a real daemon: what it prints is what is so.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tests/support/mod.rs"]
mod daemon;

#[path = "support/tool.rs"]
mod tool;

use daemon::Daemon;
use serde_json::Value;
use tool::{json, number, run, text};

#[test]
fn the_daemon() {
    daemon::be_the_daemon_if_asked();
}

#[test]
fn status_and_lists_tell_the_same_story() {
    let daemon = Daemon::start("ctl-lists");
    let client = daemon.attach("shown");
    let page = client.alloc_page().unwrap();
    let status = json(&daemon, &["status"], 0);
    assert_eq!(
        (status["state"].as_str(), &status["adds_up"]),
        (Some("running"), &Value::Bool(true))
    );
    assert_eq!(number(&status["section_size_bytes"]), 8 << 20);

    let zones = json(&daemon, &["zone", "list"], 0);
    let names: Vec<_> = zones["zones"]
        .as_array()
        .unwrap()
        .iter()
        .map(|zone| &zone["name"])
        .collect();
    assert_eq!(names, ["normal", "movable"]);
    assert_eq!(number(&zones["zones"][0]["present_pages"]), 4096);

    let sections = json(&daemon, &["section", "list"], 0);
    assert_eq!(sections["sections"].as_array().unwrap().len(), 3);
    let of_one = json(&daemon, &["section", "list", "--zone", "movable"], 0);
    assert_eq!(of_one["sections"].as_array().unwrap().len(), 1);

    let clients = json(&daemon, &["client", "list"], 0);
    let shown = clients["clients"]
        .as_array()
        .unwrap()
        .iter()
        .find(|client| client["name"] == "shown");
    assert_eq!(
        number(&shown.unwrap()["pid"]),
        u64::from(std::process::id())
    );
    assert!(number(&shown.unwrap()["held_pages"]) >= 1);
    assert!(text(&daemon, &["client", "list"]).contains("shown"));
    assert!(text(&daemon, &["status"]).contains("= "));
    drop(page);
}

#[test]
fn a_section_comes_and_goes_and_the_books_hold() {
    let daemon = Daemon::start("ctl-sections");
    let free_before = number(&json(&daemon, &["status"], 0)["pages"]["free"]);

    let dry = json(
        &daemon,
        &["section", "add", "--zone", "movable", "--dry-run"],
        0,
    );
    assert_eq!(
        (&dry["dry_run"], &dry["results"][0]["ok"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
    assert_eq!(
        number(&json(&daemon, &["status"], 0)["pages"]["free"]),
        free_before
    );

    let added = json(&daemon, &["section", "add", "--zone", "movable"], 0);
    let result = &added["results"][0];
    assert_eq!(result["state"], "online");
    assert_eq!(number(&result["onlined"]["onlined_pages"]), 2048);
    let by_order = result["onlined"]["blocks_by_order"].as_array().unwrap();
    assert!(
        by_order[..9].iter().all(|count| number(count) == 0),
        "{by_order:?}"
    );
    assert_eq!(
        number(&json(&daemon, &["status"], 0)["pages"]["free"]),
        free_before + 2048
    );

    let id = result["section_id"].to_string();
    // Wrong state: refused, and nothing is done.
    let refused = run(&daemon, &["section", "remove", &id]);
    let line = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{line}");
    assert!(
        line.contains(&id) && line.contains("section list"),
        "{line}"
    );
    assert_eq!(
        json(&daemon, &["section", "offline", &id], 0)["results"][0]["state"],
        "offline"
    );
    assert_eq!(
        json(&daemon, &["section", "online", &id], 0)["results"][0]["state"],
        "online"
    );
    assert_eq!(
        json(&daemon, &["section", "offline", &id, "--timeout", "2s"], 0)["results"][0]["ok"],
        true
    );
    assert_eq!(
        json(&daemon, &["section", "remove", &id], 0)["results"][0]["ok"],
        true
    );
    assert_eq!(
        number(&json(&daemon, &["status"], 0)["pages"]["free"]),
        free_before
    );
    let operations = json(&daemon, &["operation", "list"], 0);
    assert!(!operations["operations"].as_array().unwrap().is_empty());
    assert_eq!(json(&daemon, &["verify"], 0)["ok"], true);
}

#[test]
fn the_proc_files_of_a_real_daemon_have_the_kernels_lines() {
    let daemon = Daemon::start("ctl-proc");
    let buddyinfo = text(&daemon, &["buddyinfo"]);
    let lines: Vec<&str> = buddyinfo.lines().collect();
    assert!(
        lines[0].starts_with("Node 0, zone   normal "),
        "{buddyinfo}"
    );
    // Eleven orders, each in seven columns.
    assert!(
        lines
            .iter()
            .all(|line| line.len() == "Node 0, zone   normal ".len() + 11 * 7),
        "{buddyinfo}"
    );
    let free: u64 = lines
        .iter()
        .flat_map(|line| line.split_whitespace().skip(4).enumerate())
        .map(|(order, count)| count.parse::<u64>().unwrap() << order)
        .sum();
    assert_eq!(
        free,
        number(&json(&daemon, &["status"], 0)["pages"]["free"])
    );

    let pagetypeinfo = text(&daemon, &["pagetypeinfo"]);
    assert!(
        pagetypeinfo.starts_with("Page block order: 9\nPages per block:  512\n\n"),
        "{pagetypeinfo}"
    );
    assert!(
        pagetypeinfo.contains("Node    0, zone   normal, type    Unmovable "),
        "{pagetypeinfo}"
    );
    let zoneinfo = text(&daemon, &["zoneinfo", "--zone", "normal"]);
    assert!(zoneinfo.contains("\n        managed  4096\n"), "{zoneinfo}");
}

#[test]
fn lanes_and_their_settings_answer_to_the_tool() {
    let daemon = Daemon::start("ctl-lanes");
    let client = daemon.attach("drained");
    let page = client.alloc_page().unwrap();
    let set = json(&daemon, &["pcp", "set", "--batch", "8", "--high", "32"], 0);
    assert_eq!(
        (number(&set["batch_pages"]), number(&set["high_pages"])),
        (8, 32)
    );
    let drained = json(&daemon, &["lane", "drain"], 0);
    assert_eq!(number(&drained["held_in_flight_pages"]), 0);
    assert_eq!(daemon.pages().lent, 1, "all but the page that is held");
    drop(page);
    assert!(
        text(
            &daemon,
            &["pcp", "set", "--batch", "auto", "--high", "auto"]
        )
        .starts_with("batch auto")
    );
}

#[test]
fn a_limit_is_set_and_taken_away() {
    let daemon = Daemon::start("ctl-limit");
    let client = daemon.attach("limited");
    let set = json(&daemon, &["client", "limit", "0"], 0);
    assert_eq!(set["ceiling_pages"], 0);
    json(&daemon, &["lane", "drain"], 0);
    let answer = client.alloc_page().map(|page| page.pfn());
    assert!(
        matches!(
            answer,
            Err(hugepool::Shortfall::Quota {
                ceiling_pages: 0,
                ..
            })
        ),
        "{answer:?}"
    );
    assert!(text(&daemon, &["client", "limit", "none"]).starts_with("no limit for "));
    assert!(client.alloc_page().is_ok());
}

#[test]
fn contiguity_is_shown_and_cleared() {
    let daemon = Daemon::start("ctl-contiguity");
    let zones = json(&daemon, &["contiguity", "show"], 0);
    assert_eq!(zones["zones"][0]["contiguous"], true);
    assert_eq!(
        json(&daemon, &["contiguity", "invalidate"], 0)["nr_zones"],
        2
    );
    let blocks = json(
        &daemon,
        &["contiguity", "show", "--pageblocks", "--zone", "normal"],
        0,
    );
    assert_eq!(blocks["pageblocks"].as_array().unwrap().len(), 8);
}

#[test]
fn an_evicted_client_is_told_so() {
    let daemon = Daemon::start("ctl-evict");
    let client = daemon.attach("evicted");
    let page = client.alloc_page().unwrap();
    let clients = json(&daemon, &["client", "list", "-o", "SLOT,NAME"], 0);
    let own = clients["clients"]
        .as_array()
        .unwrap()
        .iter()
        .find(|client| client["name"] == "evicted");
    let slot = own.unwrap()["slot"].to_string();
    let evicted = json(&daemon, &["client", "evict", &slot], 0);
    assert_eq!(number(&evicted["held_pages"]), 1);
    let answer = client.alloc_page().map(|page| page.pfn());
    assert_eq!(answer, Err(hugepool::Shortfall::Detached));
    assert_eq!(page.len(), 4096, "what it holds stays its own");
    assert_eq!(json(&daemon, &["verify"], 0)["ok"], true);
}

#[test]
fn unknown_things_end_with_1_and_bad_values_with_2() {
    let daemon = Daemon::start("ctl-unknown");
    for (args, code) in [
        (&["section", "list", "--zone", "dma"] as &[&str], 1),
        (&["section", "online", "999999"], 1),
        (&["operation", "watch", "999999"], 1),
        (&["client", "evict", "999"], 1),
        (
            &["section", "add", "--zone", "movable", "--online-order", "3"],
            2,
        ),
        (&["zone", "list", "-o", "COLOUR"], 2),
    ] {
        let output = run(&daemon, args);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{args:?}: {line}");
        assert!(
            line.starts_with("hugepoolctl: ") && line.contains("; "),
            "{args:?}: {line}"
        );
    }
}

#[test]
fn each_bench_measures_something_and_ends_with_a_verdict() {
    let zones = [
        "normal=320MiB,backing=shm,reserve=512MiB",
        "movable=8MiB,kind=movable,backing=shm",
    ];
    let daemon = Daemon::with_zones("ctl-bench", &zones);
    let mut names = vec!["bulk", "svc", "attach", "rpc", "reclaim", "offline"];
    // Half of it is measured by the daemon's own program, which a build of this package alone
    // does not make.
    let program =
        std::path::Path::new(env!("CARGO_BIN_EXE_hugepoolctl")).with_file_name("hugepoold");
    if program.is_file() {
        names.extend(["hotadd", "compact", "memory"]);
    } else {
        let why = "hugepoold was not built beside hugepoolctl";
        daemon::skipped("bench hotadd, compact, memory", why);
    }
    for name in &names {
        let printed = text(&daemon, &["bench", name, "--reps", "1", "-J"]);
        let lines: Vec<Value> = printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let cases: Vec<_> = lines.iter().map(|line| line["case"].as_str()).collect();
        assert_eq!(cases.first(), Some(&Some("environment")), "{printed}");
        assert_eq!(cases.last(), Some(&Some("verify")), "{printed}");
        assert_eq!(lines[lines.len() - 1]["ok"], Value::Bool(true), "{printed}");
        let measured = &lines[1..lines.len() - 1];
        assert!(!measured.is_empty(), "{printed}");
        for line in measured {
            assert_eq!(line["bench"], *name);
            let median = line["median"].as_f64();
            assert!(median.is_some_and(|median| median >= 0.0), "{line}");
        }
    }
}
