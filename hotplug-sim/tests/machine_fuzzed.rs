//! Machine descriptions edited by hand, badly: they are refused or built, never a panic, and what is
//! built holds and can be used.

// The exemption of tests covers test functions, not what they call.
#![allow(clippy::unwrap_used)]

mod support;

use hotplug_sim::host::Host;
use hotplug_sim::import::import;
use hotplug_sim::import::machine::Machine;
use hotplug_sim::scenario::file::{Scenario, Step};
use hotplug_sim::scenario::runner::{Options, Runner};
use support::prng::Prng;

/// Mutants of each description.
const MUTANTS: usize = 12;

const NASTY: [&str; 14] = [
    "0",
    "1",
    "-1",
    "7",
    "511",
    "4097",
    "65536",
    "4294967295",
    "4294967296",
    "1099511627776",
    "9223372036854775807",
    "-9223372036854775808",
    "17592186044416",
    "134217727",
];

/// A number of the text becomes another.
fn mutate(text: &str, prng: &mut Prng) -> String {
    let starts: Vec<usize> = text
        .char_indices()
        .filter(|(at, c)| {
            let before = text[..*at].chars().next_back();
            c.is_ascii_digit() && before.is_some_and(|before| matches!(before, ' ' | '['))
        })
        .map(|(at, _)| at)
        .collect();
    let start = starts[prng.below(starts.len())];
    let len = text[start..]
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(0);
    format!(
        "{}{}{}",
        &text[..start],
        NASTY[prng.below(NASTY.len())],
        &text[start + len..]
    )
}

fn use_it(host: Host) {
    let step = |verb: &str, more: fn(&mut Step)| {
        let mut step = Step {
            verb: verb.to_owned(),
            ..Step::default()
        };
        more(&mut step);
        step
    };
    let scenario = Scenario {
        steps: vec![
            step("mix", |step| {
                step.ops = Some(60);
                step.hotplugs = Some(100_000);
            }),
            step("offline", |step| step.size = Some("512MiB".to_owned())),
            step("add", |step| step.size = Some("256MiB".to_owned())),
            step("online", |step| step.size = Some("256MiB".to_owned())),
        ],
        ..Scenario::default()
    };
    let options = Options {
        seed: 3,
        until: None,
        trace: false,
        verify_every: 1_000_000,
        skip: Vec::new(),
    };
    Runner::new(host, options).run(&scenario).unwrap();
}

#[test]
fn descriptions_edited_badly_are_refused_or_built() {
    let mut nr_built = 0;
    for name in [
        "Z13.txt", "P04.txt", "M11.txt", "L05.txt", "V01.txt", "Z10.txt",
    ] {
        let bytes = std::fs::read(support::cases_dir().join(name)).unwrap();
        let machine = Machine::of(
            &import(&[(name.to_owned(), bytes)], None).import.unwrap(),
            Vec::new(),
        );
        let text = machine.to_toml().unwrap();
        let body = text.trim_start_matches(hotplug_sim::import::machine::HEADER);
        for seed in 0..MUTANTS {
            let mut prng = Prng::new(support::count(seed) * 977 + support::count(name.len()));
            let mut mutant = body.to_owned();
            for _ in 0..=prng.below(3) {
                mutant = mutate(&mutant, &mut prng);
            }
            let built = std::panic::catch_unwind(|| {
                let Ok(machine) = Machine::from_toml(&mutant) else {
                    return false;
                };
                let Ok(host) = Host::build(&machine, 1) else {
                    return false;
                };
                use_it(host);
                true
            });
            nr_built +=
                u32::from(built.unwrap_or_else(|_| panic!("{name}, mutant {seed}:\n{mutant}")));
        }
    }
    assert!(
        nr_built > 20,
        "only {nr_built} could be built: the mutants are too wild to tell"
    );
}
