//! `hugepool.v1.Admin`: request → command → reply. Decides nothing.
//!
//! Each handler checks the shape, makes one [`Command`], and renames the fields of its [`Reply`].
//! What takes time is waited for in [`operations`], what flows in
//! [`streams`]; errors become codes in [`status`] alone.

use std::sync::Arc;
use std::time::Duration;

use hugepool_engine::{Command, Limit, ListPages, Reply, SectionReport, Whom};
use hugepool_mm::{CompactMode, SectionId};
use hugepool_proto::v1;
use prost::Message;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::operations::{self, Sections};
use super::{convert, status, streams};
use crate::shared::Shared;

/// No reply is larger: what a client takes by default.
pub const MAX_REPLY_BYTES: usize = 4 << 20;

/// Sections in one reply: far below that many bytes.
const MAX_SECTIONS_PER_REPLY: usize = 20_000;

/// The service.
#[derive(Clone)]
pub struct AdminService {
    shared: Arc<Shared>,
}

impl AdminService {
    /// Administers this engine.
    pub fn new(shared: Arc<Shared>) -> AdminService {
        AdminService { shared }
    }

    fn ask(&self, command: Command) -> Result<Reply, Status> {
        self.shared.apply(command).map_err(status::of_command)
    }
}

/// The engine answered something else than was asked: our own mistake.
pub fn mismatch(reply: &Reply) -> Status {
    tracing::error!(?reply, "a reply of another kind than its command");
    Status::internal("the engine answered another question")
}

/// Takes the reply apart, or answers that it is of the wrong kind.
macro_rules! expect {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            $pattern => $value,
            other => return Err(mismatch(&other)),
        }
    };
}

fn sized<M: Message>(message: M, narrower: &str) -> Result<Response<M>, Status> {
    let nr_bytes = message.encoded_len();
    if nr_bytes > MAX_REPLY_BYTES {
        return Err(status::too_large(nr_bytes, narrower));
    }
    Ok(Response::new(message))
}

/// A zone's name, or all.
fn named(zone: String) -> Option<String> {
    Some(zone).filter(|zone| !zone.is_empty())
}

/// A slot as the engine counts them.
pub fn slot(asked: u32) -> Result<u16, Status> {
    u16::try_from(asked).map_err(|_| status::no_such_slot(asked))
}

/// Where to go on: the number that the page before ended with.
fn page_token(token: &str) -> Result<u64, Status> {
    if token.is_empty() {
        return Ok(0);
    }
    token
        .parse()
        .map_err(|_| status::bad_value("page_token", "not a next_page_token of this rpc"))
}

/// Keeps the page of sections from `from` on, and says where the next one begins.
fn cut(sections: &mut Vec<SectionReport>, from: u64, page_size: u32) -> String {
    let size = match usize::try_from(page_size) {
        Ok(size @ 1..=MAX_SECTIONS_PER_REPLY) => size,
        _ => MAX_SECTIONS_PER_REPLY,
    };
    sections.retain(|section| u64::from(section.section.get()) >= from);
    let next = sections.get(size).map(|section| section.section.get());
    sections.truncate(size);
    next.map_or_else(String::new, |next| next.to_string())
}

fn optional_slot(asked: Option<u32>) -> Result<Option<u16>, Status> {
    asked.map(slot).transpose()
}

fn millis(asked: u32) -> Option<Duration> {
    (asked > 0).then(|| Duration::from_millis(asked.into()))
}

#[tonic::async_trait]
impl v1::admin_server::Admin for AdminService {
    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let status = expect!(self.ask(Command::GetStatus)?, Reply::Status(status) => status);
        let nodes = self.shared.with(|engine, _, _| engine.list_nodes());
        Ok(Response::new(v1::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            layout_version: hugepool_shm::attach::LAYOUT_VERSION,
            pid: std::process::id(),
            uptime_ms: self.shared.uptime_ms(),
            geometry: Some(convert::geometry(status.geometry)),
            pages: Some(convert::counts(status.pages)),
            nr_zones: status.nr_zones,
            nr_clients: status.nr_clients,
            nr_misuses: status.nr_misuses,
            nr_reclaimed_pages: status.nr_reclaimed_pages,
            state: self.shared.state_name().to_owned(),
            nodes: nodes.into_iter().map(convert::node).collect(),
            nr_machine_nodes: self.shared.nr_machine_nodes(),
        }))
    }

    async fn list_zones(
        &self,
        _: Request<v1::ListZonesRequest>,
    ) -> Result<Response<v1::ListZonesResponse>, Status> {
        let zones = expect!(self.ask(Command::ListZones)?, Reply::Zones(zones) => zones);
        let page_bytes = self.shared.geometry().page_bytes();
        let zones = zones
            .into_iter()
            .map(|zone| convert::zone(zone, page_bytes))
            .collect();
        Ok(Response::new(v1::ListZonesResponse { zones }))
    }

    async fn list_sections(
        &self,
        request: Request<v1::ListSectionsRequest>,
    ) -> Result<Response<v1::ListSectionsResponse>, Status> {
        let request = request.into_inner();
        let from = page_token(&request.page_token)?;
        let zone = named(request.zone);
        let command = Command::ListSections { zone };
        let mut found = expect!(self.ask(command)?, Reply::Sections(sections) => sections);
        let next_page_token = cut(&mut found, from, request.page_size);
        let differences = self.shared.memory().audit_aside().await;
        let sections = found
            .into_iter()
            .map(|section| {
                let difference = differences.get(&section.section).copied();
                convert::section(section, difference.unwrap_or_default())
            })
            .collect();
        Ok(Response::new(v1::ListSectionsResponse {
            sections,
            next_page_token,
        }))
    }

    async fn list_clients(
        &self,
        _: Request<v1::ListClientsRequest>,
    ) -> Result<Response<v1::ListClientsResponse>, Status> {
        let clients = expect!(self.ask(Command::ListClients)?, Reply::Clients(clients) => clients);
        let mut clients: Vec<_> = clients.into_iter().map(convert::client).collect();
        let reply = v1::ListClientsResponse {
            clients: clients.clone(),
        };
        if reply.encoded_len() <= MAX_REPLY_BYTES {
            return Ok(Response::new(reply));
        }
        // Thousands of clients with hundreds of lanes: their lanes are left out.
        for client in &mut clients {
            client.lanes.clear();
        }
        sized(v1::ListClientsResponse { clients }, "evict some")
    }

    async fn list_pages(
        &self,
        request: Request<v1::ListPagesRequest>,
    ) -> Result<Response<v1::ListPagesResponse>, Status> {
        let request = request.into_inner();
        let command = Command::ListPages(ListPages {
            slot: optional_slot(request.slot)?,
            zone: named(request.zone),
            section: request.section_id.map(SectionId::new),
            limit: request.page_size,
            from_pfn: page_token(&request.page_token)?,
        });
        let pages = expect!(self.ask(command)?, Reply::Pages(pages) => pages);
        Ok(Response::new(v1::ListPagesResponse {
            runs: pages.runs.into_iter().map(convert::held_run).collect(),
            next_page_token: pages.next.map_or_else(String::new, |pfn| pfn.to_string()),
        }))
    }

    async fn add_sections(
        &self,
        request: Request<v1::AddSectionsRequest>,
    ) -> Result<Response<v1::SectionsResponse>, Status> {
        let request = request.into_inner();
        let sections = Sections {
            zone: request.zone,
            count: request.count,
            section_ids: request.section_ids,
            dry_run: request.dry_run,
        };
        let command = Command::AddSections {
            request: sections.check()?,
            online_order: request.online_order,
            keep_offline: request.keep_offline,
        };
        operations::sections(&self.shared, command).await
    }

    async fn online_sections(
        &self,
        request: Request<v1::OnlineSectionsRequest>,
    ) -> Result<Response<v1::SectionsResponse>, Status> {
        let request = request.into_inner();
        let sections = Sections {
            zone: request.zone,
            count: request.count,
            section_ids: request.section_ids,
            dry_run: request.dry_run,
        };
        let command = Command::OnlineSections {
            request: sections.check()?,
            online_order: request.online_order,
        };
        operations::sections(&self.shared, command).await
    }

    async fn offline_sections(
        &self,
        request: Request<v1::OfflineSectionsRequest>,
    ) -> Result<Response<v1::SectionsResponse>, Status> {
        let request = request.into_inner();
        let sections = Sections {
            zone: request.zone,
            count: request.count,
            section_ids: request.section_ids,
            dry_run: request.dry_run,
        };
        let command = Command::OfflineSections {
            request: sections.check()?,
            timeout: millis(request.timeout_ms),
        };
        if request.detach {
            return operations::begin(&self.shared, command);
        }
        operations::sections(&self.shared, command).await
    }

    async fn remove_sections(
        &self,
        request: Request<v1::RemoveSectionsRequest>,
    ) -> Result<Response<v1::SectionsResponse>, Status> {
        let request = request.into_inner();
        let sections = Sections {
            zone: request.zone,
            count: request.count,
            section_ids: request.section_ids,
            dry_run: request.dry_run,
        };
        let command = Command::RemoveSections {
            request: sections.check()?,
        };
        operations::sections(&self.shared, command).await
    }

    async fn get_operation(
        &self,
        request: Request<v1::GetOperationRequest>,
    ) -> Result<Response<v1::Operation>, Status> {
        let report = operations::get(&self.shared, request.into_inner().id)?;
        sized(convert::operation(report), "ask for fewer sections")
    }

    type WatchOperationStream = ReceiverStream<Result<v1::Operation, Status>>;

    async fn watch_operation(
        &self,
        request: Request<v1::GetOperationRequest>,
    ) -> Result<Response<Self::WatchOperationStream>, Status> {
        streams::operation(self.shared.clone(), request.into_inner().id).map(Response::new)
    }

    async fn cancel_operation(
        &self,
        request: Request<v1::GetOperationRequest>,
    ) -> Result<Response<v1::Operation>, Status> {
        let report = operations::cancel(&self.shared, request.into_inner().id)?;
        sized(convert::operation(report), "ask for fewer sections")
    }

    async fn list_operations(
        &self,
        _: Request<v1::ListOperationsRequest>,
    ) -> Result<Response<v1::ListOperationsResponse>, Status> {
        let reply = self.ask(Command::ListOperations)?;
        let mut reports = expect!(reply, Reply::Operations(reports) => reports);
        // The list is an overview; each one's sections are GetOperation's.
        for report in &mut reports {
            report.sections.clear();
        }
        let operations = reports.into_iter().map(convert::operation).collect();
        Ok(Response::new(v1::ListOperationsResponse { operations }))
    }

    async fn compact(
        &self,
        request: Request<v1::CompactRequest>,
    ) -> Result<Response<v1::CompactResponse>, Status> {
        let request = request.into_inner();
        let mode = match request.mode.as_str() {
            "" | "manual" => CompactMode::Manual,
            "sync" => CompactMode::Sync,
            "async" => CompactMode::Async,
            other => {
                let text = format!("{other:?} is none: manual, sync, async");
                return Err(status::bad_value("mode", text));
            }
        };
        let command = Command::Compact {
            zone: named(request.zone),
            order: request.order,
            mode,
        };
        let report = if request.detach {
            operations::ask(&self.shared, command)?
        } else {
            operations::run(&self.shared, command).await?
        };
        let done = report.compacted.unwrap_or_default();
        Ok(Response::new(convert::compacted(report.id.0, done)))
    }

    async fn get_contiguity(
        &self,
        request: Request<v1::GetContiguityRequest>,
    ) -> Result<Response<v1::GetContiguityResponse>, Status> {
        let zone = named(request.into_inner().zone);
        let reply = self.ask(Command::GetContiguity { zone })?;
        let zones = expect!(reply, Reply::Contiguity(zones) => zones);
        let zones = zones.into_iter().map(convert::contiguity).collect();
        let mut reply = v1::GetContiguityResponse { zones };
        if reply.encoded_len() > MAX_REPLY_BYTES {
            for zone in &mut reply.zones {
                zone.pb_cached.clear();
                zone.pb_contiguous.clear();
            }
        }
        sized(reply, "name one zone")
    }

    async fn invalidate_contiguity(
        &self,
        request: Request<v1::InvalidateContiguityRequest>,
    ) -> Result<Response<v1::InvalidateContiguityResponse>, Status> {
        let zone = named(request.into_inner().zone);
        let reply = self.ask(Command::InvalidateContiguity { zone })?;
        let (nr_zones, nr_pageblocks_cleared) = expect!(
            reply,
            Reply::Invalidated { nr_zones, nr_pageblocks } => (nr_zones, nr_pageblocks)
        );
        Ok(Response::new(v1::InvalidateContiguityResponse {
            nr_zones,
            nr_pageblocks_cleared,
        }))
    }

    async fn get_buddy_info(
        &self,
        request: Request<v1::GetBuddyInfoRequest>,
    ) -> Result<Response<v1::GetBuddyInfoResponse>, Status> {
        let zone = named(request.into_inner().zone);
        let reply = self.ask(Command::GetBuddyInfo { zone })?;
        let zones = expect!(reply, Reply::BuddyInfo(zones) => zones);
        let zones = zones.into_iter().map(convert::buddy_info).collect();
        Ok(Response::new(v1::GetBuddyInfoResponse { zones }))
    }

    async fn get_page_type_info(
        &self,
        request: Request<v1::GetPageTypeInfoRequest>,
    ) -> Result<Response<v1::GetPageTypeInfoResponse>, Status> {
        let zone = named(request.into_inner().zone);
        let reply = self.ask(Command::GetPageTypeInfo { zone })?;
        let zones = expect!(reply, Reply::PageTypeInfo(zones) => zones);
        let geometry = self.shared.geometry();
        Ok(Response::new(v1::GetPageTypeInfoResponse {
            pageblock_order: geometry.pageblock_order().get().into(),
            pages_per_block: geometry.pageblock_pages().into(),
            zones: zones.into_iter().map(convert::page_type_info).collect(),
        }))
    }

    async fn get_zone_info(
        &self,
        request: Request<v1::GetZoneInfoRequest>,
    ) -> Result<Response<v1::GetZoneInfoResponse>, Status> {
        let zone = named(request.into_inner().zone);
        let reply = self.ask(Command::GetZoneInfo { zone })?;
        let zones = expect!(reply, Reply::ZoneInfo(zones) => zones);
        let zones = zones.into_iter().map(convert::zone_info).collect();
        Ok(Response::new(v1::GetZoneInfoResponse { zones }))
    }

    async fn drain_lanes(
        &self,
        request: Request<v1::DrainLanesRequest>,
    ) -> Result<Response<v1::DrainLanesResponse>, Status> {
        let request = request.into_inner();
        let command = Command::DrainLanes {
            slot: optional_slot(request.slot)?,
            timeout: millis(request.timeout_ms),
        };
        let recalled = operations::run(&self.shared, command)
            .await?
            .recalled
            .unwrap_or_default();
        Ok(Response::new(v1::DrainLanesResponse {
            nr_pages: recalled.nr_pages,
            nr_held_in_flight: recalled.nr_in_flight,
            holders: recalled.holders.into_iter().map(convert::holder).collect(),
        }))
    }

    async fn set_pcp(
        &self,
        request: Request<v1::SetPcpRequest>,
    ) -> Result<Response<v1::SetPcpResponse>, Status> {
        let request = request.into_inner();
        let reply = self.ask(Command::SetPcp {
            slot: optional_slot(request.slot)?,
            batch: request.batch,
            high: request.high,
        })?;
        let response = expect!(
            reply,
            Reply::Pcp { nr_clients, batch, high } => v1::SetPcpResponse { nr_clients, batch, high }
        );
        Ok(Response::new(response))
    }

    async fn set_limits(
        &self,
        request: Request<v1::SetLimitsRequest>,
    ) -> Result<Response<v1::SetLimitsResponse>, Status> {
        let request = request.into_inner();
        let whom = match (request.slot, request.uid, request.whole_zone) {
            (None, None, false) => Whom::EachClient,
            (Some(asked), None, false) => Whom::Client(slot(asked)?),
            (None, Some(uid), false) => Whom::User(uid),
            (None, None, true) => Whom::Zone,
            _ => {
                let why = "give one of slot, uid and whole_zone, or none for each client";
                return Err(status::bad_value("slot", why));
            }
        };
        let reply = self.ask(Command::SetLimits {
            whom,
            zone: named(request.zone),
            limit: Limit {
                floor_pages: request.floor_pages,
                ceiling_pages: request.ceiling_pages,
            },
        })?;
        let nr_clients = expect!(reply, Reply::Limits { nr_clients } => nr_clients);
        Ok(Response::new(v1::SetLimitsResponse { nr_clients }))
    }

    async fn list_limits(
        &self,
        _: Request<v1::ListLimitsRequest>,
    ) -> Result<Response<v1::ListLimitsResponse>, Status> {
        let limits = expect!(self.ask(Command::ListLimits)?, Reply::LimitList(limits) => limits);
        Ok(Response::new(v1::ListLimitsResponse {
            limits: limits.into_iter().map(convert::limit).collect(),
        }))
    }

    async fn release_quarantined(
        &self,
        request: Request<v1::ReleaseQuarantinedRequest>,
    ) -> Result<Response<v1::ReleaseQuarantinedResponse>, Status> {
        let request = request.into_inner();
        let reply = self.ask(Command::ReleaseQuarantined {
            slot: optional_slot(request.slot)?,
            zone: named(request.zone),
        })?;
        let nr_pages = expect!(reply, Reply::Released { nr_pages } => nr_pages);
        Ok(Response::new(v1::ReleaseQuarantinedResponse { nr_pages }))
    }

    async fn evict_client(
        &self,
        request: Request<v1::EvictClientRequest>,
    ) -> Result<Response<v1::EvictClientResponse>, Status> {
        operations::evict(&self.shared, request.into_inner()).await
    }

    async fn verify(
        &self,
        _: Request<v1::VerifyRequest>,
    ) -> Result<Response<v1::VerifyResponse>, Status> {
        let began = std::time::Instant::now();
        let report = expect!(self.ask(Command::Verify)?, Reply::Verified(report) => report);
        Ok(Response::new(v1::VerifyResponse {
            ok: report.findings.is_empty(),
            findings: report.findings,
            pages: Some(convert::counts(report.pages)),
            nr_checked_pages: report.nr_checked_pages,
            took_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
        }))
    }

    type WatchEventsStream = ReceiverStream<Result<v1::Event, Status>>;

    async fn watch_events(
        &self,
        _: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        Ok(Response::new(streams::events(self.shared.clone())))
    }
}
