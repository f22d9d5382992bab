//! [`AttachError`]: why there is no client, and what to do about it.

use std::{path::PathBuf, time::Duration};

use hugepool_shm::{
    Errno,
    attach::{MAX_CLIENTS_PER_PROCESS, RefusalCode},
};

use crate::runtime_dir::NoRuntimeDir;

/// Why a client could not attach.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No daemon's socket where one was looked for.
    #[error("{0}: start hugepoold, or name its folder with HUGEPOOL_RUNTIME_DIR")]
    NoDaemon(#[from] NoRuntimeDir),
    /// There is a socket and nobody behind it.
    #[error("nobody answers at {}: is hugepoold running?", socket.display())]
    NobodyThere {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket's mode keeps this user out.
    #[error("this user may not connect to {}: is it in the group hugepool?", socket.display())]
    NotAllowed {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon was reached and did not finish in time.
    #[error("the daemon has not answered within {} ms", timeout.as_millis())]
    TimedOut {
        /// The time given.
        timeout: Duration,
    },
    /// The daemon said no.
    #[error("the daemon refuses: {message}")]
    Refused {
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        message: String,
    },
    /// The daemon hung up or sent what makes no sense.
    #[error("the daemon does not keep the protocol: {0}")]
    Protocol(String),
    /// This process has as many clients as it may.
    #[error("this process has {MAX_CLIENTS_PER_PROCESS} clients already")]
    TooManyClients,
    /// What the daemon sent could not be mapped.
    #[error("cannot map the daemon's memory: {0}")]
    Map(String),
    /// This process is a fork of one that attached.
    #[error("this process is a fork of one that attached: run a program of its own to attach anew")]
    Forked,
    /// The system's no.
    #[error("cannot connect to {}", socket.display())]
    System {
        /// The socket.
        socket: PathBuf,
        /// The answer.
        #[source]
        source: Errno,
    },
}
