//! The bytes of an attach message: a fixed header, then an `rkyv` archive.
//!
//! Shape, little-endian: magic (4 bytes), format version (4), kind (4), archive length (4), archive.
//! The header is read by hand so that a peer of another version is told so instead of being called
//! malformed. The archive is copied to aligned memory of our own, then its shape is validated, then
//! its meaning; only what passed all three leaves this module.

use rkyv::rancor::Failure;
use rkyv::util::AlignedVec;

use crate::attach::{
    AttachMessage, AttachReady, AttachRefused, AttachReply, AttachRequest, ChannelReply,
    ChannelRequest, Meaningless, PeerReply, PeerRequest,
};
use crate::message::MAX_MESSAGE_BYTES;

/// "HPAT" as bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"HPAT");

/// Version of the header and of the archives behind it.
pub const ATTACH_FORMAT: u32 = 1;

const HEADER_BYTES: usize = 16;

/// Alignment of every archive: at least that of the widest field.
const ARCHIVE_ALIGN: usize = 16;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not even a header.
    #[error("{nr_bytes} bytes are too few for a message")]
    TooShort {
        /// Bytes that came.
        nr_bytes: usize,
    },
    /// Longer than any message.
    #[error("{nr_bytes} bytes are too many for a message")]
    TooLong {
        /// Bytes that came.
        nr_bytes: usize,
    },
    /// Something else altogether.
    #[error("not a message of this protocol")]
    NotOurs,
    /// A peer of another age.
    #[error("the peer speaks attach format {theirs}, this side {ATTACH_FORMAT}")]
    Format {
        /// The peer's format.
        theirs: u32,
    },
    /// A kind that this format does not have.
    #[error("messages of kind {kind} are unknown")]
    UnknownKind {
        /// The kind that came.
        kind: u32,
    },
    /// The header says another length than came.
    #[error("the message says {said} bytes and has {found}")]
    Length {
        /// Bytes of archive according to the header.
        said: u32,
        /// Bytes after the header.
        found: usize,
    },
    /// The archive has not the shape of its kind.
    #[error("the message is malformed")]
    Malformed,
    /// The shape is right and a value is not.
    #[error("the message makes no sense")]
    Meaningless(#[source] Meaningless),
}

/// The kinds of message, as numbers on the wire.
mod kind {
    pub const REQUEST: u32 = 1;
    pub const REPLY: u32 = 2;
    pub const REFUSED: u32 = 3;
    pub const READY: u32 = 4;
    pub const PEER_REQUEST: u32 = 5;
    pub const PEER_REPLY: u32 = 6;
    pub const CHANNEL_REQUEST: u32 = 7;
    pub const CHANNEL_REPLY: u32 = 8;
}

impl AttachMessage {
    /// The bytes to send.
    ///
    /// # Errors
    /// [`Meaningless`]: a value of ours is out of range, and the peer would refuse it.
    pub fn encode(&self) -> Result<Vec<u8>, Meaningless> {
        self.check()?;
        let (kind, archive) = match self {
            AttachMessage::Request(request) => (kind::REQUEST, rkyv::to_bytes::<Failure>(request)),
            AttachMessage::Reply(reply) => (kind::REPLY, rkyv::to_bytes::<Failure>(reply)),
            AttachMessage::Refused(refused) => (kind::REFUSED, rkyv::to_bytes::<Failure>(refused)),
            AttachMessage::Ready(ready) => (kind::READY, rkyv::to_bytes::<Failure>(ready)),
            AttachMessage::ChannelRequest(request) => {
                (kind::CHANNEL_REQUEST, rkyv::to_bytes::<Failure>(request))
            }
            AttachMessage::ChannelReply(reply) => {
                (kind::CHANNEL_REPLY, rkyv::to_bytes::<Failure>(reply))
            }
            AttachMessage::PeerRequest(request) => {
                (kind::PEER_REQUEST, rkyv::to_bytes::<Failure>(request))
            }
            AttachMessage::PeerReply(reply) => (kind::PEER_REPLY, rkyv::to_bytes::<Failure>(reply)),
        };
        let archive = archive.expect("checked values are far below an archive's limits");
        let length = u32::try_from(archive.len()).expect("checked values make a short archive");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + archive.len());
        for word in [MAGIC, ATTACH_FORMAT, kind, length] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&archive);
        Ok(bytes)
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    /// [`DecodeError`], for any bytes that are not exactly one message with possible values.
    pub fn decode(bytes: &[u8]) -> Result<AttachMessage, DecodeError> {
        let nr_bytes = bytes.len();
        if nr_bytes > MAX_MESSAGE_BYTES {
            return Err(DecodeError::TooLong { nr_bytes });
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeError::TooShort { nr_bytes });
        };
        let (words, _) = header.as_chunks::<4>();
        let [magic, format, kind, said] =
            [0, 1, 2, 3].map(|index: usize| u32::from_le_bytes(words[index]));
        if magic != MAGIC {
            return Err(DecodeError::NotOurs);
        }
        if format != ATTACH_FORMAT {
            return Err(DecodeError::Format { theirs: format });
        }
        if usize::try_from(said) != Ok(rest.len()) {
            let found = rest.len();
            return Err(DecodeError::Length { said, found });
        }
        let mut archive = AlignedVec::<ARCHIVE_ALIGN>::with_capacity(rest.len());
        archive.extend_from_slice(rest);
        let message = unpack(kind, &archive)?;
        message.check().map_err(DecodeError::Meaningless)?;
        Ok(message)
    }
}

fn unpack(kind: u32, archive: &AlignedVec<ARCHIVE_ALIGN>) -> Result<AttachMessage, DecodeError> {
    let message = match kind {
        kind::REQUEST => {
            rkyv::from_bytes::<AttachRequest, Failure>(archive).map(AttachMessage::Request)
        }
        kind::REPLY => rkyv::from_bytes::<AttachReply, Failure>(archive).map(AttachMessage::Reply),
        kind::REFUSED => {
            rkyv::from_bytes::<AttachRefused, Failure>(archive).map(AttachMessage::Refused)
        }
        kind::READY => rkyv::from_bytes::<AttachReady, Failure>(archive).map(AttachMessage::Ready),
        kind::PEER_REQUEST => {
            rkyv::from_bytes::<PeerRequest, Failure>(archive).map(AttachMessage::PeerRequest)
        }
        kind::PEER_REPLY => {
            rkyv::from_bytes::<PeerReply, Failure>(archive).map(AttachMessage::PeerReply)
        }
        kind::CHANNEL_REQUEST => {
            rkyv::from_bytes::<ChannelRequest, Failure>(archive).map(AttachMessage::ChannelRequest)
        }
        kind::CHANNEL_REPLY => {
            rkyv::from_bytes::<ChannelReply, Failure>(archive).map(AttachMessage::ChannelReply)
        }
        kind => return Err(DecodeError::UnknownKind { kind }),
    };
    message.map_err(|_| DecodeError::Malformed)
}
