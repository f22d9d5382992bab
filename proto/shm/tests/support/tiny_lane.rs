//! A lane as models have it: one class, rings of two words, a magazine of four.

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::doorbell::Doorbell;
use hugepool_shm::lane_client::{LaneClient, LaneTerms};
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon};
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};

/// Stack of a model's threads, in machine words: each word of loom's takes kilobytes of it to make,
/// more than loom's own threads have with debug assertions.
const STACK_WORDS: usize = 1 << 16;

/// What a model's thread takes along or brings back.
struct Carried<T>(T);

// SAFETY: loom runs all threads of a model on the one thread of the test, so nothing is ever sent.
unsafe impl<T> Send for Carried<T> {}

impl<T> Carried<T> {
    fn into_inner(self) -> T {
        self.0
    }
}

/// A thread of a model, with room on its stack.
struct Running<T>(loom::thread::JoinHandle<Carried<T>>);

impl<T> Running<T> {
    fn join(self) -> T {
        self.0.join().unwrap().into_inner()
    }
}

fn spawn<T: 'static>(body: impl FnOnce() -> T + 'static) -> Running<T> {
    let body = Carried(body);
    let builder = loom::thread::Builder::new().stack_size(STACK_WORDS);
    Running(builder.spawn(move || Carried(body.into_inner()())).unwrap())
}

/// Runs a model over all schedules with at most `preemptions` involuntary switches, from both
/// ends: `body` is told whether the client goes first in the schedule that all others come from.
///
/// Loom remembers of each word only the last access, so a load by one thread, before a load and a
/// store by the other, is never tried after that store; who begins decides what that hides. And a
/// thread that has yielded is not shown values from before, nor the creator of a word its zero: so
/// both sides are threads of their own.
pub fn model(preemptions: usize, body: impl Fn(bool) + Sync + Send + Clone + 'static) {
    for is_client_first in [false, true] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        let body = body.clone();
        builder.check(move || {
            let body = body.clone();
            spawn(move || body(is_client_first)).join();
        });
    }
}

/// Runs a client and a daemon at once, and gives what they ended with.
pub fn at_once<C: 'static, D: 'static>(
    is_client_first: bool,
    client: impl FnOnce() -> C + 'static,
    daemon: impl FnOnce() -> D + 'static,
) -> (C, D) {
    if is_client_first {
        let client = spawn(client);
        let daemon = spawn(daemon);
        (client.join(), daemon.join())
    } else {
        let daemon = spawn(daemon);
        let client = spawn(client);
        (client.join(), daemon.join())
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
