//! What `hugepoolctl` does where no daemon answers: exit statuses, and one line with a next step.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A folder of the test's own, gone at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("hugepoolctl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hugepoolctl"))
        .arg("--runtime-dir")
        .arg(dir)
        .args(args)
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_missing_socket_names_the_place_and_the_next_step() {
    let folder = Folder::new("missing");
    let output = run(&folder.0, &["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        format!(
            "hugepoolctl: no hugepoold found; tried {} (--runtime-dir); start hugepoold, or say where with --runtime-dir\n",
            folder.0.display()
        )
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_socket_that_nobody_serves_is_no_daemon() {
    let folder = Folder::new("dead");
    drop(UnixListener::bind(folder.0.join("admin.sock")).unwrap());
    let output = run(&folder.0, &["zone", "list"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).starts_with("hugepoolctl: no daemon answers at "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_typing_error_is_usage() {
    let folder = Folder::new("usage");
    for args in [
        &["section", "offline"] as &[_],
        &["no-such-noun"],
        &["pcp", "set"],
        &["section", "online", "9-3"],
        &[],
    ] {
        let output = run(&folder.0, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn completions_and_man_pages_need_no_daemon_and_know_every_noun() {
    let folder = Folder::new("generate");
    let output = run(&folder.0, &["generate", "completions", "bash"]);
    assert_eq!(output.status.code(), Some(0));
    let script = String::from_utf8(output.stdout).unwrap();
    let nouns = [
        "status",
        "zone",
        "section",
        "client",
        "buddyinfo",
        "contiguity",
        "operation",
    ];
    for noun in nouns {
        assert!(script.contains(noun), "{noun} is not completed");
    }

    let man = folder.0.join("man");
    let output = run(&folder.0, &["generate", "man", man.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for page in [
        "hugepoolctl.1",
        "hugepoolctl-section-offline.1",
        "hugepoolctl-verify.1",
    ] {
        assert!(man.join(page).is_file(), "{page} is missing");
    }
}

#[test]
fn a_closed_pipe_is_success() {
    use std::process::Stdio;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_hugepoolctl"))
        .args(["generate", "completions", "zsh"])
        .stdout(Stdio::from(writer))
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
}
