//! The signals of a fault: what becomes of a process that gets one.
//!
//! The standard library takes them to say of a stack that it has overflowed. A signal that somebody
//! *sent* (`systemctl kill -s SEGV`) it lets pass once, and the process lives on as if nothing had been.

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};

/// From now on the process dies of them, however they come.
///
/// # Errors
/// What the system answers.
pub fn die_of_them() -> Result<(), Errno> {
    for fault in [Signal::SIGSEGV, Signal::SIGBUS] {
        // SAFETY: no function of ours is installed: the kernel's own way is to end the process. The
        // library's handler, whose place it takes, only says one line more of an overflown stack.
        unsafe { signal(fault, SigHandler::SigDfl) }?;
    }
    Ok(())
}
