//! A client by hand: the attach socket as bytes and messages, without the client library.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use hugepool_shm::attach::{
    AttachMessage, AttachReady, AttachReply, AttachRequest, LAYOUT_VERSION,
};
use hugepool_shm::control::{ControlGeometry, ControlSegment};
use hugepool_shm::message::{Connection, RecvError};
use hugepool_shm::region::Region;

use super::{DEADLINE, Daemon};

/// A connection to the attach socket.
pub fn connect(daemon: &Daemon) -> Connection {
    let deadline = Instant::now() + DEADLINE;
    Connection::connect(&daemon.socket("attach.sock"), deadline).unwrap()
}

/// A request as an honest client makes it.
pub fn request() -> AttachRequest {
    AttachRequest {
        layout_version: LAYOUT_VERSION,
        nr_lanes: 2,
        client_index: 0,
        name: "by-hand".to_owned(),
    }
}

/// Sends a message that the protocol knows.
pub fn say(connection: &Connection, message: AttachMessage) {
    connection.send(&message.encode().unwrap(), &[]).unwrap();
}

/// What the daemon answers; none when it hangs up.
pub fn hear(connection: &Connection) -> Option<(AttachMessage, Vec<OwnedFd>)> {
    match connection.recv_until(16, Instant::now() + DEADLINE) {
        Ok(received) => Some((
            AttachMessage::decode(&received.bytes).unwrap(),
            received.fds,
        )),
        Err(RecvError::Closed) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A place that was given.
pub struct Attached {
    /// Open as long as the client is attached.
    pub connection: Connection,
    /// What was told.
    pub reply: AttachReply,
    /// Control segment, bell, zones.
    pub fds: Vec<OwnedFd>,
}

/// Attaches up to the reply, without saying that anything is mapped.
pub fn attach(daemon: &Daemon) -> Attached {
    let connection = connect(daemon);
    say(&connection, AttachMessage::Request(request()));
    match hear(&connection) {
        Some((AttachMessage::Reply(reply), fds)) => Attached {
            connection,
            reply,
            fds,
        },
        other => panic!("no place: {other:?}"),
    }
}

impl Attached {
    /// Says that everything is mapped.
    pub fn ready(&self) {
        say(
            &self.connection,
            AttachMessage::Ready(AttachReady { registered: false }),
        );
    }

    /// Marks every announced section as mapped. Nothing is mapped: this client never touches a
    /// page, and a liar harms itself alone.
    pub fn map_nothing_and_say_all(&self) {
        let zones = &self.reply.zones;
        let order = self.reply.geometry.section_order;
        let nr_pages = zones
            .iter()
            .map(|zone| zone.start_pfn + zone.span_pages)
            .max()
            .unwrap();
        let nr_sections = u32::try_from(nr_pages >> order).unwrap();
        let geometry = ControlGeometry {
            nr_lanes: self.reply.nr_lanes,
            nr_sections,
            nr_pages,
        };
        let region = Region::adopt(self.fds[0].try_clone().unwrap()).unwrap();
        let segment = ControlSegment::open(region.map().unwrap(), geometry).unwrap();
        let epoch = segment.section_epoch();
        for section in 0..nr_sections {
            segment.mark_mapped(section, segment.announced(section));
        }
        segment.mark_mapped_epoch(epoch);
    }

    /// Whether the daemon has hung up.
    pub fn is_hung_up(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut entry = [PollFd::new(self.connection.as_fd(), PollFlags::POLLIN)];
        poll(&mut entry, PollTimeout::ZERO).unwrap();
        entry[0].revents().unwrap().contains(PollFlags::POLLHUP)
    }
}
