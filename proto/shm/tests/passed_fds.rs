//! Descriptors passed by a service manager, as a shell passes them to a child of this test.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::io::Read;
use std::process::Command;

use hugepool_shm::passed::{PassedError, take_passed};

const CHILD: &str = "HUGEPOOL_TEST_PASSED";

#[test]
fn they_are_taken_once_with_their_names_and_close_on_exec() {
    let name = "they_are_taken_once_with_their_names_and_close_on_exec";
    if std::env::var_os(CHILD).is_some() {
        return in_the_child();
    }
    let script = "LISTEN_PID=$$ LISTEN_FDS=3 LISTEN_FDNAMES=attach::state:toomuch \
                  exec \"$0\" --exact \"$1\" 3</etc/hostname 4</dev/null 5</dev/zero";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

fn in_the_child() {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    let variable = |name: &str| std::env::var_os(name);
    let passed = take_passed(&variable).unwrap();
    let names: Vec<&str> = passed.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["attach", "unknown", "state"]);
    for entry in &passed {
        let flags = fcntl(&entry.fd, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags, FdFlag::FD_CLOEXEC.bits());
    }
    let third = passed.into_iter().nth(2).unwrap();
    let mut byte = [1];
    std::fs::File::from(third.fd).read_exact(&mut byte).unwrap();
    assert_eq!(byte, [0], "the third is /dev/zero");
    // They are gone now, and would be refused even if they were not.
    let again = take_passed(&variable).unwrap_err();
    assert!(matches!(
        again,
        PassedError::NotOpen { .. } | PassedError::TakenBefore
    ));
}
