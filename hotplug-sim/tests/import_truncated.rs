//! A file that stops anywhere: no panic, and what was complete before the cut comes out right.
//!
//! Seen to fail: the value of the last line of zoneinfo taken although its line feed is missing.

mod support;

use serde_json::Value;
use support::prng::Prng;

/// Places at which each file is cut; the smallest ones are cut at every byte.
const PLACES: usize = 20;

#[test]
fn twenty_cuts_of_each_file_keep_what_was_complete() {
    let mut bad = Bad::default();
    for (name, bytes) in support::cases() {
        let mut prng = Prng::new(support::count(bytes.len()));
        let cuts = (0..PLACES).map(|_| prng.below(bytes.len()));
        check_cuts(&name, &bytes, cuts, &mut bad);
    }
    bad.assert_none();
}

#[test]
fn every_cut_of_the_five_smallest_keeps_what_was_complete() {
    let mut cases = support::cases();
    cases.sort_by_key(|(_, bytes)| bytes.len());
    let mut bad = Bad::default();
    for (name, bytes) in &cases[..5] {
        check_cuts(name, bytes, 0..bytes.len(), &mut bad);
    }
    bad.assert_none();
}

#[test]
#[ignore = "takes minutes; for the long run"]
fn every_cut_of_every_file_keeps_what_was_complete() {
    let mut bad = Bad::default();
    for (name, bytes) in support::cases() {
        check_cuts(&name, &bytes, 0..bytes.len(), &mut bad);
    }
    bad.assert_none();
}

/// What does not hold, with the place where.
#[derive(Default)]
struct Bad {
    place: String,
    found: Vec<String>,
}

impl Bad {
    fn unless(&mut self, held: bool, what: impl FnOnce() -> String) {
        if !held {
            self.found.push(format!("{}: {}", self.place, what()));
        }
    }

    /// Compares some fields of an object of the cut file with those of the whole; unknown is never wrong.
    fn same(&mut self, keys: &[&str], part: &Value, whole: &Value) {
        for key in keys {
            self.unless(part[key].is_null() || part[key] == whole[key], || {
                format!("{key} of {part}, in the whole {whole}")
            });
        }
    }

    fn assert_none(&self) {
        let shown = self
            .found
            .iter()
            .take(20)
            .map(String::as_str)
            .collect::<Vec<_>>();
        assert!(
            self.found.is_empty(),
            "{} do not hold:\n{}",
            self.found.len(),
            shown.join("\n")
        );
    }
}

/// Imports the first bytes of a file and holds the result against that of the whole.
fn check_cuts(name: &str, bytes: &[u8], cuts: impl Iterator<Item = usize>, bad: &mut Bad) {
    let full = support::run_text(bytes).document;
    for cut in cuts {
        bad.place = format!("{name} cut at byte {cut}");
        let run = support::run_text(&bytes[..cut]);
        let broken = support::invariants::invariants(&run);
        bad.unless(run.document.is_null() || broken.is_empty(), || {
            format!("{broken:?}")
        });
        compare(&run.document, &full, bad);
    }
}

fn compare(part: &Value, full: &Value, bad: &mut Bad) {
    // Zones of a boot log follow from all its ranges together; those are compared below.
    if !list(part, "formats").contains(&"dmesg".into()) {
        compare_states(part, full, bad);
    }
    for (at, event) in list(part, "events").iter().enumerate() {
        compare_event(event, &full["events"][at], bad);
    }
    for range in list(part, "ranges") {
        let keys = ["kind", "start_byte", "end_byte", "node", "zone", "type"];
        let same = |other: &Value| {
            keys.iter()
                .all(|key| range[key].is_null() || range[key] == other[key])
        };
        bad.unless(list(full, "ranges").iter().any(same), || {
            format!("no such range in the whole: {range}")
        });
    }
    for (kind, keys) in [
        (
            "sections",
            &["removable", "zones", "node", "start_pfn", "nr_pages"][..],
        ),
        (
            "devices",
            &[
                "kind",
                "node",
                "address",
                "size_bytes",
                "block_bytes",
                "subblock_bytes",
                "total_blocks",
            ][..],
        ),
    ] {
        for item in list(part, kind) {
            match list(full, kind)
                .iter()
                .find(|other| other["id"] == item["id"])
            {
                Some(other) => bad.same(keys, item, other),
                None => bad.unless(false, || format!("not in the whole: {item}")),
            }
        }
    }
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    items(&value[name])
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The states in order; a file that shows only one has no snapshots.
fn states(document: &Value) -> Vec<&Value> {
    let snapshots = list(document, "snapshots");
    if snapshots.is_empty() {
        return vec![&document["nodes"]];
    }
    snapshots
        .iter()
        .map(|snapshot| &snapshot["nodes"])
        .collect()
}

fn compare_states(part: &Value, full: &Value, bad: &mut Bad) {
    for (part, full) in states(part).into_iter().zip(states(full)) {
        for node in items(part) {
            let whole = items(full)
                .iter()
                .find(|other| other["node"] == node["node"]);
            let zones = whole.map_or(&[][..], |whole| list(whole, "zones"));
            for zone in list(node, "zones") {
                match zones.iter().find(|other| other["name"] == zone["name"]) {
                    Some(other) => compare_zone(zone, other, bad),
                    None => bad.unless(false, || format!("no such zone in the whole: {zone}")),
                }
            }
        }
    }
}

fn compare_zone(zone: &Value, whole: &Value, bad: &mut Bad) {
    let keys = [
        "start_pfn",
        "spanned",
        "present",
        "managed",
        "holes",
        "free_cma",
        "reserved_highatomic",
        "protection",
        "populated",
    ];
    bad.same(&keys, zone, whole);
    bad.same(
        &["min", "low", "high", "boost"],
        &zone["watermarks"],
        &whole["watermarks"],
    );
    let fewer = zone["pcp_count"].as_i64() <= whole["pcp_count"].as_i64();
    bad.unless(fewer, || format!("pcp_count of {zone}"));
    let by_type = "free_pages_by_order_and_type";
    for key in ["pageblocks_by_type", by_type] {
        for (kind, part) in zone[key].as_object().into_iter().flatten() {
            let whole = &whole[key][kind];
            let held = part == whole || part.is_array() && items(whole).starts_with(items(part));
            bad.unless(held, || format!("{kind} of {zone}"));
        }
    }
    let types = |zone: &Value| zone[by_type].as_object().map_or(0, serde_json::Map::len);
    if types(zone) != types(whole) {
        // Between two rows a cut looks as if the types had been left out by a person: the sums are of those shown.
        return;
    }
    for key in ["free_blocks_by_order", "free_types_by_order"] {
        let (part, whole) = (list(zone, key), list(whole, key));
        let shorter = part.len() <= whole.len() || key == "free_types_by_order";
        let alike = |(part, whole): (&Value, &Value)| part.is_null() || part == whole;
        let held = shorter && part.iter().zip(whole).all(alike);
        bad.unless(held, || format!("{key} of {zone}"));
    }
    // A sum over lists that are not complete is smaller; a counter is the counter.
    if list(zone, "free_blocks_by_order").len() == list(whole, "free_blocks_by_order").len() {
        bad.same(&["free"], zone, whole);
    }
}

/// An event is as in the whole file, but that its answer may not have been seen.
fn compare_event(event: &Value, whole: &Value, bad: &mut Bad) {
    let kind = event["kind"].as_str().unwrap_or_default();
    let other = whole["kind"].as_str().unwrap_or_default();
    bad.unless(other == kind || other == format!("{kind}-failed"), || {
        format!("{event}, in the whole {whole}")
    });
    let numbers: Vec<&str> = event
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys)
        .map(String::as_str)
        .filter(|key| !matches!(*key, "kind" | "reason" | "gfp"))
        .collect();
    bad.same(&numbers, event, whole);
}
