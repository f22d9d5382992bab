//! The files that people write: machines, scenarios, fleets.

#![no_main]

use hotplug_sim::fleet::file::Fleet;
use hotplug_sim::import::machine::Machine;
use hotplug_sim::scenario::file::Scenario;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(machine) = Machine::from_toml(text)
        && let Ok(again) = machine.to_toml()
    {
        assert_eq!(Machine::from_toml(&again).expect("it was just written"), machine);
    }
    let _ = Scenario::from_toml(text);
    if let Ok(fleet) = Fleet::from_toml(text) {
        let _ = fleet.arrivals_per_1000_hours();
    }
});
