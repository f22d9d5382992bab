//! What the daemon gives up when it begins to serve: everything it does not need any more.
//!
//! From then on each byte that comes in was written by somebody else. Whoever should find a way to
//! run code in here finds a process that can execute no program, open no file but those named below,
//! connect and listen nowhere, and call the kernel only as [`syscalls`] lists. The unit file says
//! much of this too; the daemon says it itself so that it holds without systemd.
//!
//! Both filters go down from a thread to those that it starts, and never come off again: they are
//! put on by the one thread that there is before the daemon starts its others. A kernel without
//! them (Landlock from Linux 5.13 on, and where it is switched on) is no reason not to serve: what
//! could not be had is logged.
//!
//! Source: `Documentation/userspace-api/landlock.rst` and `seccomp_filter.rst` of the kernel.

mod syscalls;

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus,
};
use seccompiler::BpfProgram;

/// The rules we know of; an older kernel takes those that it knows.
const KNOWN_RULES: ABI = ABI::V5;

/// Why the daemon is not as confined as it could be.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Landlock.
    #[error("no file rules: Landlock refused")]
    Files(#[from] RulesetError),
    /// The filter of system calls.
    #[error("no filter of system calls: seccomp refused")]
    Calls(#[from] seccompiler::Error),
    /// The filter cannot be built for this processor.
    #[error("no filter of system calls: not for this processor")]
    Processor(#[from] seccompiler::BackendError),
}

/// What is read: pools of huge pages, nodes, who clients are; zeros for pages.
const READ: [&str; 3] = ["/proc", "/sys", "/dev/zero"];
/// Where the statistics segment is made and removed.
const STATS: &str = "/dev/shm";

/// Confines the calling thread and all that it will start, as far as the kernel can; says in the
/// log what it could not.
///
/// `config_dir` is where the configuration lies that is read again.
pub fn confine(runtime_dir: &Path, config_dir: Option<&Path>) {
    match files(runtime_dir, config_dir) {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(RulesetStatus::PartiallyEnforced) => {
            tracing::debug!("this kernel knows a part of the file rules");
        }
        Ok(RulesetStatus::NotEnforced) => {
            tracing::info!("this kernel has no Landlock: files are guarded by their modes alone");
        }
        Err(error) => log(&error),
    }
    match calls() {
        Ok(()) => tracing::debug!("system calls are filtered"),
        Err(error) => log(&error),
    }
}

fn log(error: &ConfineError) {
    let reason = std::error::Error::source(error);
    tracing::warn!(%error, reason, "serving less confined than meant");
}

/// From now on the calling thread opens no file but those that a daemon of `runtime_dir` needs, with
/// its configuration in `config_dir`, and no TCP port.
///
/// # Errors
/// [`ConfineError`] when the kernel refuses; one that knows nothing of it is no error.
pub fn files(runtime_dir: &Path, config_dir: Option<&Path>) -> Result<RulesetStatus, ConfineError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveFile;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN_RULES))?
        .handle_access(AccessNet::from_all(KNOWN_RULES))?
        .create()?;
    let writes = [Path::new(STATS), runtime_dir].map(|path| (path, write));
    let reads = READ.map(|path| (Path::new(path), read));
    let config = config_dir.map(|path| (path, read));
    for (path, access) in writes.into_iter().chain(reads).chain(config) {
        // What is not there cannot be opened either. A rule for a file has no rights of folders.
        if let Ok(found) = PathFd::new(path) {
            let access = if path.is_dir() {
                access
            } else {
                AccessFs::ReadFile.into()
            };
            rules = rules.add_rule(PathBeneath::new(found, access))?;
        }
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// From now on the calling thread makes no system call but those listed: others fail with `EPERM`.
///
/// # Errors
/// [`ConfineError`] when the kernel refuses, or this processor has no filters.
pub fn calls() -> Result<(), ConfineError> {
    let filter: BpfProgram = syscalls::filter()?;
    Ok(seccompiler::apply_filter(&filter)?)
}
