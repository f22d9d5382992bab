//! The client processes of `drive`, one for each name; killed when their step says so, and in any
//! case when the run is over.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A client process.
struct Peer {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// All of them.
pub struct Peers {
    dir: PathBuf,
    peers: Vec<Peer>,
}

impl Peers {
    /// None yet, of the daemon there.
    pub fn new(dir: &Path) -> Peers {
        Peers {
            dir: dir.to_owned(),
            peers: Vec::new(),
        }
    }

    /// Tells a client something, and gives its answer; it is started if it is not there.
    ///
    /// # Errors
    /// It could not be started, or has ended.
    pub fn tell(&mut self, name: &str, line: &str) -> Result<String, String> {
        let at = self.there(name)?;
        let peer = &mut self.peers[at];
        writeln!(peer.input, "{line}").map_err(|error| format!("client {name}: {error}"))?;
        let said = read(&mut peer.output).map_err(|error| format!("client {name}: {error}"))?;
        match said.strip_prefix("error ") {
            Some(error) => Err(format!("client {name}: {error}")),
            None => Ok(said),
        }
    }

    /// Starts a client if it is not there; its process.
    ///
    /// # Errors
    /// It could not be started.
    pub fn begin(&mut self, name: &str) -> Result<u32, String> {
        let at = self.there(name)?;
        Ok(self.peers[at].child.id())
    }

    fn there(&mut self, name: &str) -> Result<usize, String> {
        if let Some(at) = self.peers.iter().position(|peer| peer.name == name) {
            return Ok(at);
        }
        let peer = start(&self.dir, name)?;
        self.peers.push(peer);
        Ok(self.peers.len() - 1)
    }

    /// The process of a client, if it is there.
    pub fn pid(&self, name: &str) -> Option<u32> {
        let peer = self.peers.iter().find(|peer| peer.name == name);
        peer.map(|peer| peer.child.id())
    }

    /// The clients that are there, and their processes.
    pub fn all(&self) -> impl Iterator<Item = (&str, u32)> {
        self.peers
            .iter()
            .map(|peer| (peer.name.as_str(), peer.child.id()))
    }

    /// Kills a client with SIGKILL, and waits for its end.
    pub fn kill(&mut self, name: &str) {
        if let Some(at) = self.peers.iter().position(|peer| peer.name == name) {
            end(self.peers.swap_remove(at));
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.peers.drain(..).for_each(end);
    }
}

fn end(mut peer: Peer) {
    // It may have ended by itself.
    let _ = peer.child.kill();
    let _ = peer.child.wait();
}

fn read(output: &mut BufReader<ChildStdout>) -> Result<String, String> {
    let mut line = String::new();
    match output.read_line(&mut line) {
        Ok(0) => Err("it has ended".to_owned()),
        Ok(_) => Ok(line.trim_end().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn start(dir: &Path, name: &str) -> Result<Peer, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .arg("drive-client")
        .arg("--runtime-dir")
        .arg(dir)
        .args(["--name", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("client {name}: {error}"))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(format!("client {name}: no pipes"));
    };
    let mut peer = Peer {
        name: name.to_owned(),
        child,
        input,
        output: BufReader::new(output),
    };
    match read(&mut peer.output) {
        Ok(ready) if ready == "ready" => Ok(peer),
        other => {
            end(peer);
            Err(format!("client {name} did not attach: {other:?}"))
        }
    }
}
