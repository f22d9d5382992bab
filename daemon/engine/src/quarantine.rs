//! Pages of the dead that a device may still write: they wait before they are anybody's again.
//!
//! A process that is killed with asynchronous I/O under way is gone before its device is. In a zone
//! with a quarantine what its dead owned stays theirs: nobody is lent it, nothing moves it, and its
//! section cannot leave, until the zone's time has passed or somebody who knows better releases it.
//! It counts as isolated. The dead keep their slots that long.

use core::time::Duration;

use crate::Engine;
use crate::command::{CommandError, Reply};
use crate::events::About;
use crate::id::{ClientId, Now};
use crate::report::ClientState;

/// How long a zone's pages wait after their client has died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quarantine {
    /// Not at all.
    #[default]
    None,
    /// So long.
    For(Duration),
    /// Until they are released.
    UntilReleased,
}

impl Quarantine {
    /// When pages of one who died then may be lent again; `None`: when they are released.
    fn ends(self, died_at: Now) -> Option<Now> {
        match self {
            Quarantine::None => Some(died_at),
            Quarantine::For(time) => Some(died_at.saturating_add(time)),
            Quarantine::UntilReleased => None,
        }
    }
}

impl Engine {
    /// Takes home what is a dead client's where nothing has to wait. Returns the pages that came
    /// home, and those that wait: with some the client is kept as their owner, else it is gone.
    pub(crate) fn lay_to_rest(&mut self, id: ClientId, now: Now) -> (u64, u64) {
        let Some(client) = self.clients.get_mut(id) else {
            return (0, 0);
        };
        client.link = None;
        client.state = ClientState::Quarantined;
        client.died_at = now;
        self.custody.limits.rest(id);
        let before = self.quarantined_of(id, u32::MAX);
        self.count_quarantined(id, true);
        self.end_quarantines(id, now);
        let waiting = self.quarantined_of(id, u32::MAX);
        (before - waiting, waiting)
    }

    /// Of a daemon before: the dead that waited, and those that have died since; what is theirs has
    /// been found.
    pub(crate) fn rest_again(&mut self, now: Now) {
        for id in self.resting() {
            self.custody.limits.rest(id);
            self.count_quarantined(id, true);
            self.end_quarantines(id, now);
        }
    }

    /// Whether pages of the dead wait anywhere.
    pub(crate) fn has_quarantine(&self) -> bool {
        let mut zones = self.custody.zones.iter();
        zones.any(|(_, _, settings)| settings.quarantine != Quarantine::None)
    }

    /// Releases what has waited long enough. Returns when the next is due.
    pub(crate) fn tick_quarantine(&mut self, now: Now) -> Option<Now> {
        let mut next: Option<Now> = None;
        for id in self.resting() {
            let due = self.end_quarantines(id, now);
            next = [next, due].into_iter().flatten().min();
        }
        next
    }

    /// Releases pages before their time, of one of the dead or of all, in one zone or in all.
    pub(crate) fn release_quarantined(
        &mut self,
        slot: Option<u16>,
        zone: Option<&str>,
        now: Now,
    ) -> Result<Reply, CommandError> {
        let zones = self.zones_named(zone)?;
        let zones = zones.into_iter().fold(0, |bits, at| bits | 1 << at);
        let mut ids = self.resting();
        if let Some(slot) = slot {
            ids.retain(|id| id.slot == slot);
            if ids.is_empty() {
                return Err(CommandError::NoSuchClient { slot });
            }
        }
        let nr_pages = ids.into_iter().map(|id| self.release(id, zones, now)).sum();
        Ok(Reply::Released { nr_pages })
    }

    /// Sets how long pages wait in a zone; those that wait are held to it too.
    pub(crate) fn set_quarantine(
        &mut self,
        zone: &str,
        quarantine: Quarantine,
    ) -> Result<Reply, CommandError> {
        for at in self.zones_named(Some(zone))? {
            self.custody.zones.settings_mut(at).quarantine = quarantine;
        }
        self.slow_changed();
        let nr_clients = crate::num::saturate(crate::num::count(self.resting().len()));
        Ok(Reply::Limits { nr_clients })
    }

    fn resting(&self) -> Vec<ClientId> {
        let rests = |client: &&crate::client::Client| client.state == ClientState::Quarantined;
        self.clients
            .iter()
            .filter(rests)
            .map(|client| client.id)
            .collect()
    }

    /// Releases a client's pages in zones whose time has come. Returns when the next zone's does.
    fn end_quarantines(&mut self, id: ClientId, now: Now) -> Option<Now> {
        let died_at = self.clients.get(id)?.died_at;
        let mut over = 0;
        let mut next: Option<Now> = None;
        for (at, _, settings) in self.custody.zones.iter() {
            match settings.quarantine.ends(died_at) {
                Some(end) if end <= now => over |= 1 << at,
                Some(end) if self.quarantined_of(id, 1 << at) > 0 => {
                    next = Some(next.map_or(end, |next| next.min(end)));
                }
                _ => {}
            }
        }
        self.release(id, over, now);
        next
    }

    fn release(&mut self, id: ClientId, zones: u32, now: Now) -> u64 {
        self.count_quarantined(id, false);
        let nr_pages = self.custody.sweep_zones(id, zones);
        self.count_quarantined(id, true);
        if self.quarantined_of(id, u32::MAX) == 0 {
            self.custody.close(id);
            self.clients.remove(id);
            self.slow_changed();
        }
        if nr_pages > 0 {
            let text = format!("{nr_pages} pages of client {id}, which is dead, came home");
            self.events.note(now, "release", About::client(id), text);
        }
        nr_pages
    }

    /// Pages that a client has in these zones.
    fn quarantined_of(&self, id: ClientId, zones: u32) -> u64 {
        let account = self.custody.owners.tally().client(id);
        account.map_or(0, |account| {
            let pages = account.zones.iter().enumerate();
            let pages = pages.filter(|&(at, _)| zones >> at & 1 == 1);
            pages.map(|(_, pages)| pages).sum()
        })
    }

    /// Counts a client's pages as quarantined, or no longer.
    pub(crate) fn count_quarantined(&mut self, id: ClientId, is_in: bool) {
        if let Some(account) = self.custody.owners.tally().client(id) {
            self.custody.zones.count_quarantined(&account.zones, is_in);
        }
    }
}
