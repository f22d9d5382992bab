//! `hugepoolctl buddyinfo`, `pagetypeinfo` and `zoneinfo`: the kernel's files, to the letter.
//!
//! Lines and widths are those of Linux 6.1 (`mm/vmstat.c`), so that what reads the kernel's files
//! reads ours; counters that we do not have are left out. A zone on no particular NUMA node is
//! printed under node 0, since readers take nothing but a number there.

use hugepool_proto::v1::{
    GetBuddyInfoRequest, GetPageTypeInfoRequest, GetPageTypeInfoResponse, GetZoneInfoRequest,
    ZoneBuddyInfo, ZoneInfo, ZonePageTypeInfo,
};
use serde_json::{Value, json};

use crate::{
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Output, equation},
};

/// Prints `/proc/buddyinfo`.
pub async fn buddyinfo(
    zone: Option<String>,
    admin: &mut Admin,
    out: &Output,
) -> Result<Outcome, Failure> {
    let request = GetBuddyInfoRequest {
        zone: zone.unwrap_or_default(),
    };
    let zones = admin.get_buddy_info(request).await?.into_inner().zones;
    let json = |zone: &ZoneBuddyInfo| json!({ "node": zone.node, "zone": zone.zone, "free_blocks_by_order": zone.free_blocks_by_order });
    let list = || json!({ "zones": zones.iter().map(json).collect::<Vec<_>>() });
    out.either(list, || buddyinfo_text(&zones))?;
    Ok(Outcome::Done)
}

/// Prints `/proc/pagetypeinfo`.
pub async fn pagetypeinfo(
    zone: Option<String>,
    admin: &mut Admin,
    out: &Output,
) -> Result<Outcome, Failure> {
    let request = GetPageTypeInfoRequest {
        zone: zone.unwrap_or_default(),
    };
    let info = admin.get_page_type_info(request).await?.into_inner();
    out.either(|| pagetypeinfo_json(&info), || pagetypeinfo_text(&info))?;
    Ok(Outcome::Done)
}

/// Prints `/proc/zoneinfo`.
pub async fn zoneinfo(
    zone: Option<String>,
    admin: &mut Admin,
    out: &Output,
) -> Result<Outcome, Failure> {
    let request = GetZoneInfoRequest {
        zone: zone.unwrap_or_default(),
    };
    let zones = admin.get_zone_info(request).await?.into_inner().zones;
    let list = || json!({ "zones": zones.iter().map(zoneinfo_json).collect::<Vec<_>>() });
    out.either(list, || zones.iter().map(zoneinfo_text).collect())?;
    Ok(Outcome::Done)
}

fn node(node: i32) -> i32 {
    node.max(0)
}

fn buddyinfo_text(zones: &[ZoneBuddyInfo]) -> String {
    let line = |zone: &ZoneBuddyInfo| {
        let mut line = format!("Node {}, zone {:>8} ", node(zone.node), zone.zone);
        zone.free_blocks_by_order
            .iter()
            .for_each(|count| line += &format!("{count:>6} "));
        line.push('\n');
        line
    };
    zones.iter().map(line).collect()
}

fn pagetypeinfo_text(info: &GetPageTypeInfoResponse) -> String {
    let mut text = format!("Page block order: {}\n", info.pageblock_order);
    text += &format!("Pages per block:  {}\n\n", info.pages_per_block);

    let first = info.zones.first();
    let types = |zone: &ZonePageTypeInfo| zone.types.clone();
    let header_types = first.map(types).unwrap_or_default();
    let nr_orders = header_types
        .first()
        .map_or(0, |row| row.free_blocks_by_order.len());
    text += &format!("{:<43} ", "Free pages count per migrate type at order");
    (0..nr_orders).for_each(|order| text += &format!("{order:>6} "));
    text.push('\n');
    for zone in &info.zones {
        for row in &zone.types {
            let (node, zone) = (node(zone.node), &zone.zone);
            text += &format!(
                "Node {node:>4}, zone {zone:>8}, type {:>12} ",
                row.migratetype
            );
            row.free_blocks_by_order
                .iter()
                .for_each(|count| text += &format!("{count:>6} "));
            text.push('\n');
        }
    }

    text += &format!("\n{:<23}", "Number of blocks type ");
    header_types
        .iter()
        .for_each(|row| text += &format!("{:>12} ", row.migratetype));
    text.push('\n');
    for zone in &info.zones {
        text += &format!("Node {}, zone {:>8} ", node(zone.node), zone.zone);
        zone.types
            .iter()
            .for_each(|row| text += &format!("{:>12} ", row.nr_pageblocks));
        text.push('\n');
    }
    text
}

fn zoneinfo_text(zone: &ZoneInfo) -> String {
    let pages = zone.pages.unwrap_or_default();
    let marks = zone.watermarks.unwrap_or_default();
    let mut text = format!("Node {}, zone {:>8}", node(zone.node), zone.zone);
    text += &format!("\n  pages free     {}", pages.free);
    for (name, count) in [
        ("min", marks.min),
        ("low", marks.low),
        ("high", marks.high),
        ("spanned", pages.spanned),
        ("present", pages.present),
        ("managed", pages.managed),
    ] {
        text += &format!("\n        {name:<8} {count}");
    }
    let protection: Vec<_> = zone.protection.iter().map(u64::to_string).collect();
    let protection = if protection.is_empty() {
        "0".to_owned()
    } else {
        protection.join(", ")
    };
    text += &format!("\n        protection: ({protection})\n");
    if pages.present == 0 {
        return text;
    }
    text += &format!("      {:<12} {}", "nr_free_pages", pages.free);
    text += "\n  pagesets";
    for set in &zone.pagesets {
        text += &format!(
            "\n    cpu: {}\n              count: {}\n              high:  {}\n              batch: {}",
            set.cpu, set.count, set.high, set.batch
        );
    }
    text += &format!("\n  start_pfn:           {}\n", zone.start_pfn);
    text
}

fn pagetypeinfo_json(info: &GetPageTypeInfoResponse) -> Value {
    let zone = |zone: &ZonePageTypeInfo| {
        let types: Vec<_> = zone
            .types
            .iter()
            .map(|row| {
                json!({
                    "migratetype": row.migratetype,
                    "free_blocks_by_order": row.free_blocks_by_order,
                    "nr_pageblocks": row.nr_pageblocks,
                })
            })
            .collect();
        json!({ "node": zone.node, "zone": zone.zone, "types": types })
    };
    json!({
        "pageblock_order": info.pageblock_order,
        "pages_per_block": info.pages_per_block,
        "zones": info.zones.iter().map(zone).collect::<Vec<_>>(),
    })
}

fn zoneinfo_json(zone: &ZoneInfo) -> Value {
    let marks = zone.watermarks.unwrap_or_default();
    let pagesets: Vec<_> = zone
        .pagesets
        .iter()
        .map(|set| {
            json!({
                "cpu": set.cpu,
                "count_pages": set.count,
                "high_pages": set.high,
                "batch_pages": set.batch,
            })
        })
        .collect();
    json!({
        "node": zone.node,
        "zone": zone.zone,
        "pages": equation::json(&zone.pages.unwrap_or_default()),
        "min_pages": marks.min,
        "low_pages": marks.low,
        "high_pages": marks.high,
        "protection": zone.protection,
        "start_pfn": zone.start_pfn,
        "pagesets": pagesets,
    })
}

#[cfg(test)]
#[path = "proc_files_tests.rs"]
mod tests;
