//! Floors and ceilings against a naive twin, which decides page by page what the engine decides in
//! one step: who is lent how much, and what is left for whom.
//!
//! Seen to fail: with a user's floor that its clients' do not count within, with what is kept for
//! other users forgotten, with a user's ceiling left out, with a share taken of all pages instead of
//! those that no floor is for, with what a client is sure of given above `min` only, with an offline
//! that asks no floor.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use hugepool_engine::{AllocBulk, Command, CommandError, Defaults, Limit, Reply, Whom};
use hugepool_mm::ZoneKind;
use hugepool_shm::raw::RawPage;
use proptest::prelude::*;
use support::{PAGE, Rig, Tenant, alloc, zone};

const NR_TENANTS: usize = 4;
/// Of each tenant.
const UIDS: [u32; NR_TENANTS] = [10, 10, 20, 30];
const SECTIONS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Op {
    Call {
        tenant: usize,
        count: u32,
    },
    Lane {
        tenant: usize,
        count: usize,
    },
    Free {
        tenant: usize,
        count: usize,
    },
    OfClient {
        tenant: usize,
        floor: u64,
        ceiling: Option<u64>,
    },
    OfUser {
        uid: u32,
        floor: u64,
        ceiling: Option<u64>,
    },
    OfEach {
        floor: u64,
        ceiling: Option<u64>,
    },
    OfZone {
        ceiling: Option<u64>,
    },
    Die {
        tenant: usize,
    },
    Offline {
        section: u32,
    },
    Online {
        section: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let tenant = 0..NR_TENANTS;
    let floor = prop_oneof![Just(0u64), 1..120u64];
    let ceiling = || proptest::option::of(0..200u64);
    prop_oneof![
        8 => (tenant.clone(), 1..150u32).prop_map(|(tenant, count)| Op::Call { tenant, count }),
        3 => (tenant.clone(), 1..60usize).prop_map(|(tenant, count)| Op::Lane { tenant, count }),
        5 => (tenant.clone(), 1..150usize).prop_map(|(tenant, count)| Op::Free { tenant, count }),
        2 => (tenant.clone(), floor.clone(), ceiling())
            .prop_map(|(tenant, floor, ceiling)| Op::OfClient { tenant, floor, ceiling }),
        2 => (0..3usize, floor, ceiling()).prop_map(|(at, floor, ceiling)| Op::OfUser {
            uid: [10, 20, 30][at], floor, ceiling,
        }),
        1 => (0..30u64, ceiling()).prop_map(|(floor, ceiling)| Op::OfEach { floor, ceiling }),
        1 => ceiling().prop_map(|ceiling| Op::OfZone { ceiling }),
        1 => tenant.prop_map(|tenant| Op::Die { tenant }),
        1 => (0..SECTIONS).prop_map(|section| Op::Offline { section }),
        1 => (0..SECTIONS).prop_map(|section| Op::Online { section }),
    ]
}

/// The engine, and what should be.
struct World {
    rig: Rig,
    tenants: Vec<Tenant>,
    held: Vec<Vec<RawPage>>,
    limits: Vec<Limit>,
    users: Vec<(u32, Limit)>,
    each: Limit,
    zone: Limit,
}

impl World {
    fn new() -> World {
        let zones = vec![
            zone("normal", ZoneKind::Normal, u64::from(SECTIONS)),
            zone("movable", ZoneKind::Movable, 1),
        ];
        let mut rig = Rig::with(zones, Defaults::default());
        rig.add("normal", SECTIONS);
        let tenants = UIDS.map(|uid| attach(&mut rig, uid));
        World {
            rig,
            tenants: tenants.into(),
            held: vec![Vec::new(); NR_TENANTS],
            limits: vec![Limit::default(); NR_TENANTS],
            users: [10, 20, 30].map(|uid| (uid, Limit::default())).into(),
            each: Limit::default(),
            zone: Limit::default(),
        }
    }

    fn owned(&self, tenant: usize) -> u64 {
        self.rig
            .engine
            .owned_pages(self.tenants[tenant].id)
            .unwrap()
    }

    fn all_owned(&self) -> [u64; NR_TENANTS] {
        std::array::from_fn(|tenant| self.owned(tenant))
    }

    /// Pages in the daemon's own lists, which no mark keeps from those who ask for the type that
    /// the list is of.
    fn listed(&self) -> u64 {
        self.rig.engine.list_zones()[0].pages.pcp
    }

    /// Managed and free pages, and the zone's `min` and `low`.
    fn pages(&self) -> (u64, u64, u64, u64) {
        let zones = self.rig.engine.list_zones();
        let free = zones[0].pages.free + zones[0].pages.pcp;
        let marks = zones[0].watermarks;
        (zones[0].pages.managed, free, marks.min, marks.low)
    }

    /// Pages that are kept when the tenants own so many: for each user the more of its own floor and
    /// of its clients', each of these the more of its floor and what it owns.
    fn kept(&self, owned: &[u64; NR_TENANTS]) -> u64 {
        let kept = self.users.iter().map(|&(uid, limit)| {
            let mine = || (0..NR_TENANTS).filter(|&at| UIDS[at] == uid);
            let claimed: u64 = mine()
                .map(|at| owned[at].max(self.limits[at].floor_pages))
                .sum();
            claimed.max(limit.floor_pages) - mine().map(|at| owned[at]).sum::<u64>()
        });
        kept.sum()
    }

    fn floors(&self) -> u64 {
        self.kept(&[0; NR_TENANTS])
    }

    /// Whether all ceilings hold when the tenants own so many; those of others do not matter.
    fn is_below(&self, tenant: usize, owned: &[u64; NR_TENANTS]) -> bool {
        let below =
            |limit: &Limit, pages: u64| limit.ceiling_pages.is_none_or(|most| pages <= most);
        let uid = UIDS[tenant];
        let of_user = (0..NR_TENANTS)
            .filter(|&at| UIDS[at] == uid)
            .map(|at| owned[at])
            .sum();
        let user = self.users.iter().find(|(known, _)| *known == uid).unwrap();
        below(&self.limits[tenant], owned[tenant])
            && below(&user.1, of_user)
            && below(&self.zone, owned.iter().sum())
    }

    /// How many pages a call gets, decided page by page, when so many of those in the daemon's own
    /// lists are of the type asked for.
    fn foresee(&self, tenant: usize, count: u32, mut listed: u64) -> u32 {
        let (managed, mut free, min, low) = self.pages();
        let mut owned = self.all_owned();
        let share = managed.saturating_sub(self.floors()) / NR_TENANTS as u64;
        let is_greedy = owned[tenant] > self.limits[tenant].floor_pages + share;
        let mut nr = 0;
        // What it is sure of comes first, down to the last page.
        for is_sure in [true, false] {
            while nr < count && free > 0 {
                let before = self.kept(&owned);
                let mut after = owned;
                after[tenant] += 1;
                let is_kept_for_it = self.kept(&after) < before;
                let is_above = match (is_greedy, self.floors()) {
                    (true, _) => free >= low && free > min,
                    (false, 0) => listed > 0 || free > min,
                    (false, _) => true,
                };
                let leaves_enough =
                    is_above && (self.floors() == 0 || free > min + self.kept(&after));
                let may = if is_sure {
                    is_kept_for_it
                } else {
                    leaves_enough
                };
                if !may || !self.is_below(tenant, &after) {
                    break;
                }
                (owned, free, nr) = (after, free - 1, nr + 1);
                listed = listed.saturating_sub(1);
            }
        }
        nr
    }

    /// Everything that lies in lanes comes home: a twin without lanes.
    fn settle(&mut self) {
        self.rig.service();
        let request = Command::DrainLanes {
            slot: None,
            timeout: None,
        };
        self.rig.operate(request);
    }

    fn set(&mut self, whom: Whom, limit: Limit, apply: impl Fn(&mut World, Limit)) {
        let command = Command::SetLimits {
            whom,
            zone: Some("normal".into()),
            limit,
        };
        let result = self
            .rig
            .engine
            .apply(command, self.rig.now, &mut self.rig.outside);
        let old = (
            self.limits.clone(),
            self.users.clone(),
            self.each,
            self.zone,
        );
        let before = self.floors();
        apply(self, limit);
        let (managed, _, min, _) = self.pages();
        let floors = self.floors();
        let is_bad = limit
            .ceiling_pages
            .is_some_and(|most| most < limit.floor_pages);
        let is_too_much = floors > managed.saturating_sub(min) && floors > before;
        match result {
            Ok(Reply::Limits { .. }) => assert!(!is_bad && !is_too_much, "{whom:?} {limit:?}"),
            Err(CommandError::FloorAboveCeiling { .. }) => assert!(is_bad),
            Err(CommandError::Floors {
                floors_pages,
                room_pages,
                ..
            }) => {
                assert!(is_too_much && !is_bad);
                assert_eq!(
                    (floors_pages, room_pages),
                    (floors, managed.saturating_sub(min))
                );
            }
            other => panic!("{other:?}"),
        }
        if is_bad || is_too_much {
            (self.limits, self.users, self.each, self.zone) = old;
        }
    }

    fn play(&mut self, op: Op) {
        match op {
            Op::Call { tenant, count } => self.call(tenant, count),
            Op::Lane { tenant, count } => {
                let before = self.all_owned();
                let pages = self.rig.take(&self.tenants[tenant], 0, PAGE, count);
                self.held[tenant].extend(pages);
                // Pages in the lane count.
                let after = self.all_owned();
                if after[tenant] > before[tenant] {
                    assert!(self.is_below(tenant, &after), "{after:?}");
                }
            }
            Op::Free { tenant, count } => {
                let count = count.min(self.held[tenant].len());
                let pages: Vec<RawPage> = self.held[tenant].drain(..count).collect();
                for chunk in pages.chunks(200) {
                    self.tenants[tenant].put(0, chunk);
                    self.rig.service();
                }
            }
            Op::OfClient {
                tenant,
                floor,
                ceiling,
            } => {
                let whom = Whom::Client(self.tenants[tenant].id.slot);
                self.set(whom, limit(floor, ceiling), |world, limit| {
                    world.limits[tenant] = limit
                });
            }
            Op::OfUser {
                uid,
                floor,
                ceiling,
            } => {
                self.set(Whom::User(uid), limit(floor, ceiling), |world, limit| {
                    let user = world.users.iter_mut().find(|(known, _)| *known == uid);
                    user.unwrap().1 = limit;
                });
            }
            Op::OfEach { floor, ceiling } => {
                self.set(Whom::EachClient, limit(floor, ceiling), |world, limit| {
                    world.each = limit;
                    world.limits = vec![limit; NR_TENANTS];
                });
            }
            Op::OfZone { ceiling } => {
                self.set(Whom::Zone, limit(0, ceiling), |world, limit| {
                    world.zone = limit
                });
            }
            Op::Die { tenant } => self.die(tenant),
            Op::Offline { section } => {
                let report = self.rig.offline(&[section], 20);
                let (managed, _, min, _) = self.pages();
                let is_off = report.sections[0].done == Some(Ok(())) && !report.sections[0].already;
                // What is left can keep the floors.
                assert!(
                    !is_off || self.floors() == 0 || managed - min.min(managed) >= self.floors()
                );
            }
            Op::Online { section } => {
                let request = support::by_ids(&[section]);
                self.rig.operate(Command::OnlineSections {
                    request,
                    online_order: None,
                });
            }
        }
        self.settle();
        self.rig.verify();
    }

    fn call(&mut self, tenant: usize, count: u32) {
        // A page that was freed lies in the list of its pageblock's type.
        let least = self.foresee(tenant, count, 0);
        let most = self.foresee(tenant, count, self.listed());
        let request = AllocBulk {
            zone: Some("normal".into()),
            ..alloc(0, count)
        };
        // Not for what others have in lanes: there is nothing.
        let id = self.tenants[tenant].id;
        let hugepool_engine::AllocOutcome::Done(reply) = self.rig.alloc_bulk(id, &request) else {
            panic!("did not ask to wait")
        };
        let owned = self.all_owned();
        assert!(
            (least..=most).contains(&reply.nr_blocks),
            "{tenant} asked {count}, foreseen {least} to {most}: {reply:?} {owned:?}"
        );
        for run in &reply.runs {
            for at in 0..run.nr_blocks {
                let parts = hugepool_shm::raw::PageParts {
                    pfn: run.first.get() + at,
                    order: 0,
                    migratetype: hugepool_shm::raw::RawMigratetype::Unmovable,
                    zone: 0,
                    client: 3,
                    generation: run.generation,
                };
                self.held[tenant].push(parts.pack().unwrap());
            }
        }
    }

    fn die(&mut self, tenant: usize) {
        let id = self.tenants[tenant].id;
        self.rig.engine.bury(id, self.rig.now);
        self.held[tenant].clear();
        self.limits[tenant] = Limit::default();
        // It is followed by another one.
        let without = self.floors();
        self.limits[tenant] = self.each;
        let (managed, _, min, _) = self.pages();
        let is_refused = self.each.floor_pages > 0 && self.floors() > managed.saturating_sub(min);
        let mut spec = self.rig.spec(4000);
        spec.uid = UIDS[tenant];
        if is_refused {
            let geometry = self.rig.engine.control_geometry(2);
            let segment = hugepool_shm::control::ControlSegment::heap(geometry).unwrap();
            assert!(self.rig.engine.attach(spec, segment, self.rig.now).is_err());
            // Without that floor it is taken in.
            self.limits[tenant] = Limit::default();
            assert_eq!(self.floors(), without);
            let none = Limit {
                floor_pages: 0,
                ..self.each
            };
            self.set(Whom::EachClient, none, |world, limit| {
                world.each = limit;
                world.limits = vec![limit; NR_TENANTS];
            });
        }
        self.tenants[tenant] = attach(&mut self.rig, UIDS[tenant]);
    }
}

fn limit(floor_pages: u64, ceiling_pages: Option<u64>) -> Limit {
    Limit {
        floor_pages,
        ceiling_pages,
    }
}

fn attach(rig: &mut Rig, uid: u32) -> Tenant {
    let mut spec = rig.spec(4000);
    spec.uid = uid;
    let tenant = rig.attach(spec, 2);
    tenant.map_all();
    tenant
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn limits_are_decided_as_page_by_page(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            let owned = world.all_owned();
            let (_, free, min, _) = world.pages();
            let was_kept = free >= min + world.kept(&owned);
            world.play(op);
            for tenant in &world.tenants {
                tenant.map_all();
            }
            // Floors whose pages are there stay so, whatever others take.
            let is_lent = matches!(op, Op::Call { .. } | Op::Lane { .. } | Op::Free { .. })
                && world.floors() > 0;
            let owned = world.all_owned();
            let (_, free, min, _) = world.pages();
            prop_assert!(!(is_lent && was_kept) || free >= min + world.kept(&owned),
                "{op:?}: {owned:?} {free} {min}");
        }
    }
}
