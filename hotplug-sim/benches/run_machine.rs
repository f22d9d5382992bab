//! How long a million operations on a machine of 1 TiB take, with every check of `run`.
//!
//! `cargo bench -p hotplug-sim --bench run_machine`; prints seconds to build and to run. The aim is
//! below 3 s.

use std::time::Instant;

use hotplug_sim::host::Host;
use hotplug_sim::import::machine::Machine;
use hotplug_sim::scenario::file::{Scenario, Step};
use hotplug_sim::scenario::runner::{Options, Runner};

/// Two zones of 512 GiB, half in use and scattered.
fn machine() -> Machine {
    let zone = |name: &str, start: u64| {
        format!(
            "[[zone]]\nnode = 0\nname = \"{name}\"\nstart_pfn = {start}\nspanned = 134217728\npresent = 134217728\n\
             managed = 132120576\nfree_blocks_by_order = \
             [300000, 200000, 150000, 100000, 80000, 60000, 40000, 20000, 10000, 5000, 44000]\n"
        )
    };
    let text = format!(
        "version = 1\npage_size_bytes = 4096\npageblock_order = 9\nsection_bytes = 134217728\n{}{}",
        zone("Normal", 1 << 20),
        zone("Movable", (1 << 20) + (1 << 27))
    );
    Machine::from_toml(&text).expect("the bench's own description")
}

fn main() {
    let mix = Step {
        verb: "mix".to_owned(),
        ops: Some(1_000_000),
        fill: Some(50),
        hotplugs: Some(20),
        ..Step::default()
    };
    let scenario = Scenario {
        steps: vec![mix],
        ..Scenario::default()
    };
    for seed in 1..=3 {
        let begun = Instant::now();
        let host = Host::build(&machine(), seed).expect("the bench's own description");
        let built = begun.elapsed();
        let options = Options {
            seed,
            until: None,
            trace: false,
            verify_every: 250_000,
            skip: Vec::new(),
        };
        let mut runner = Runner::new(host, options);
        runner.run(&scenario).expect("everything holds");
        let took = begun.elapsed() - built;
        println!(
            "seed {seed}: built in {:.2} s, 1 000 000 operations in {:.2} s",
            built.as_secs_f64(),
            took.as_secs_f64()
        );
    }
}
