//! The way in: find the daemon, ask for a place, map what it gives.
//!
//! Everything here has one deadline. What the daemon sends is checked before it is used: a wrong
//! count of descriptors or a segment of another shape is an error, not a crash. Nothing is left of
//! an attach that failed.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use hugepool_shm::{
    attach::{
        AttachGeometry, AttachMessage, AttachReady, AttachReply, AttachRequest, AttachZoneKind,
        LAYOUT_VERSION, MAX_ZONES, agree_on_layout,
    },
    barrier,
    control::ControlSegment,
    eventfd::Bell,
    listener::ConnectError,
    message::{Connection, RecvError},
    outbox::Outbox,
    region::Region,
    step::reached as step,
    token::Token,
    transit::{Taker, TransitTable},
    zone_map::{ZoneExtent, ZoneMap},
};

use crate::{AttachError, Options, runtime_dir};

/// The socket that passes descriptors.
const ATTACH_SOCKET: &str = "attach.sock";

/// The socket that serves `Pages`.
const PAGES_SOCKET: &str = "pages.sock";

/// Descriptors beside those of the zones: control segment, bell and outbox.
const NR_FIXED_FDS: usize = 3;

/// What a client has been given.
#[derive(Debug)]
pub(crate) struct Place {
    /// Its hang-up tells that the daemon is gone, or has shut this client out.
    pub(crate) connection: Door,
    pub(crate) pages_socket: PathBuf,
    pub(crate) token: Token,
    pub(crate) geometry: AttachGeometry,
    pub(crate) control: ControlSegment,
    pub(crate) bell: Bell,
    /// Whether the process receives barriers.
    pub(crate) registered: bool,
    pub(crate) zones: Vec<ZonePlace>,
    /// This client, as the words of parcels name it.
    pub(crate) me: Taker,
    pub(crate) outbox: Outbox,
    pub(crate) first_sequence: u32,
}

/// One zone that the client may use.
#[derive(Debug)]
pub(crate) struct ZonePlace {
    /// Its index, as in the page word.
    pub(crate) index: u8,
    pub(crate) name: String,
    /// Whether it takes movable requests only.
    pub(crate) is_movable: bool,
    pub(crate) map: Arc<ZoneMap>,
    /// The transit words of its parcels.
    pub(crate) transits: TransitTable,
}

impl Place {
    /// Asks for a place for the client with `client_index` in this process, and maps it. The
    /// daemon lends nothing before [`Door::confirm`].
    pub(crate) fn ask(options: &Options, client_index: u8) -> Result<Place, AttachError> {
        let deadline = Instant::now() + options.attach_timeout;
        let (connection, socket) = connect(options, deadline)?;
        step("attach.connected");
        let request = AttachMessage::Request(AttachRequest {
            layout_version: LAYOUT_VERSION,
            nr_lanes: options.nr_lanes,
            client_index,
            name: options.name.clone(),
        });
        let bytes = request.encode().map_err(|error| protocol(&error))?;
        connection
            .send_until(&bytes, &[], deadline)
            .map_err(|error| protocol(&error))?;

        step("attach.asked");
        let max_fds = NR_FIXED_FDS + 2 * usize::from(MAX_ZONES);
        let received = connection
            .recv_until(max_fds, deadline)
            .map_err(|error| match error {
                RecvError::TimedOut => AttachError::TimedOut {
                    timeout: options.attach_timeout,
                },
                error => protocol(&error),
            })?;
        step("attach.answered");
        match AttachMessage::decode(&received.bytes).map_err(|error| protocol(&error))? {
            AttachMessage::Reply(reply) => {
                let pages_socket = socket.with_file_name(PAGES_SOCKET);
                map(reply, received.fds, connection, pages_socket)
            }
            AttachMessage::Refused(refused) => Err(AttachError::Refused {
                code: refused.code,
                message: refused.message,
            }),
            _ => Err(AttachError::Protocol(
                "it says something else than was asked".into(),
            )),
        }
    }
}

/// The connection, before the daemon has been told that everything is mapped.
#[derive(Debug)]
pub(crate) struct Door(pub(crate) Connection);

impl Door {
    /// Tells the daemon that everything is mapped: it may lend from now on.
    pub(crate) fn confirm(&self, registered: bool, deadline: Instant) -> Result<(), AttachError> {
        let ready = AttachMessage::Ready(AttachReady { registered });
        let bytes = ready.encode().map_err(|error| protocol(&error))?;
        self.0
            .send_until(&bytes, &[], deadline)
            .map_err(|error| protocol(&error))
    }
}

/// Dials the first run-time directory where somebody answers.
fn connect(options: &Options, deadline: Instant) -> Result<(Connection, PathBuf), AttachError> {
    let sockets = runtime_dir::find_all(options.runtime_dir.as_deref(), ATTACH_SOCKET)?;
    let mut first_silent = None;
    for socket in sockets {
        match Connection::connect(&socket, deadline) {
            Ok(connection) => return Ok((connection, socket)),
            // A socket left over by a user's daemon must not hide the system's.
            Err(ConnectError::NobodyThere) => {
                first_silent.get_or_insert(socket);
            }
            Err(error) => return Err(refusal(error, &socket, options)),
        }
    }
    let socket = first_silent.unwrap_or_default();
    Err(AttachError::NobodyThere { socket })
}

fn refusal(error: ConnectError, socket: &Path, options: &Options) -> AttachError {
    let socket = socket.to_owned();
    match error {
        ConnectError::NobodyThere => AttachError::NobodyThere { socket },
        ConnectError::NotAllowed => AttachError::NotAllowed { socket },
        ConnectError::TimedOut => AttachError::TimedOut {
            timeout: options.attach_timeout,
        },
        ConnectError::System(source) => AttachError::System { socket, source },
    }
}

/// Maps the segment and reserves the zones. The order of the descriptors is the protocol's.
fn map(
    reply: AttachReply,
    fds: Vec<OwnedFd>,
    connection: Connection,
    pages_socket: PathBuf,
) -> Result<Place, AttachError> {
    agree_on_layout(reply.layout_version).map_err(|error| protocol(&error))?;
    if fds.len() != NR_FIXED_FDS + 2 * reply.zones.len() {
        let (nr_fds, nr_zones) = (fds.len(), reply.zones.len());
        return Err(AttachError::Protocol(format!(
            "{nr_fds} descriptors for {nr_zones} zones"
        )));
    }
    let mut fds = fds.into_iter();
    let mut next = || {
        fds.next()
            .expect("the number of descriptors has been checked")
    };

    let segment = Region::adopt(next()).map_err(|error| protocol(&error))?;
    let mapping = segment.map().map_err(|error| map_error(&error))?;
    let control = ControlSegment::open_as_made(mapping).map_err(|error| protocol(&error))?;
    let bell = Bell::from_fd(next());
    let mut maps = Vec::with_capacity(reply.zones.len());
    for zone in &reply.zones {
        let region = Region::adopt(next()).map_err(|error| protocol(&error))?;
        let extent = ZoneExtent {
            start_pfn: zone.start_pfn,
            span_pages: zone.span_pages,
            page_shift: reply.geometry.page_shift,
            section_order: reply.geometry.section_order,
            writable: zone.writable,
        };
        let map = ZoneMap::reserve(region, extent).map_err(|error| map_error(&error))?;
        maps.push(Arc::new(map));
    }
    let outbox = Region::adopt(next()).map_err(|error| protocol(&error))?;
    let outbox = outbox.map().map_err(|error| map_error(&error))?;
    let outbox = Outbox::over(outbox).map_err(|error| map_error(&error))?;
    let mut zones = Vec::with_capacity(reply.zones.len());
    for (zone, map) in reply.zones.into_iter().zip(maps) {
        let transits = Region::adopt(next()).map_err(|error| protocol(&error))?;
        let transits = transits.map().map_err(|error| map_error(&error))?;
        zones.push(ZonePlace {
            index: zone.zone,
            name: zone.name,
            is_movable: zone.kind == AttachZoneKind::Movable,
            map,
            transits: TransitTable::over(transits),
        });
    }
    // A refusal is no error: operations of the lanes fence by themselves then.
    let registered = barrier::register().is_ok();
    Ok(Place {
        connection: Door(connection),
        pages_socket,
        token: Token::from_bytes(reply.token),
        geometry: reply.geometry,
        control,
        bell,
        registered,
        zones,
        me: Taker {
            slot: reply.slot,
            incarnation: reply.incarnation.into(),
        }
        .cut(),
        outbox,
        first_sequence: reply.first_sequence,
    })
}

fn protocol(error: &dyn std::error::Error) -> AttachError {
    AttachError::Protocol(with_sources(error))
}

fn map_error(error: &dyn std::error::Error) -> AttachError {
    AttachError::Map(with_sources(error))
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}
