//! The barrier that one process runs on behalf of all: `membarrier(2)`, global and expedited.
//!
//! A client registers once; from then on a barrier issued by the daemon acts as a full fence in
//! every running thread of it, so the client's fast path needs none of its own. Where the kernel
//! or a seccomp filter refuses, the client must fence by itself and say so at attach.

use nix::errno::Errno;

/// The kernel, or a filter in front of it, refuses the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("membarrier {step} refused")]
pub struct BarrierRefused {
    /// Which step was refused.
    pub step: BarrierStep,
    /// The answer of the system: `ENOSYS`, `EPERM` or `EINVAL`.
    #[source]
    pub errno: Errno,
}

/// The two halves of the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierStep {
    /// Declaring this process a receiver of barriers.
    Registration,
    /// Running a barrier on all receivers.
    Issue,
}

impl std::fmt::Display for BarrierStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BarrierStep::Registration => "registration",
            BarrierStep::Issue => "issue",
        })
    }
}

/// Declares this process a receiver of barriers, for as long as it lives. Repeating is harmless.
///
/// # Errors
/// [`BarrierRefused`]: the process must then fence by itself.
pub fn register() -> Result<(), BarrierRefused> {
    call(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED).map_err(|errno| BarrierRefused {
        step: BarrierStep::Registration,
        errno,
    })
}

/// Runs a full fence in every running thread of every registered process, and returns after that.
///
/// # Errors
/// [`BarrierRefused`]: nothing was fenced, and no lane may be taken on the strength of it.
pub fn issue() -> Result<(), BarrierRefused> {
    call(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED).map_err(|errno| BarrierRefused {
        step: BarrierStep::Issue,
        errno,
    })
}

fn call(command: libc::c_int) -> Result<(), Errno> {
    // SAFETY: membarrier takes three integers by value and touches no memory of this process.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    Errno::result(answer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_registers_and_issues_or_says_why_not() {
        // A sandbox may refuse; then both halves must say so in the same words.
        match register() {
            Ok(()) => {
                register().unwrap();
                issue().unwrap();
            }
            Err(refused) => {
                assert_eq!(refused.step, BarrierStep::Registration);
                assert!(refused.to_string().contains("registration refused"));
            }
        }
    }

    #[test]
    fn a_command_the_kernel_does_not_know_is_refused() {
        assert_eq!(call(1 << 30), Err(Errno::EINVAL));
    }
}
