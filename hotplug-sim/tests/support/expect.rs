//! Assertions on JSON, as `cases/expect.json` writes them.
//!
//! An assertion is an object with one path and one or more tests. A path is names joined by
//! dots; a name may be followed by `[3]`, `[-1]`, `[*]` or `[key=value]`, which may be repeated.
//! A name that is not there gives nothing. Tests:
//!
//! `eq` the one value (several that agree are one) is this, of the same type; `in` it is one
//! of these, null standing for nothing too; `approx` to six decimals; `absent_or_null`;
//! `len`, `min_len`, `max_len` of the list, or of the hits where the path ends in a selector of
//! several; `list` all hits are this list; `each_in` each hit is one of these; `contains`;
//! `matches` a regular expression found in some text; `type`; `pages_eq` the sum of
//! blocks << order; `bytes_eq` the sum of end_byte - start_byte; `{"sum": PATH, "eq": N}`;
//! `exit_in` the exit status; `invariants`; `any` one of these groups holds as a whole.

use serde_json::Value;

use super::invariants::invariants;

/// What an import gave: the object (null if none) and the exit status.
pub struct Run {
    pub document: Value,
    pub status: u8,
}

#[derive(Debug)]
enum Step {
    Name(String),
    Index(i64),
    Each,
    Where(String, String),
}

/// One message for each test that fails.
pub fn failures(assertion: &Value, run: &Run) -> Vec<String> {
    let get = |key: &str| assertion.get(key);
    if let Some(groups) = get("any") {
        let groups: Vec<Vec<String>> = array(groups)
            .iter()
            .map(|group| {
                array(group)
                    .iter()
                    .flat_map(|one| failures(one, run))
                    .collect()
            })
            .collect();
        let held = groups.iter().any(Vec::is_empty);
        return if held {
            Vec::new()
        } else {
            vec![format!("none of the groups holds: {groups:?}")]
        };
    }
    if let Some(statuses) = get("exit_in") {
        let held = array(statuses)
            .iter()
            .any(|status| status.as_u64() == Some(u64::from(run.status)));
        return if held {
            Vec::new()
        } else {
            vec![format!("exit status {} is not in {statuses}", run.status)]
        };
    }
    if get("invariants").is_some() {
        return invariants(run);
    }
    let path = get("sum")
        .or(get("path"))
        .and_then(Value::as_str)
        .expect("an assertion has a path");
    let steps = parse(path);
    let found = hits(&run.document, &steps);
    let tests = assertion.as_object().expect("an assertion is an object");
    let summed = get("sum").is_some();
    let failed = tests
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "path" | "sum" | "why"))
        .filter_map(|(name, want)| {
            let held = if summed {
                sum(&found) == want.as_i64().expect("a sum is a number")
            } else {
                test(name, want, &found, &steps)
            };
            (!held).then(|| format!("{path}: {name} {want}, got {found:?}"))
        });
    failed.collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn test(name: &str, want: &Value, found: &[&Value], steps: &[Step]) -> bool {
    let many = matches!(steps.last(), Some(Step::Each | Step::Where(..)));
    let one = found
        .first()
        .copied()
        .filter(|first| found.iter().all(|other| other == first));
    match name {
        "eq" => one == Some(want),
        "in" => array(want)
            .iter()
            .any(|want| one == Some(want) || (one.is_none() && found.is_empty() && want.is_null())),
        "approx" => one
            .and_then(Value::as_f64)
            .zip(want.as_f64())
            .is_some_and(|(got, want)| (got - want).abs() < 1e-6),
        "absent_or_null" => found.iter().all(|value| value.is_null()),
        "len" | "min_len" | "max_len" => {
            let size = match one {
                _ if many => Some(found.len()),
                None | Some(Value::Null) => Some(0),
                Some(value) => value.as_array().map(Vec::len),
            };
            let want = usize::try_from(want.as_u64().expect("a length is a number")).unwrap();
            size.is_some_and(|size| match name {
                "len" => size == want,
                "min_len" => size >= want,
                _ => size <= want,
            })
        }
        "list" => found.iter().copied().eq(array(want)),
        "each_in" => !found.is_empty() && found.iter().all(|got| array(want).contains(got)),
        "contains" => one.is_some_and(|list| array(list).contains(want)),
        "matches" => {
            let pattern = regex::Regex::new(want.as_str().expect("a pattern is text")).unwrap();
            found
                .iter()
                .any(|got| got.as_str().is_some_and(|text| pattern.is_match(text)))
        }
        "type" => one.is_some_and(|value| match want.as_str() {
            Some("int") => value.is_i64() || value.is_u64(),
            Some("bool") => value.is_boolean(),
            Some("str") => value.is_string(),
            Some("list") => value.is_array(),
            _ => value.is_object(),
        }),
        "pages_eq" => {
            !found.is_empty()
                && found.iter().map(|value| pages(value)).sum::<i64>() == want.as_i64().unwrap()
        }
        "bytes_eq" => {
            !found.is_empty()
                && found.iter().map(|range| bytes(range)).sum::<u64>() == want.as_u64().unwrap()
        }
        other => panic!("no such test: {other}"),
    }
}

fn pages(value: &Value) -> i64 {
    match value {
        Value::Object(types) => types.values().map(pages).sum(),
        Value::Array(blocks) => blocks
            .iter()
            .enumerate()
            .map(|(order, blocks)| blocks.as_i64().unwrap_or(0) << order)
            .sum(),
        _ => 0,
    }
}

fn bytes(range: &Value) -> u64 {
    range["end_byte"].as_u64().unwrap_or(0) - range["start_byte"].as_u64().unwrap_or(0)
}

fn sum(found: &[&Value]) -> i64 {
    let one = |value: &Value| match value {
        Value::Array(items) => sum(&items.iter().collect::<Vec<_>>()),
        Value::Object(entries) => sum(&entries.values().collect::<Vec<_>>()),
        other => other.as_i64().unwrap_or(0),
    };
    found.iter().map(|value| one(value)).sum()
}

fn parse(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, tail) = inner.split_once(']').expect("a selector is closed");
            steps.push(match (inside, inside.split_once('='), inside.parse()) {
                ("*", ..) => Step::Each,
                (_, Some((key, value)), _) => Step::Where(key.to_string(), value.to_string()),
                (_, None, Ok(index)) => Step::Index(index),
                _ => panic!("no selector: {inside}"),
            });
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix('.') {
            rest = tail;
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(Step::Name(rest[..end].to_string()));
            rest = &rest[end..];
        }
    }
    steps
}

fn hits<'v>(document: &'v Value, steps: &[Step]) -> Vec<&'v Value> {
    steps.iter().fold(vec![document], |found, step| {
        found
            .into_iter()
            .flat_map(|value| follow(value, step))
            .collect()
    })
}

fn follow<'v>(value: &'v Value, step: &Step) -> Vec<&'v Value> {
    match step {
        Step::Name(name) => value.get(name).into_iter().collect(),
        Step::Each => array(value).iter().collect(),
        Step::Index(index) => {
            let list = array(value);
            let at = if *index < 0 {
                list.len().checked_sub(usize::try_from(-index).unwrap())
            } else {
                usize::try_from(*index).ok()
            };
            at.and_then(|at| list.get(at)).into_iter().collect()
        }
        Step::Where(key, text) => {
            let alone = std::slice::from_ref(value);
            let list = if value.is_object() {
                alone
            } else {
                array(value)
            };
            list.iter()
                .filter(|item| item.get(key).is_some_and(|value| same_text(value, text)))
                .collect()
        }
    }
}

fn same_text(value: &Value, text: &str) -> bool {
    match value.as_str() {
        Some(value) => value == text,
        None => format!("{value}") == text,
    }
}
