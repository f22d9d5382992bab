//! Where a process may be killed on purpose: named steps between two memories.
//!
//! For tests that stop a daemon after each of them. Builds without debug assertions have nothing of
//! it: [`reached`] is empty there.

/// A named step has been done.
#[cfg(not(all(debug_assertions, not(loom))))]
#[inline(always)]
pub fn reached(_name: &'static str) {}

#[cfg(all(debug_assertions, not(loom)))]
pub use armed::die_at;
#[cfg(all(debug_assertions, not(loom)))]
pub use armed::{reached, with_hook};

#[cfg(all(debug_assertions, not(loom)))]
mod armed {
    use std::cell::RefCell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    type Hook = Box<dyn FnMut(&'static str)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    static DEATH: OnceLock<(String, AtomicU64)> = OnceLock::new();

    /// A named step has been done: whoever waits for it hears of it, or the process ends here.
    pub fn reached(name: &'static str) {
        // Taken out while it runs: it may unwind, or do steps of its own.
        // A thread that ends has no hook any more, and may still free pages.
        let hook = HOOK.try_with(|hook| hook.borrow_mut().take());
        if let Some(mut hook) = hook.ok().flatten() {
            hook(name);
            HOOK.with(|place| *place.borrow_mut() = Some(hook));
        }
        if let Some((step, nr_left)) = DEATH.get()
            && step == name
            && nr_left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            // As by `kill -9` from outside. It cannot fail to reach this process itself.
            let _ = kill(Pid::this(), Signal::SIGKILL);
            loop {
                std::thread::park();
            }
        }
    }

    /// Runs `work` with `hook` told of each step that this thread does. A hook that unwinds is
    /// gone; so is what it unwound through.
    pub fn with_hook<T>(hook: Hook, work: impl FnOnce() -> T) -> T {
        HOOK.with(|place| *place.borrow_mut() = Some(hook));
        let value = work();
        HOOK.with(|place| place.borrow_mut().take());
        value
    }

    /// The process dies, as by `kill -9`, when the step has been done so many times: `text` is
    /// `NAME` or `NAME:TIMES`. To be called once, before any step.
    pub fn die_at(text: &str) {
        let (name, times) = text.split_once(':').unwrap_or((text, "1"));
        let times = times.parse().unwrap_or(1);
        let _ = DEATH.set((name.to_owned(), AtomicU64::new(times)));
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::rc::Rc;

        #[test]
        fn a_hook_hears_of_the_steps_of_its_own_thread() {
            let heard = Rc::new(RefCell::new(Vec::new()));
            let hearing = heard.clone();
            reached("before");
            with_hook(
                Box::new(move |name| hearing.borrow_mut().push(name)),
                || {
                    reached("one");
                    reached("two");
                },
            );
            reached("after");
            assert_eq!(*heard.borrow(), ["one", "two"]);
        }
    }
}
