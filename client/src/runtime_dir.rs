//! Where the daemon's sockets are: one rule for clients and tools.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

/// Where a system daemon's sockets are.
const SYSTEM: &str = "/run/hugepool";

/// The full path of `socket` in the first run-time directory that has it.
///
/// A directory that was named, by argument or `$HUGEPOOL_RUNTIME_DIR`, is the only one tried.
///
/// # Errors
/// When no directory has it; the error lists those tried.
pub fn find(named: Option<&Path>, socket: &str) -> Result<PathBuf, NotFound> {
    let tried = candidates(named);
    let found = tried
        .iter()
        .map(|dir| dir.join(socket))
        .find(|path| path.exists());
    found.ok_or(NotFound {
        socket: socket.into(),
        tried,
    })
}

fn candidates(named: Option<&Path>) -> Vec<PathBuf> {
    let variable = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(dir) = named
        .map(Path::to_owned)
        .or_else(|| variable("HUGEPOOL_RUNTIME_DIR"))
    {
        return vec![dir];
    }
    let own = variable("RUNTIME_DIRECTORY")
        .or_else(|| variable("XDG_RUNTIME_DIR").map(|dir| dir.join("hugepool")));
    let mut dirs: Vec<PathBuf> = own.into_iter().collect();
    if !dirs.iter().any(|dir| dir == Path::new(SYSTEM)) {
        dirs.push(SYSTEM.into());
    }
    dirs
}

/// No run-time directory has the socket.
#[derive(Debug, PartialEq, Eq)]
pub struct NotFound {
    /// The socket looked for.
    pub socket: String,
    /// The directories looked into, in order.
    pub tried: Vec<PathBuf>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tried: Vec<_> = self
            .tried
            .iter()
            .map(|dir| dir.display().to_string())
            .collect();
        write!(f, "no {} in {}", self.socket, tried.join(" or "))
    }
}

impl std::error::Error for NotFound {}
