//! Lists of operations, and a daemon that dies after any step of any of them: against a twin that
//! knows who holds which page.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/mortal.rs"]
mod mortal;
mod support;
#[path = "support/movable.rs"]
mod tenants;

use std::collections::BTreeMap;
use std::time::Duration;

use hugepool_engine::{
    AllocBulk, AllocOutcome, ClaimedRun, Command, Defaults, FreeBulk, Patience, Sections,
};
use hugepool_mm::{Migratetype, ZoneKind};
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};
use mortal::Mortal;
use proptest::prelude::*;
use support::{Rig, Tenant, by_ids, request, zone};

/// Sections of each of the two zones.
const SECTIONS: u32 = 3;
const NR_TENANTS: usize = 3;
/// Handles that each tenant uses.
const HANDLES: u32 = 12;

#[derive(Clone, Copy, Debug)]
enum Op {
    Take {
        tenant: usize,
        lane: u32,
        class: usize,
        count: usize,
    },
    Put {
        tenant: usize,
        lane: u32,
        from: usize,
        count: usize,
    },
    Map {
        tenant: usize,
        from: usize,
        count: usize,
    },
    Call {
        tenant: usize,
        order: u32,
        count: u32,
    },
    FreeCall {
        tenant: usize,
        from: usize,
        count: usize,
    },
    /// Lets the daemon move blocks: puts them into handles.
    Fill {
        tenant: usize,
        count: u32,
    },
    Empty {
        tenant: usize,
        handle: u32,
    },
    Drain,
    HangUp {
        tenant: usize,
    },
    Bury {
        tenant: usize,
    },
    Add {
        movable: bool,
    },
    Offline {
        section: u32,
        ms: u64,
    },
    Remove {
        section: u32,
    },
    Wait {
        ticks: u32,
    },
    /// The daemon dies after so many steps more, 0: now.
    Fuse {
        steps: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let tenant = 0..NR_TENANTS;
    let lane = 0u32..2;
    prop_oneof![
        6 => (tenant.clone(), lane.clone(), 0..15usize, 1..40usize)
            .prop_map(|(tenant, lane, class, count)| Op::Take { tenant, lane, class, count }),
        6 => (tenant.clone(), lane, 0..64usize, 1..40usize)
            .prop_map(|(tenant, lane, from, count)| Op::Put { tenant, lane, from, count }),
        2 => (tenant.clone(), 0..64usize, 1..10usize)
            .prop_map(|(tenant, from, count)| Op::Map { tenant, from, count }),
        3 => (tenant.clone(), 0..=6u32, 0..50u32)
            .prop_map(|(tenant, order, count)| Op::Call { tenant, order, count }),
        2 => (tenant.clone(), 0..64usize, 1..40usize)
            .prop_map(|(tenant, from, count)| Op::FreeCall { tenant, from, count }),
        3 => (tenant.clone(), 1..HANDLES).prop_map(|(tenant, count)| Op::Fill { tenant, count }),
        2 => (tenant.clone(), 0..HANDLES).prop_map(|(tenant, handle)| Op::Empty { tenant, handle }),
        1 => Just(Op::Drain),
        1 => tenant.clone().prop_map(|tenant| Op::HangUp { tenant }),
        1 => tenant.prop_map(|tenant| Op::Bury { tenant }),
        2 => any::<bool>().prop_map(|movable| Op::Add { movable }),
        3 => (0..2 * SECTIONS, 0..40u64).prop_map(|(section, ms)| Op::Offline { section, ms }),
        1 => (0..2 * SECTIONS).prop_map(|section| Op::Remove { section }),
        3 => (1..4u32).prop_map(|ticks| Op::Wait { ticks }),
        8 => (0..120u32).prop_map(|steps| Op::Fuse { steps }),
    ]
}

/// The daemon, its clients, and the twin.
struct World {
    mortal: Mortal,
    tenants: Vec<Tenant>,
    held: Vec<Vec<RawPage>>,
    /// Blocks in handles, by handle, and what their bytes say.
    handles: Vec<BTreeMap<u32, u64>>,
    /// Numbers of calls, by tenant.
    ids: Vec<u64>,
    next_byte: u64,
}

impl World {
    fn new() -> World {
        let zones = vec![
            zone("normal", ZoneKind::Normal, u64::from(SECTIONS)),
            zone("movable", ZoneKind::Movable, u64::from(SECTIONS)),
        ];
        let mut rig = Rig::with(zones, Defaults::default());
        rig.add("normal", 2);
        rig.add("movable", 1);
        let mut mortal = Mortal::new(rig);
        let tenants = (0..NR_TENANTS).map(|_| mortal.tenant(2)).collect();
        World {
            mortal,
            tenants,
            held: vec![Vec::new(); NR_TENANTS],
            handles: vec![BTreeMap::new(); NR_TENANTS],
            ids: vec![0; NR_TENANTS],
            next_byte: 1,
        }
    }

    fn let_go(&mut self, tenant: usize, from: usize, count: usize) -> Vec<RawPage> {
        let held = &mut self.held[tenant];
        let from = from.min(held.len());
        let to = (from + count).min(held.len());
        held.drain(from..to).collect()
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Take {
                tenant,
                lane,
                class,
                count,
            } => self.take(tenant, lane, class, count),
            Op::Put {
                tenant,
                lane,
                from,
                count,
            } => {
                let pages = self.let_go(tenant, from, count);
                self.tenants[tenant].put(lane, &pages);
                self.mortal.service();
            }
            Op::Map {
                tenant,
                from,
                count,
            } => {
                for page in self.let_go(tenant, from, count) {
                    self.tenants[tenant].segment.free_map().set(page.pfn());
                }
                self.mortal.service();
            }
            Op::Call {
                tenant,
                order,
                count,
            } => self.call(tenant, order, count),
            Op::FreeCall {
                tenant,
                from,
                count,
            } => self.free_call(tenant, from, count),
            Op::Fill { tenant, count } => self.fill(tenant, count),
            Op::Empty { tenant, handle } => self.empty(tenant, handle),
            Op::Drain => {
                let drain = Command::DrainLanes {
                    slot: None,
                    timeout: None,
                };
                self.command(drain);
                self.mortal.pass(2);
            }
            Op::HangUp { tenant } => {
                let id = self.tenants[tenant].id;
                self.let_all_go(tenant);
                // Told until it has been heard of.
                let mut is_told = false;
                while !is_told {
                    let told = self
                        .mortal
                        .call(|rig| rig.engine.detach(id, rig.now, &mut rig.outside));
                    is_told = told.is_some();
                }
                self.mortal.service();
                self.renew(tenant);
            }
            Op::Bury { tenant } => {
                let id = self.tenants[tenant].id;
                while self
                    .mortal
                    .call(|rig| rig.engine.bury(id, rig.now))
                    .is_none()
                {}
                self.held[tenant].clear();
                self.handles[tenant].clear();
                self.renew(tenant);
            }
            Op::Add { movable } => {
                let zone = if movable { "movable" } else { "normal" };
                self.command(Command::AddSections {
                    request: request(zone, Sections::Count(1)),
                    online_order: None,
                    keep_offline: false,
                });
                self.mortal.settle_effects();
            }
            Op::Offline { section, ms } => {
                let timeout = Some(Duration::from_millis(ms));
                let request = by_ids(&[section]);
                self.command(Command::OfflineSections { request, timeout });
                self.mortal.pass(3);
            }
            Op::Remove { section } => {
                let request = by_ids(&[section]);
                self.command(Command::RemoveSections { request });
                self.mortal.settle_effects();
            }
            Op::Wait { ticks } => self.mortal.pass(ticks),
            Op::Fuse { steps: 0 } => self.mortal.die(),
            Op::Fuse { steps } => self.mortal.fuse = steps,
        }
    }

    fn command(&mut self, command: Command) {
        self.mortal.call(|rig| {
            // Refusals are answers too.
            let _ = rig.engine.apply(command, rig.now, &mut rig.outside);
        });
    }

    fn renew(&mut self, tenant: usize) {
        self.tenants[tenant] = self.mortal.tenant(2);
        self.ids[tenant] = 0;
    }

    fn let_all_go(&mut self, tenant: usize) {
        for handle in 0..HANDLES {
            self.empty(tenant, handle);
        }
        let pages = self.let_go(tenant, 0, usize::MAX);
        self.tenants[tenant].put(0, &pages);
    }

    fn take(&mut self, tenant: usize, lane: u32, class: usize, count: usize) {
        let class = Class::from_index(class).unwrap();
        let count = if class.index() < 3 { count } else { count % 6 };
        let mut nr_left = count;
        for _ in 0..4 {
            self.tenants[tenant].map_all();
            let (pages, _) = self.tenants[tenant].take_there(lane, class, nr_left);
            nr_left -= pages.len();
            self.held[tenant].extend(pages);
            if nr_left == 0 {
                return;
            }
            let nr = u32::try_from(nr_left).unwrap();
            self.tenants[tenant].lane(lane).want(class, nr);
            self.mortal.service();
        }
    }

    fn fill(&mut self, tenant: usize, count: u32) {
        for handle in (0..HANDLES).take(count as usize) {
            if self.handles[tenant].contains_key(&handle) {
                continue;
            }
            let is_movable = |page: &RawPage| page.migratetype() == Some(RawMigratetype::Movable);
            let Some(at) = self.held[tenant].iter().position(is_movable) else {
                return;
            };
            let raw = self.held[tenant].swap_remove(at);
            let byte = self.next_byte;
            self.next_byte += 1;
            self.mortal.rig.bytes[raw.pfn() as usize] = byte;
            self.tenants[tenant].fill(handle, raw);
            self.handles[tenant].insert(handle, byte);
        }
    }

    fn empty(&mut self, tenant: usize, handle: u32) {
        let Some(byte) = self.handles[tenant].remove(&handle) else {
            return;
        };
        let raw = self.tenants[tenant].empty(handle).unwrap();
        assert_eq!(self.mortal.rig.bytes[raw.pfn() as usize], byte, "{raw:?}");
        self.held[tenant].push(raw);
    }

    fn call(&mut self, tenant: usize, order: u32, count: u32) {
        self.ids[tenant] += 1;
        let request = AllocBulk {
            request_id: self.ids[tenant],
            acknowledged: self.ids[tenant] - 1,
            abandoned: Vec::new(),
            zone: None,
            order,
            nr_blocks: count,
            migratetype: Migratetype::Unmovable,
            is_urgent: false,
        };
        let reply = loop {
            self.tenants[tenant].map_all();
            let id = self.tenants[tenant].id;
            let outcome = self.mortal.call(|rig| {
                rig.engine
                    .alloc_bulk(id, &request, Patience::None, rig.now, &mut rig.outside)
            });
            match outcome {
                Some(Ok(AllocOutcome::Done(reply))) => break reply,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        };
        for run in &reply.runs {
            for block in 0..run.nr_blocks {
                let parts = PageParts {
                    pfn: run.first.get() + (block << order),
                    order,
                    migratetype: RawMigratetype::Unmovable,
                    zone: 0,
                    client: self.tenants[tenant].terms.client_index,
                    generation: run.generation,
                };
                self.held[tenant].push(parts.pack().unwrap());
            }
        }
    }

    fn free_call(&mut self, tenant: usize, from: usize, count: usize) {
        let pages = self.let_go(tenant, from, count);
        self.ids[tenant] += 1;
        let claim = |page: &RawPage| ClaimedRun {
            first_pfn: page.pfn(),
            nr_blocks: 1,
            order: page.order(),
            generation: page.generation(),
        };
        let request = FreeBulk {
            request_id: self.ids[tenant],
            acknowledged: self.ids[tenant] - 1,
            runs: pages.iter().map(claim).collect(),
        };
        let id = self.tenants[tenant].id;
        loop {
            let reply = self.mortal.call(|rig| rig.engine.free_bulk(id, &request));
            if let Some(reply) = reply {
                let reply = reply.unwrap();
                assert_eq!(
                    (reply.nr_blocks as usize, reply.nr_refused),
                    (pages.len(), 0)
                );
                return;
            }
        }
    }

    fn check(&self) {
        self.mortal.rig.verify();
        let mut holders = BTreeMap::new();
        for (at, held) in self.held.iter().enumerate() {
            let in_handles = self.handles[at]
                .keys()
                .map(|&handle| self.tenants[at].at(handle));
            for page in held.iter().copied().chain(in_handles) {
                for pfn in page.pfn()..page.pfn() + (1 << page.order()) {
                    assert_eq!(holders.insert(pfn, at), None, "{page:?} is held twice");
                }
            }
        }
        for client in self.mortal.rig.engine.list_clients(self.mortal.rig.now) {
            assert_eq!(client.nr_misuses, 0, "{client:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_doubled_whenever_the_daemon_dies(
        ops in proptest::collection::vec(op(), 1..100),
    ) {
        let mut world = World::new();
        for op in ops {
            world.act(op);
            world.check();
        }
        // Without further deaths all can be given back, and nothing is left.
        world.mortal.fuse = 0;
        world.mortal.pass(20);
        for tenant in 0..NR_TENANTS {
            world.let_all_go(tenant);
        }
        world.mortal.service();
        world.act(Op::Drain);
        world.mortal.pass(3);
        world.check();
        prop_assert_eq!(world.mortal.rig.pages().lent, 0);
    }
}
