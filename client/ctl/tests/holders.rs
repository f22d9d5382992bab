//! What stands in the way of a section that is to go: who holds it, what and since when, and how far
//! the rest of the request got.
//!
//! Seen to fail: a holder's pages all told as of order 0, and an exit status that knows no half.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tests/support/mod.rs"]
mod daemon;
#[path = "support/tool.rs"]
mod tool;

use std::time::Instant;

use daemon::Daemon;
use hugepool::Order;
use serde_json::Value;
use tool::{json, number, run, text};

#[test]
fn the_daemon() {
    daemon::be_the_daemon_if_asked();
}

/// Four sections of 8 MiB of one zone.
const ZONE: &[&str] = &["normal=32MiB,backing=shm,reserve=256MiB"];
const SECTION_PAGES: u32 = 2048;

#[test]
fn an_offline_that_a_holder_prevents_names_it_and_ends_with_1() {
    let daemon = Daemon::with_zones("ctl-holder", &["normal=8MiB,backing=shm,reserve=256MiB"]);
    let client = daemon.attach("holder");
    let page = client.alloc_page().unwrap();
    let section = (page.pfn() / 2048).to_string();
    let refused = json(
        &daemon,
        &["section", "offline", &section, "--timeout", "200ms"],
        1,
    );
    let result = &refused["results"][0];
    assert_eq!(
        (&result["ok"], result["state"].as_str()),
        (&Value::Bool(false), Some("online"))
    );
    let holder = &result["holders"][0];
    assert_eq!(holder["name"], "holder");
    assert_eq!(number(&holder["pid"]), u64::from(std::process::id()));
    assert_eq!(number(&holder["held_pages"]), 1);
    drop(page);
    assert_eq!(json(&daemon, &["verify"], 0)["ok"], true);
}

#[test]
fn some_sections_go_and_the_others_name_what_is_held_in_them() {
    let mut daemon = Daemon::with_zones("ctl-partial", ZONE);
    let client = daemon.attach("holder");
    let begun = Instant::now();
    // Of order 0 and 3, never to be moved, next to one another.
    let one = client.alloc_page().unwrap();
    let eight = client.alloc_pages(Order::new(3).unwrap()).unwrap();
    let held_in = [&one, &eight].map(|page| page.pfn() / SECTION_PAGES);
    assert_eq!(
        held_in[0], held_in[1],
        "both in the section that is used first"
    );
    let managed = daemon.pages().managed;

    let all: Vec<String> = (0..4).map(|id| id.to_string()).collect();
    let ids: Vec<&str> = all.iter().map(String::as_str).collect();
    let wanted = [&["section", "offline"], &ids[..], &["--timeout", "300ms"]].concat();
    let answer = json(&daemon, &wanted, 64);
    let results = answer["results"].as_array().unwrap();
    let told: Vec<u64> = results
        .iter()
        .map(|one| number(&one["section_id"]))
        .collect();
    assert_eq!(told, [0, 1, 2, 3], "each is told of");
    for result in results {
        let is_held = number(&result["section_id"]) == u64::from(held_in[0]);
        let state = if is_held { "online" } else { "offline" };
        assert_eq!(result["ok"], !is_held, "{result}");
        assert_eq!(result["state"], state, "{result}");
        let holders = result["holders"].as_array().unwrap();
        assert_eq!(holders.len(), usize::from(is_held), "{result}");
        let [holder] = holders.as_slice() else {
            continue;
        };
        assert_eq!(holder["name"], "holder");
        assert_eq!(number(&holder["pid"]), u64::from(std::process::id()));
        assert_eq!(number(&holder["held_pages"]), 9);
        let by_order: Vec<u64> = holder["blocks_by_order"]
            .as_array()
            .unwrap()
            .iter()
            .map(number)
            .collect();
        assert_eq!(by_order[..4], [1, 0, 0, 1]);
        assert!(by_order[4..].iter().all(|nr| *nr == 0), "{holder}");
        assert_eq!(holder["migratetype"], "unmovable");
        assert_eq!(
            number(&holder["first_pfn"]),
            u64::from(one.pfn().min(eight.pfn()))
        );
        let age_ms = u128::from(number(&holder["age_ms"]));
        assert!(
            age_ms >= 300 && age_ms <= begun.elapsed().as_millis(),
            "{holder}"
        );
    }

    // What stays is as it was, what went can come back, and people are told the same.
    assert_eq!(json(&daemon, &["verify"], 0)["ok"], true);
    let gone: Vec<&str> = ids
        .iter()
        .copied()
        .filter(|id| *id != held_in[0].to_string())
        .collect();
    json(&daemon, &[&["section", "online"], &gone[..]].concat(), 0);
    assert_eq!(daemon.pages().managed, managed);
    let said = run(&daemon, &wanted);
    assert_eq!(said.status.code(), Some(64));
    let said = String::from_utf8(said.stdout).unwrap() + &String::from_utf8(said.stderr).unwrap();
    for part in [
        "holder",
        "1 of order 0, 1 of order 3",
        "unmovable",
        "9 pages",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    json(&daemon, &[&["section", "online"], &gone[..]].concat(), 0);

    // Without its holder the last one goes too, and nothing is left over.
    drop((one, eight));
    json(&daemon, &wanted, 0);
    drop(client);
    daemon.verify();
}

#[test]
fn what_is_movable_and_pinned_is_told_as_such() {
    let daemon = Daemon::with_zones("ctl-pinned", &["movable=16MiB,kind=movable,backing=shm"]);
    let client = daemon.attach("pinner");
    let page = client.request().alloc_movable().unwrap();
    let pin = page.pin().unwrap();
    let section = (pin.pfn() / SECTION_PAGES).to_string();
    let answer = json(
        &daemon,
        &["section", "offline", &section, "--timeout", "200ms"],
        1,
    );
    let holder = &answer["results"][0]["holders"][0];
    assert_eq!(holder["migratetype"], "movable", "{answer}");
    assert_eq!(
        (
            number(&holder["held_pages"]),
            number(&holder["pinned_pages"])
        ),
        (1, 1)
    );
    // A question whether it would go changes nothing, and says what it would meet.
    let dry = json(&daemon, &["section", "offline", &section, "--dry-run"], 1);
    assert_eq!(
        (&dry["dry_run"], &dry["results"][0]["state"]),
        (&Value::Bool(true), &Value::from("online"))
    );
    drop(pin);
    let gone = json(
        &daemon,
        &["section", "offline", &section, "--timeout", "10s"],
        0,
    );
    assert_eq!(number(&gone["results"][0]["moved_pages"]), 1, "{gone}");
    assert!(page.pin().is_ok());
    assert!(text(&daemon, &["section", "list"]).contains("offline"));
}

/// The operation of this number, of those listed.
fn operation(daemon: &Daemon, id: u64) -> Value {
    let list = json(daemon, &["operation", "list"], 0);
    let mut all = list["operations"].as_array().unwrap().iter();
    all.find(|one| number(&one["id"]) == id).unwrap().clone()
}

#[test]
fn an_offline_that_waits_says_how_far_it_is_and_can_be_cancelled() {
    let mut daemon =
        Daemon::with_zones("ctl-estimate", &["movable=16MiB,kind=movable,backing=shm"]);
    let client = daemon.attach("pinner");
    let mut pages = Vec::new();
    let bulk = client.request().alloc_movable_bulk(200, &mut pages);
    assert_eq!(bulk.populated, 200);
    let section = pages[0].pin().unwrap().pfn() / SECTION_PAGES;
    let is_there =
        |page: &&hugepool::MovablePage| page.pin().unwrap().pfn() / SECTION_PAGES == section;
    let nr_there = pages.iter().filter(is_there).count();
    assert!(nr_there >= 100, "{nr_there}");
    let pin = pages[0].pin().unwrap();
    let verb = [
        "section",
        "offline",
        &section.to_string(),
        "--timeout",
        "60s",
        "--detach",
    ];
    let id = json(&daemon, &verb, 0)["operation_id"].clone();
    let id = number(&id);
    // All others have moved, and one is waited for.
    let ends = Instant::now() + daemon::PATIENCE;
    let waiting = loop {
        let state = operation(&daemon, id);
        if number(&state["done_pages"]) > 0 && !state["estimate_ms"].is_null() {
            break state;
        }
        assert!(Instant::now() < ends, "{state}");
    };
    assert_eq!(waiting["state"], "running");
    assert!(
        number(&waiting["total_pages"]) > number(&waiting["done_pages"]),
        "{waiting}"
    );
    json(&daemon, &["operation", "cancel", &id.to_string()], 0);
    let ended = loop {
        let state = operation(&daemon, id);
        if state["state"] != "running" {
            break state;
        }
        assert!(Instant::now() < ends, "{state}");
    };
    assert_eq!(
        (&ended["state"], &ended["estimate_ms"]),
        (&Value::from("cancelled"), &Value::Null)
    );
    let sections = json(&daemon, &["section", "list"], 0);
    assert!(
        sections["sections"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["state"] == "online")
    );
    drop(pin);
    drop(pages);
    daemon.verify();
}
