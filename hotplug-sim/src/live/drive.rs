//! `hotplug-sim drive`: a scenario on a running daemon, with real client processes, beside the
//! simulation of it on a machine made of the daemon as it was before.
//!
//! A step's verb is one call or one line to a client. What was done, what was refused and why is
//! compared after each step; at the end, what each zone has and each client holds. Verbs without a
//! counterpart (`mix`, `balloon`, devices, ...) are refused before anything is done.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hugepool_mm::Migratetype;
use hugepool_proto::v1::{
    AddSectionsRequest, CompactRequest, ListZonesRequest, OfflineSectionsRequest,
    RemoveSectionsRequest, SectionsResponse, VerifyRequest,
};

use super::peer::Peers;
use super::{Admin, connect, runtime, snapshot};
use crate::host::Host;
use crate::host::hotplug::Records;
use crate::scenario::expr::Value;
use crate::scenario::file::{Scenario, Step, parse_size};
use crate::scenario::pages::migratetype;
use crate::scenario::runner::{Options, Results, Runner};

/// `drive`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 the daemon did what the simulation did, 1 they differ, 2 usage or no daemon."
)]
pub struct DriveArgs {
    /// The daemon's run-time directory.
    #[arg(long, value_name = "DIR")]
    runtime_dir: PathBuf,
    /// The scenario; its own machine is not used.
    scenario: PathBuf,
}

/// Verbs that a daemon can be told.
const DRIVEN: [&str; 8] = [
    "online", "offline", "remove", "alloc", "free", "bulk", "die", "compact",
];

/// Drives.
pub fn run(args: &DriveArgs) -> ExitCode {
    match drive(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("hotplug-sim: {error}");
            ExitCode::from(2)
        }
    }
}

fn drive(args: &DriveArgs) -> Result<bool, String> {
    let text = std::fs::read_to_string(&args.scenario);
    let text = text.map_err(|error| format!("{}: {error}", args.scenario.display()))?;
    let scenario = Scenario::from_toml(&text).map_err(|error| error.to_string())?;
    for (at, step) in scenario.steps.iter().enumerate() {
        if !DRIVEN.contains(&step.verb.as_str()) {
            let known = DRIVEN.join(", ");
            return Err(format!(
                "step {}: {} cannot be driven; {known} can",
                at + 1,
                step.verb
            ));
        }
    }
    let runtime = runtime()?;
    let mut admin = runtime.block_on(connect(Some(&args.runtime_dir)))?;
    let machine = runtime.block_on(snapshot::of_daemon(&mut admin))?;
    let host = Host::build(&machine, 1).map_err(|error| error.to_string())?;
    let mut runner = Runner::new(
        host,
        Options {
            seed: scenario.seed.unwrap_or(1),
            until: None,
            trace: false,
            verify_every: 1,
            skip: Vec::new(),
        },
    );
    let mut live = Live {
        peers: Peers::new(&args.runtime_dir),
        admin,
    };
    let mut all_alike = true;
    println!(
        "{:<4} {:<10} {:<34} {:<34}",
        "step", "verb", "simulation", "daemon"
    );
    for (at, step) in scenario.steps.iter().enumerate() {
        for _ in 0..step.repeat.unwrap_or(1) {
            let alone = Scenario {
                steps: vec![as_driven(&mut runner.host, step)?],
                ..Scenario::default()
            };
            runner
                .run(&alone)
                .map_err(|stop| format!("step {}: {stop}", at + 1))?;
            let simulated = outcome(&runner.results);
            let done = runtime.block_on(live.act(step, &runner))?;
            let is_alike = simulated == done;
            all_alike &= is_alike;
            let mark = if is_alike { "" } else { "  differs" };
            println!(
                "{:<4} {:<10} {simulated:<34} {done:<34}{mark}",
                at + 1,
                step.verb
            );
        }
    }
    let ends = runtime.block_on(live.compare_end(&runner))?;
    for (line, is_alike) in ends {
        all_alike &= is_alike;
        println!("{line}{}", if is_alike { "" } else { "  differs" });
    }
    Ok(all_alike)
}

/// A step as the daemon does it: what comes online is added first, at the lowest places of its zone;
/// what goes is so many blocks from the highest on, and no others in their place.
fn as_driven(host: &mut Host, step: &Step) -> Result<Step, String> {
    let mut alone = Step {
        repeat: None,
        expect: Vec::new(),
        ..step.clone()
    };
    if !matches!(step.verb.as_str(), "online" | "offline") {
        return Ok(alone);
    }
    let name = step
        .zone
        .as_ref()
        .ok_or_else(|| format!("{} needs a zone to be driven", step.verb))?;
    let at = host.zone_named(name)?;
    let nr = match (step.count, &step.size) {
        (None, Some(size)) => parse_size(size)?.div_ceil(host.geometry.section_bytes()),
        _ => return Err(format!("{} needs a size to be driven", step.verb)),
    };
    let nr = usize::try_from(nr).map_err(|error| error.to_string())?;
    let ids: Vec<u64> = if step.verb == "online" {
        let reserve = host.zones[at].zone.reserve_range();
        let section = u64::from(host.geometry.section_pages());
        let shift = host.zones[at].shift;
        let all = (reserve.start + shift) / section..(reserve.end + shift) / section;
        all.filter(|id| !host.sections.contains_key(id))
            .take(nr)
            .collect()
    } else {
        let online = host
            .sections
            .iter()
            .rev()
            .filter(|(_, row)| row.zones.contains(&at));
        online.take(nr).map(|(id, _)| *id).collect()
    };
    if step.verb == "online" {
        for &id in &ids {
            host.add(id, host.zones[at].node, Records::None)
                .map_err(|refused| refused.what)?;
        }
    }
    let words: Vec<String> = ids.iter().map(u64::to_string).collect();
    alone.size = None;
    alone.blocks = Some(words.join(","));
    Ok(alone)
}

/// What is compared of a step.
fn outcome(results: &Results) -> String {
    let mut words = Vec::new();
    for name in ["populated", "done", "refused", "pages", "reason"] {
        // Pages that came online or were compacted are compared by what the zones have in the end.
        match results.get(name) {
            Some(Value::Number(number)) => words.push(format!("{name}={number}")),
            // The daemon does not tell apart what is kept back from what is not there.
            Some(Value::Word(word)) if word == "empty" => words.push("reason=watermark".to_owned()),
            Some(Value::Word(word)) if !word.is_empty() => words.push(format!("{name}={word}")),
            _ => {}
        }
    }
    words.join(" ")
}

fn say(done: u64, refused: u64, reason: &str) -> String {
    let reason = if reason == "-" || reason.is_empty() {
        String::new()
    } else {
        format!(" reason={reason}")
    };
    format!("done={done} refused={refused}{reason}")
}

struct Live {
    peers: Peers,
    admin: Admin,
}

impl Live {
    async fn act(&mut self, step: &Step, runner: &Runner) -> Result<String, String> {
        let host = &runner.host;
        let zone = step.zone.clone().unwrap_or_default();
        let client = step.client.clone().unwrap_or_default();
        let count = |bytes_each: u64| match (step.count, &step.size) {
            (Some(count), _) => Ok(count),
            (None, Some(size)) => parse_size(size).map(|size| size.div_ceil(bytes_each)),
            (None, None) => Ok(1),
        };
        let said = |error: tonic::Status| error.message().to_owned();
        match step.verb.as_str() {
            "online" | "offline" | "remove" => {
                let nr = u32::try_from(count(host.geometry.section_bytes())?)
                    .map_err(|error| error.to_string())?;
                let response = match step.verb.as_str() {
                    "online" => {
                        let request = AddSectionsRequest {
                            zone,
                            count: nr,
                            ..Default::default()
                        };
                        self.admin.add_sections(request).await
                    }
                    "offline" => {
                        let request = OfflineSectionsRequest {
                            zone,
                            count: nr,
                            timeout_ms: 2000,
                            ..Default::default()
                        };
                        self.admin.offline_sections(request).await
                    }
                    _ => {
                        let request = RemoveSectionsRequest {
                            zone,
                            count: nr,
                            ..Default::default()
                        };
                        self.admin.remove_sections(request).await
                    }
                };
                Ok(of_sections(&response.map_err(said)?.into_inner(), step))
            }
            "alloc" => {
                let order = step.order.unwrap_or(0);
                let nr = count((1 << order) * host.geometry.page_bytes())?;
                let mt = migratetype(step.migratetype.as_deref())?;
                let name = mt.name().to_lowercase();
                let zone = if zone.is_empty() { "-" } else { &zone };
                let said = self
                    .peers
                    .tell(&client, &format!("alloc {zone} {order} {name} {nr}"))?;
                let (done, why) = said.split_once(' ').unwrap_or((&said, "-"));
                let done: u64 = done
                    .parse()
                    .map_err(|_| format!("client {client} said {said:?}"))?;
                Ok(say(done, nr - done, why))
            }
            "free" => {
                let nr = step.count.unwrap_or(u64::from(u32::MAX));
                Ok(format!(
                    "pages={}",
                    self.peers.tell(&client, &format!("free {nr}"))?
                ))
            }
            "bulk" => {
                let zone = if zone.is_empty() { "-" } else { &zone };
                let (slots, filled) = (step.slots.unwrap_or(0), step.filled.unwrap_or(0));
                let said = self
                    .peers
                    .tell(&client, &format!("bulk {zone} {slots} {filled}"))?;
                let (full, why) = said.split_once(' ').unwrap_or((&said, "-"));
                let full: u64 = full
                    .parse()
                    .map_err(|_| format!("client {client} said {said:?}"))?;
                Ok(format!(
                    "populated={full} {}",
                    say(full - filled.min(slots), slots - full, why)
                ))
            }
            "die" => {
                self.peers.kill(&client);
                // What it held is told by the simulation; that it came home, by the zones in the end.
                Ok(outcome(&runner.results))
            }
            _ => {
                let request = CompactRequest {
                    zone,
                    order: step.order.map(u32::from),
                    ..Default::default()
                };
                let done = self.admin.compact(request).await;
                Ok(match done {
                    // How many runs there were is the daemon's own affair.
                    Ok(_) => outcome(&runner.results),
                    Err(error) => format!("reason={}", error.message()),
                })
            }
        }
    }

    /// What zones have, and whether all of it adds up, in the end.
    async fn compare_end(&mut self, runner: &Runner) -> Result<Vec<(String, bool)>, String> {
        let said = |error: tonic::Status| error.message().to_owned();
        let mut lines = Vec::new();
        let zones = self
            .admin
            .list_zones(ListZonesRequest {})
            .await
            .map_err(said)?
            .into_inner()
            .zones;
        for zone in zones {
            let pages = zone.pages.unwrap_or_default();
            let Ok(at) = runner.host.zone_named(&zone.name) else {
                continue;
            };
            let counts = runner.host.zones[at].zone.counts();
            // Lanes hold pages that nobody has asked for yet: what is lent is at least what is held.
            let is_alike = pages.managed == counts.managed && pages.lent >= counts.lent;
            lines.push((
                format!(
                    "zone {}: simulation managed={} held={}, daemon managed={} lent={}",
                    zone.name, counts.managed, counts.lent, pages.managed, pages.lent
                ),
                is_alike,
            ));
        }
        let verified = self
            .admin
            .verify(VerifyRequest {})
            .await
            .map_err(said)?
            .into_inner();
        lines.push((
            format!(
                "verify: {}",
                if verified.ok {
                    "all adds up"
                } else {
                    "it does not add up"
                }
            ),
            verified.ok,
        ));
        Ok(lines)
    }
}

fn of_sections(response: &SectionsResponse, step: &Step) -> String {
    let done = response.results.iter().filter(|result| result.ok).count() as u64;
    let refused = response.results.len() as u64 - done;
    let first = response.results.iter().find(|result| !result.ok);
    let holder = first.and_then(|result| result.holders.first());
    // A holder that is movable and could not be moved is pinned; one that is not, unmovable.
    let reason = match holder {
        Some(holder) if holder.migratetype == proto_type(Migratetype::Unmovable) => "unmovable",
        Some(holder) if holder.pinned > 0 => "pinned",
        Some(_) => "no-room",
        None => first.map_or("", |result| result.reason.as_str()),
    };
    let pages: u64 = response
        .results
        .iter()
        .filter_map(|result| result.onlined.as_ref())
        .map(|one| one.nr_pages)
        .sum();
    let reason = if reason.is_empty() {
        String::new()
    } else {
        format!(" reason={reason}")
    };
    let pages = if step.verb == "online" { pages } else { 0 };
    format!("done={done} refused={refused} pages={pages}{reason}")
}

fn proto_type(mt: Migratetype) -> i32 {
    use hugepool_proto::v1::Migratetype as Proto;
    match mt {
        Migratetype::Unmovable => Proto::Unmovable.into(),
        Migratetype::Movable => Proto::Movable.into(),
        Migratetype::Reclaimable => Proto::Reclaimable.into(),
    }
}
