//! Starting a program that is to own descriptors, at the numbers where a service manager puts them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::SigSet;
use std::os::fd::FromRawFd as _;

/// The first descriptor that is passed (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// Starts `command` with copies of `fds` at 3, 4 and so on, in that order. Nothing else of this
/// process is inherited that is close-on-exec.
///
/// # Errors
/// When the system gives no descriptor or no process.
pub fn spawn_with(mut command: Command, fds: &[BorrowedFd<'_>]) -> io::Result<Child> {
    let end = RawFd::try_from(fds.len())
        .ok()
        .and_then(|nr| nr.checked_add(FIRST))
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut copies = Vec::with_capacity(fds.len());
    for fd in fds {
        let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(end))?;
        // SAFETY: the call above has just made this descriptor, and nobody else knows its number.
        copies.push(unsafe { OwnedFd::from_raw_fd(copy) });
    }
    // What the library opens for its own use while it starts the child must not lie where the
    // copies go: each number below the end is taken.
    let mut fillers = Vec::new();
    loop {
        let filler = File::open("/dev/null")?;
        if filler.as_raw_fd() >= end {
            break;
        }
        fillers.push(filler);
    }
    let place = move || {
        // What the parent has blocked for itself is not blocked for the child. It is one system
        // call, which may be made between fork and exec.
        SigSet::empty().thread_set_mask()?;
        for (number, copy) in (FIRST..).zip(&copies) {
            // SAFETY:
            // 1. dup2 takes numbers by value, and may be called between fork and exec.
            // 2. The target is a filler's or closed: every number from 3 to the end was taken by the
            //    parent before it started the child, and what the library opened later is above.
            if unsafe { libc::dup2(copy.as_raw_fd(), number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes three system calls alone, allocates nothing and takes no
    // lock.
    unsafe { command.pre_exec(place) };
    let child = command.spawn();
    drop(fillers);
    child
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::process::Stdio;

    #[test]
    fn descriptors_arrive_in_order_and_nothing_else_does() {
        let dir = std::env::temp_dir();
        let file = |text: &str| {
            let path = dir.join(format!("hugepool-spawn-{}-{text}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            let file = File::open(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            file
        };
        let (first, second) = (file("one"), file("two"));
        let mut command = Command::new("/bin/sh");
        // Others may have left descriptors open in this process: only ours are counted.
        let ours = format!("hugepool-spawn-{}", std::process::id());
        let count = format!("cat <&4; cat <&3; ls -l /proc/self/fd | grep -c {ours}");
        command.args(["-c", &count]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = spawn_with(command, &[first.as_fd(), second.as_fd()]).unwrap();
        let mut said = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(child.wait().unwrap().success());
        // The two that were passed, and no copy made on the way.
        let (words, nr) = said.split_at(6);
        assert_eq!((words, nr.trim()), ("twoone", "2"));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let fd = File::open("/dev/null").unwrap();
        let command = Command::new("/no/such/program");
        assert!(spawn_with(command, &[fd.as_fd()]).is_err());
    }
}
