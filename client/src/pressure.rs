//! [`PressureWatch`]: how short of pages the client's zones are, told as it changes.
//!
//! A thread of its own listens to the daemon and keeps the newest state of each zone until it is
//! taken; the descriptor is readable as long as there is one. A daemon that goes away is asked
//! again, and only what differs from the last word is told.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hugepool_proto::v1;
use tokio::{runtime::Builder, sync::oneshot};

use crate::remote::Way;

/// Between two attempts to reach a daemon that is away.
const AGAIN: Duration = Duration::from_secs(1);

/// How short of free pages a zone is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PressureLevel {
    /// Not short.
    None,
    /// Below its low mark, and not back at its high mark since: the daemon takes evictable pages
    /// away. Give back what you can do without.
    Low,
    /// Below its min mark: ordinary requests get nothing.
    Min,
}

/// One zone's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Name of the zone.
    pub zone: String,
    /// How short it is.
    pub level: PressureLevel,
    /// Free pages at that moment.
    pub free_pages: u64,
    /// Where ordinary requests end.
    pub min_pages: u64,
    /// Where pressure begins.
    pub low_pages: u64,
    /// Where it ends.
    pub high_pages: u64,
}

impl Pressure {
    fn from_wire(wire: v1::Pressure) -> Option<Pressure> {
        let level = match wire.level() {
            v1::PressureLevel::None => PressureLevel::None,
            v1::PressureLevel::Low => PressureLevel::Low,
            v1::PressureLevel::Min => PressureLevel::Min,
            v1::PressureLevel::Unspecified => return None,
        };
        Some(Pressure {
            zone: wire.zone,
            level,
            free_pages: wire.free_pages,
            min_pages: wire.min_pages,
            low_pages: wire.low_pages,
            high_pages: wire.high_pages,
        })
    }
}

/// Tells how short of pages the client's zones are: first how each stands, then what changes.
///
/// Changes of a zone that nobody took in between are told as one, the newest. The descriptor
/// ([`AsFd`]) is readable as long as [`take`](PressureWatch::take) has something: poll it beside
/// others, and never read from it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use hugepool::{Client, Options, PressureLevel};
/// let client = Client::attach(Options::default())?;
/// let watch = client.watch_pressure()?;
/// while let Some(zone) = watch.wait(Duration::from_secs(1)) {
///     if zone.level >= PressureLevel::Low {
///         println!("zone {} has {} pages left", zone.zone, zone.free_pages);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PressureWatch {
    news: Arc<News>,
    readable: UnixStream,
    /// Dropped, it ends the thread.
    _listener: oneshot::Sender<()>,
}

impl PressureWatch {
    /// Begins to listen.
    pub(crate) fn begin(way: Way) -> io::Result<PressureWatch> {
        let (readable, writable) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        writable.set_nonblocking(true)?;
        let news = Arc::new(News {
            untaken: Mutex::default(),
            came: Condvar::new(),
            writable,
        });
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (listener, gone) = oneshot::channel();
        let told = news.clone();
        thread::Builder::new()
            .name("hugepool-pressure".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = listen(&way, &told) => {}
                        _ = gone => {}
                    }
                });
            })?;
        Ok(PressureWatch {
            news,
            readable,
            _listener: listener,
        })
    }

    /// Takes the state of a zone that has changed, if there is one.
    pub fn take(&self) -> Option<Pressure> {
        self.pop(&mut self.news.lock())
    }

    /// As [`take`](PressureWatch::take), waiting so long for one.
    pub fn wait(&self, timeout: Duration) -> Option<Pressure> {
        let ends = Instant::now() + timeout;
        let mut untaken = self.news.lock();
        loop {
            if let Some(news) = self.pop(&mut untaken) {
                return Some(news);
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let woken = self.news.came.wait_timeout(untaken, left);
            untaken = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn pop(&self, untaken: &mut BTreeMap<String, Pressure>) -> Option<Pressure> {
        let (_, news) = untaken.pop_first()?;
        if untaken.is_empty() {
            // The one byte that stands for all of them.
            let _ = (&self.readable).read(&mut [0]);
        }
        Some(news)
    }
}

impl AsFd for PressureWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// What has come and was not taken.
#[derive(Debug)]
struct News {
    /// By zone. While it is not empty, there is one byte in the pair of sockets.
    untaken: Mutex<BTreeMap<String, Pressure>>,
    came: Condvar,
    writable: UnixStream,
}

impl News {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Pressure>> {
        // A panic under the lock leaves states of zones, each of which was true.
        self.untaken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: Pressure) {
        let mut untaken = self.lock();
        if untaken.is_empty() {
            // It is the only one there, so there is room for it.
            let _ = (&self.writable).write(&[1]);
        }
        untaken.insert(news.zone.clone(), news);
        self.came.notify_all();
    }
}

/// Listens for ever.
async fn listen(way: &Way, news: &News) {
    let mut known: BTreeMap<String, PressureLevel> = BTreeMap::new();
    loop {
        let mut pages = way.dial();
        let request = way.sign(v1::WatchPressureRequest {});
        if let Ok(answer) = pages.watch_pressure(request).await {
            let mut stream = answer.into_inner();
            // An error is an end too: the daemon is asked again.
            while let Ok(Some(wire)) = stream.message().await {
                if let Some(state) = Pressure::from_wire(wire)
                    && known.insert(state.zone.clone(), state.level) != Some(state.level)
                {
                    news.tell(state);
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> PressureWatch {
        let (readable, writable) = UnixStream::pair().unwrap();
        readable.set_nonblocking(true).unwrap();
        let untaken = Mutex::default();
        let came = Condvar::new();
        PressureWatch {
            news: Arc::new(News {
                untaken,
                came,
                writable,
            }),
            readable,
            _listener: oneshot::channel().0,
        }
    }

    fn state(zone: &str, level: PressureLevel) -> Pressure {
        Pressure {
            zone: zone.to_owned(),
            level,
            free_pages: 1,
            min_pages: 2,
            low_pages: 3,
            high_pages: 4,
        }
    }

    fn is_readable(watch: &PressureWatch) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_as_long_as_something_is_there() {
        let watch = watch();
        for _ in 0..3 {
            assert!(!is_readable(&watch) && watch.take().is_none());
            watch.news.tell(state("a", PressureLevel::Low));
            watch.news.tell(state("b", PressureLevel::Low));
            watch.news.tell(state("a", PressureLevel::Min));
            assert!(is_readable(&watch));
            assert_eq!(watch.take(), Some(state("a", PressureLevel::Min)));
            assert!(is_readable(&watch));
            let last = watch.wait(Duration::from_secs(60));
            assert_eq!(last, Some(state("b", PressureLevel::Low)));
        }
        assert!(!is_readable(&watch));
        assert_eq!(watch.wait(Duration::ZERO), None);
    }
}
