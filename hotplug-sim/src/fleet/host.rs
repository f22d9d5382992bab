//! One host: what is wholly free or wholly one tenant's is counted, only the rest is written down.
//!
//! Memory is in three grains. A *section* that is free, or all of one tenant, is a number in a count.
//! A section that is shared or partly free has a record with its free pageblocks. A *pageblock* that
//! is partly used has a record with its pages. So a host of any size costs what is fragmented in it, and
//! where a pageblock lies within its section is not known.

/// Where a section comes from: the host's own memory, or the pool's.
pub const OWN: usize = 0;
/// The pool's.
pub const POOL: usize = 1;

const BLOCK_PAGES: u16 = 512;

/// A section that is partly free or of several tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    from: u8,
    /// Pageblocks that are wholly free.
    free: u16,
    /// Pageblocks with pages that cannot be moved.
    stuck: u16,
}

/// A pageblock that is partly used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mixed {
    section: u32,
    used: u16,
    is_stuck: bool,
}

/// Records by number, the numbers of freed ones used again.
#[derive(Clone, Debug)]
struct Slab<T> {
    rows: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T: Copy> Slab<T> {
    const NEW: Slab<T> = Slab {
        rows: Vec::new(),
        vacant: Vec::new(),
    };

    fn insert(&mut self, row: T) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.rows[at as usize] = Some(row);
            return at;
        }
        self.rows.push(Some(row));
        u32::try_from(self.rows.len() - 1).expect("fewer records than 2^32")
    }

    fn get_mut(&mut self, at: u32) -> &mut T {
        self.rows[at as usize]
            .as_mut()
            .expect("what refers to a record keeps it")
    }

    fn get(&self, at: u32) -> T {
        self.rows[at as usize].expect("what refers to a record keeps it")
    }

    fn remove(&mut self, at: u32) {
        self.rows[at as usize] = None;
        self.vacant.push(at);
        if self.vacant.len() == self.rows.len() {
            *self = Slab::NEW;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, T)> + '_ {
        (0..)
            .zip(&self.rows)
            .filter_map(|(at, row)| Some((at, (*row)?)))
    }

    fn len(&self) -> usize {
        self.rows.len() - self.vacant.len()
    }
}

/// What a tenant has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Whole sections, by where they come from.
    whole: [u32; 2],
    /// Pageblocks in shared sections: which, how many.
    blocks: Vec<(u32, u16)>,
    /// The same of pages that cannot be moved.
    stuck: Vec<(u32, u16)>,
    /// Pages in partly used pageblocks: which, how many.
    pages: Vec<(u32, u16)>,
}

/// What a tenant asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whole pageblocks, all movable.
    pub blocks: u64,
    /// Movable pages besides, fewer than a pageblock.
    pub movable: u16,
    /// Pages that cannot be moved.
    pub unmovable: u64,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    section_blocks: u16,
    /// Whole sections that are free, and that are of one tenant.
    free: [u32; 2],
    whole: [u32; 2],
    shared: Slab<Shared>,
    mixed: Slab<Mixed>,
    /// Pageblocks wholly free in shared sections.
    loose: [u64; 2],
    /// Whether what cannot be moved may lie in the pool's sections.
    is_pool_for_all: bool,
    /// Pageblocks of its own that what can be moved leaves to what cannot.
    reserve: u64,
}

impl Host {
    /// A host with so many sections of its own, all free.
    pub fn new(section_blocks: u16, own: u32, is_pool_for_all: bool, reserve: u64) -> Host {
        Host {
            section_blocks,
            free: [own, 0],
            whole: [0; 2],
            shared: Slab::NEW,
            mixed: Slab::NEW,
            loose: [0; 2],
            is_pool_for_all,
            reserve,
        }
    }

    /// Free pageblocks, by where they come from.
    fn free_blocks_of(&self, from: usize) -> u64 {
        u64::from(self.free[from]) * u64::from(self.section_blocks) + self.loose[from]
    }

    /// Pageblocks wholly free.
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks_of(OWN) + self.free_blocks_of(POOL)
    }

    /// Sections of the pool that it has.
    pub fn pool_sections(&self) -> u32 {
        let shared = self
            .shared
            .iter()
            .filter(|(_, section)| usize::from(section.from) == POOL);
        self.free[POOL] + self.whole[POOL] + u32::try_from(shared.count()).expect("few sections")
    }

    /// Sections of the pool that cannot go back because of pages that cannot be moved.
    pub fn stuck_sections(&self) -> u64 {
        let is_stuck = |section: &Shared| usize::from(section.from) == POOL && section.stuck > 0;
        self.shared
            .iter()
            .filter(|(_, section)| is_stuck(section))
            .count() as u64
    }

    /// Free pages in pageblocks that are partly used.
    pub fn free_pages_in_mixed(&self) -> u64 {
        self.mixed
            .iter()
            .map(|(_, block)| u64::from(BLOCK_PAGES - block.used))
            .sum()
    }

    /// Records that it costs.
    pub fn nr_records(&self) -> usize {
        self.shared.len() + self.mixed.len()
    }

    /// Bytes of the records.
    pub fn record_bytes(&self) -> usize {
        self.shared.rows.capacity() * size_of::<Option<Shared>>()
            + self.mixed.rows.capacity() * size_of::<Option<Mixed>>()
            + (self.shared.vacant.capacity() + self.mixed.vacant.capacity()) * size_of::<u32>()
    }

    /// Pageblocks that lack for a demand, and whether they have to be the host's own.
    pub fn lacks(&self, demand: Demand) -> Lack {
        // At worst each rest opens a pageblock of its own.
        let stuck = demand.unmovable.div_ceil(u64::from(BLOCK_PAGES));
        let other = demand.blocks + u64::from(demand.movable > 0);
        if self.is_pool_for_all {
            let any = (stuck + other).saturating_sub(self.free_blocks());
            return Lack { own: 0, any };
        }
        let own = self.free_blocks_of(OWN);
        let for_others = self.free_blocks_of(POOL) + own.saturating_sub(stuck + self.reserve);
        Lack {
            own: stuck.saturating_sub(own),
            any: other.saturating_sub(for_others),
        }
    }

    /// Sections of the pool arrive.
    pub fn plug(&mut self, nr: u32) {
        self.free[POOL] += nr;
    }

    /// Gives free sections of the pool back, and keeps so many free ones of any kind. Returns how
    /// many.
    pub fn unplug(&mut self, keep: u32) -> u32 {
        let spare = (self.free[OWN] + self.free[POOL]).saturating_sub(keep);
        let nr = spare.min(self.free[POOL]);
        self.free[POOL] -= nr;
        nr
    }

    /// A tenant takes what it asks for. The caller has seen that nothing lacks.
    pub fn admit(&mut self, demand: Demand) -> Tenant {
        let mut tenant = Tenant::default();
        // What cannot be moved first: it has the least choice.
        let pageblock = u64::from(BLOCK_PAGES);
        let mut blocks = demand.unmovable / pageblock;
        while blocks > 0 {
            let (at, nr) = self.take_blocks(blocks, true);
            tenant.stuck.push((at, nr));
            blocks -= u64::from(nr);
        }
        let rest = u16::try_from(demand.unmovable % pageblock).expect("less than a pageblock");
        if rest > 0 {
            self.take_pages(rest, true, &mut tenant);
        }
        if demand.movable > 0 {
            self.take_pages(demand.movable, false, &mut tenant);
        }
        let section = u64::from(self.section_blocks);
        let mut blocks = demand.blocks;
        // Its own memory last for what can be moved, where the pool's is for nothing else.
        for from in self.order(false) {
            let nr = u32::try_from(blocks / section)
                .unwrap_or(u32::MAX)
                .min(self.free[from]);
            self.free[from] -= nr;
            self.whole[from] += nr;
            tenant.whole[from] += nr;
            blocks -= u64::from(nr) * section;
        }
        while blocks > 0 {
            let (at, nr) = self.take_blocks(blocks, false);
            tenant.blocks.push((at, nr));
            blocks -= u64::from(nr);
        }
        tenant
    }

    /// Up to `most` pageblocks of one shared section: which, how many.
    fn take_blocks(&mut self, most: u64, is_stuck: bool) -> (u32, u16) {
        let at = self.roomiest(is_stuck);
        let row = self.shared.get_mut(at);
        let nr = row.free.min(u16::try_from(most).unwrap_or(u16::MAX));
        row.free -= nr;
        row.stuck += if is_stuck { nr } else { 0 };
        self.loose[usize::from(row.from)] -= u64::from(nr);
        (at, nr)
    }

    fn order(&self, is_stuck: bool) -> [usize; 2] {
        if is_stuck || self.is_pool_for_all {
            [OWN, POOL]
        } else {
            [POOL, OWN]
        }
    }

    /// The fullest shared section with a free pageblock, so that others may empty; without one, a
    /// free section that is shared from now on.
    fn roomiest(&mut self, is_stuck: bool) -> u32 {
        let is_allowed = |from: usize| from == OWN || !is_stuck || self.is_pool_for_all;
        let rows = self
            .shared
            .iter()
            .filter(|(_, row)| row.free > 0 && is_allowed(usize::from(row.from)));
        let first = self.order(is_stuck)[0];
        let found = rows.min_by_key(|(at, row)| (usize::from(row.from) != first, row.free, *at));
        if let Some((at, _)) = found {
            return at;
        }
        let order = self.order(is_stuck);
        let from = order.into_iter().find(|from| {
            self.free[*from] > 0 && (*from == OWN || !is_stuck || self.is_pool_for_all)
        });
        let from = from.expect("the caller has seen that there is room");
        self.free[from] -= 1;
        self.loose[from] += u64::from(self.section_blocks);
        self.shared.insert(Shared {
            from: u8::try_from(from).expect("0 or 1"),
            free: self.section_blocks,
            stuck: 0,
        })
    }

    fn take_pages(&mut self, nr: u16, is_stuck: bool, tenant: &mut Tenant) {
        let rows = self
            .mixed
            .iter()
            .filter(|(_, row)| row.is_stuck == is_stuck && row.used + nr <= BLOCK_PAGES);
        let fullest = rows.max_by_key(|(at, row)| (row.used, u32::MAX - at));
        let at = match fullest {
            Some((at, _)) => at,
            None => {
                let (section, _) = self.take_blocks(1, is_stuck);
                self.mixed.insert(Mixed {
                    section,
                    used: 0,
                    is_stuck,
                })
            }
        };
        self.mixed.get_mut(at).used += nr;
        tenant.pages.push((at, nr));
    }

    /// A tenant goes, with all that it had.
    pub fn leave(&mut self, tenant: &Tenant) {
        for from in [OWN, POOL] {
            self.whole[from] -= tenant.whole[from];
            self.free[from] += tenant.whole[from];
        }
        for &(at, nr) in &tenant.pages {
            let row = self.mixed.get_mut(at);
            row.used -= nr;
            if row.used == 0 {
                let Mixed {
                    section, is_stuck, ..
                } = *row;
                self.mixed.remove(at);
                self.shared.get_mut(section).stuck -= u16::from(is_stuck);
                self.freed(section, 1);
            }
        }
        for &(at, nr) in &tenant.stuck {
            self.shared.get_mut(at).stuck -= nr;
            self.freed(at, nr);
        }
        for &(at, nr) in &tenant.blocks {
            self.freed(at, nr);
        }
    }

    fn freed(&mut self, at: u32, nr: u16) {
        let row = self.shared.get_mut(at);
        row.free += nr;
        let from = usize::from(row.from);
        let is_free = row.free == self.section_blocks;
        self.loose[from] += u64::from(nr);
        if is_free {
            self.shared.remove(at);
            self.loose[from] -= u64::from(self.section_blocks);
            self.free[from] += 1;
        }
    }

    /// Empties sections of the pool, the emptiest first, into other shared ones of it, as long as that
    /// takes no more than so many pages and no fresh section. Returns the pages moved.
    pub fn compact<'a>(
        &mut self,
        tenants: impl Iterator<Item = &'a mut Tenant>,
        most_pages: u64,
    ) -> u64 {
        let mut tenants: Vec<&mut Tenant> = tenants.collect();
        let mut moved = 0;
        loop {
            let rows = self
                .shared
                .iter()
                .filter(|(_, row)| usize::from(row.from) == POOL && row.stuck == 0);
            let Some((victim, row)) = rows.max_by_key(|(at, row)| (row.free, *at)) else {
                return moved;
            };
            let used = self.section_blocks - row.free;
            let pages = u64::from(used) * u64::from(BLOCK_PAGES);
            let elsewhere = self.loose[POOL] - u64::from(row.free);
            // Moving more than half of a section frees less than it costs.
            let is_worth_it = used <= self.section_blocks / 2;
            if moved + pages > most_pages || elsewhere < u64::from(used) || !is_worth_it {
                return moved;
            }
            self.empty(victim, &mut tenants);
            moved += pages;
        }
    }

    /// Moves all of a section of the pool into other shared ones of it; there is room.
    fn empty(&mut self, victim: u32, tenants: &mut [&mut Tenant]) {
        // Nothing may move back into it.
        let row = self.shared.get(victim);
        self.loose[usize::from(row.from)] -= u64::from(row.free);
        self.shared.get_mut(victim).free = 0;
        for at in 0..self.mixed.rows.len() {
            if self.mixed.rows[at].is_some_and(|block| block.section == victim) {
                let section = self.room_for_moves();
                self.mixed.rows[at]
                    .as_mut()
                    .expect("it was just looked at")
                    .section = section;
            }
        }
        for tenant in tenants.iter_mut() {
            let mut at = 0;
            while at < tenant.blocks.len() {
                if tenant.blocks[at].0 != victim {
                    at += 1;
                    continue;
                }
                let (_, nr) = tenant.blocks.swap_remove(at);
                for _ in 0..nr {
                    let section = self.room_for_moves();
                    match tenant
                        .blocks
                        .iter_mut()
                        .find(|(other, _)| *other == section)
                    {
                        Some((_, count)) => *count += 1,
                        None => tenant.blocks.push((section, 1)),
                    }
                }
            }
        }
        self.shared.remove(victim);
        self.free[usize::from(row.from)] += 1;
    }

    /// Takes a pageblock of the pool's fullest shared section that has one.
    fn room_for_moves(&mut self) -> u32 {
        let rows = self
            .shared
            .iter()
            .filter(|(_, row)| row.free > 0 && usize::from(row.from) == POOL);
        let found = rows.min_by_key(|(at, row)| (row.free, *at));
        let (at, _) = found.expect("the caller has seen that there is room");
        let row = self.shared.get_mut(at);
        row.free -= 1;
        self.loose[usize::from(row.from)] -= 1;
        at
    }

    /// Checks all sums against the tenants.
    ///
    /// # Errors
    /// What does not hold.
    pub fn verify<'a>(&self, tenants: impl Iterator<Item = &'a Tenant>) -> Result<(), String> {
        let mut whole = [0; 2];
        let mut blocks = vec![0_u64; self.shared.rows.len()];
        let mut stuck = vec![0_u16; self.shared.rows.len()];
        let mut pages = vec![0_u64; self.mixed.rows.len()];
        for tenant in tenants {
            whole[OWN] += tenant.whole[OWN];
            whole[POOL] += tenant.whole[POOL];
            for &(at, nr) in tenant.blocks.iter().chain(&tenant.stuck) {
                blocks[at as usize] += u64::from(nr);
            }
            for &(at, nr) in &tenant.stuck {
                stuck[at as usize] += nr;
            }
            tenant
                .pages
                .iter()
                .for_each(|(at, nr)| pages[*at as usize] += u64::from(*nr));
        }
        if whole != self.whole {
            return Err(format!(
                "whole sections {:?}, tenants have {whole:?}",
                self.whole
            ));
        }
        for (at, block) in self.mixed.iter() {
            blocks[block.section as usize] += 1;
            stuck[block.section as usize] += u16::from(block.is_stuck);
            if pages[at as usize] != u64::from(block.used) || block.used == 0 {
                return Err(format!(
                    "{block:?}, tenants have {} pages of it",
                    pages[at as usize]
                ));
            }
        }
        let mut loose = [0; 2];
        for (at, section) in self.shared.iter() {
            let used = blocks[at as usize];
            let is_right = used + u64::from(section.free) == u64::from(self.section_blocks)
                && used > 0
                && stuck[at as usize] == section.stuck;
            if !is_right {
                return Err(format!("{section:?}, {used} pageblocks of it are used"));
            }
            loose[usize::from(section.from)] += u64::from(section.free);
        }
        if loose == self.loose {
            Ok(())
        } else {
            Err(format!("loose {:?}, found {loose:?}", self.loose))
        }
    }
}

/// Pageblocks that lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Of the host's own: nothing that the pool has will do.
    pub own: u64,
    /// Of any.
    pub any: u64,
}
