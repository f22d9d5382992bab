//! Floors and ceilings: what clients, users and zones are sure of, and what they never go beyond.
//!
//! A ceiling is hard: what would pass it is not lent. A floor is pages of a zone that are kept for
//! one user or client until it owns so many; the floors of a zone never add up to more than it can
//! keep. A client's floor is a part of its user's. What nobody is sure of is shared: who owns more
//! than its share takes a zone to just below `low`, where reclaim begins, and leaves the rest to
//! those who own less.
//!
//! Custody counts, so pages in lanes do. All is decided in the step that lends
//! ([`lending`](crate::lending)).

use std::collections::BTreeMap;

use hugepool_shm::raw::NR_ZONES;

use crate::id::ClientId;
use crate::tally::Tally;

/// A floor and a ceiling, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Pages that are kept for it; 0: none.
    pub floor_pages: u64,
    /// The most pages; `None`: all there are.
    pub ceiling_pages: Option<u64>,
}

/// Whom a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Each client for itself, those to come too.
    EachClient,
    /// The client in this slot.
    Client(u16),
    /// All clients of this user together.
    User(u32),
    /// All clients of the zone together; its floor is what offline leaves of it.
    Zone,
}

/// What one subject may have: in all zones together, and in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allotment {
    /// The most pages in all zones.
    pub ceiling_pages: Option<u64>,
    pub zones: [Limit; NR_ZONES],
}

impl Allotment {
    pub fn is_none(&self) -> bool {
        *self == Allotment::default()
    }
}

/// How much is left below a ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headroom {
    /// Pages that may still be lent.
    pub pages: u64,
    /// Pages owned now by whom the ceiling is for.
    pub owned_pages: u64,
    pub ceiling_pages: u64,
}

impl Headroom {
    fn below(ceiling_pages: Option<u64>, owned: impl FnOnce() -> u64) -> Option<Headroom> {
        let ceiling_pages = ceiling_pages?;
        let owned_pages = owned();
        Some(Headroom {
            pages: ceiling_pages.saturating_sub(owned_pages),
            owned_pages,
            ceiling_pages,
        })
    }
}

/// What a client may take of a zone whose floors are as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    /// Pages that it may take in all.
    pub pages: u64,
    /// Of these, pages that its own floor lacks.
    pub own_pages: u64,
    /// Pages kept for others.
    pub kept_pages: u64,
}

#[derive(Clone, Debug)]
struct Row {
    client: ClientId,
    uid: u32,
    /// Bit per zone that it may use.
    zones: u32,
    allotment: Allotment,
}

/// The limits of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// By slot.
    rows: Vec<Option<Row>>,
    users: Vec<(u32, Allotment)>,
    each: Allotment,
    /// By zone: clients that may use it.
    nr_clients: [u64; NR_ZONES],
    /// By zone: the floors of all, a client's counted within its user's.
    floors: [u64; NR_ZONES],
}

/// What the clients of one user have of a zone, and what is kept for them.
#[derive(Clone, Copy, Debug, Default)]
struct Stake {
    uid: u32,
    floor: u64,
    owned: u64,
    /// For each client the more of its floor and what it owns.
    claimed: u64,
}

impl Stake {
    /// Pages that are kept.
    fn kept(&self) -> u64 {
        self.floor.max(self.claimed) - self.owned
    }
}

impl Limits {
    /// Limits of clients to come.
    pub fn each(&self) -> &Allotment {
        &self.each
    }

    /// Users with limits.
    pub fn users(&self) -> &[(u32, Allotment)] {
        &self.users
    }

    /// The limits of a client.
    pub fn client(&self, client: ClientId) -> Option<&Allotment> {
        self.row(client).map(|row| &row.allotment)
    }

    /// Goes on from what was saved of clients to come and of users.
    pub fn restore(&mut self, each: Allotment, users: Vec<(u32, Allotment)>) {
        self.each = each;
        self.users = users;
        self.count();
    }

    /// Takes a client in.
    pub fn open(&mut self, client: ClientId, uid: u32, zones: u32, allotment: Allotment) {
        let at = usize::from(client.slot);
        if self.rows.len() <= at {
            self.rows.resize(at + 1, None);
        }
        self.rows[at] = Some(Row {
            client,
            uid,
            zones,
            allotment,
        });
        self.count();
    }

    /// Lets go of a client.
    pub fn close(&mut self, client: ClientId) {
        if self.row(client).is_some() {
            self.rows[usize::from(client.slot)] = None;
            self.count();
        }
    }

    /// A client is dead: what it owns still counts as its user's, and nothing is kept for it.
    pub fn rest(&mut self, client: ClientId) {
        if self.row(client).is_some()
            && let Some(row) = &mut self.rows[usize::from(client.slot)]
        {
            row.zones = 0;
            row.allotment = Allotment::default();
            self.count();
        }
    }

    /// Sets a subject's limits: of one zone, or with no zone its ceiling over all.
    pub fn set(&mut self, whom: Whom, zone: Option<usize>, limit: Limit) {
        let put = |allotment: &mut Allotment| match zone {
            Some(zone) => allotment.zones[zone] = limit,
            None => allotment.ceiling_pages = limit.ceiling_pages,
        };
        match whom {
            Whom::EachClient => {
                put(&mut self.each);
                for row in self.rows.iter_mut().flatten().filter(|row| row.zones != 0) {
                    put(&mut row.allotment);
                }
            }
            Whom::Client(slot) => {
                if let Some(Some(row)) = self.rows.get_mut(usize::from(slot)) {
                    put(&mut row.allotment);
                }
            }
            Whom::User(uid) => {
                let known = self.users.iter().position(|&(known, _)| known == uid);
                let at = known.unwrap_or_else(|| {
                    self.users.push((uid, Allotment::default()));
                    self.users.len() - 1
                });
                put(&mut self.users[at].1);
                self.users.retain(|(_, allotment)| !allotment.is_none());
            }
            // A zone's are among its settings.
            Whom::Zone => {}
        }
        self.count();
    }

    /// What is left below the ceilings over all zones, of a client and of its user.
    pub fn headroom(&self, client: ClientId, tally: &Tally) -> Option<Headroom> {
        let row = self.row(client)?;
        let own = Headroom::below(row.allotment.ceiling_pages, || owned(tally, client));
        let users = self.user(row.uid).and_then(|user| user.ceiling_pages);
        let users = Headroom::below(users, || self.sum(row.uid, |id| owned(tally, id)));
        tightest(own, users)
    }

    /// What is left below the ceilings in a zone, of a client and of its user.
    pub fn headroom_in(&self, zone: usize, client: ClientId, tally: &Tally) -> Option<Headroom> {
        let row = self.row(client)?;
        let own = row.allotment.zones[zone].ceiling_pages;
        let own = Headroom::below(own, || owned_in(tally, client, zone));
        let users = self
            .user(row.uid)
            .and_then(|user| user.zones[zone].ceiling_pages);
        let users = Headroom::below(users, || self.sum(row.uid, |id| owned_in(tally, id, zone)));
        tightest(own, users)
    }

    /// What a client may still be handed by others: the least of what is left below its ceilings.
    pub fn allowance(&self, client: ClientId, tally: &Tally) -> u64 {
        let zones = (0..NR_ZONES).filter_map(|zone| self.headroom_in(zone, client, tally));
        let all = self.headroom(client, tally).into_iter().chain(zones);
        all.map(|room| room.pages).min().unwrap_or(u64::MAX)
    }

    /// What a client may take of a zone in which so many pages lie above `min`; `None` when no
    /// floor is set there.
    pub fn spare(
        &self,
        zone: usize,
        client: ClientId,
        tally: &Tally,
        above_min: u64,
    ) -> Option<Spare> {
        if self.floors[zone] == 0 {
            return None;
        }
        let row = self.row(client)?;
        let stakes = self.stakes(zone, tally);
        let others = stakes.iter().filter(|stake| stake.uid != row.uid);
        let kept_for_others: u64 = others.map(Stake::kept).sum();
        let mine = stakes.iter().find(|stake| stake.uid == row.uid);
        let mine = mine.copied().unwrap_or_default();
        let owned = owned_in(tally, client, zone);
        let floor = row.allotment.zones[zone].floor_pages;
        let own_lack = floor.saturating_sub(owned);
        // Taking within its own floor, or what its user's floor leaves beyond that of its clients,
        // changes nothing for anybody.
        let users_lack = mine.floor.saturating_sub(mine.claimed);
        let sure = own_lack + users_lack;
        let kept = kept_for_others + mine.kept();
        Some(Spare {
            pages: sure + above_min.saturating_sub(kept),
            own_pages: sure,
            kept_pages: kept - sure,
        })
    }

    /// Whether a client owns more of a zone than its floor and an equal share of what no floor is
    /// for. Nobody does who is alone there.
    pub fn is_greedy(&self, zone: usize, client: ClientId, managed: u64, tally: &Tally) -> bool {
        let Some(row) = self.row(client).filter(|_| self.nr_clients[zone] > 1) else {
            return false;
        };
        let share = managed.saturating_sub(self.floors[zone]) / self.nr_clients[zone];
        owned_in(tally, client, zone) > row.allotment.zones[zone].floor_pages + share
    }

    /// Whether pages of the zone are kept for anybody.
    pub fn has_floors(&self, zone: usize) -> bool {
        self.floors[zone] > 0
    }

    /// The floors of a zone together.
    pub fn floors(&self, zone: usize) -> u64 {
        self.floors[zone]
    }

    /// What the floors of a zone would be together.
    pub fn floors_with(&self, zone: usize, whom: Whom, limit: Limit) -> u64 {
        let mut changed = self.clone();
        changed.set(whom, Some(zone), limit);
        changed.floors[zone]
    }

    /// What the floors of a zone would be together with another client in it.
    pub fn floors_with_client(&self, zone: usize, uid: u32) -> u64 {
        let more = self.each.zones[zone].floor_pages;
        let (users, mine) = self.floors_of(zone, uid);
        let others = self.floors[zone] - users.max(mine);
        others + users.max(mine + more)
    }

    /// Pages of a zone that are kept for floors that are not met.
    pub fn kept(&self, zone: usize, tally: &Tally) -> u64 {
        if self.floors[zone] == 0 {
            return 0;
        }
        self.stakes(zone, tally).iter().map(Stake::kept).sum()
    }

    /// Pages that a user's clients own in a zone, or in all.
    pub fn owned_by_user(&self, uid: u32, zone: Option<usize>, tally: &Tally) -> u64 {
        self.sum(uid, |id| match zone {
            Some(zone) => owned_in(tally, id, zone),
            None => owned(tally, id),
        })
    }

    fn row(&self, client: ClientId) -> Option<&Row> {
        let row = self.rows.get(usize::from(client.slot))?.as_ref();
        row.filter(|row| row.client == client)
    }

    fn user(&self, uid: u32) -> Option<&Allotment> {
        let known = self.users.iter().find(|(known, _)| *known == uid);
        known.map(|(_, allotment)| allotment)
    }

    fn sum(&self, uid: u32, of: impl Fn(ClientId) -> u64) -> u64 {
        let rows = self.rows.iter().flatten().filter(|row| row.uid == uid);
        rows.map(|row| of(row.client)).sum()
    }

    /// A user's floor in a zone, and those of its clients together.
    fn floors_of(&self, zone: usize, uid: u32) -> (u64, u64) {
        let users = self
            .user(uid)
            .map_or(0, |user| user.zones[zone].floor_pages);
        let rows = self.rows.iter().flatten().filter(|row| row.uid == uid);
        let clients = rows.map(|row| row.allotment.zones[zone].floor_pages).sum();
        (users, clients)
    }

    fn stakes(&self, zone: usize, tally: &Tally) -> Vec<Stake> {
        let mut stakes: Vec<Stake> = Vec::new();
        let mut at_user = |uid: u32| {
            let known = stakes.iter().position(|stake| stake.uid == uid);
            known.unwrap_or_else(|| {
                stakes.push(Stake {
                    uid,
                    ..Stake::default()
                });
                stakes.len() - 1
            })
        };
        let users: Vec<(usize, u64)> = self
            .users
            .iter()
            .map(|(uid, user)| (at_user(*uid), user.zones[zone].floor_pages))
            .collect();
        let rows = self.rows.iter().flatten();
        let clients: Vec<(usize, &Row)> = rows.map(|row| (at_user(row.uid), row)).collect();
        for (at, floor) in users {
            stakes[at].floor = floor;
        }
        for (at, row) in clients {
            let owned = owned_in(tally, row.client, zone);
            stakes[at].owned += owned;
            stakes[at].claimed += owned.max(row.allotment.zones[zone].floor_pages);
        }
        stakes
    }

    fn count(&mut self) {
        self.nr_clients = [0; NR_ZONES];
        for row in self.rows.iter().flatten() {
            for (zone, nr) in self.nr_clients.iter_mut().enumerate() {
                *nr += u64::from(row.zones >> zone & 1);
            }
        }
        for zone in 0..NR_ZONES {
            // By user: its own floor, and those of its clients.
            let mut floors: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            for &(uid, ref user) in &self.users {
                floors.entry(uid).or_default().0 = user.zones[zone].floor_pages;
            }
            for row in self.rows.iter().flatten() {
                let floor = row.allotment.zones[zone].floor_pages;
                if floor > 0 {
                    floors.entry(row.uid).or_default().1 += floor;
                }
            }
            let floors = floors.values().map(|&(users, clients)| users.max(clients));
            self.floors[zone] = floors.sum();
        }
    }
}

fn tightest(a: Option<Headroom>, b: Option<Headroom>) -> Option<Headroom> {
    [a, b].into_iter().flatten().min_by_key(|room| room.pages)
}

fn owned(tally: &Tally, client: ClientId) -> u64 {
    tally.client(client).map_or(0, |account| account.pages)
}

fn owned_in(tally: &Tally, client: ClientId, zone: usize) -> u64 {
    tally
        .client(client)
        .map_or(0, |account| account.zones[zone])
}
