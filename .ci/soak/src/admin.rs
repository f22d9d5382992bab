//! Blocking calls to the admin socket, each with an end, on a connection that finds the next daemon.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use hugepool_proto::v1::{
    AddSectionsRequest, Client, CompactRequest, DrainLanesRequest, GetStatusRequest,
    GetStatusResponse, ListClientsRequest, ListSectionsRequest, OfflineSectionsRequest,
    RemoveSectionsRequest, Section, SectionResult, VerifyRequest, VerifyResponse,
    admin_client::AdminClient,
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};

/// How long a call may take.
const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// How long an offline waits for the pages of its section.
const OFFLINE_MS: u32 = 300;

/// A way to the daemon that serves now, whichever that is.
pub struct Admin {
    runtime: Runtime,
    client: AdminClient<Channel>,
}

impl Admin {
    /// Dials nothing yet.
    pub fn new(runtime_dir: &Path) -> anyhow::Result<Admin> {
        let socket = runtime_dir.join("admin.sock");
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime")?;
        let endpoint =
            Endpoint::from_shared(format!("unix:{}", socket.display()))?.timeout(CALL_DEADLINE);
        let client = {
            let _entered = runtime.enter();
            AdminClient::new(endpoint.connect_lazy())
        };
        Ok(Admin { runtime, client })
    }

    pub fn status(&mut self) -> anyhow::Result<GetStatusResponse> {
        let call = self.client.get_status(GetStatusRequest::default());
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    pub fn verify(&mut self) -> anyhow::Result<VerifyResponse> {
        let call = self.client.verify(VerifyRequest::default());
        Ok(self.runtime.block_on(call)?.into_inner())
    }

    pub fn clients(&mut self) -> anyhow::Result<Vec<Client>> {
        let call = self.client.list_clients(ListClientsRequest::default());
        Ok(self.runtime.block_on(call)?.into_inner().clients)
    }

    pub fn drain(&mut self) -> anyhow::Result<()> {
        let call = self.client.drain_lanes(DrainLanesRequest::default());
        self.runtime.block_on(call)?;
        Ok(())
    }

    pub fn sections(&mut self, zone: &str) -> anyhow::Result<Vec<Section>> {
        let request = ListSectionsRequest {
            zone: zone.to_owned(),
            ..Default::default()
        };
        let call = self.client.list_sections(request);
        Ok(self.runtime.block_on(call)?.into_inner().sections)
    }

    pub fn add(&mut self, zone: &str) -> anyhow::Result<Vec<SectionResult>> {
        let request = AddSectionsRequest {
            zone: zone.to_owned(),
            count: 1,
            ..Default::default()
        };
        let call = self.client.add_sections(request);
        Ok(self.runtime.block_on(call)?.into_inner().results)
    }

    pub fn offline(&mut self, section: u32) -> anyhow::Result<Vec<SectionResult>> {
        let request = OfflineSectionsRequest {
            section_ids: vec![section],
            timeout_ms: OFFLINE_MS,
            ..Default::default()
        };
        let call = self.client.offline_sections(request);
        Ok(self.runtime.block_on(call)?.into_inner().results)
    }

    pub fn remove(&mut self, section: u32) -> anyhow::Result<Vec<SectionResult>> {
        let request = RemoveSectionsRequest {
            section_ids: vec![section],
            ..Default::default()
        };
        let call = self.client.remove_sections(request);
        Ok(self.runtime.block_on(call)?.into_inner().results)
    }

    pub fn compact(&mut self) -> anyhow::Result<()> {
        let call = self.client.compact(CompactRequest::default());
        self.runtime.block_on(call)?;
        Ok(())
    }
}
