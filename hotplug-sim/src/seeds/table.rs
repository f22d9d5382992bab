//! The table: published, kernel, ours, their ratios, and the command.

use serde::Serialize;

use super::anchors::{self, Anchor};
use super::{Measured, contiguity};

/// One arm of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The experiment.
    pub seed: &'static str,
    /// The arm.
    pub arm: String,
    /// In what the figures are.
    pub unit: &'static str,
    /// As published; unknown is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// Linux 6.1, natively.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_6_1: Option<f64>,
    /// Linux 7.3, natively.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_7_3: Option<f64>,
    /// Measured in this run.
    pub ours: f64,
    /// How many times better ours is than the newest kernel measured, or else than published.
    pub ratio: f64,
    /// What prints the figure again.
    pub command: String,
}

/// The unit of what a cache gains over none.
const GAIN: &str = "times";

/// All rows.
pub fn rows(measured: &Measured, reps: u32) -> Vec<Row> {
    let command = format!("hotplug-sim seeds --reps {reps}");
    let mut rows = Vec::new();
    let mut add = |seed, arm: &str, unit, anchor: Anchor, ours: f64| {
        let theirs = anchor.linux_7_3.or(anchor.linux_6_1).or(anchor.published);
        let theirs = theirs.unwrap_or(f64::NAN);
        let is_gain = unit == GAIN;
        rows.push(Row {
            seed,
            arm: arm.to_owned(),
            unit,
            published: anchor.published,
            linux_6_1: anchor.linux_6_1,
            linux_7_3: anchor.linux_7_3,
            ours,
            ratio: if is_gain {
                ours / theirs
            } else {
                theirs / ours
            },
            command: command.clone(),
        });
    };
    let bulk = measured.bulk;
    add(
        "bulk, 65 pages",
        "single",
        "ns",
        anchors::SINGLE,
        bulk.single,
    );
    add("bulk, 65 pages", "list", "ns", anchors::LIST, bulk.list);
    add("bulk, 65 pages", "array", "ns", anchors::ARRAY, bulk.array);
    let online = measured.online;
    add(
        "online 256 MiB",
        "order 0",
        "us",
        anchors::ORDER_0,
        online.order_0,
    );
    add(
        "online 256 MiB",
        "pageblock",
        "us",
        anchors::PAGEBLOCK,
        online.pageblock,
    );
    let contiguity = measured.contiguity;
    for (at, (_, mode)) in contiguity::MODES.into_iter().enumerate() {
        let anchor = if at == 0 {
            anchors::WALKED
        } else {
            anchors::CACHED
        };
        add(
            "contiguity, a check",
            mode,
            "ns",
            anchor,
            contiguity.check_ns[at],
        );
    }
    for (at, (_, mode)) in contiguity::MODES.into_iter().enumerate().skip(1) {
        let gain = contiguity.moved[at] / contiguity.moved[0];
        add("contiguity, gain", mode, GAIN, anchors::GAIN, gain);
    }
    rows
}

/// For programs.
pub fn json(rows: &[Row]) -> String {
    let mut text = serde_json::to_string(rows).unwrap_or_default();
    text.push('\n');
    text
}

/// For people.
pub fn text(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<21}{:<11}{:>6}{:>11}{:>9}{:>9}{:>10}{:>9}  command\n",
        "seed", "arm", "unit", "published", "6.1", "7.3", "ours", "ratio"
    );
    let figure = |value: Option<f64>| match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    };
    for row in rows {
        text.push_str(&format!(
            "{:<21}{:<11}{:>6}{:>11}{:>9}{:>9}{:>10}{:>9}  {}\n",
            row.seed,
            row.arm,
            row.unit,
            figure(row.published),
            figure(row.linux_6_1),
            figure(row.linux_7_3),
            figure(Some(row.ours)),
            figure(Some(row.ratio)),
            row.command
        ));
    }
    text.push_str(NOTES);
    text
}

const NOTES: &str = "\
published: with the kernel's patches (an instrumented kernel; arm64; compaction that rescanned). 6.1, 7.3: the
kernel's allocator natively on one core, a recorded figure of another machine of this kind. ours: measured in
this run, in this process: 65 pages out of the lane of a client, its daemon serving it between the windows;
sections online and compaction in the books alone, no byte of memory is touched; gain: what is moved a second
with that cache against none. ratio: how many times better than the newest kernel in the row, or else than what
was published. Compare ratios of one run, not figures.
";
