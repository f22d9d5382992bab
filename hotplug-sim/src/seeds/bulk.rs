//! 65 pages: one by one, by the list, by the array.
//!
//! An engine and one client in this process: the daemon's grants are made between the windows,
//! as they are made by another thread in life. A window takes 65 pages so many times out of the
//! lane, and gives them back outside of it.

use core::time::Duration;
use std::hint::black_box;

use hugepool_engine::{
    AttachSpec, Backing, ClientId, Command, Defaults, Effect, Engine, EngineConfig, NoOutside,
    Quarantine, Sections, SectionsRequest, ZoneSettings,
};
use hugepool_mm::{Geometry, ZoneId, ZoneKind};
use hugepool_shm::class::Class;
use hugepool_shm::control::ControlSegment;
use hugepool_shm::lane_client::{LaneClient, LaneTerms};
use hugepool_shm::raw::RawPage;

use super::{median, seconds};

/// Slots of an NFS server's thread: 256 KiB of data and a page for the head.
const SLOTS: usize = 65;
/// Takes of a window: what lies in a lane at once is enough for so many.
const TAKES: usize = 12;
/// Windows of a sample.
const WINDOWS: u32 = 2000;

/// Nanoseconds for 65 pages.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// One by one.
    pub single: f64,
    /// Appended to a list.
    pub list: f64,
    /// Into an array.
    pub array: f64,
}

struct Bench {
    engine: Engine,
    id: ClientId,
    segment: ControlSegment,
    terms: LaneTerms,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let geometry = Geometry::standard();
        let zone = ZoneSettings {
            name: "normal".to_owned(),
            kind: ZoneKind::Normal,
            node: -1,
            reserve_pages: 2 * u64::from(geometry.section_pages()),
            ceiling_pages: None,
            floor_pages: 0,
            quarantine: Quarantine::None,
        };
        let config = EngineConfig {
            geometry,
            zones: vec![zone],
            defaults: Defaults::default(),
        };
        let mut engine = Engine::new(config).map_err(|error| error.to_string())?;
        let add = Command::AddSections {
            request: SectionsRequest {
                zone: Some("normal".to_owned()),
                sections: Sections::Count(2),
                dry_run: false,
            },
            online_order: None,
            keep_offline: false,
        };
        let now = Duration::from_secs(1);
        engine
            .apply(add, now, &mut NoOutside)
            .map_err(|error| error.to_string())?;
        for _ in 0..8 {
            for effect in engine.take_effects() {
                if let Effect::Populate { section, .. } = effect {
                    let backing = Backing {
                        name: "none".to_owned(),
                        node: -1,
                        not_taken: Vec::new(),
                    };
                    engine.populated(section, Ok(backing), now);
                }
            }
            engine.poll(now, &mut NoOutside);
        }
        let segment =
            ControlSegment::heap(engine.control_geometry(1)).map_err(|error| error.to_string())?;
        let spec = AttachSpec {
            uid: 0,
            gid: 0,
            pid: 1,
            name: "seeds".to_owned(),
            client_index: 0,
            zones: vec![ZoneId::new(0)],
            secret: [0; 16],
        };
        let id = engine
            .attach(spec, segment.clone(), now)
            .map_err(|error| error.to_string())?;
        engine.ready(id, true).map_err(|error| error.to_string())?;
        for section in 0..segment.geometry().nr_sections {
            segment.mark_mapped(section, segment.announced(section));
        }
        segment.mark_mapped_epoch(segment.section_epoch());
        let terms = LaneTerms {
            client_index: 0,
            pageblock_order: u32::from(geometry.pageblock_order().get()),
            registered: true,
        };
        Ok(Bench {
            engine,
            id,
            segment,
            terms,
        })
    }

    fn serve(&mut self) {
        let now = Duration::from_secs(1);
        self.engine.service(now, &mut NoOutside, Some(self.id));
    }

    /// Nanoseconds of one take of 65 pages, by `take`, which appends them to `hands`.
    fn sample(
        &mut self,
        mut take: impl FnMut(&LaneClient<'_>, &mut Vec<RawPage>),
    ) -> Result<f64, String> {
        let segment = self.segment.clone();
        let lane =
            LaneClient::new(&segment, 0, self.terms, None).ok_or("the segment has no lane")?;
        let mut hands: Vec<RawPage> = Vec::with_capacity(2 * TAKES * SLOTS);
        let mut times = Vec::new();
        for window in 0..WINDOWS {
            let took = seconds(|| {
                for _ in 0..TAKES {
                    take(&lane, &mut hands);
                }
                black_box(&hands);
            });
            let is_full = hands.len() == TAKES * SLOTS;
            if !is_full {
                lane.want(Class::PAGE, 1024);
            }
            hands.chunks(SLOTS).for_each(|pages| lane.put_raw(pages));
            hands.clear();
            self.serve();
            // The first ones find an empty lane, and caches cold.
            if is_full && window > 100 {
                #[expect(clippy::cast_precision_loss, reason = "twelve")]
                times.push(took * 1e9 / TAKES as f64);
            }
        }
        if times.is_empty() {
            return Err("the lane never had enough pages".to_owned());
        }
        Ok(median(times))
    }
}

/// Measures the three arms in turns.
///
/// # Errors
/// There is no engine or lane to measure on.
pub fn measure(reps: u32) -> Result<Measured, String> {
    let mut bench = Bench::new()?;
    let (mut single, mut list, mut array) = (Vec::new(), Vec::new(), Vec::new());
    let mut slots = [RawPage::from_bits(0); SLOTS];
    for _ in 0..reps {
        single.push(bench.sample(|lane, hands| {
            for _ in 0..SLOTS {
                hands.extend(lane.take_one_raw(Class::PAGE));
            }
        })?);
        list.push(bench.sample(|lane, hands| {
            let taken = lane.take_raw(Class::PAGE, &mut slots);
            hands.extend_from_slice(&slots[..taken.count]);
        })?);
        array.push(bench.sample(|lane, hands| {
            // The slots lie in place: what is handed over is the memory itself.
            let at = hands.len();
            hands.resize(at + SLOTS, RawPage::from_bits(0));
            let taken = lane.take_raw(Class::PAGE, &mut hands[at..]);
            hands.truncate(at + taken.count);
        })?);
    }
    Ok(Measured {
        single: median(single),
        list: median(list),
        array: median(array),
    })
}
