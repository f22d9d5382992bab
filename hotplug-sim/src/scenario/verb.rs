//! The verbs of a scenario, and which fields each of them knows.

use super::file::Step;

/// A verb, its fields, and what it does.
pub struct Verb {
    /// As written behind `do =`.
    pub name: &'static str,
    /// Fields that it knows, besides those that every step has.
    pub fields: &'static [&'static str],
    /// One line for people.
    pub about: &'static str,
}

/// Fields of every step.
const COMMON: [&str; 5] = ["do", "name", "repeat", "save", "expect"];

/// All verbs.
pub const VERBS: [Verb; 23] = [
    Verb {
        name: "add",
        fields: &[
            "blocks",
            "size",
            "device",
            "node",
            "records",
            "all_or_nothing",
        ],
        about: "memory blocks appear, offline; records = none, old or inside says where 64 bytes a page go",
    },
    Verb {
        name: "online",
        fields: &["blocks", "size", "device", "zone", "policy", "mode"],
        about: "offline blocks join a zone: policy = movable or kernel, or a zone; mode = pageblock or page",
    },
    Verb {
        name: "offline",
        fields: &["blocks", "size", "device", "zone", "all_or_nothing"],
        about: "blocks leave their zone; size takes the highest of the zone first",
    },
    Verb {
        name: "remove",
        fields: &["blocks", "size", "device", "zone"],
        about: "offline blocks go; a daemon is told of which zone",
    },
    Verb {
        name: "request",
        fields: &["device", "size", "policy", "records"],
        about: "a virtio-mem device is asked to have that size plugged",
    },
    Verb {
        name: "alloc",
        fields: &[
            "client",
            "zone",
            "node",
            "blocks",
            "order",
            "migratetype",
            "count",
            "size",
            "pinned",
            "compact",
            "dip",
        ],
        about: "a client takes blocks",
    },
    Verb {
        name: "free",
        fields: &["client", "count", "size", "pattern"],
        about: "a client gives blocks back: pattern = random, newest, odd or even; all without count",
    },
    Verb {
        name: "free-twice",
        fields: &["client"],
        about: "a client gives its newest block back, and then once more",
    },
    Verb {
        name: "free-wrong",
        fields: &["client", "pattern"],
        about: "a client gives back what is not the head of its newest block: pattern = middle, outside or order",
    },
    Verb {
        name: "bulk",
        fields: &["client", "zone", "slots", "filled", "migratetype"],
        about: "an array of slots, some of them filled, is filled up",
    },
    Verb {
        name: "limit",
        fields: &["client", "size"],
        about: "the most that a client may have",
    },
    Verb {
        name: "pin",
        fields: &["client"],
        about: "what a client holds stays where it is",
    },
    Verb {
        name: "unpin",
        fields: &["client"],
        about: "it may be moved again",
    },
    Verb {
        name: "die",
        fields: &["client"],
        about: "a client's pages go home",
    },
    Verb {
        name: "mix",
        fields: &["ops", "parts", "fill", "deaths", "hotplugs", "zone", "node"],
        about: "operations drawn from the seed: allocations by parts, frees, deaths, hotplug",
    },
    Verb {
        name: "pressure",
        fields: &["client", "zone", "to", "migratetype"],
        about: "a client takes pages until the zone is down to min, low, high, or a size",
    },
    Verb {
        name: "balloon",
        fields: &["zone", "size", "count"],
        about: "a balloon takes pages, which count as not managed",
    },
    Verb {
        name: "deflate",
        fields: &["count"],
        about: "it gives them back; all without count",
    },
    Verb {
        name: "lists",
        fields: &["zone", "count"],
        about: "free pages go to the zone's own per-CPU lists",
    },
    Verb {
        name: "compact",
        fields: &["zone", "order", "mode", "count"],
        about: "a zone is compacted, for an order or (without) as a whole; dropped after count rounds",
    },
    Verb {
        name: "contiguity",
        fields: &["zone", "mode"],
        about: "mode = none, zone, pageblock or both: which answers are remembered",
    },
    Verb {
        name: "min-free",
        fields: &["kib"],
        about: "a person sets min_free_kbytes; without kib it is computed again",
    },
    Verb {
        name: "verify",
        fields: &[],
        about: "everything is checked",
    },
];

/// The verb of that name.
pub fn find(name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name)
}

/// Checks that a step's verb exists and knows its fields.
pub fn check(step: &Step) -> Result<(), String> {
    let Some(verb) = find(&step.verb) else {
        let names: Vec<&str> = VERBS.iter().map(|verb| verb.name).collect();
        return Err(format!(
            "no verb {:?}; there are {}",
            step.verb,
            names.join(", ")
        ));
    };
    let table = toml::Table::try_from(step).map_err(|error| error.to_string())?;
    for field in table.keys() {
        let field = field.as_str();
        if !COMMON.contains(&field) && !verb.fields.contains(&field) {
            let known = verb.fields.join(", ");
            return Err(format!("{} knows no {field}; it knows {known}", verb.name));
        }
    }
    Ok(())
}
