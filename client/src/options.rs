//! [`Options`]: how to attach.

use std::{
    env,
    ffi::OsStr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use hugepool_shm::attach::{MAX_LANES, MAX_NAME_BYTES};

/// How long a call waits for its first page, unless it is told otherwise.
const DEADLINE: Duration = Duration::from_secs(1);

/// From how many processors on a call that finds its lane empty looks again before it asks the
/// daemon, unless told otherwise, and how long.
const MANY_PROCESSORS: usize = 4;
const SPIN: Duration = Duration::from_micros(20);

/// How long an attach may take, unless told otherwise. It takes well under a millisecond of work.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// How to attach: where, as whom, with how many lanes.
///
/// ```
/// use std::time::Duration;
/// let options = hugepool::Options::default()
///     .runtime_dir("/run/user/1000/hugepool")
///     .name("indexer")
///     .lanes(8)
///     .deadline(Duration::from_millis(100));
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) runtime_dir: Option<PathBuf>,
    pub(crate) name: String,
    pub(crate) nr_lanes: u32,
    pub(crate) deadline: Duration,
    pub(crate) spin: Duration,
    pub(crate) attach_timeout: Duration,
}

impl Default for Options {
    /// The daemon that the run-time directory rule finds, the program's name, a lane for each
    /// processor and one to share, a deadline of a second.
    fn default() -> Options {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Options {
            runtime_dir: None,
            name: clean(&program()),
            nr_lanes: u32::try_from(threads)
                .unwrap_or(MAX_LANES)
                .saturating_add(1)
                .min(MAX_LANES),
            deadline: DEADLINE,
            spin: if threads < MANY_PROCESSORS {
                Duration::ZERO
            } else {
                SPIN
            },
            attach_timeout: ATTACH_TIMEOUT,
        }
    }
}

impl Options {
    /// Attaches to the daemon of this directory and no other.
    #[must_use]
    pub fn runtime_dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.runtime_dir = Some(dir.into());
        self
    }

    /// What to be called in the daemon's reports. Control characters are left out, and what is
    /// too long is cut.
    #[must_use]
    pub fn name(mut self, name: impl AsRef<str>) -> Options {
        self.name = clean(name.as_ref());
        self
    }

    /// How many lanes to ask for: one for each thread that takes and frees pages, and one that the
    /// others share. The daemon may give fewer.
    #[must_use]
    pub fn lanes(mut self, nr_lanes: u32) -> Options {
        self.nr_lanes = nr_lanes.clamp(1, MAX_LANES);
        self
    }

    /// How long a call waits for its first page, unless it is told otherwise.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Options {
        self.deadline = deadline;
        self
    }

    /// How long a call that finds its lane empty looks whether the daemon is just filling it, before
    /// it asks: some 20 microseconds where there are processors enough for both, none (the default
    /// on machines with fewer than 4) where there are not.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Options {
        self.spin = spin;
        self
    }

    /// How long the attach may take.
    #[must_use]
    pub fn attach_timeout(mut self, timeout: Duration) -> Options {
        self.attach_timeout = timeout;
        self
    }
}

fn program() -> String {
    let program = env::args_os().next().unwrap_or_default();
    let name = Path::new(&program)
        .file_name()
        .unwrap_or(OsStr::new("unnamed"));
    name.to_string_lossy().into_owned()
}

/// A name that the daemon takes: no control character, not empty, not too long.
fn clean(name: &str) -> String {
    let mut clean = String::new();
    for letter in name.chars().filter(|letter| !letter.is_control()) {
        if clean.len() + letter.len_utf8() > MAX_NAME_BYTES {
            break;
        }
        clean.push(letter);
    }
    if clean.is_empty() {
        "unnamed".into()
    } else {
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_becomes_one_that_the_daemon_takes() {
        assert_eq!(clean("index\ner"), "indexer");
        assert_eq!(clean(""), "unnamed");
        assert_eq!(clean("\u{7f}"), "unnamed");
        let long = clean(&"ä".repeat(100));
        assert_eq!(
            (long.len(), long.chars().count()),
            (MAX_NAME_BYTES, MAX_NAME_BYTES / 2)
        );
    }

    #[test]
    fn lanes_stay_in_what_the_daemon_takes() {
        assert_eq!(Options::default().lanes(0).nr_lanes, 1);
        assert_eq!(Options::default().lanes(u32::MAX).nr_lanes, MAX_LANES);
    }
}
