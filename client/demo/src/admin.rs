//! The director's way to the admin socket: blocking calls, one at a time.

use std::{path::Path, time::Duration};

use anyhow::Context;
use hugepool_proto::v1::{
    AddSectionsRequest, GetStatusRequest, InvalidateContiguityRequest, ListClientsRequest,
    ListSectionsRequest, ListZonesRequest, OfflineSectionsRequest, RemoveSectionsRequest,
    SectionsResponse, VerifyRequest, VerifyResponse, admin_client::AdminClient,
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};

const CALL_DEADLINE: Duration = Duration::from_secs(20);
/// How long a section's pages are waited for when it goes.
const OFFLINE_TIMEOUT_MS: u32 = 10_000;

/// A connection to the admin socket.
pub struct Admin {
    runtime: Runtime,
    client: AdminClient<Channel>,
}

impl Admin {
    /// Connects to the admin socket in `runtime_dir`.
    pub fn connect(runtime_dir: &Path) -> anyhow::Result<Admin> {
        let socket = runtime_dir.join("admin.sock");
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime")?;
        let endpoint =
            Endpoint::from_shared(format!("unix:{}", socket.display()))?.timeout(CALL_DEADLINE);
        let channel = runtime
            .block_on(endpoint.connect())
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        Ok(Admin {
            runtime,
            client: AdminClient::new(channel),
        })
    }

    /// Pages whose custodian is the client with this pid, or `None` when there is no such client.
    pub fn lent_to(&mut self, pid: u32) -> anyhow::Result<Option<u64>> {
        let clients = self
            .runtime
            .block_on(self.client.list_clients(ListClientsRequest {}))?
            .into_inner()
            .clients;
        Ok(clients
            .iter()
            .find(|client| client.pid == pid)
            .map(|client| client.lent))
    }

    /// Wrong claims that were refused.
    pub fn nr_misuses(&mut self) -> anyhow::Result<u64> {
        let status = self
            .runtime
            .block_on(self.client.get_status(GetStatusRequest {}))?;
        Ok(status.into_inner().nr_misuses)
    }

    /// The links of the backing chain in use, with why the earlier ones are not.
    pub fn backing(&mut self) -> anyhow::Result<(String, Vec<String>)> {
        let zones = self
            .runtime
            .block_on(self.client.list_zones(ListZonesRequest {}))?
            .into_inner()
            .zones;
        let mut names: Vec<String> = Vec::new();
        let mut reasons: Vec<String> = Vec::new();
        for used in zones.into_iter().flat_map(|zone| zone.backing) {
            if !names.contains(&used.backing) {
                names.push(used.backing);
            }
            for reason in used.not_taken {
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
        }
        Ok((names.join("+"), reasons))
    }

    /// The online section of `zone` with most pages free, and how many those are.
    pub fn emptiest_section(&mut self, zone: &str) -> anyhow::Result<(u32, u64)> {
        let request = ListSectionsRequest {
            zone: zone.to_owned(),
            ..Default::default()
        };
        let reply = self.runtime.block_on(self.client.list_sections(request))?;
        let sections = reply.into_inner().sections.into_iter();
        let emptiest = sections
            .filter(|section| section.state == "online")
            .max_by_key(|section| section.free);
        let emptiest = emptiest.with_context(|| format!("no section of {zone} is online"))?;
        Ok((emptiest.id, emptiest.free))
    }

    /// Adds one section to `zone` and brings it online.
    pub fn add_section(&mut self, zone: &str) -> anyhow::Result<SectionsResponse> {
        let request = AddSectionsRequest {
            zone: zone.to_owned(),
            count: 1,
            ..Default::default()
        };
        Ok(self
            .runtime
            .block_on(self.client.add_sections(request))?
            .into_inner())
    }

    /// Takes a section offline, recalling what lies unused in lanes.
    pub fn offline(&mut self, section: u32) -> anyhow::Result<SectionsResponse> {
        let request = OfflineSectionsRequest {
            section_ids: vec![section],
            timeout_ms: OFFLINE_TIMEOUT_MS,
            ..Default::default()
        };
        Ok(self
            .runtime
            .block_on(self.client.offline_sections(request))?
            .into_inner())
    }

    /// Gives an offline section's memory back to the system.
    pub fn remove(&mut self, section: u32) -> anyhow::Result<SectionsResponse> {
        let request = RemoveSectionsRequest {
            section_ids: vec![section],
            ..Default::default()
        };
        Ok(self
            .runtime
            .block_on(self.client.remove_sections(request))?
            .into_inner())
    }

    /// Clears the contiguity caches of all zones; returns how many zones and pageblocks.
    pub fn invalidate_contiguity(&mut self) -> anyhow::Result<(u32, u64)> {
        let request = InvalidateContiguityRequest::default();
        let reply = self
            .runtime
            .block_on(self.client.invalidate_contiguity(request))?;
        let reply = reply.into_inner();
        Ok((reply.nr_zones, reply.nr_pageblocks_cleared))
    }

    /// Checks the whole structure.
    pub fn verify(&mut self) -> anyhow::Result<VerifyResponse> {
        Ok(self
            .runtime
            .block_on(self.client.verify(VerifyRequest {}))?
            .into_inner())
    }
}
