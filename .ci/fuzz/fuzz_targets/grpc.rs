//! Requests of any bytes to each call of a daemon in this process.

#![no_main]

#[path = "../../../daemon/tests/support/fuzz.rs"]
mod fuzz;

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use hugepool_daemon::config::Config;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

struct World {
    runtime: Runtime,
    caller: fuzz::Caller,
    // Lasts as long as the process.
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run");
        let zones = ["normal=128MiB,backing=shm,reserve=1GiB"];
        let zones = zones.map(|zone| zone.parse().expect("a zone"));
        let config = Config::embedded(&path, zones.into()).expect("a plan");
        // It confines its own thread and those that it starts, not this one.
        std::thread::spawn(move || hugepool_daemon::run(config).expect("it serves"));
        let end = Instant::now() + Duration::from_secs(60);
        while !path.join("admin.sock").exists() {
            assert!(Instant::now() < end, "the daemon does not start");
            std::thread::yield_now();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        World {
            caller: runtime.block_on(fuzz::Caller::new(&path)),
            runtime,
            _dir: dir,
        }
    }
}

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| WORLD.with(|world| {
    let world = world.get_or_init(World::new);
    world.runtime.block_on(world.caller.call(bytes));
}));
