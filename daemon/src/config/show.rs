//! A plan written as a file would say it, and the keys of such a file explained.
//!
//! One definition: keys, their types and what they mean come from [`File`] and its documentation,
//! defaults from the plan that an empty file makes.

use std::path::Path;

use hugepool_engine::{Limit, Quarantine};
use hugepool_mm::Geometry;
use schemars::Schema;
use serde_json::{Map, Value, json};

use super::file::{
    CompactionTable, File, GeometryTable, LanesTable, LimitTable, LimitsTable, SocketsTable,
    TimeoutsTable, ZoneTable,
};
use super::{Config, GroupPlan, LimitPlan, ZonePlan, pages_as_bytes};
use crate::size::Bytes;

impl File {
    /// The file that makes this plan, with no key left out that has a value.
    pub fn of(config: &Config) -> File {
        let geometry = config.geometry;
        let ms = |duration: std::time::Duration| u32::try_from(duration.as_millis()).ok();
        // A default group that is missing is no error, one that is named is.
        let group = |plan: &GroupPlan| plan.is_required.then(|| plan.name.clone());
        let names = |index: &u8| {
            config
                .zones
                .get(usize::from(*index))
                .map(|zone| zone.name.clone())
        };
        File {
            runtime_dir: Some(config.runtime_dir.clone()),
            log: Some(config.log.clone()),
            zonelist: Some(config.zonelist.iter().filter_map(names).collect()),
            geometry: GeometryTable {
                page_size: Some(Bytes(geometry.page_bytes())),
                pageblock_order: Some(geometry.pageblock_order().get()),
                max_page_order: Some(geometry.max_order().get()),
                section_size: Some(Bytes(geometry.section_bytes())),
            },
            zone: config
                .zones
                .iter()
                .map(|zone| zone_table(zone, config))
                .collect(),
            sockets: SocketsTable {
                pages_group: group(&config.sockets.pages_group),
                admin_group: group(&config.sockets.admin_group),
            },
            limits: LimitsTable {
                clients: Some(config.limits.clients),
                connections_per_uid: Some(config.limits.connections_per_uid),
                lanes_per_client: Some(config.limits.lanes_per_client),
                client_ceiling: config
                    .limits
                    .client_ceiling_pages
                    .map(|pages| pages_as_bytes(pages, geometry)),
            },
            limit: config
                .allotments
                .iter()
                .map(|plan| limit_table(plan, geometry))
                .collect(),
            timeouts: TimeoutsTable {
                attach_ms: ms(config.timeouts.attach),
                offline_ms: ms(config.timeouts.offline),
                drain_ms: ms(config.timeouts.drain),
            },
            compaction: CompactionTable {
                contiguity: Some(config.compaction.contiguity.name().to_owned()),
                proactiveness: Some(config.compaction.proactiveness),
                background_rate: Some(pages_as_bytes(
                    config.compaction.background_pages_per_second,
                    geometry,
                )),
            },
            lanes: LanesTable {
                spin_us: u32::try_from(config.spin.as_micros()).ok(),
            },
        }
    }
}

fn zone_table(zone: &ZonePlan, config: &Config) -> ZoneTable {
    let section = config.geometry.section_bytes();
    let pages = |pages: u64| (pages > 0).then(|| pages_as_bytes(pages, config.geometry));
    ZoneTable {
        name: zone.name.clone(),
        size: Bytes(u64::from(zone.nr_sections).saturating_mul(section)),
        kind: Some(zone.kind.to_string().to_lowercase()),
        reserve: Some(pages_as_bytes(zone.span_pages, config.geometry)),
        node: zone.node,
        backing: Some(zone.backing.to_string()),
        allow_uids: zone.allow_uids.clone(),
        allow_gids: zone.allow_gids.clone(),
        floor: pages(zone.limit.floor_pages),
        ceiling: zone
            .limit
            .ceiling_pages
            .map(|pages| pages_as_bytes(pages, config.geometry)),
        quarantine: match zone.quarantine {
            Quarantine::None => None,
            Quarantine::For(time) => Some(format!("{}ms", time.as_millis())),
            Quarantine::UntilReleased => Some("until-released".to_owned()),
        },
    }
}

fn limit_table(plan: &LimitPlan, geometry: Geometry) -> LimitTable {
    let Limit {
        floor_pages,
        ceiling_pages,
    } = plan.limit;
    LimitTable {
        uid: plan.uid,
        zone: plan.zone.clone(),
        floor: (floor_pages > 0).then(|| pages_as_bytes(floor_pages, geometry)),
        ceiling: ceiling_pages.map(|pages| pages_as_bytes(pages, geometry)),
    }
}

/// Every key of the file: `key`, `type`, `default` (`null`: none) and `what` it means.
pub fn explain() -> Vec<Value> {
    let schema = schemars::schema_for!(File);
    let defaults = Config::embedded(Path::new("/run/hugepool"), vec![])
        .ok()
        .and_then(|config| serde_json::to_value(File::of(&config)).ok())
        .unwrap_or_default();
    let mut keys = Vec::new();
    walk(schema.as_value(), &schema, "", Some(&defaults), &mut keys);
    keys
}

/// Adds the keys of the table that `node` describes.
fn walk(
    node: &Value,
    schema: &Schema,
    prefix: &str,
    defaults: Option<&Value>,
    keys: &mut Vec<Value>,
) {
    let empty = Map::new();
    let properties = node["properties"].as_object().unwrap_or(&empty);
    for (name, property) in properties {
        let key = format!("{prefix}{name}");
        let default = defaults.and_then(|table| table.get(name));
        let list = &property["items"];
        if let Some(table) = table_of(property, schema) {
            walk(table, schema, &format!("{key}."), default, keys);
        } else if let Some(table) = table_of(list, schema) {
            // Of a list of tables each entry has its own; what is listed by default is no default.
            walk(table, schema, &format!("{key}[]."), None, keys);
        } else {
            keys.push(json!({
                "key": key,
                "type": type_of(property),
                "default": default.unwrap_or(&Value::Null),
                "what": property["description"].as_str().unwrap_or_default().replace('\n', " "),
            }));
        }
    }
}

/// The table that a property refers to.
fn table_of<'a>(property: &Value, schema: &'a Schema) -> Option<&'a Value> {
    let name = property["$ref"].as_str()?.strip_prefix("#/$defs/")?;
    let found = schema.get("$defs")?.get(name)?;
    found.get("properties").is_some().then_some(found)
}

/// The property's type, of those it may have the one that is not `null`.
fn type_of(property: &Value) -> String {
    let own = property["format"]
        .as_str()
        .filter(|format| *format == "size");
    let types = match &property["type"] {
        Value::Array(types) => types
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null"),
        one => one.as_str(),
    };
    match (own.or(types).unwrap_or("any"), &property["items"]["type"]) {
        ("array", Value::String(of)) => format!("list of {of}"),
        (name, _) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_is_written_and_read_again_is_the_same() {
        let text = r#"
            log = "warn"
            zonelist = ["b", "a"]
            [geometry]
            section_size = "16MiB"
            [[zone]]
            name = "a"
            size = "32MiB"
            reserve = "1GiB"
            floor = "16MiB"
            ceiling = "24MiB"
            quarantine = "1500ms"
            backing = "shm"
            allow_uids = [1000]
            [[zone]]
            name = "b"
            size = "0"
            kind = "movable"
            node = 0
            [sockets]
            admin_group = "wheel"
            [limits]
            clients = 3
            client_ceiling = "8MiB"
            [[limit]]
            uid = 1000
            zone = "a"
            floor = "8MiB"
            [[limit]]
            zone = "a"
            ceiling = "12MiB"
            [timeouts]
            drain_ms = 7
            [compaction]
            contiguity = "pageblock"
            [lanes]
            spin_us = 7
        "#;
        let around = crate::config::Surroundings {
            is_root: true,
            ..Default::default()
        };
        let plan = |text: &str| {
            let file: File = toml::from_str(text).unwrap();
            Config::build(&crate::flags::Flags::default(), file, &around).unwrap()
        };
        let first = plan(text);
        let written = toml::to_string(&File::of(&first)).unwrap();
        assert_eq!(
            format!("{:?}", plan(&written)),
            format!("{first:?}"),
            "{written}"
        );
        assert!(written.contains("client_ceiling = \"8MiB\""), "{written}");
    }

    #[test]
    fn every_key_is_explained_with_its_type_and_default() {
        let keys = explain();
        let find = |key: &str| keys.iter().find(|entry| entry["key"] == key).unwrap();
        assert_eq!(find("limits.clients")["default"], 1024);
        assert_eq!(find("limits.clients")["type"], "integer");
        assert_eq!(find("geometry.section_size")["default"], "128MiB");
        assert_eq!(find("geometry.section_size")["type"], "size");
        assert_eq!(find("zone[].allow_uids")["type"], "list of integer");
        assert_eq!(find("zone[].reserve")["default"], Value::Null);
        assert_eq!(find("zonelist")["type"], "list of string");
        assert!(find("log")["what"].as_str().unwrap().contains("logged"));
        for entry in &keys {
            assert_ne!(entry["what"], "", "{entry}");
            assert_ne!(entry["type"], "any", "{entry}");
        }
    }
}
