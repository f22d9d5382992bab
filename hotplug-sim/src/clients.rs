//! What clients do with their lanes, and that they come, stop and die.

use hugepool_engine::{AttachSpec, ConnectSpec, nearest_first};
use hugepool_mm::ZoneId;
use hugepool_shm::control::ControlSegment;
use hugepool_shm::lane_client::LaneTerms;
use hugepool_shm::raw::{Class, RawPage};

use crate::model::Broken;
use crate::stopped::{Doing, Stopped};
use crate::tenant::Tenant;
use crate::world::World;

impl World {
    pub(crate) fn attach(&mut self) -> Result<(), Broken> {
        if self
            .tenants
            .iter()
            .filter(|tenant| tenant.segment.is_some())
            .count()
            >= self.swarm.max_clients
        {
            return Ok(());
        }
        let geometry = self.engine.control_geometry(1 + self.prng.below_u32(3));
        let segment = ControlSegment::heap(geometry).map_err(|error| error.to_string())?;
        let zones = self.draw_zones();
        let pid = self.next_pid();
        let spec = AttachSpec {
            uid: 1000,
            gid: 1000,
            pid,
            name: format!("client-{pid}"),
            client_index: self.prng.below_u32(8),
            secret: [0; 16],
            zones: self.seen_from(pid % 2, &zones),
        };
        let client_index = spec.client_index;
        let attached = self.engine.attach(spec, segment.clone(), self.now);
        let Ok(id) = attached else {
            self.trace.add(format_args!("-> refused"));
            return Ok(());
        };
        self.trace
            .add(format_args!("-> {id} with {} lanes", geometry.nr_lanes));
        self.engine
            .ready(id, true)
            .map_err(|error| error.to_string())?;
        let pageblock_order = u32::from(self.geometry().pageblock_order().get());
        self.tenants.push(Tenant {
            id,
            segment: Some(segment),
            terms: LaneTerms {
                client_index,
                pageblock_order,
                registered: true,
            },
            zones: zones.into_iter().map(u32::from).collect(),
            held: Vec::new(),
            movable: Vec::new(),
            free_handles: Vec::new(),
            next_handle: 0,
            is_closed: false,
            is_honest: true,
            stopped: Vec::new(),
            last_request: 0,
            nr_probes: 0,
            last_owned: 0,
            pending: Vec::new(),
        });
        Ok(())
    }

    /// A connection comes, or one that is there allocates or goes.
    pub(crate) fn connection(&mut self) -> Result<(), Broken> {
        let there = self.some_tenant(|tenant| tenant.segment.is_none());
        match there {
            Some(at) if self.prng.chance(1, 4) => {
                let id = self.tenants[at].id;
                self.trace.add(format_args!("{id} goes"));
                self.engine.disconnect(id);
                self.forget(at)
            }
            Some(at) => self.call_by(at),
            None => {
                let zones = self.draw_zones();
                let pid = self.next_pid();
                let spec = ConnectSpec {
                    uid: 1000,
                    gid: 1000,
                    pid,
                    zones: self.seen_from(pid % 2, &zones),
                };
                let Ok(id) = self.engine.connect(spec, self.now) else {
                    return Ok(());
                };
                self.trace.add(format_args!("-> {id}"));
                let terms = LaneTerms {
                    client_index: 0,
                    pageblock_order: 0,
                    registered: false,
                };
                self.tenants.push(Tenant {
                    id,
                    segment: None,
                    terms,
                    zones: zones.into_iter().map(u32::from).collect(),
                    held: Vec::new(),
                    movable: Vec::new(),
                    free_handles: Vec::new(),
                    next_handle: 0,
                    is_closed: false,
                    is_honest: true,
                    stopped: Vec::new(),
                    last_request: 0,
                    nr_probes: 0,
                    last_owned: 0,
                    pending: Vec::new(),
                });
                Ok(())
            }
        }
    }

    pub(crate) fn hang_up(&mut self) -> Result<(), Broken> {
        let Some(at) = self.some_tenant(|tenant| tenant.segment.is_some()) else {
            return Ok(());
        };
        let id = self.tenants[at].id;
        self.engine.detach(id, self.now, &mut self.outside);
        self.trace.add(format_args!("{id}"));
        Ok(())
    }

    /// The process is gone; the daemon's pidfd says so.
    pub(crate) fn die(&mut self, at: usize) -> Result<(), Broken> {
        self.follow_moves()?;
        let id = self.tenants[at].id;
        let owned = self.engine.owned_pages(id).unwrap_or(0);
        if self.tenants[at].segment.is_none() {
            self.engine.disconnect(id);
        } else {
            let home = self.engine.bury(id, self.now);
            self.trace.add(format_args!("{id} -> {home} pages home"));
            if home != owned {
                return Err(format!(
                    "client {id} owned {owned} pages, and {home} came home"
                ));
            }
        }
        self.forget(at)
    }

    pub(crate) fn forget(&mut self, at: usize) -> Result<(), Broken> {
        self.forget_movable(at)?;
        while !self.tenants[at].held.is_empty() {
            self.let_go(at, 64)?;
        }
        let tenant = self.tenants.swap_remove(at);
        if tenant.is_honest {
            for page in tenant.stopped.iter().flat_map(|stopped| &stopped.pages) {
                self.model.give(tenant.id, *page)?;
            }
        }
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Result<(), Broken> {
        let Some((at, lane)) = self.some_lane() else {
            return Ok(());
        };
        let class = self.some_class();
        let count = self.prng.small(if class == Class::PAGE { 80 } else { 12 });
        let tenant = &self.tenants[at];
        let Some(segment) = tenant.segment.clone() else {
            return Ok(());
        };
        let Some(client) = tenant.lane(&segment, lane) else {
            return Ok(());
        };
        let mut out = vec![RawPage::from_bits(0); count as usize];
        let taken = client.take_raw(class, &mut out);
        out.truncate(taken.count);
        let missing = count - u32::try_from(taken.count).unwrap_or(count);
        if missing > 0 {
            client.want(class, missing);
        }
        let id = tenant.id;
        self.trace.add(format_args!(
            "{id}/{lane} {class:?} {count} -> {}",
            taken.count
        ));
        for page in &out {
            if self.tenants[at].is_honest && Class::of(*page, pageblock_order(self)) != Some(class)
            {
                return Err(format!("{id} asked for {class:?} and was handed {page:?}"));
            }
        }
        self.receive(at, out)
    }

    pub(crate) fn put(&mut self) -> Result<(), Broken> {
        let Some((at, lane)) = self.some_lane() else {
            return Ok(());
        };
        let count = self.prng.small(80) as usize;
        let pages = self.let_go(at, count)?;
        let tenant = &self.tenants[at];
        let Some(segment) = &tenant.segment else {
            return Ok(());
        };
        let Some(client) = tenant.lane(segment, lane) else {
            return Ok(());
        };
        match &pages[..] {
            [page] => client.put_one_raw(*page),
            pages => client.put_raw(pages),
        }
        self.trace
            .add(format_args!("{}/{lane} {}", tenant.id, pages.len()));
        Ok(())
    }

    pub(crate) fn put_into_map(&mut self) -> Result<(), Broken> {
        let like = |tenant: &Tenant| tenant.segment.is_some() && !tenant.held.is_empty();
        let Some(at) = self.some_tenant(like) else {
            return Ok(());
        };
        let count = self.prng.small(16) as usize;
        let pages = self.let_go(at, count)?;
        let tenant = &self.tenants[at];
        if let Some(segment) = &tenant.segment {
            pages.iter().for_each(|page| {
                segment.free_map().set(page.pfn());
            });
        }
        self.trace
            .add(format_args!("{} {}", tenant.id, pages.len()));
        Ok(())
    }

    /// Maps and unmaps what was announced; sometimes only a part of it.
    pub(crate) fn map(&mut self) -> Result<(), Broken> {
        let Some(at) = self.some_tenant(|tenant| tenant.segment.is_some()) else {
            return Ok(());
        };
        let Some(segment) = self.tenants[at].segment.clone() else {
            return Ok(());
        };
        let epoch = segment.section_epoch();
        let is_partly = self.prng.chance(1, 5);
        for section in 0..segment.geometry().nr_sections {
            let announced = segment.announced(section);
            if !is_partly || announced == 0 || self.prng.chance(1, 2) {
                segment.mark_mapped(section, announced);
            }
        }
        if !is_partly {
            segment.mark_mapped_epoch(epoch);
        }
        self.trace
            .add(format_args!("{} {epoch} {is_partly}", self.tenants[at].id));
        Ok(())
    }

    pub(crate) fn stop(&mut self) -> Result<(), Broken> {
        let Some((at, lane)) = self.some_lane() else {
            return Ok(());
        };
        if !self.tenants[at].is_honest {
            return Ok(());
        }
        let Some(segment) = self.tenants[at].segment.clone() else {
            return Ok(());
        };
        let reach = self.prng.small(40);
        let class = self.some_class();
        let mut stopped = Stopped {
            lane,
            doing: Doing::Taking,
            class,
            reach,
            pages: Vec::new(),
        };
        match self.prng.below(3) {
            0 => {}
            1 => stopped.doing = Doing::Spilling,
            _ => {
                stopped.doing = Doing::Putting;
                let Some(first) = self.tenants[at].held.first().copied() else {
                    return Ok(());
                };
                let of = |page: RawPage| Class::of(page, pageblock_order(self));
                let Some(class) = of(first) else {
                    return Ok(());
                };
                stopped.class = class;
                let held = &self.tenants[at].held;
                let alike = held
                    .iter()
                    .copied()
                    .filter(|&page| of(page) == Some(class) && page.zone() == first.zone());
                stopped.pages = alike.take(reach as usize).collect();
            }
        }
        if stopped.enter(&segment) {
            self.trace.add(format_args!(
                "{}/{lane} {:?} {reach}",
                self.tenants[at].id, stopped.doing
            ));
            let tenant = &mut self.tenants[at];
            tenant.held.retain(|page| !stopped.pages.contains(page));
            tenant.stopped.push(stopped);
        }
        Ok(())
    }

    pub(crate) fn resume(&mut self) -> Result<(), Broken> {
        match self.some_tenant(|tenant| !tenant.stopped.is_empty()) {
            Some(at) => {
                let nth = self.prng.index(self.tenants[at].stopped.len());
                self.resume_thread(at, nth)
            }
            None => Ok(()),
        }
    }

    /// A stopped thread ends its operation.
    ///
    /// # Errors
    /// What it was handed is somebody's.
    pub fn resume_thread(&mut self, at: usize, nth: usize) -> Result<(), Broken> {
        let tenant = &mut self.tenants[at];
        let Some(segment) = tenant.segment.clone() else {
            return Ok(());
        };
        let stopped = tenant.stopped.swap_remove(nth);
        let (lane, doing) = (stopped.lane, stopped.doing);
        let put = stopped.pages.clone();
        let hands = stopped.leave(&segment);
        let tenant = &self.tenants[at];
        self.trace.add(format_args!(
            "{}/{lane} {doing:?} {}",
            tenant.id,
            hands.len()
        ));
        if doing == Doing::Taking {
            return self.receive(at, hands);
        }
        if tenant.is_honest {
            for page in &put {
                self.model.give(tenant.id, *page)?;
            }
        }
        if let Some(client) = tenant.lane(&segment, lane) {
            client.put_raw(&hands);
        }
        Ok(())
    }

    /// A client and one of its lanes in which no thread is stopped.
    fn some_lane(&mut self) -> Option<(usize, u32)> {
        let at = self.some_tenant(|tenant| tenant.segment.is_some())?;
        let lane = self.prng.below_u32(self.tenants[at].nr_lanes());
        (!self.tenants[at].is_stopped(lane)).then_some((at, lane))
    }

    /// Mostly single pages, of any type.
    fn some_class(&mut self) -> Class {
        let index = if self.prng.chance(2, 3) {
            self.prng.index(3)
        } else {
            self.prng.index(15)
        };
        Class::from_index(index).unwrap_or(Class::PAGE)
    }

    /// The zones a client may use: mostly all of them.
    /// Zones as somebody on a node is served from them.
    fn seen_from(&self, node: u32, zones: &[u8]) -> Vec<ZoneId> {
        let mut zones: Vec<ZoneId> = zones.iter().map(|&zone| ZoneId::new(zone)).collect();
        let settings = &self.swarm.config.zones;
        let node_of = |zone: ZoneId| u32::try_from(settings[usize::from(zone.get())].node).ok();
        nearest_first(&mut zones, node_of, |other| 10 + node.abs_diff(other));
        zones
    }

    fn draw_zones(&mut self) -> Vec<u8> {
        let nr_zones = u8::try_from(self.swarm.config.zones.len()).unwrap_or(1);
        let all = 0..nr_zones;
        if self.prng.chance(3, 4) {
            return all.collect();
        }
        all.filter(|_| self.prng.chance(1, 2)).collect()
    }
}

fn pageblock_order(world: &World) -> u32 {
    u32::from(world.geometry().pageblock_order().get())
}
