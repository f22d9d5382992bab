//! The configuration read again (SIGHUP): what may change live is changed, all of it or nothing.
//!
//! Compared is what the file said with what it says now. A key that is fixed for the life of the
//! memory, or of this process, is named and then nothing is changed at all. What was set live by
//! commands meanwhile is set to what the file says.

use std::path::PathBuf;

use hugepool_engine::{Command, CommandError, Limit, Whom};
use serde_json::Value;

use crate::config::{Config, ConfigError, File, LimitPlan, Surroundings};
use crate::flags::Flags;
use crate::shared::Shared;
use crate::telemetry;

/// Where a configuration comes from, to be read again.
#[derive(Debug)]
pub struct Source {
    /// As they were typed.
    pub flags: Flags,
    /// The environment, as it was.
    pub around: Surroundings,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It makes no plan.
    #[error("the configuration is not valid")]
    Config(#[from] ConfigError),
    /// Something in it cannot change while the daemon runs.
    #[error(
        "these cannot change live: {}; restart the daemon for them (clients stay), sizes change by \
         `hugepoolctl section`",
        keys.join(", ")
    )]
    Fixed {
        /// The keys, with their tables.
        keys: Vec<String>,
    },
    /// The engine refuses a limit.
    #[error("a limit cannot be set")]
    Limit(#[from] CommandError),
    /// A program that carries the daemon in itself has no file.
    #[error("there is no configuration to read again")]
    NoSource,
}

/// What was loaded last, and from where.
#[derive(Debug)]
pub struct Reload {
    source: Option<Source>,
    loaded: Config,
}

impl Reload {
    /// `loaded` is what the source said at the start.
    pub fn new(source: Option<Source>, loaded: Config) -> Reload {
        Reload { source, loaded }
    }

    /// The folder that the file lies in; editors put a new file in its place.
    pub fn folder(&self) -> Option<PathBuf> {
        let path = self.source.as_ref()?.flags.config.as_ref()?;
        let path = std::path::absolute(path).ok()?;
        Some(path.parent()?.to_owned())
    }

    /// Reads it again and does what it says. Returns the keys that have changed.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing has changed then.
    pub fn reload(&mut self, shared: &Shared) -> Result<Vec<String>, ReloadError> {
        let source = self.source.as_ref().ok_or(ReloadError::NoSource)?;
        let new = Config::load(&source.flags, &source.around)?;
        let keys = changes(&self.loaded, &new);
        let fixed: Vec<String> = keys.iter().filter(|key| !is_live(key)).cloned().collect();
        if !fixed.is_empty() {
            return Err(ReloadError::Fixed { keys: fixed });
        }
        let (forth, back) = (limits(&self.loaded, &new), limits(&new, &self.loaded));
        if let Err(refused) = apply(forth, shared) {
            // As it was by the file before; what was there then was not refused.
            if let Err(error) = apply(back, shared) {
                tracing::error!(%error, "limits could not be set back");
            }
            return Err(refused.into());
        }
        shared.set_access(&new.zones);
        telemetry::set_filter(&new.log);
        self.loaded = new;
        Ok(keys)
    }
}

fn apply(commands: Vec<Command>, shared: &Shared) -> Result<(), CommandError> {
    commands
        .into_iter()
        .try_for_each(|command| shared.apply(command).map(drop))
}

/// Keys of which the values differ: `log`, `limits.clients`, `zone[normal].size`.
fn changes(old: &Config, new: &Config) -> Vec<String> {
    let value = |config| serde_json::to_value(File::of(config)).unwrap_or_default();
    let mut keys = Vec::new();
    compare("", &value(old), &value(new), &mut keys);
    keys
}

fn compare(key: &str, old: &Value, new: &Value, keys: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(old), Value::Object(new)) => {
            let names: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
            for name in names {
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(name).cloned().unwrap_or_default()
                };
                let key = match key {
                    "" => name.clone(),
                    key => format!("{key}.{name}"),
                };
                compare(&key, &of(old), &of(new), keys);
            }
        }
        // Zones of the same names in the same order are compared one by one.
        (Value::Array(old), Value::Array(new)) if key == "zone" && names(old) == names(new) => {
            for (old, new) in old.iter().zip(new) {
                let name = old["name"].as_str().unwrap_or_default();
                compare(&format!("zone[{name}]"), old, new, keys);
            }
        }
        _ => keys.push(key.to_owned()),
    }
}

fn names(zones: &[Value]) -> Vec<&Value> {
    zones.iter().map(|zone| &zone["name"]).collect()
}

/// Whether a key may change while the daemon runs.
fn is_live(key: &str) -> bool {
    const OF_ZONE: [&str; 5] = ["floor", "ceiling", "quarantine", "allow_uids", "allow_gids"];
    let of_zone = key
        .strip_prefix("zone[")
        .and_then(|rest| rest.split_once("]."));
    match of_zone {
        Some((_, key)) => OF_ZONE.contains(&key),
        None => ["log", "limit", "limits.client_ceiling"].contains(&key),
    }
}

/// What sets all limits from one configuration's to another's: what falls first, so that there is
/// room for what rises.
fn limits(old: &Config, new: &Config) -> Vec<Command> {
    let mut steps: Vec<(bool, Command)> = Vec::new();
    let mut set = |whom, zone: Option<&String>, old: Limit, new: Limit| {
        let command = Command::SetLimits {
            whom,
            zone: zone.cloned(),
            limit: new,
        };
        steps.push((new.floor_pages > old.floor_pages, command));
    };
    let each = |config: &Config| Limit {
        floor_pages: 0,
        ceiling_pages: config.limits.client_ceiling_pages,
    };
    set(Whom::EachClient, None, each(old), each(new));
    for (old, new) in old.zones.iter().zip(&new.zones) {
        set(Whom::Zone, Some(&new.name), old.limit, new.limit);
    }
    let same = |a: &LimitPlan, b: &LimitPlan| (a.uid, &a.zone) == (b.uid, &b.zone);
    let find = |plans: &[LimitPlan], plan: &LimitPlan| {
        let found = plans.iter().find(|other| same(other, plan));
        found.map_or(Limit::default(), |found| found.limit)
    };
    for plan in &old.allotments {
        if !new.allotments.iter().any(|other| same(other, plan)) {
            set(
                plan.whom(),
                plan.zone.as_ref(),
                plan.limit,
                Limit::default(),
            );
        }
    }
    for plan in &new.allotments {
        set(
            plan.whom(),
            plan.zone.as_ref(),
            find(&old.allotments, plan),
            plan.limit,
        );
    }
    for zone in &new.zones {
        let command = Command::SetQuarantine {
            zone: zone.name.clone(),
            quarantine: zone.quarantine,
        };
        steps.push((true, command));
    }
    steps.sort_by_key(|&(rises, _)| rises);
    steps.into_iter().map(|(_, command)| command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, text).unwrap();
        let flags = Flags {
            config: Some(path),
            runtime_dir: Some("/nowhere".into()),
            ..Flags::default()
        };
        Config::load(&flags, &Surroundings::default()).unwrap()
    }

    const ZONE: &str = "[[zone]]\nname = \"a\"\nsize = \"256MiB\"\n";

    #[test]
    fn what_cannot_change_live_is_named() {
        let old = config(ZONE);
        let fixed = |text: &str| {
            let keys = changes(&old, &config(text));
            keys.into_iter()
                .filter(|key| !is_live(key))
                .collect::<Vec<_>>()
        };
        assert_eq!(fixed(ZONE), [""; 0]);
        let live = format!(
            "log = \"debug\"\n{ZONE}floor = \"1MiB\"\nquarantine = \"1s\"\nallow_uids = [5]\n[limits]\nclient_ceiling = \"1MiB\"\n[[limit]]\nuid = 1\nceiling = \"1MiB\"\n"
        );
        assert_eq!(fixed(&live), [""; 0]);
        assert_eq!(changes(&old, &config(&live)).len(), 6);
        assert_eq!(
            fixed("[[zone]]\nname = \"a\"\nsize = \"128MiB\"\n"),
            ["zone[a].size"]
        );
        assert_eq!(
            fixed("[[zone]]\nname = \"b\"\nsize = \"256MiB\"\n"),
            ["zone", "zonelist"]
        );
        let more = format!("{ZONE}[limits]\nclients = 5\n[lanes]\nspin_us = 3\n");
        assert_eq!(fixed(&more), ["lanes.spin_us", "limits.clients"]);
    }

    #[test]
    fn what_falls_comes_before_what_rises_and_what_is_gone_is_none() {
        let limit =
            |uid, floor| format!("[[limit]]\nuid = {uid}\nzone = \"a\"\nfloor = \"{floor}MiB\"\n");
        let old = config(&format!("{ZONE}{}{}", limit(1, 10), limit(2, 20)));
        let new = config(&format!("{ZONE}{}{}", limit(3, 30), limit(2, 5)));
        let floors: Vec<(Whom, u64)> = limits(&old, &new)
            .into_iter()
            .filter_map(|command| match command {
                Command::SetLimits {
                    whom: whom @ Whom::User(_),
                    limit,
                    ..
                } => Some((whom, limit.floor_pages >> 8)),
                _ => None,
            })
            .collect();
        assert_eq!(
            floors,
            [(Whom::User(1), 0), (Whom::User(2), 5), (Whom::User(3), 30)]
        );
    }
}
