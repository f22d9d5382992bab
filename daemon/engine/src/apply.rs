//! One way in for administrators: a command is resolved and done, or begun.

use hugepool_shm::layout::{PAGE_GRANTS, PAGE_MAGAZINE};

use crate::client::FixedPcp;
use crate::command::{Command, CommandError, Reply};
use crate::hotplug::Manner;
use crate::id::{ClientId, Now};
use crate::outside::Outside;
use crate::report::OperationKind;
use crate::{Engine, num};

impl Engine {
    /// Does what an administrator asks, or begins it.
    ///
    /// # Errors
    /// [`CommandError`]: nothing has changed.
    pub fn apply(
        &mut self,
        command: Command,
        now: Now,
        outside: &mut dyn Outside,
    ) -> Result<Reply, CommandError> {
        match command {
            Command::AddSections {
                request,
                online_order,
                keep_offline,
            } => {
                let manner = Manner {
                    online_order,
                    keep_offline,
                    timeout: None,
                };
                self.begin(OperationKind::Add, &request, manner, now, outside)
            }
            Command::OnlineSections {
                request,
                online_order,
            } => {
                let manner = Manner {
                    online_order,
                    ..Manner::default()
                };
                self.begin(OperationKind::Online, &request, manner, now, outside)
            }
            Command::OfflineSections { request, timeout } => {
                let manner = Manner {
                    timeout,
                    ..Manner::default()
                };
                self.begin(OperationKind::Offline, &request, manner, now, outside)
            }
            Command::RemoveSections { request } => self.begin(
                OperationKind::Remove,
                &request,
                Manner::default(),
                now,
                outside,
            ),
            Command::Compact { zone, order, mode } => {
                self.begin_compact(zone.as_deref(), order, mode, now, outside)
            }
            Command::CancelOperation { id } => self.cancel(id, now, outside).map(Reply::Operation),
            Command::DrainLanes { slot, timeout } => self.begin_drain(slot, timeout, now, outside),
            Command::EvictClient {
                slot,
                incarnation,
                kill,
            } => self.begin_evict(slot, incarnation, kill, now, outside),
            Command::SetPcp { slot, batch, high } => self.set_pcp(slot, batch, high),
            Command::SetLimits { whom, zone, limit } => {
                self.set_limits(whom, zone.as_deref(), limit)
            }
            Command::SetQuarantine { zone, quarantine } => self.set_quarantine(&zone, quarantine),
            Command::ReleaseQuarantined { slot, zone } => {
                self.release_quarantined(slot, zone.as_deref(), now)
            }
            Command::InvalidateContiguity { zone } => self.invalidate(zone.as_deref()),
            other => self.answer(other, now),
        }
    }

    /// Answers what only asks.
    fn answer(&self, command: Command, now: Now) -> Result<Reply, CommandError> {
        Ok(match command {
            Command::ListZones => Reply::Zones(self.list_zones()),
            Command::ListSections { zone } => {
                Reply::Sections(self.list_sections(&self.zones_named(zone.as_deref())?))
            }
            Command::ListClients => Reply::Clients(self.list_clients(now)),
            Command::ListLimits => Reply::LimitList(self.list_limits()),
            Command::ListPages(request) => Reply::Pages(self.list_pages(&request, now)?),
            Command::GetOperation { id } => Reply::Operation(self.report_operation(id, now)?),
            Command::ListOperations => Reply::Operations(self.list_operations(now)),
            Command::GetContiguity { zone } => {
                Reply::Contiguity(self.contiguity(&self.zones_named(zone.as_deref())?))
            }
            Command::GetBuddyInfo { zone } => {
                Reply::BuddyInfo(self.buddy_info(&self.zones_named(zone.as_deref())?))
            }
            Command::GetPageTypeInfo { zone } => {
                Reply::PageTypeInfo(self.page_type_info(&self.zones_named(zone.as_deref())?))
            }
            Command::GetZoneInfo { zone } => {
                Reply::ZoneInfo(self.zone_info(&self.zones_named(zone.as_deref())?))
            }
            Command::Verify => Reply::Verified(self.verify()),
            Command::GetEvents { after } => Reply::Events(self.events.since(after)),
            // All that acts was taken out by `apply`.
            _ => Reply::Status(self.status()),
        })
    }

    /// Indexes of the zone of that name, or of all.
    pub(crate) fn zones_named(&self, name: Option<&str>) -> Result<Vec<usize>, CommandError> {
        match name {
            None => Ok((0..self.custody.zones.len()).collect()),
            Some(name) => {
                let zone = self.custody.zones.named(name);
                let zone = zone.ok_or_else(|| CommandError::NoSuchZone {
                    name: name.to_owned(),
                })?;
                Ok(vec![zone])
            }
        }
    }

    fn set_pcp(
        &mut self,
        slot: Option<u16>,
        batch: Option<u32>,
        high: Option<u32>,
    ) -> Result<Reply, CommandError> {
        let most_batch = num::saturate(num::count(PAGE_GRANTS)) / 2;
        if let Some(batch) = batch.filter(|&batch| batch > most_batch) {
            return Err(CommandError::Batch {
                batch,
                most: most_batch,
            });
        }
        let most_high = num::saturate(num::count(PAGE_MAGAZINE));
        if let Some(high) = high.filter(|&high| high > most_high) {
            return Err(CommandError::High {
                high,
                most: most_high,
            });
        }
        let ids = self.ids_in(slot)?;
        let set = |pcp: &mut FixedPcp| {
            if let Some(batch) = batch {
                pcp.batch = Some(batch).filter(|&batch| batch > 0);
            }
            if let Some(high) = high {
                pcp.high = Some(high).filter(|&high| high > 0);
            }
        };
        if slot.is_none() {
            set(&mut self.pcp);
        }
        let mut last = self.pcp;
        for &id in &ids {
            if let Some(client) = self.clients.get_mut(id) {
                set(&mut client.pcp);
                last = client.pcp;
            }
        }
        if slot.is_none() {
            last = self.pcp;
        }
        self.bounds_changed();
        self.slow_changed();
        Ok(Reply::Pcp {
            nr_clients: num::saturate(num::count(ids.len())),
            batch: last.batch.unwrap_or(0),
            high: last.high.unwrap_or(0),
        })
    }

    fn invalidate(&mut self, zone: Option<&str>) -> Result<Reply, CommandError> {
        let zones = self.zones_named(zone)?;
        let mut nr_pageblocks = 0;
        for &at in &zones {
            let zone = self.custody.zones.zone_mut(at);
            nr_pageblocks += zone.contiguity().nr_cached;
            zone.invalidate_contiguity();
        }
        Ok(Reply::Invalidated {
            nr_zones: num::saturate(num::count(zones.len())),
            nr_pageblocks,
        })
    }

    fn ids_in(&self, slot: Option<u16>) -> Result<Vec<ClientId>, CommandError> {
        match slot {
            Some(slot) => Ok(vec![self.client_in(slot)?]),
            None => Ok(self.clients.ids()),
        }
    }
}
