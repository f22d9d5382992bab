//! Descriptors that the service manager has passed to this process (`LISTEN_FDS`).
//!
//! Sockets bound before the start and descriptors kept across a restart come the same way, told
//! apart by name alone. What each one is, is checked by who adopts it.

use std::ffi::OsString;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// The first descriptor that is passed (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// More than this many is not a list but a mistake.
const MOST: RawFd = 1 << 16;

/// Where a keeper says its pid: descriptors are then for its children.
pub const KEEPER_PID: &str = "HUGEPOOLD_KEEPER_PID";

/// Whether this process was started by a keeper that is gone.
pub fn is_orphaned() -> bool {
    std::env::var(KEEPER_PID).is_ok_and(|pid| pid != nix::unistd::getppid().to_string())
}

/// One descriptor and the name it was passed under; `unknown` where the manager gave none.
#[derive(Debug)]
pub struct PassedFd {
    /// The name from `LISTEN_FDNAMES`.
    pub name: String,
    /// The descriptor, close-on-exec from now on.
    pub fd: OwnedFd,
}

/// Why the passed descriptors cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassedError {
    /// They have been taken already: a descriptor has one owner.
    #[error("the passed descriptors have been taken already")]
    TakenBefore,
    /// `LISTEN_FDS` is no number, or an absurd one.
    #[error("LISTEN_FDS is not a count of descriptors")]
    BadCount,
    /// A descriptor that should be there is not open.
    #[error("passed descriptor {number} is not open")]
    NotOpen {
        /// The descriptor's number.
        number: i32,
    },
}

/// Takes the descriptors passed to this process, once in its life; none if `LISTEN_PID` names
/// another process or nothing was passed. A keeper cannot know its child's pid
/// beforehand, and says its own instead.
///
/// `variable` reads the environment. To be called before the process opens or starts anything: the
/// protocol has the manager's word that the numbers from 3 up are this process's to own.
///
/// # Errors
/// [`PassedError`]; no descriptor has been touched then.
pub fn take_passed(
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<PassedFd>, PassedError> {
    let text = |name| variable(name).and_then(|value| value.into_string().ok());
    let is_for_us = text("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string())
        || text(KEEPER_PID).is_some_and(|pid| pid == nix::unistd::getppid().to_string());
    if !is_for_us {
        return Ok(Vec::new());
    }
    let count = parse_count(&text("LISTEN_FDS").unwrap_or_default())?;
    let names = text("LISTEN_FDNAMES").unwrap_or_default();
    for number in FIRST..FIRST + count {
        is_open(number)?;
    }
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(PassedError::TakenBefore);
    }
    let mut names = names.split(':');
    let passed = (FIRST..FIRST + count).map(|number| {
        // SAFETY:
        // 1. The number is open: looked at above.
        // 2. Nobody else owns it: LISTEN_PID names this process, so the manager opened it for us
        //    to own, and `TAKEN` lets one caller through in the life of the process.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        let name = names.next().filter(|name| !name.is_empty());
        PassedFd {
            name: name.unwrap_or("unknown").to_owned(),
            fd,
        }
    });
    let passed: Vec<PassedFd> = passed.collect();
    for entry in &passed {
        // Cannot fail on an open descriptor; if it did, a child would inherit one too many.
        let _ = fcntl(&entry.fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    }
    Ok(passed)
}

fn parse_count(text: &str) -> Result<RawFd, PassedError> {
    let count: RawFd = text.parse().map_err(|_| PassedError::BadCount)?;
    if (0..=MOST).contains(&count) {
        Ok(count)
    } else {
        Err(PassedError::BadCount)
    }
}

fn is_open(number: RawFd) -> Result<(), PassedError> {
    // SAFETY: F_GETFD takes a number by value; one that is not open is answered by EBADF.
    let answer = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if answer < 0 {
        return Err(PassedError::NotOpen { number });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let (_, value) = pairs.iter().find(|(key, _)| *key == name)?;
            Some(OsString::from(value))
        }
    }

    #[test]
    fn what_is_meant_for_another_process_is_left_alone() {
        let other = [("LISTEN_PID", "1"), ("LISTEN_FDS", "2")];
        assert!(take_passed(&environment(&other)).unwrap().is_empty());
        assert!(take_passed(&environment(&[])).unwrap().is_empty());
    }

    #[test]
    fn a_count_that_is_none_is_refused() {
        for text in ["", "-1", "two", "99999999999", "70000"] {
            assert_eq!(parse_count(text), Err(PassedError::BadCount), "{text}");
        }
        assert_eq!(parse_count("0"), Ok(0));
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_named() {
        let pid = std::process::id().to_string();
        let many = [("LISTEN_PID", pid.as_str()), ("LISTEN_FDS", "60000")];
        let found = take_passed(&environment(&many)).unwrap_err();
        assert!(matches!(found, PassedError::NotOpen { .. }), "{found:?}");
    }
}
