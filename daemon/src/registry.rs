//! Who is attached: the token that names a client in calls, the words to wake it by, the hold on
//! its process.
//!
//! The engine knows clients by slot and incarnation only; what it takes to reach one is here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hugepool_engine::ClientId;
use hugepool_shm::control::ControlSegment;
use hugepool_shm::futex;
use hugepool_shm::peer::PeerCredentials;
use hugepool_shm::pidfd::PidFd;
use hugepool_shm::token::Token;
use nix::errno::Errno;

use crate::shared::lock;

/// All attached clients.
#[derive(Debug, Default)]
pub struct Registry {
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    by_id: HashMap<ClientId, Entry>,
    /// Tokens by the process that may use them; few, since a process has at most eight clients.
    by_pid: HashMap<u32, Vec<(Token, ClientId)>>,
}

/// What it takes to reach a client.
#[derive(Debug)]
struct Entry {
    peer: PeerCredentials,
    segment: ControlSegment,
    pidfd: Arc<PidFd>,
}

impl Registry {
    /// Adds a client that has been given its place.
    pub fn add(
        &self,
        client: ClientId,
        peer: PeerCredentials,
        token: Token,
        segment: ControlSegment,
        pidfd: Arc<PidFd>,
    ) {
        let mut clients = lock(&self.clients);
        let entry = Entry {
            peer,
            segment,
            pidfd,
        };
        clients.by_id.insert(client, entry);
        let tokens = clients.by_pid.entry(peer.pid).or_default();
        tokens.push((token, client));
    }

    /// Drops a client; harmless when repeated.
    pub fn remove(&self, client: ClientId) {
        let mut clients = lock(&self.clients);
        let Some(entry) = clients.by_id.remove(&client) else {
            return;
        };
        let pid = entry.peer.pid;
        if let Some(tokens) = clients.by_pid.get_mut(&pid) {
            tokens.retain(|(_, of)| *of != client);
            if tokens.is_empty() {
                clients.by_pid.remove(&pid);
            }
        }
    }

    /// The client of this process, and user, that the token was given to.
    ///
    /// The candidates are found by who calls, not by the token, and each is compared in full: the
    /// time says nothing about a token that was not given to the caller.
    pub fn find(&self, token: Token, caller: PeerCredentials) -> Option<ClientId> {
        let clients = lock(&self.clients);
        let mut found = None;
        for (known, client) in clients.by_pid.get(&caller.pid)? {
            if *known == token {
                found = Some(*client);
            }
        }
        found.filter(|client| {
            let entry = clients.by_id.get(client);
            entry.is_some_and(|entry| entry.peer.uid == caller.uid)
        })
    }

    /// Wakes whoever of the client sleeps on its segment.
    pub fn wake(&self, client: ClientId) {
        let segment = match lock(&self.clients).by_id.get(&client) {
            Some(entry) => entry.segment.clone(),
            None => return,
        };
        if let Err(errno) = futex::wake(segment.wake_word(), u32::MAX) {
            tracing::warn!(%client, %errno, "a client could not be woken");
        }
    }

    /// Kills the client's process.
    ///
    /// # Errors
    /// `ENOENT` when it is not attached, else the system's answer.
    pub fn kill(&self, client: ClientId) -> Result<(), Errno> {
        let pidfd = match lock(&self.clients).by_id.get(&client) {
            Some(entry) => entry.pidfd.clone(),
            None => return Err(Errno::ENOENT),
        };
        pidfd.kill()
    }
}
