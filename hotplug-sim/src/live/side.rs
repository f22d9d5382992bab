//! The daemon's side of `drive`: each step as calls and lines to client processes, and what came
//! of it in the words of the simulation.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hugepool_mm::Migratetype;
use hugepool_proto::v1::{
    AddSectionsRequest, Client, CompactRequest, DrainLanesRequest, GetBuddyInfoRequest,
    GetStatusRequest, ListClientsRequest, ListZonesRequest, OfflineSectionsRequest,
    RemoveSectionsRequest, SectionsResponse, SetLimitsRequest, VerifyRequest,
};

use super::peer::Peers;
use super::told::{Told, of_words};
use super::{Admin, snapshot};
use crate::host::Host;
use crate::scenario::expr::Value;
use crate::scenario::file::{Step, parse_size};
use crate::scenario::pages::migratetype;
use crate::scenario::runner::Runner;

/// How long the daemon may try to empty sections.
const OFFLINE_MS: u32 = 10_000;
/// How long it may wait for clients that are at their lanes just now.
const DRAIN_MS: u32 = 10_000;
/// How long it may take to bury a client that was killed; it takes milliseconds.
const BURIAL: Duration = Duration::from_secs(30);
/// Between two looks whether it has.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

fn said(error: tonic::Status) -> String {
    error.message().to_owned()
}

/// Whether a zone has a free block of the order that a compaction was for (a pageblock's, without).
pub fn is_free(
    step: &Step,
    pageblock_order: u8,
    mut free_by_order: impl Iterator<Item = Vec<u64>>,
) -> String {
    let order = step.order.unwrap_or(pageblock_order);
    let is_free = free_by_order.any(|free| free.iter().skip(order.into()).any(|&nr| nr > 0));
    format!("order-{order}={}", if is_free { "free" } else { "none" })
}

fn say(done: u64, refused: u64, reason: &str) -> String {
    let reason = if reason == "-" || reason.is_empty() {
        String::new()
    } else {
        format!(" reason={reason}")
    };
    format!("done={done} refused={refused}{reason}")
}

/// What a step came to on the daemon.
pub struct Done {
    /// What is compared.
    pub outcome: String,
    /// What is told besides.
    pub remark: String,
    /// Numbers that only an expectation asks for.
    pub numbers: Vec<(&'static str, Value)>,
}

impl Done {
    /// All that a scenario may expect of it, by name.
    pub fn results(&self) -> BTreeMap<String, Value> {
        let mut results = of_words(&self.outcome);
        let numbers = self.numbers.iter();
        results.extend(numbers.map(|(name, value)| ((*name).to_owned(), value.clone())));
        results
    }
}

impl From<String> for Done {
    fn from(outcome: String) -> Done {
        Done {
            outcome,
            remark: String::new(),
            numbers: Vec::new(),
        }
    }
}

/// The daemon, and its clients.
pub struct Live {
    peers: Peers,
    admin: Admin,
}

impl Live {
    /// No client yet, of the daemon of that directory.
    pub fn new(runtime_dir: &Path, admin: Admin) -> Live {
        Live {
            peers: Peers::new(runtime_dir),
            admin,
        }
    }

    /// Does a step.
    ///
    /// # Errors
    /// The daemon or a client did not answer, or refused what is never refused.
    pub async fn act(&mut self, step: &Step, host: &Host) -> Result<Done, String> {
        let zone = step.zone.clone().unwrap_or_default();
        let client = step.client.clone().unwrap_or_default();
        let count = |bytes_each: u64| match (step.count, &step.size) {
            (Some(count), _) => Ok(count),
            (None, Some(size)) => parse_size(size).map(|size| size.div_ceil(bytes_each)),
            (None, None) => Ok(1),
        };
        match step.verb.as_str() {
            "online" | "offline" | "remove" => {
                let nr = u32::try_from(count(host.geometry.section_bytes())?)
                    .map_err(|error| error.to_string())?;
                self.sections(step, zone, nr).await.map(Done::from)
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
                Ok(say(done, nr.saturating_sub(done), why).into())
            }
            "free" => {
                let nr = step.count.unwrap_or(u64::from(u32::MAX));
                let pattern = step.pattern.as_deref().unwrap_or("random");
                let said = self.peers.tell(&client, &format!("free {nr} {pattern}"))?;
                Ok(format!("pages={said}").into())
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
                let taken = say(full - filled.min(slots), slots - full, why);
                Ok(format!("populated={full} {taken}").into())
            }
            "die" => self.die(&client).await,
            "limit" => self.limit(step, &client, host).await,
            "verify" => self.verify().await,
            _ => self.compact(step, zone, host).await,
        }
    }

    async fn sections(&mut self, step: &Step, zone: String, nr: u32) -> Result<String, String> {
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
                    timeout_ms: OFFLINE_MS,
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

    /// Kills a client, and waits until the daemon has buried it: what it held, as the daemon counted
    /// it before, and what came home.
    async fn die(&mut self, client: &str) -> Result<Done, String> {
        let Some(pid) = self.peers.pid(client) else {
            return Ok("pages=0".to_owned().into());
        };
        let known = self.client(pid).await?;
        let known = known.ok_or_else(|| format!("the daemon does not know client {client}"))?;
        let before = self.nr_reclaimed().await?;
        self.peers.kill(client);
        let buried = async {
            while self.client(pid).await?.is_some() {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            Ok::<(), String>(())
        };
        match tokio::time::timeout(BURIAL, buried).await {
            Ok(answered) => answered?,
            Err(_) => return Ok(format!("pages={} reason=not-buried", known.held).into()),
        }
        let home = self.nr_reclaimed().await? - before;
        let reason = if home < known.held {
            " reason=lost"
        } else {
            ""
        };
        Ok(Done {
            outcome: format!("pages={}{reason}", known.held),
            remark: format!("  (killed; {home} pages came home)"),
            numbers: Vec::new(),
        })
    }

    async fn client(&mut self, pid: u32) -> Result<Option<Client>, String> {
        let all = self.admin.list_clients(ListClientsRequest {}).await;
        let mut all = all.map_err(said)?.into_inner().clients.into_iter();
        Ok(all.find(|client| client.pid == pid))
    }

    async fn nr_reclaimed(&mut self) -> Result<u64, String> {
        let status = self.admin.get_status(GetStatusRequest {}).await;
        Ok(status.map_err(said)?.into_inner().nr_reclaimed_pages)
    }

    async fn compact(&mut self, step: &Step, zone: String, host: &Host) -> Result<Done, String> {
        let request = CompactRequest {
            zone: zone.clone(),
            order: step.order.map(u32::from),
            mode: step.mode.clone().unwrap_or_default(),
            detach: false,
        };
        let done = self
            .admin
            .compact(request)
            .await
            .map_err(said)?
            .into_inner();
        let lists = self
            .admin
            .get_buddy_info(GetBuddyInfoRequest { zone })
            .await;
        let lists = lists.map_err(said)?.into_inner().zones.into_iter();
        let free = lists.map(|zone| zone.free_blocks_by_order);
        Ok(Done {
            outcome: is_free(step, host.geometry.pageblock_order().get(), free),
            remark: format!("  ({}; {} pages moved)", done.ended, done.nr_migrated),
            numbers: vec![
                ("moved", done.nr_migrated.into()),
                ("made", done.nr_blocks_made.into()),
                ("checks", done.nr_contiguity_checks.into()),
            ],
        })
    }

    /// Sets the most that a client may have, in all zones together, or lifts that.
    async fn limit(&mut self, step: &Step, name: &str, host: &Host) -> Result<Done, String> {
        let pid = self.peers.begin(name)?;
        let client = self.client(pid).await?;
        let client = client.ok_or_else(|| format!("the daemon does not know client {name}"))?;
        let bytes = step.size.as_deref().map(parse_size).transpose()?;
        let request = SetLimitsRequest {
            slot: Some(client.slot),
            ceiling_pages: bytes.map(|bytes| bytes / host.geometry.page_bytes()),
            ..SetLimitsRequest::default()
        };
        self.admin.set_limits(request).await.map_err(said)?;
        Ok(String::new().into())
    }

    async fn verify(&mut self) -> Result<Done, String> {
        let verified = self.admin.verify(VerifyRequest {}).await.map_err(said)?;
        let findings = verified.into_inner().findings;
        let outcome = match findings.first() {
            None => String::new(),
            Some(finding) => format!("broken: {finding}"),
        };
        Ok(Done {
            outcome,
            remark: String::new(),
            numbers: vec![("broken", Value::Word(findings.join("; ")))],
        })
    }

    /// What the daemon tells after a step, with what lay unused in lanes called home.
    ///
    /// # Errors
    /// A call fails.
    pub async fn told(&mut self, done: &Done) -> Result<Told, String> {
        let drain = DrainLanesRequest {
            slot: None,
            timeout_ms: DRAIN_MS,
        };
        self.admin.drain_lanes(drain).await.map_err(said)?;
        let zones = self.admin.list_zones(ListZonesRequest {}).await;
        let known = self.admin.list_clients(ListClientsRequest {}).await;
        let known = known.map_err(said)?.into_inner().clients;
        let of = |pid: u32| known.iter().find(|client| client.pid == pid).cloned();
        let clients = self.peers.all();
        Ok(Told {
            results: done.results(),
            zones: zones.map_err(said)?.into_inner().zones,
            clients: clients
                .filter_map(|(name, pid)| Some((name.to_owned(), of(pid)?)))
                .collect(),
            sections: snapshot::sections(&mut self.admin).await?,
        })
    }

    /// What zones have, and whether all of it adds up, in the end.
    ///
    /// # Errors
    /// A call fails.
    pub async fn compare_end(&mut self, runner: &Runner) -> Result<Vec<(String, bool)>, String> {
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
