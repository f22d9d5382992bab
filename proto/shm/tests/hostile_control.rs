//! Random words in the control segment, written as a hostile client would: the daemon's side does
//! not panic, does not run on without bound, and takes nothing home but what was lent.
//!
//! The owner table is played by a set of the words that are lent; a claim outside it is refused.
//! A seed that fails is printed, and replays. Seen to fail: a cursor of the client's used without
//! a check (see `mutations.txt`).
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::lane_client::{LaneClient, LaneTerms};
use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon, Poisoned, TakeState};
use hugepool_shm::layout::{BLOCK_GRANTS, BLOCK_MAGAZINE, PAGE_GRANTS, PAGE_MAGAZINE, RETURNS};
use hugepool_shm::mapping::Mapping;
use hugepool_shm::raw::{Class, PageParts, RawPage};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

const GEOMETRY: ControlGeometry = ControlGeometry {
    nr_lanes: 1,
    nr_sections: 8,
    nr_pages: 1 << 18,
};
const PAGEBLOCK_ORDER: u32 = 9;
/// Where the words of lane 0 lie, in the layout that the offsets of `layout.rs` assert.
const LANE_WORDS: std::ops::Range<usize> = 8192..8192 + 256 + 15 * 192;
/// All that a lane can hold.
const LANE_HOLDS: usize = 3 * (PAGE_GRANTS + PAGE_MAGAZINE) + 12 * (BLOCK_GRANTS + BLOCK_MAGAZINE);

/// Small, own, and the same everywhere: a seed means the same for ever (splitmix64).
struct Prng(u64);

impl Prng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn small(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).unwrap()
    }

    /// A cursor, mostly near what is there: absurd ones are noticed at once and teach little.
    fn cursor_near(&mut self, now: u32) -> u32 {
        match self.below(10) {
            0 => 0,
            1 => u32::MAX,
            2 => self.small(u32::MAX),
            3 => now.wrapping_add(1 << self.small(32)),
            _ => now.wrapping_add(self.small(9)).wrapping_sub(4),
        }
    }
}

struct World {
    /// The same file as `control`, as plain words.
    words: Mapping,
    control: ControlSegment,
    lane: LaneDaemon,
    map_cursor: usize,
    lent: BTreeSet<u64>,
    next_pfn: u32,
    nr_refused: u64,
}

impl World {
    fn new() -> World {
        let len = GEOMETRY.len_bytes().unwrap();
        let file = memfd_create(c"hugepool-hostile", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&file, len.try_into().unwrap()).unwrap();
        let words = Mapping::of_fd(file.as_fd(), len).unwrap();
        let mapping = Mapping::of_fd(file.as_fd(), len).unwrap();
        let control = ControlSegment::create(mapping, GEOMETRY).unwrap();
        let lane = LaneDaemon::new(control.clone(), 0).unwrap();
        let settings = ClassSettings {
            batch: 7,
            high: 40,
            low_mark: 4,
            zones: u32::MAX,
        };
        Class::all().for_each(|class| lane.configure(class, settings));
        let lent = BTreeSet::new();
        World {
            words,
            control,
            lane,
            map_cursor: 0,
            lent,
            next_pfn: 0,
            nr_refused: 0,
        }
    }

    /// One step of the daemon's.
    fn daemon_step(&mut self, prng: &mut Prng) -> Result<(), Poisoned> {
        let class = Class::ALL[prng.below(15)];
        match prng.below(8) {
            0 | 1 => self.lend(class, prng.below(100))?,
            2 => self.settle()?,
            3 => {
                let _ = self.lane.depth(class)?;
            }
            4 => {
                let _ = (self.lane.returns_depth()?, self.lane.take_wanted(class));
            }
            5 => self.take_freed(prng.below(20)),
            6 => self.lane.look(&mut |word| drop(format!("{word:?}"))),
            _ => self.recall(prng.below(2) == 0)?,
        }
        Ok(())
    }

    fn lend(&mut self, class: Class, count: usize) -> Result<(), Poisoned> {
        let count = count.min(self.lane.room(class)? as usize);
        let order = class.order(PAGEBLOCK_ORDER);
        let migratetype = class.migratetype();
        let pages: Vec<RawPage> = (0..count)
            .map(|_| {
                let pfn = self.next_pfn.next_multiple_of(1 << order) % (1 << 18);
                self.next_pfn = pfn + (1 << order);
                let (zone, client, generation) = (0, 0, 1);
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
            })
            .filter(|page| self.lent.insert(page.bits()))
            .collect();
        let nr_lent = self.lane.grant(class, &pages);
        let nr_kept = *nr_lent.as_ref().unwrap_or(&0);
        for page in &pages[nr_kept..] {
            self.lent.remove(&page.bits());
        }
        nr_lent.map(drop)
    }

    fn settle(&mut self) -> Result<(), Poisoned> {
        let mut claims = Vec::new();
        let outcome = self.lane.settle(&mut |word| claims.push(word));
        assert!(claims.len() <= RETURNS);
        self.judge(&claims);
        outcome.map(drop)
    }

    fn take_freed(&mut self, budget: usize) {
        let map = self.control.free_map();
        let (settled, ()) = map.load(&mut self.map_cursor, budget).settled_by(|| ());
        let heads: Vec<u32> = settled.heads().collect();
        assert!(heads.len() <= 64 * budget);
        assert!(heads.iter().all(|&pfn| u64::from(pfn) < GEOMETRY.nr_pages));
        // The order is the owner's to know; here any lent block with that head is it.
        self.lent
            .retain(|&bits| !heads.contains(&RawPage::from_bits(bits).pfn()));
        settled.commit();
    }

    fn recall(&mut self, is_stuck: bool) -> Result<(), Poisoned> {
        let mut claims = Vec::new();
        self.lane.close();
        let state = self.lane.try_take(is_stuck, &mut claims);
        assert!(
            claims.len() <= LANE_HOLDS,
            "{} blocks out of a lane",
            claims.len()
        );
        self.judge(&claims);
        if state? == TakeState::Emptied {
            assert!(self.lane.open());
        }
        Ok(())
    }

    fn judge(&mut self, claims: &[RawPage]) {
        for claim in claims {
            let is_right = self.lent.remove(&claim.bits());
            self.nr_refused += u64::from(!is_right);
        }
    }

    /// One word of the segment, by a client that knows where the cursors are.
    fn scribble(&self, prng: &mut Prng) {
        if prng.below(4) == 0 {
            // The reach: a client that stands in the window, or leaves it.
            let busy = &self.words.words32(LANE_WORDS.start, 1).unwrap()[0];
            busy.store(prng.small(4), Relaxed);
        } else if prng.below(4) == 0 {
            let offset = prng.below(self.words.len_bytes() / 8) * 8;
            let word = &self.words.words64(offset, 1).unwrap()[0];
            let somebodys = self
                .lent
                .iter()
                .nth(prng.below(self.lent.len() + 1))
                .copied();
            word.store(somebodys.unwrap_or_else(|| prng.next()), Relaxed);
        } else {
            let nr_words = LANE_WORDS.len() / 4;
            let offset = LANE_WORDS.start + 4 * prng.below(nr_words);
            let word = &self.words.words32(offset, 1).unwrap()[0];
            word.store(prng.cursor_near(word.load(Relaxed)), Relaxed);
        }
    }

    /// One honest operation over whatever stands in the lane.
    fn client_step(&self, prng: &mut Prng) {
        let terms = LaneTerms {
            client_index: 0,
            pageblock_order: 9,
            registered: true,
        };
        let client = LaneClient::new(&self.control, 0, terms, None).unwrap();
        let class = Class::ALL[prng.below(15)];
        let mut out = [RawPage::default(); 70];
        let taken = client.take_raw(class, &mut out[..prng.below(71)]);
        assert!(taken.count <= 70);
        client.put_raw(&out[..taken.count]);
        if let Ok(one) = client.take_one_raw(class) {
            client.put_one_raw(one);
        }
        let _ = client.stats();
    }
}

/// Runs a seed to its end or to the lane's poisoning; tells which.
fn run(seed: u64, nr_steps: usize) -> Option<Poisoned> {
    let mut prng = Prng(seed);
    let mut world = World::new();
    // Swarm: each seed has its own weights.
    let (scribbles, honest) = (1 + prng.below(8), prng.below(8));
    for _ in 0..nr_steps {
        let choice = prng.below(scribbles + honest + 8);
        if choice < scribbles {
            world.scribble(&mut prng);
        } else if choice < scribbles + honest {
            world.client_step(&mut prng);
        } else if let Err(poisoned) = world.daemon_step(&mut prng) {
            return Some(poisoned);
        }
    }
    None
}

#[test]
fn no_word_of_a_client_makes_the_daemon_panic_or_take_what_is_not_lent() {
    let mut nr_poisoned = [0; 4];
    for seed in 0..400 {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, 300)));
        match outcome {
            Ok(Some(Poisoned::Grants { .. })) => nr_poisoned[0] += 1,
            Ok(Some(Poisoned::Returns { .. })) => nr_poisoned[1] += 1,
            Ok(Some(Poisoned::Magazine { .. })) => nr_poisoned[2] += 1,
            Ok(Some(Poisoned::Overreach { .. })) => nr_poisoned[3] += 1,
            Ok(None) => {}
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(
        nr_poisoned.iter().all(|&count| count > 0),
        "a check was never met: {nr_poisoned:?}"
    );
}

#[test]
fn an_honest_client_is_never_poisoned() {
    for seed in 0..50 {
        let mut prng = Prng(seed);
        let mut world = World::new();
        for step in 0..300 {
            if prng.below(2) == 0 {
                world.client_step(&mut prng);
            } else {
                let outcome = world.daemon_step(&mut prng);
                assert_eq!(outcome, Ok(()), "seed {seed}, step {step}");
            }
        }
        assert_eq!(world.nr_refused, 0, "seed {seed}");
    }
}
