//! The statistics segment: the engine's counters, where they can be read when the daemon does not
//! answer any more.
//!
//! Written about once a second. A daemon that cannot have the segment (a full `/dev/shm`) says so
//! and does without.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hugepool_engine::{Command, PageCounts, Reply};
use hugepool_shm::stats::StatsWriter;

use crate::shared::Shared;

/// How often the counters are written.
const PERIOD: Duration = Duration::from_secs(1);

/// Counters of the whole.
const OF_ALL: [&str; 5] = [
    "uptime_ms",
    "nr_clients",
    "nr_misuses",
    "nr_reclaimed_pages",
    "nr_operations",
];

/// Counters of each zone; the name of the zone comes before.
const OF_ZONE: [&str; 8] = [
    "spanned", "present", "reserved", "managed", "free", "pcp", "lent", "isolated",
];

/// Writes the counters until it is dropped, which removes the segment.
pub struct Stats {
    writer: StatsWriter,
    shared: Arc<Shared>,
}

impl Stats {
    /// Makes the segment of this directory; none if it cannot be had.
    pub fn open(runtime_dir: &Path, shared: &Arc<Shared>) -> Option<Stats> {
        let names = names(shared);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match StatsWriter::create(runtime_dir, &names) {
            Ok(writer) => Some(Stats {
                writer,
                shared: shared.clone(),
            }),
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, source, "no statistics for `hugepoolctl stats --offline`");
                None
            }
        }
    }

    /// Writes the counters at each period. Never returns.
    pub async fn keep_writing(&mut self) {
        let mut periods = tokio::time::interval(PERIOD);
        loop {
            periods.tick().await;
            let values = values(&self.shared);
            self.writer.publish(&values);
        }
    }
}

fn names(shared: &Shared) -> Vec<String> {
    let of_all = OF_ALL.iter().map(|name| (*name).to_owned());
    let of_zones = shared.zones().iter().flat_map(|zone| {
        OF_ZONE
            .iter()
            // A name of a zone has at most 31 bytes, which leaves room for these.
            .map(|name| format!("zone.{}.{name}_pages", zone.name))
    });
    of_all.chain(of_zones).collect()
}

/// The counters in the order of their names.
fn values(shared: &Shared) -> Vec<u64> {
    let mut values = vec![shared.uptime_ms()];
    if let Ok(Reply::Status(status)) = shared.apply(Command::GetStatus) {
        values.extend([
            status.nr_clients.into(),
            status.nr_misuses,
            status.nr_reclaimed_pages,
            status.nr_operations.into(),
        ]);
    }
    if let Ok(Reply::Zones(zones)) = shared.apply(Command::ListZones) {
        for zone in zones {
            let PageCounts {
                spanned,
                present,
                reserved,
                managed,
                free,
                pcp,
                lent,
                isolated,
            } = zone.pages;
            values.extend([
                spanned, present, reserved, managed, free, pcp, lent, isolated,
            ]);
        }
    }
    values
}
