//! Lists of operations against a naive twin: who holds which page. They shrink, which the
//! simulator's runs do not.
//!
//! Seen to fail: with the reach ignored at a recall, with a free map whose bits are not
//! cleared, with a sweep that leaves out a pageblock.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use hugepool_engine::{ClaimedRun, ClientState, Command, Defaults, FreeBulk, NoOutside, Sections};
use hugepool_mm::ZoneKind;
use hugepool_shm::raw::{Class, PageParts, RawMigratetype, RawPage};
use proptest::prelude::*;
use support::{Rig, Tenant, by_ids, request, zone};

/// Sections of each of the two zones.
const SECTIONS: u32 = 3;
const NR_TENANTS: usize = 3;

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
    Service,
    Drain,
    HangUp {
        tenant: usize,
    },
    Die {
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
        ms: u64,
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
        4 => Just(Op::Service),
        1 => Just(Op::Drain),
        1 => tenant.clone().prop_map(|tenant| Op::HangUp { tenant }),
        1 => tenant.prop_map(|tenant| Op::Die { tenant }),
        2 => any::<bool>().prop_map(|movable| Op::Add { movable }),
        2 => (0..2 * SECTIONS, 0..40u64).prop_map(|(section, ms)| Op::Offline { section, ms }),
        1 => (0..2 * SECTIONS).prop_map(|section| Op::Remove { section }),
        2 => (0..30u64).prop_map(|ms| Op::Wait { ms }),
    ]
}

/// The engine, its clients, and the twin.
struct World {
    rig: Rig,
    tenants: Vec<Tenant>,
    held: Vec<Vec<RawPage>>,
    /// Pfn of each page in somebody's hands, and whose.
    holders: BTreeMap<u32, usize>,
}

impl World {
    fn new() -> World {
        let zones = vec![
            zone("normal", ZoneKind::Normal, u64::from(SECTIONS)),
            zone("movable", ZoneKind::Movable, u64::from(SECTIONS)),
        ];
        let mut rig = Rig::with(zones, Defaults::default());
        rig.add("normal", 2);
        let tenants = (0..NR_TENANTS).map(|_| rig.tenant(2)).collect();
        World {
            rig,
            tenants,
            held: vec![Vec::new(); NR_TENANTS],
            holders: BTreeMap::new(),
        }
    }

    fn receive(&mut self, tenant: usize, pages: Vec<RawPage>) {
        for page in pages {
            for pfn in page.pfn()..page.pfn() + (1 << page.order()) {
                let before = self.holders.insert(pfn, tenant);
                assert_eq!(before, None, "{page:?} was handed out twice");
            }
            self.held[tenant].push(page);
        }
    }

    fn let_go(&mut self, tenant: usize, from: usize, count: usize) -> Vec<RawPage> {
        let held = &mut self.held[tenant];
        let from = from.min(held.len());
        let to = (from + count).min(held.len());
        let pages: Vec<RawPage> = held.drain(from..to).collect();
        for page in &pages {
            for pfn in page.pfn()..page.pfn() + (1 << page.order()) {
                assert_eq!(self.holders.remove(&pfn), Some(tenant));
            }
        }
        pages
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Take {
                tenant,
                lane,
                class,
                count,
            } => {
                self.tenants[tenant].map_all();
                let class = Class::from_index(class).unwrap();
                let count = if class.index() < 3 { count } else { count % 6 };
                let pages = self.rig.take(&self.tenants[tenant], lane, class, count);
                self.receive(tenant, pages);
            }
            Op::Put {
                tenant,
                lane,
                from,
                count,
            } => {
                let pages = self.let_go(tenant, from, count);
                self.tenants[tenant].put(lane, &pages);
            }
            Op::Map {
                tenant,
                from,
                count,
            } => {
                for page in self.let_go(tenant, from, count) {
                    self.tenants[tenant].segment.free_map().set(page.pfn());
                }
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
            Op::Service => {
                self.rig.service();
            }
            Op::Drain => {
                self.rig.operate(Command::DrainLanes {
                    slot: None,
                    timeout: None,
                });
                for at in 0..NR_TENANTS {
                    let pages = self.held[at]
                        .iter()
                        .map(|page| 1u64 << page.order())
                        .sum::<u64>();
                    assert_eq!(
                        self.rig.engine.owned_pages(self.tenants[at].id),
                        Some(pages)
                    );
                }
            }
            Op::HangUp { tenant } => {
                let (id, now) = (self.tenants[tenant].id, self.rig.now);
                self.rig.engine.detach(id, now, &mut NoOutside);
                // Frees of a client that hung up go home all the same.
                let pages = self.let_go(tenant, 0, usize::MAX);
                self.tenants[tenant].put(0, &pages);
                self.rig.service();
                assert_eq!(self.rig.engine.owned_pages(id), Some(0));
                self.tenants[tenant] = self.rig.tenant(2);
            }
            Op::Die { tenant } => {
                let (id, now) = (self.tenants[tenant].id, self.rig.now);
                let owned = self.rig.engine.owned_pages(id).unwrap();
                assert_eq!(self.rig.engine.bury(id, now), owned);
                self.let_go(tenant, 0, usize::MAX);
                self.tenants[tenant] = self.rig.tenant(2);
            }
            Op::Add { movable } => {
                let zone = if movable { "movable" } else { "normal" };
                let request = request(zone, Sections::Count(1));
                let add = Command::AddSections {
                    request,
                    online_order: None,
                    keep_offline: false,
                };
                let (now, rig) = (self.rig.now, &mut self.rig);
                // All there are may be there already.
                let _ = rig.engine.apply(add, now, &mut rig.outside);
                rig.settle_effects();
            }
            Op::Offline { section, ms } => {
                let timeout = Some(Duration::from_millis(ms));
                let request = by_ids(&[section]);
                self.rig
                    .operate(Command::OfflineSections { request, timeout });
            }
            Op::Remove { section } => {
                self.rig.operate(Command::RemoveSections {
                    request: by_ids(&[section]),
                });
            }
            Op::Wait { ms } => self.rig.advance(ms),
        }
    }

    fn call(&mut self, tenant: usize, order: u32, count: u32) {
        self.tenants[tenant].map_all();
        let id = self.tenants[tenant].id;
        let reply = self.rig.alloc(id, order, count);
        assert!(reply.nr_blocks == count || reply.shortfall.is_some());
        let mut pages = Vec::new();
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
                pages.push(parts.pack().unwrap());
            }
        }
        self.receive(tenant, pages);
    }

    fn free_call(&mut self, tenant: usize, from: usize, count: usize) {
        let pages = self.let_go(tenant, from, count);
        let runs: Vec<ClaimedRun> = pages
            .iter()
            .map(|page| ClaimedRun {
                first_pfn: page.pfn(),
                nr_blocks: 1,
                order: page.order(),
                generation: page.generation(),
            })
            .collect();
        let request = FreeBulk {
            request_id: 0,
            acknowledged: 0,
            runs,
        };
        let reply = self
            .rig
            .engine
            .free_bulk(self.tenants[tenant].id, &request)
            .unwrap();
        assert_eq!(
            (reply.nr_blocks as usize, reply.nr_refused),
            (pages.len(), 0)
        );
    }

    fn check(&self) {
        self.rig.verify();
        for client in self.rig.engine.list_clients(self.rig.now) {
            let is_known = self.tenants.iter().any(|tenant| tenant.id == client.client);
            assert_eq!(client.nr_misuses, 0, "{client:?}");
            assert!(
                !is_known || client.state == ClientState::Attached,
                "{client:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_page_has_one_custodian_after_every_operation(
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new();
        for op in ops {
            world.act(op);
            world.check();
        }
        for tenant in 0..NR_TENANTS {
            world.act(Op::Die { tenant });
        }
        prop_assert_eq!(world.rig.pages().lent, 0);
    }
}
