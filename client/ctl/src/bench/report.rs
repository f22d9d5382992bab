//! One line a case: JSON, or the same for people.

use std::cell::RefCell;

use serde_json::{Map, Value, json};

use crate::{outcome::Failure, output::Output};

/// Where the lines of one bench go.
#[derive(Debug)]
pub struct Report<'a> {
    out: &'a Output,
    bench: &'static str,
    /// What was printed.
    lines: RefCell<Vec<Map<String, Value>>>,
}

impl<'a> Report<'a> {
    pub fn new(out: &'a Output, bench: &'static str) -> Report<'a> {
        let lines = RefCell::default();
        Report { out, bench, lines }
    }

    /// All that was printed.
    pub fn into_lines(self) -> Vec<Map<String, Value>> {
        self.lines.into_inner()
    }

    /// Prints one object, with the name of the bench in front.
    pub fn line(&self, fields: Value) -> Result<(), Failure> {
        let mut line = Map::from_iter([("bench".to_owned(), json!(self.bench))]);
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        self.lines.borrow_mut().push(line.clone());
        if self.out.is_json() {
            self.out.json_line(&Value::Object(line))
        } else {
            self.out.text(&text(&line))
        }
    }

    /// Prints what was measured for one case: the middle, and how far the windows spread.
    pub fn measured(
        &self,
        case: &str,
        n: u64,
        unit: &str,
        samples: &[f64],
        arm: Value,
    ) -> Result<(), Failure> {
        let summary = Summary::of(samples);
        let mut fields = json!({
            "case": case,
            "n": n,
            "unit": unit,
            "median": rounded(summary.median),
            "min": rounded(summary.min),
            "max": rounded(summary.max),
            "reps": samples.len(),
        });
        if let (Value::Object(fields), Value::Object(arm)) = (&mut fields, arm) {
            fields.extend(arm);
        }
        self.line(fields)
    }
}

/// The middle and the ends of some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
}

impl Summary {
    fn of(samples: &[f64]) -> Summary {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) && middle > 0 {
            f64::midpoint(at(middle - 1), at(middle))
        } else {
            at(middle)
        };
        Summary {
            median,
            min: at(0),
            max: at(sorted.len().saturating_sub(1)),
        }
    }
}

/// The middle of some samples, rounded.
pub fn median(samples: &[f64]) -> f64 {
    rounded(Summary::of(samples).median)
}

/// Three decimals: more is noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn text(line: &Map<String, Value>) -> String {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let get = |key: &str| line.get(key).map(word).unwrap_or_default();
    if !line.contains_key("median") {
        let rest = line
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "bench" | "case"));
        let rest: Vec<_> = rest
            .map(|(key, value)| format!("{key} {}", word(value)))
            .collect();
        return format!("{} {}: {}\n", get("bench"), get("case"), rest.join(", "));
    }
    const OF_EVERY_CASE: [&str; 8] = ["bench", "case", "n", "unit", "median", "min", "max", "reps"];
    let arm: String = line
        .iter()
        .filter(|(key, _)| !OF_EVERY_CASE.contains(&key.as_str()))
        .map(|(key, value)| format!(" {key}={}", word(value)))
        .collect();
    format!(
        "{} {} n={}{arm}: {} {} ({} to {}, {} windows)\n",
        get("bench"),
        get("case"),
        get("n"),
        get("median"),
        get("unit"),
        get("min"),
        get("max"),
        get("reps"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_count_lies_between_two() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!(
            summary,
            Summary {
                median: 2.5,
                min: 1.0,
                max: 4.0
            }
        );
        assert_eq!(
            Summary::of(&[7.0]),
            Summary {
                median: 7.0,
                min: 7.0,
                max: 7.0
            }
        );
    }
}
