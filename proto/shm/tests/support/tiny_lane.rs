//! A lane as models have it: one class, rings of two words, a magazine of four.

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::lane_client::{LaneClient, LaneTerms};
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon};
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};

/// Who runs first in the schedule that all others are derived from.
#[derive(Clone, Copy)]
pub enum First {
    Daemon,
    Client,
}

impl First {
    /// Called by the daemon (the model's main thread) when the client's thread was started.
    pub fn begin(self) {
        if matches!(self, First::Client) {
            loom::thread::yield_now();
        }
    }
}

/// Runs a model over all schedules with at most `preemptions` involuntary switches, from both
/// ends: loom remembers of each word only the last access, so a load of one thread's that the
/// other follows up with a load and a store is never tried after that store. Whether that hides
/// something depends on who began.
pub fn model(preemptions: usize, body: impl Fn(First) + Sync + Send + Clone + 'static) {
    for first in [First::Daemon, First::Client] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        let body = body.clone();
        builder.check(move || body(first));
    }
}

/// A segment with one lane and 256 pages: four words of free map under two marks.
pub fn segment() -> ControlSegment {
    let geometry = ControlGeometry {
        nr_lanes: 1,
        nr_sections: 1,
        nr_pages: 256,
    };
    ControlSegment::heap(geometry).unwrap()
}

/// The daemon's side, with a magazine that spills `batch` above `high`.
pub fn daemon(segment: &ControlSegment, high: u32, batch: u32, low_mark: u32) -> LaneDaemon {
    let daemon = LaneDaemon::new(segment.clone(), 0).unwrap();
    daemon.configure(
        Class::PAGE,
        ClassSettings {
            batch,
            high,
            low_mark,
            zones: 1,
        },
    );
    daemon
}

/// The client's side, as a process has it that takes every fence itself.
pub fn client<'a>(segment: &'a ControlSegment, bell: Option<&'a Doorbell>) -> LaneClient<'a> {
    let terms = LaneTerms {
        client_index: 0,
        pageblock_order: 9,
        registered: true,
    };
    LaneClient::new(segment, 0, terms, bell).unwrap()
}

pub fn page(pfn: u32) -> RawPage {
    let (order, zone, client, generation) = (0, 0, 0, 1);
    let migratetype = RawMigratetype::Unmovable;
    PageParts {
        pfn,
        order,
        migratetype,
        zone,
        client,
        generation,
    }
    .pack()
    .unwrap()
}

/// A block that no lane caches: its free goes to `returns`.
pub fn uncached(pfn: u32) -> RawPage {
    let (order, zone, client, generation) = (5, 0, 0, 1);
    let migratetype = RawMigratetype::Unmovable;
    PageParts {
        pfn,
        order,
        migratetype,
        zone,
        client,
        generation,
    }
    .pack()
    .unwrap()
}

pub fn pfns(words: &[RawPage]) -> Vec<u32> {
    words.iter().map(|word| word.pfn()).collect()
}

/// Asserts that `words` are the pages `expected`, each once, in any order.
pub fn assert_each_once(mut words: Vec<u32>, expected: &[u32]) {
    words.sort_unstable();
    assert_eq!(words, expected, "a page was lost or doubled");
}
