//! Attaching, as the daemon sees it: a connection, its process, and how far they are.
//!
//! ```text
//! greeted ──request──► mapping ──ready──► attached ──hang-up──► detached
//!    │                    │                  │                     │
//!    └─ deadline, nonsense, hang-up: closed  └──── death: buried ──┘
//! ```
//!
//! Credentials and the hold on the process are the kernel's, taken from the socket; nothing that a
//! client says about itself is believed but its name. Who floods, sends nonsense or stalls loses
//! its own connection and nothing else.

mod channels;
pub mod place;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugepool_engine::ClientId;
use hugepool_shm::attach::{
    AttachMessage, AttachReady, AttachRefused, AttachRequest, PeerReply, RefusalCode,
};
use hugepool_shm::message::{Connection, RecvError};
use hugepool_shm::peer::PeerCredentials;

use self::channels::Channels;
use self::place::Place;
use crate::kept::{ChannelEnd, Part, client_name};
use crate::lanes::{Watch, Watched};
use crate::rpc::peer::{Gate, Pass};
use crate::shared::Shared;
use crate::store::Store;
use crate::takeover::Found;

/// All connections to the attach socket, and the clients that came of them.
#[derive(Debug)]
pub struct Attach {
    gate: Arc<Gate>,
    patience: Duration,
    lanes_per_client: u32,
    store: Arc<Store>,
    next: u64,
    peers: HashMap<u64, Peer>,
    numbers: HashMap<ClientId, u64>,
    channels: Channels,
}

/// One connection and its process.
#[derive(Debug)]
struct Peer {
    /// None once it is closed.
    connection: Option<Connection>,
    credentials: PeerCredentials,
    stage: Stage,
    /// May still say that it is ready, though it is taken to be.
    owes_ready: bool,
    _pass: Pass,
}

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// Has said nothing yet.
    Greeted {
        /// Until when it may stay so.
        deadline: Instant,
    },
    /// Has a place; the store has not said yet that it has it.
    Storing {
        /// Until when it may stay so.
        deadline: Instant,
        /// What it was given.
        place: Place,
        /// Hangs up when the store has it.
        barrier: OwnedFd,
        /// What the client is told then.
        greeting: place::Greeting,
    },
    /// Has been given a place, has not said that it has mapped it.
    Mapping {
        /// Until when it may stay so.
        deadline: Instant,
        /// What it was given.
        place: Place,
    },
    /// In service; or detached, if the connection is closed.
    Attached {
        /// What it was given.
        place: Place,
    },
}

impl Stage {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Stage::Greeted { deadline }
            | Stage::Storing { deadline, .. }
            | Stage::Mapping { deadline, .. } => Some(*deadline),
            Stage::Attached { .. } => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            Stage::Greeted { .. } => None,
            Stage::Storing { place, .. }
            | Stage::Mapping { place, .. }
            | Stage::Attached { place } => Some(place),
        }
    }
}

impl Attach {
    /// Nobody yet. Each user may have as many connections as the gate lets in; each step of
    /// attaching may take as long as `patience`.
    pub fn new(
        gate: Arc<Gate>,
        patience: Duration,
        lanes_per_client: u16,
        store: Arc<Store>,
    ) -> Attach {
        Attach {
            gate,
            patience,
            lanes_per_client: lanes_per_client.into(),
            next: 0,
            peers: HashMap::new(),
            numbers: HashMap::new(),
            channels: Channels::new(store.clone()),
            store,
        }
    }

    /// A connection has been accepted: it has a while to say what it wants.
    pub fn greet(&mut self, connection: Connection, watch: &Watch) {
        let credentials = match connection.credentials() {
            Ok(credentials) => credentials,
            Err(error) => return tracing::debug!(%error, "a connection from nobody"),
        };
        let Some(pass) = self.gate.enter(credentials.uid) else {
            let text = format!("user {} has too many connections", credentials.uid);
            return refuse(&connection, &credentials, RefusalCode::UsedUp, text);
        };
        let number = self.next;
        self.next += 1;
        if let Err(errno) = watch.readable(&connection, Watched::Socket(number)) {
            return tracing::warn!(%errno, "a connection cannot be watched: closed");
        }
        let peer = Peer {
            connection: Some(connection),
            credentials,
            stage: Stage::Greeted {
                deadline: Instant::now() + self.patience,
            },
            owes_ready: false,
            _pass: pass,
        };
        self.peers.insert(number, peer);
    }

    /// There is something to read on a connection, or its other end is gone.
    pub fn heard(&mut self, number: u64, watch: &Watch, shared: &Shared) {
        let Some(peer) = self.peers.get_mut(&number) else {
            return;
        };
        let Some(connection) = &peer.connection else {
            return;
        };
        // One message a visit: who sends more waits for the next round, like everybody else.
        let message = match connection.recv(0) {
            Ok(received) => AttachMessage::decode(&received.bytes).map_err(|error| {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
            }),
            Err(RecvError::WouldBlock) => return,
            Err(RecvError::Closed) => return self.hang_up(number, watch, shared),
            Err(error) => Err(error.to_string()),
        };
        match (&peer.stage, message) {
            (Stage::Greeted { .. }, Ok(AttachMessage::Request(request))) => {
                self.welcome(number, &request, watch, shared);
            }
            (Stage::Mapping { place, .. }, Ok(AttachMessage::Ready(ready))) => {
                let client = place.client;
                self.ready(number, client, ready, watch, shared);
            }
            (Stage::Attached { .. }, Ok(AttachMessage::PeerRequest(request))) => {
                hugepool_shm::step::reached("attach.asked");
                self.show_peer(number, request.slot, watch, shared);
            }
            (Stage::Attached { place }, Ok(AttachMessage::ChannelRequest(request))) => {
                let client = place.client;
                let (reply, fd) = self.channels.answer(number, client, request);
                let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
                let sent = AttachMessage::ChannelReply(reply).encode().ok();
                let sent = sent.is_some_and(|bytes| connection.send(&bytes, &fds).is_ok());
                if !sent {
                    self.hang_up(number, watch, shared);
                }
            }
            (Stage::Greeted { .. }, message) => {
                let text = message.err().unwrap_or_else(|| "not a request".to_owned());
                refuse(connection, &peer.credentials, RefusalCode::BadRequest, text);
                self.hang_up(number, watch, shared);
            }
            // It was told that it has a place by a daemon that did not live to hear this.
            (Stage::Attached { place }, Ok(AttachMessage::Ready(ready))) if peer.owes_ready => {
                let client = place.client;
                peer.owes_ready = false;
                let confirmed = shared.with(|engine, _, _| engine.ready(client, ready.registered));
                if confirmed.is_err() {
                    self.hang_up(number, watch, shared);
                }
            }
            (Stage::Storing { .. } | Stage::Mapping { .. } | Stage::Attached { .. }, _) => {
                let PeerCredentials { pid, uid, .. } = peer.credentials;
                tracing::warn!(pid, uid, "a message out of turn: the client is detached");
                self.hang_up(number, watch, shared);
            }
        }
    }

    fn welcome(&mut self, number: u64, request: &AttachRequest, watch: &Watch, shared: &Shared) {
        let Some(peer) = self.peers.get_mut(&number) else {
            return;
        };
        let Some(connection) = &peer.connection else {
            return;
        };
        let lanes = request.nr_lanes.min(self.lanes_per_client);
        let made = Place::make(request, lanes, connection, peer.credentials, shared);
        let place = match made {
            Ok(place) => place,
            Err(refusal) => {
                refuse(connection, &peer.credentials, refusal.code, refusal.message);
                return self.hang_up(number, watch, shared);
            }
        };
        let client = place.client;
        let watched = watch
            .rings(&place.bell, Watched::Bell(number))
            .and_then(|()| watch.readable(&*place.pidfd, Watched::Process(number)));
        let greeting = place.greeting(request, lanes, shared);
        let deadline = Instant::now() + self.patience;
        self.numbers.insert(client, number);
        hugepool_shm::step::reached("attach.placed");
        // A client is not told that it is attached before all of it would outlive this process.
        place.keep(connection, &self.store);
        let watched = watched.map_err(|errno| format!("cannot be watched: {errno}"));
        let greeting = watched.and(greeting);
        match (self.store.barrier(), greeting) {
            (Err(errno), _) => {
                // What nobody knows to be kept is not promised.
                let why = format!(
                    "the service manager does not take what a client needs over a restart: {errno}"
                );
                refuse(connection, &peer.credentials, RefusalCode::NotServing, why);
                peer.stage = Stage::Mapping { deadline, place };
                self.hang_up(number, watch, shared);
            }
            (Ok(Some(barrier)), Ok(greeting)) => {
                let watched = watch.readable(&barrier, Watched::Stored(number));
                peer.stage = Stage::Storing {
                    deadline,
                    place,
                    barrier,
                    greeting,
                };
                if let Err(errno) = watched {
                    tracing::warn!(%client, %errno, "the store cannot be waited for");
                    self.hang_up(number, watch, shared);
                }
            }
            (_, greeting) => {
                peer.stage = Stage::Mapping { deadline, place };
                let sent = greeting.and_then(|greeting| self.send(number, &greeting, shared));
                if let Err(why) = sent {
                    tracing::warn!(%client, why, "the client did not get its place");
                    self.hang_up(number, watch, shared);
                }
            }
        }
    }

    /// The store has what a client needs over a restart: it may be told that it is attached.
    pub fn stored(&mut self, number: u64, watch: &Watch, shared: &Shared) {
        let Some(peer) = self.peers.get_mut(&number) else {
            return;
        };
        let stage = std::mem::replace(
            &mut peer.stage,
            Stage::Greeted {
                deadline: Instant::now(),
            },
        );
        let Stage::Storing {
            deadline,
            place,
            barrier,
            greeting,
        } = stage
        else {
            peer.stage = stage;
            return;
        };
        watch.forget(&barrier);
        let client = place.client;
        peer.stage = Stage::Mapping { deadline, place };
        hugepool_shm::step::reached("attach.stored");
        if let Err(why) = self.send(number, &greeting, shared) {
            tracing::warn!(%client, why, "the client did not get its place");
            self.hang_up(number, watch, shared);
        }
    }

    /// Goes on with a client of a daemon before.
    pub fn adopt(&mut self, found: Found, watch: &Watch, shared: &Shared) {
        let Found {
            place,
            connection,
            credentials,
            segment,
            token,
        } = found;
        let (client, number) = (place.client, self.next);
        self.next += 1;
        let registry = shared.registry();
        registry.add(client, credentials, token, segment, place.pidfd.clone());
        let watched = watch
            .rings(&place.bell, Watched::Bell(number))
            .and_then(|()| watch.readable(&*place.pidfd, Watched::Process(number)))
            .and_then(|()| match &connection {
                Some(connection) => watch.readable(connection, Watched::Socket(number)),
                None => Ok(()),
            });
        if let Err(errno) = watched {
            tracing::error!(%client, %errno, "a client cannot be watched");
        }
        let pass = self.gate.enter_unasked(credentials.uid);
        let peer = Peer {
            connection,
            credentials,
            stage: Stage::Attached { place },
            owes_ready: true,
            _pass: pass,
        };
        self.numbers.insert(client, number);
        self.peers.insert(number, peer);
    }

    /// Goes on with the channels of a daemon before; whoever of their ends is not there is gone.
    pub fn adopt_channels(&mut self, ends: Vec<(ChannelEnd, OwnedFd)>) {
        for (end, fd) in ends {
            let number = self.numbers.get(&end.client).copied();
            self.channels.adopt(end, fd, number);
        }
    }

    fn send(&self, number: u64, greeting: &place::Greeting, shared: &Shared) -> Result<(), String> {
        let peer = self.peers.get(&number);
        let connection = peer.and_then(|peer| peer.connection.as_ref());
        let connection = connection.ok_or("hung up")?;
        let place = peer.and_then(|peer| peer.stage.place()).ok_or("no place")?;
        let fds = place.descriptors(shared);
        connection
            .send(&greeting.bytes, &fds)
            .map_err(|error| error.to_string())
    }

    fn ready(
        &mut self,
        number: u64,
        client: ClientId,
        ready: AttachReady,
        watch: &Watch,
        shared: &Shared,
    ) {
        let confirmed = shared.with(|engine, _, _| engine.ready(client, ready.registered));
        let Some(peer) = self.peers.get_mut(&number) else {
            return;
        };
        if let Err(error) = confirmed {
            tracing::warn!(%client, %error, "the client is not taken in");
            return self.hang_up(number, watch, shared);
        }
        let stage = std::mem::replace(
            &mut peer.stage,
            Stage::Greeted {
                deadline: Instant::now(),
            },
        );
        if let Stage::Mapping { place, .. } = stage {
            let PeerCredentials { pid, uid, .. } = peer.credentials;
            tracing::info!(%client, pid, uid, "attached");
            peer.stage = Stage::Attached { place };
        }
    }

    /// Passes a client the outbox of another one that shares a zone with it.
    fn show_peer(&mut self, number: u64, slot: u16, watch: &Watch, shared: &Shared) {
        let peer = self.client(number).and_then(|client| {
            let peer = shared.with(|engine, _, _| engine.share_zone(client, slot))?;
            self.peers.get(self.numbers.get(&peer)?)?.stage.place()
        });
        let outbox = peer.map(Place::outbox_to_read).and_then(|outbox| {
            outbox
                .inspect_err(|error| tracing::warn!(%error, "an outbox cannot be passed on"))
                .ok()
        });
        let reply = AttachMessage::PeerReply(PeerReply {
            slot,
            is_there: outbox.is_some(),
        });
        let fds: Vec<BorrowedFd<'_>> = outbox.iter().map(AsFd::as_fd).collect();
        let connection = self.peers.get(&number);
        let connection = connection.and_then(|peer| peer.connection.as_ref());
        let sent = match (connection, reply.encode()) {
            (Some(connection), Ok(bytes)) => connection.send(&bytes, &fds).is_ok(),
            _ => false,
        };
        if !sent {
            // Who does not read its answers does not keep the protocol.
            self.hang_up(number, watch, shared);
        }
    }

    /// The other end is gone, or out of patience: what was lent into its lanes goes home, what it
    /// holds stays its own until its process ends.
    fn hang_up(&mut self, number: u64, watch: &Watch, shared: &Shared) {
        let Some(peer) = self.peers.get_mut(&number) else {
            return;
        };
        if let Some(connection) = peer.connection.take() {
            watch.forget(&connection);
        }
        self.channels.leave(number);
        match peer.stage.place().map(|place| place.client) {
            None => drop(self.peers.remove(&number)),
            Some(client) => {
                tracing::debug!(%client, "hung up");
                shared.with(|engine, now, outside| engine.detach(client, now, outside));
            }
        }
    }

    /// The client behind a bell.
    pub fn client(&self, number: u64) -> Option<ClientId> {
        let place = self.peers.get(&number)?.stage.place()?;
        Some(place.client)
    }

    /// A process has ended: everything it had goes home.
    pub fn died(&mut self, number: u64, watch: &Watch, shared: &Shared) {
        let place = self.peers.get(&number).and_then(|peer| peer.stage.place());
        let Some(client) = place.map(|place| place.client) else {
            return;
        };
        let nr_home = shared.with(|engine, now, _| engine.bury(client, now));
        tracing::info!(%client, nr_home, "its process has ended: its pages are home");
        self.forget(client, watch, shared);
    }

    /// The engine has shut a client out: it hears of it by the hang-up.
    pub fn close(&mut self, client: ClientId, watch: &Watch, _: &Shared) {
        let number = self.numbers.get(&client);
        let peer = number.and_then(|number| self.peers.get_mut(number));
        if let Some(connection) = peer.and_then(|peer| peer.connection.take()) {
            watch.forget(&connection);
        }
        if let Some(number) = number {
            self.channels.leave(*number);
        }
    }

    /// The engine has buried a client: nothing of it is kept. Harmless when repeated.
    pub fn forget(&mut self, client: ClientId, watch: &Watch, shared: &Shared) {
        shared.registry().remove(client);
        for part in Part::ALL {
            self.store.forget(&client_name(client, part));
        }
        let Some(number) = self.numbers.remove(&client) else {
            return;
        };
        self.channels.leave(number);
        let Some(peer) = self.peers.remove(&number) else {
            return;
        };
        if let Some(connection) = &peer.connection {
            watch.forget(connection);
        }
        if let Some(place) = peer.stage.place() {
            // The client may hold another descriptor of the bell: closing ours would leave it
            // watched.
            watch.forget(&place.bell);
            watch.forget(&*place.pidfd);
        }
    }

    /// Closes what has taken too long.
    pub fn expire(&mut self, now: Instant, watch: &Watch, shared: &Shared) {
        let late: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.connection.is_some())
            .filter(|(_, peer)| peer.stage.deadline().is_some_and(|at| at <= now))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let peer = self.peers.get(&number).map(|peer| peer.credentials);
            tracing::debug!(?peer, "too slow in attaching: closed");
            self.hang_up(number, watch, shared);
        }
    }

    /// When something has taken too long.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.peers
            .values()
            .filter(|peer| peer.connection.is_some())
            .filter_map(|peer| peer.stage.deadline())
            .min()
    }
}

/// Says why not. Who does not read it will see the hang-up.
fn refuse(connection: &Connection, peer: &PeerCredentials, code: RefusalCode, message: String) {
    let PeerCredentials { pid, uid, .. } = peer;
    tracing::warn!(pid, uid, ?code, message, "attach refused");
    let refused = AttachMessage::Refused(AttachRefused { code, message });
    if let Ok(bytes) = refused.encode() {
        // Nothing depends on its arrival.
        let _ = connection.send(&bytes, &[]);
    }
}
