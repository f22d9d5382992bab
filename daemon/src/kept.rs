//! What a daemon before has left in the store, sorted by name.
//!
//! Descriptors come in any order and are known by their names alone. What is unknown or there twice
//! is reported and let go; what is missing costs what it belongs to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use hugepool_engine::ClientId;
use hugepool_shm::passed::PassedFd;
use hugepool_shm::ticket_ring::Side;
use hugepool_shm::token::Token;

/// Name of the state segment.
pub const STATE: &str = "state";

/// Descriptors of a client.
#[derive(Debug, Default)]
pub struct KeptClient {
    /// Its control segment.
    pub control: Option<OwnedFd>,
    /// What it rings.
    pub bell: Option<OwnedFd>,
    /// Tells its death.
    pub pidfd: Option<OwnedFd>,
    /// Its connection to the attach socket.
    pub connection: Option<OwnedFd>,
    /// Its outbox.
    pub outbox: Option<OwnedFd>,
}

/// Everything that was kept.
#[derive(Debug, Default)]
pub struct Kept {
    /// The state segment.
    pub state: Option<OwnedFd>,
    /// Files of zones, by index.
    pub zones: BTreeMap<u8, OwnedFd>,
    /// Transit words of zones, by index.
    pub transits: BTreeMap<u8, OwnedFd>,
    /// Of clients.
    pub clients: BTreeMap<ClientId, KeptClient>,
    /// Rings of channels, by whose end it is.
    pub channels: Vec<(ChannelEnd, OwnedFd)>,
    /// Names of what was let go.
    pub strange: Vec<String>,
}

/// One end of a channel, as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelEnd {
    /// The channel's secret name.
    pub id: [u8; 16],
    /// Which end.
    pub side: Side,
    /// Whose.
    pub client: ClientId,
}

/// What a client has in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its control segment.
    Control,
    /// What it rings.
    Bell,
    /// Its pidfd.
    Process,
    /// Its connection.
    Connection,
    /// Its outbox.
    Outbox,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 5] = [
        Part::Control,
        Part::Bell,
        Part::Process,
        Part::Connection,
        Part::Outbox,
    ];

    fn suffix(self) -> &'static str {
        match self {
            Part::Control => "ctl",
            Part::Bell => "bell",
            Part::Process => "pid",
            Part::Connection => "conn",
            Part::Outbox => "outbox",
        }
    }
}

/// The name of a zone's file.
pub fn zone_name(index: usize) -> String {
    format!("zone-{index}")
}

/// The name of a zone's transit words.
pub fn transit_name(index: usize) -> String {
    format!("transit-{index}")
}

/// The name of a client's descriptor.
pub fn client_name(client: ClientId, part: Part) -> String {
    let ClientId { slot, incarnation } = client;
    format!("client-{slot}-{incarnation}-{}", part.suffix())
}

/// The name of a channel's end.
pub fn channel_name(end: &ChannelEnd) -> String {
    let ClientId { slot, incarnation } = end.client;
    let id = Token::from_bytes(end.id).to_hex();
    let side = match end.side {
        Side::Sender => "sender",
        Side::Receiver => "receiver",
    };
    format!("channel-{id}-{side}-{slot}-{incarnation}")
}

fn channel_end(name: &str) -> Option<ChannelEnd> {
    let mut words = name.split('-');
    let id = Token::from_hex(words.next()?)?.to_bytes();
    let side = match words.next()? {
        "sender" => Side::Sender,
        "receiver" => Side::Receiver,
        _ => return None,
    };
    let client = ClientId {
        slot: words.next()?.parse().ok()?,
        incarnation: words.next()?.parse().ok()?,
    };
    words
        .next()
        .is_none()
        .then_some(ChannelEnd { id, side, client })
}

impl Kept {
    /// Takes out of what was passed what was kept; the rest is sockets.
    pub fn sort(passed: Vec<PassedFd>) -> (Kept, Vec<PassedFd>) {
        let (mut kept, mut rest) = (Kept::default(), Vec::new());
        for one in passed {
            if let Some(one) = kept.take(one) {
                rest.push(one);
            }
        }
        (kept, rest)
    }

    fn take(&mut self, PassedFd { name, fd }: PassedFd) -> Option<PassedFd> {
        let known = if name == STATE {
            Some(put(&mut self.state, fd))
        } else if let Some(zone) = name.strip_prefix("zone-") {
            let zone = zone.parse().ok();
            zone.map(|zone| self.zones.insert(zone, fd).is_none())
        } else if let Some(zone) = name.strip_prefix("transit-") {
            let zone = zone.parse().ok();
            zone.map(|zone| self.transits.insert(zone, fd).is_none())
        } else if let Some(client) = name.strip_prefix("client-") {
            self.take_client(client, fd)
        } else if let Some(end) = name.strip_prefix("channel-") {
            let end = channel_end(end);
            end.map(|end| {
                let is_first = !self.channels.iter().any(|(known, _)| *known == end);
                if is_first {
                    self.channels.push((end, fd));
                }
                is_first
            })
        } else {
            return Some(PassedFd { name, fd });
        };
        if known != Some(true) {
            self.strange.push(name);
        }
        None
    }

    fn take_client(&mut self, name: &str, fd: OwnedFd) -> Option<bool> {
        let mut words = name.split('-');
        let client = ClientId {
            slot: words.next()?.parse().ok()?,
            incarnation: words.next()?.parse().ok()?,
        };
        let suffix = words.next()?;
        let part = Part::ALL.into_iter().find(|part| part.suffix() == suffix)?;
        let of_client = self.clients.entry(client).or_default();
        Some(match part {
            Part::Control => put(&mut of_client.control, fd),
            Part::Bell => put(&mut of_client.bell, fd),
            Part::Process => put(&mut of_client.pidfd, fd),
            Part::Connection => put(&mut of_client.connection, fd),
            Part::Outbox => put(&mut of_client.outbox, fd),
        })
    }

    /// Names of all that is there, for a store that is to forget it.
    pub fn names(&self) -> Vec<String> {
        let zones = self.zones.keys().map(|zone| zone_name(usize::from(*zone)));
        let clients = self.clients.keys();
        let clients = clients.flat_map(|id| Part::ALL.map(|part| client_name(*id, part)));
        let transits = self.transits.keys();
        let transits = transits.map(|zone| transit_name(usize::from(*zone)));
        let channels = self.channels.iter().map(|(end, _)| channel_name(end));
        zones
            .chain(transits)
            .chain(clients)
            .chain(channels)
            .collect()
    }
}

/// Whether it was the first.
fn put(place: &mut Option<OwnedFd>, fd: OwnedFd) -> bool {
    let is_first = place.is_none();
    place.get_or_insert(fd);
    is_first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str) -> PassedFd {
        let (fd, _) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let name = name.to_owned();
        PassedFd { name, fd }
    }

    #[test]
    fn descriptors_are_known_by_their_names_in_any_order() {
        let id = ClientId {
            slot: 7,
            incarnation: 65535,
        };
        let end = ChannelEnd {
            id: [0xa5; 16],
            side: Side::Receiver,
            client: id,
        };
        let names = [
            client_name(id, Part::Connection),
            zone_name(1),
            "pages".to_owned(),
            client_name(id, Part::Control),
            STATE.to_owned(),
            "zone-x".to_owned(),
            "client-7-1-hat".to_owned(),
            STATE.to_owned(),
            channel_name(&end),
            channel_name(&end),
            "channel-7-sender-1-1".to_owned(),
        ];
        let (kept, rest) = Kept::sort(names.iter().map(|name| passed(name)).collect());
        assert!(kept.state.is_some() && kept.zones.contains_key(&1));
        let client = &kept.clients[&id];
        assert!(client.control.is_some() && client.connection.is_some());
        assert!(client.bell.is_none() && client.pidfd.is_none());
        assert_eq!(
            kept.strange,
            [
                "zone-x",
                "client-7-1-hat",
                "state",
                &channel_name(&end),
                "channel-7-sender-1-1"
            ]
        );
        assert_eq!((kept.channels.len(), kept.channels[0].0), (1, end));
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].name, "pages");
        assert_eq!(kept.names().len(), 7);
    }
}
