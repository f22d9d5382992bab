//! What holds for every object of an import, whatever the source.

use serde_json::Value;

use super::expect::Run;

/// One message for each that does not hold.
pub fn invariants(run: &Run) -> Vec<String> {
    let document = &run.document;
    let mut bad = Vec::new();
    if run.status != 1 && list(document, "formats").is_empty() {
        bad.push("understood, but of no format".to_string());
    }
    let errors = list(document, "diagnostics")
        .iter()
        .filter(|one| one["severity"] == "error")
        .count();
    let partly = errors > 0 || document["truncated"] == true;
    if run.status != 1 && partly != (run.status == 64) {
        bad.push(format!(
            "exit status {} with {errors} errors, truncated {}",
            run.status, document["truncated"]
        ));
    }
    for one in list(document, "diagnostics") {
        if one["what"].as_str().is_none_or(str::is_empty) || !one["line"].is_u64() {
            bad.push(format!("diagnostic {one}"));
        }
    }
    let snapshots = list(document, "snapshots")
        .iter()
        .map(|snapshot| &snapshot["nodes"]);
    for nodes in snapshots.chain([&document["nodes"]]) {
        for node in nodes.as_array().map_or(&[][..], Vec::as_slice) {
            let zones = list(node, "zones");
            for (at, zone) in zones.iter().enumerate() {
                if zones[..at]
                    .iter()
                    .any(|other| other["name"] == zone["name"])
                {
                    bad.push(format!("zone twice: {}", zone["name"]));
                }
                bad.extend(zone_invariants(zone));
            }
        }
    }
    for range in list(document, "ranges") {
        if range["end_byte"].as_u64() <= range["start_byte"].as_u64() {
            bad.push(format!("range {range}"));
        }
    }
    let mut ids: Vec<_> = list(document, "sections")
        .iter()
        .map(|section| section["id"].as_u64())
        .collect();
    ids.sort_unstable();
    if ids.windows(2).any(|two| two[0] == two[1]) {
        bad.push("a memory block is there twice".to_string());
    }
    bad
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn zone_invariants(zone: &Value) -> Vec<String> {
    let mut bad = Vec::new();
    let number = |name: &str| zone[name].as_i64();
    let holes = number("spanned")
        .zip(number("present"))
        .and_then(|(spanned, present)| i64::checked_sub(spanned, present));
    if holes != number("holes") {
        bad.push(format!("holes are not spanned less present: {zone}"));
    }
    if number("present").is_some_and(|present| zone["populated"] != (present > 0)) {
        bad.push(format!("populated contradicts present: {zone}"));
    }
    let (blocks, pages) = (
        list(zone, "free_blocks_by_order"),
        list(zone, "free_pages_by_order"),
    );
    let right = blocks
        .iter()
        .zip(pages)
        .enumerate()
        .all(|(order, (blocks, pages))| {
            blocks
                .as_i64()
                .is_none_or(|blocks| pages.as_i64().is_none_or(|pages| pages == blocks << order))
        });
    if !right || blocks.len() != pages.len() {
        bad.push(format!("pages are not blocks << order: {zone}"));
    }
    bad
}
