//! Limits as they are set, refused and reported, live.
//!
//! What they mean is [`limits`](crate::limits)'s. Floors are pages that a zone really has: those that
//! it could not keep are refused, with the sum; so are sections that would leave too little.

use hugepool_mm::{SectionId, SectionState};

use crate::Engine;
use crate::client::AttachError;
use crate::command::{CommandError, Reply, SectionRefusal};
use crate::custody::Custody;
use crate::limits::{Limit, Whom};
use crate::num;
use crate::report::LimitReport;
use crate::saved::Saved;
use crate::worker::publish_allowance;
use crate::zones::ZoneIndex;

impl Custody {
    /// Pages of a zone that floors may be made of: those above `min` in sections that stay.
    pub fn room_for_floors(&self, zone: usize) -> u64 {
        let min = self.zones.zone(zone).watermarks().min;
        self.staying_pages(zone).saturating_sub(min)
    }

    /// Managed pages of a zone in sections that are not leaving.
    fn staying_pages(&self, zone: usize) -> u64 {
        let managed = self.zones.counts(zone).managed;
        if self.zones.nr_leaving(zone) == 0 {
            return managed;
        }
        let sections = self.zones.zone(zone).sections();
        let leaving = sections.filter(|info| info.state == SectionState::GoingOffline);
        managed.saturating_sub(leaving.map(|info| info.nr_pages).sum())
    }

    /// Why an online section must stay: without it floors would not be met.
    pub fn kept_by_floors(&self, section: SectionId) -> Option<SectionRefusal> {
        let zone = self.zones.zone_of(section).ok()?;
        let zones_own = self.zones.settings(zone).floor_pages;
        let floors = self.limits.floors(zone);
        if zones_own == 0 && floors == 0 {
            return None;
        }
        let mut sections = self.zones.zone(zone).sections();
        let nr_pages = sections.find(|info| info.id == section)?.nr_pages;
        let left_pages = self.staying_pages(zone).saturating_sub(nr_pages);
        let min = self.zones.zone(zone).watermarks().min;
        let tally = self.owners.tally();
        // What others own does not come home for it.
        let to_come = match self.limits.kept(zone, tally) {
            0 => 0,
            kept => kept + tally.zone_pages(zone),
        };
        let of_users = match floors.max(to_come) {
            0 => 0,
            pages => pages + min,
        };
        let floors_pages = zones_own.max(of_users);
        (left_pages < floors_pages).then_some(SectionRefusal::Floors {
            section,
            floors_pages,
            left_pages,
        })
    }

    /// Whether floors leave room for one more client of a user.
    pub fn admit(&self, uid: u32, zones: &[hugepool_mm::ZoneId]) -> Result<(), AttachError> {
        for &zone in zones {
            let at = usize::from(zone.get());
            if self.limits.each().zones[at].floor_pages == 0 {
                continue;
            }
            let floors_pages = self.limits.floors_with_client(at, uid);
            let room_pages = self.room_for_floors(at);
            if floors_pages > room_pages {
                return Err(AttachError::Floors {
                    zone,
                    floors_pages,
                    room_pages,
                });
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Sets the limits of a subject in a zone, or with no zone the most that it may own in all.
    pub(crate) fn set_limits(
        &mut self,
        whom: Whom,
        zone: Option<&str>,
        limit: Limit,
    ) -> Result<Reply, CommandError> {
        let named = |name: &str| {
            let zone = self.custody.zones.named(name);
            zone.ok_or_else(|| CommandError::NoSuchZone {
                name: name.to_owned(),
            })
        };
        let zone = zone.map(named).transpose()?;
        if let Whom::Client(slot) = whom {
            self.client_in(slot)?;
        }
        let Some(at) = zone else {
            if limit.floor_pages > 0 || whom == Whom::Zone {
                return Err(CommandError::FloorWithoutZone);
            }
            return Ok(self.put_limit(whom, None, limit));
        };
        if let Some(ceiling_pages) = limit.ceiling_pages.filter(|&most| most < limit.floor_pages) {
            return Err(CommandError::FloorAboveCeiling {
                floor_pages: limit.floor_pages,
                ceiling_pages,
            });
        }
        let (floors_pages, room_pages) = match whom {
            Whom::Zone => (limit.floor_pages, self.custody.zones.counts(at).managed),
            whom => (
                self.custody.limits.floors_with(at, whom, limit),
                self.custody.room_for_floors(at),
            ),
        };
        // What lowers them is never refused.
        if floors_pages > room_pages && floors_pages > self.custody.limits.floors(at) {
            return Err(CommandError::Floors {
                zone: self.custody.zones.settings(at).name.clone(),
                floors_pages,
                room_pages,
            });
        }
        Ok(self.put_limit(whom, zone, limit))
    }

    fn put_limit(&mut self, whom: Whom, zone: Option<usize>, limit: Limit) -> Reply {
        if let (Whom::Zone, Some(at)) = (whom, zone) {
            let settings = self.custody.zones.settings_mut(at);
            settings.floor_pages = limit.floor_pages;
            settings.ceiling_pages = limit.ceiling_pages;
        }
        self.custody.limits.set(whom, zone, limit);
        let mut nr_clients = 0usize;
        for client in self.clients.iter() {
            publish_allowance(client, &self.custody);
            nr_clients += usize::from(match whom {
                Whom::EachClient => true,
                Whom::Client(slot) => client.id.slot == slot,
                Whom::User(uid) => client.uid == uid,
                Whom::Zone => zone.is_some_and(|at| client.may_use(at)),
            });
        }
        // Who waited for pages that were kept may have them now.
        self.custody.nr_home += 1;
        self.slow_changed();
        Reply::Limits {
            nr_clients: num::saturate(num::count(nr_clients)),
        }
    }

    /// Limits of clients to come and of users, as they were saved; those of clients come with them.
    pub(crate) fn restore_limits(&mut self, saved: &Saved) {
        let users = saved.users.iter();
        let users = users.map(|(uid, user)| (*uid, user.allotment())).collect();
        self.custody.limits.restore(saved.each.allotment(), users);
    }

    /// All limits that are set, and how they stand.
    pub(crate) fn list_limits(&self) -> Vec<LimitReport> {
        let limits = &self.custody.limits;
        let tally = self.custody.owners.tally();
        let mut reports = Vec::new();
        for (at, _, settings) in self.custody.zones.iter() {
            let limit = Limit {
                floor_pages: settings.floor_pages,
                ceiling_pages: settings.ceiling_pages,
            };
            self.add_limit(
                &mut reports,
                Whom::Zone,
                Some(at),
                limit,
                tally.zone_pages(at),
            );
        }
        let mut add =
            |whom, allotment: &crate::limits::Allotment, owned: &dyn Fn(Option<usize>) -> u64| {
                let overall = Limit {
                    floor_pages: 0,
                    ceiling_pages: allotment.ceiling_pages,
                };
                self.add_limit(&mut reports, whom, None, overall, owned(None));
                for at in 0..self.custody.zones.len() {
                    let limit = allotment.zones[at];
                    self.add_limit(&mut reports, whom, Some(at), limit, owned(Some(at)));
                }
            };
        add(Whom::EachClient, limits.each(), &|_| 0);
        for &(uid, ref allotment) in limits.users() {
            add(Whom::User(uid), allotment, &|zone| {
                limits.owned_by_user(uid, zone, tally)
            });
        }
        for client in self.clients.iter() {
            let Some(allotment) = limits.client(client.id) else {
                continue;
            };
            let account = tally.client(client.id);
            let owned = |zone: Option<usize>| {
                account.map_or(0, |account| {
                    zone.map_or(account.pages, |at| account.zones[at])
                })
            };
            if allotment != limits.each() {
                add(Whom::Client(client.id.slot), allotment, &owned);
            }
        }
        reports
    }

    fn add_limit(
        &self,
        reports: &mut Vec<LimitReport>,
        whom: Whom,
        zone: Option<usize>,
        limit: Limit,
        owned_pages: u64,
    ) {
        if limit != Limit::default() {
            reports.push(LimitReport {
                whom,
                zone: zone.map(|at| ZoneIndex(at).id()),
                zone_name: zone.map(|at| self.custody.zones.settings(at).name.clone()),
                limit,
                owned_pages,
            });
        }
    }
}
