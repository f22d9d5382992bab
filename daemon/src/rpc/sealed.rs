//! `Admin` of a daemon that is sealed: it says that it is, and why, and does nothing.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use hugepool_proto::v1;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::status;

/// The service.
#[derive(Clone, Debug)]
pub struct SealedService {
    why: String,
    begun: Instant,
}

impl SealedService {
    /// Says why.
    pub fn new(why: String) -> SealedService {
        SealedService {
            why,
            begun: Instant::now(),
        }
    }

    fn state(&self) -> String {
        format!("sealed: {}", self.why)
    }

    fn status(&self) -> v1::GetStatusResponse {
        let uptime = self.begun.elapsed().as_millis();
        v1::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            layout_version: hugepool_shm::attach::LAYOUT_VERSION,
            pid: std::process::id(),
            uptime_ms: u64::try_from(uptime).unwrap_or(u64::MAX),
            state: self.state(),
            ..Default::default()
        }
    }

    /// Nothing can be vouched for.
    fn verdict(&self) -> v1::VerifyResponse {
        v1::VerifyResponse {
            ok: false,
            findings: vec![self.state()],
            ..Default::default()
        }
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// The whole contract: what is answered, and what is refused.
macro_rules! sealed {
    (
        answers { $($answer:ident($asked:ty) -> $said:ty = $by:ident;)* }
        refuses { $($refusal:ident($wanted:ty) -> $never:ty;)* }
    ) => {
        impl v1::admin_server::Admin for SealedService {
            type WatchOperationStream = ReceiverStream<Result<v1::Operation, Status>>;
            type WatchEventsStream = ReceiverStream<Result<v1::Event, Status>>;
            $(
                fn $answer<'s, 'a>(&'s self, _: Request<$asked>) -> Answer<'a, $said>
                where
                    's: 'a,
                    Self: 'a,
                {
                    let answer = self.$by();
                    Box::pin(async move { Ok(Response::new(answer)) })
                }
            )*
            $(
                fn $refusal<'s, 'a>(&'s self, _: Request<$wanted>) -> Answer<'a, $never>
                where
                    's: 'a,
                    Self: 'a,
                {
                    let refusal = status::wrong_state("daemon".to_owned(), self.state());
                    Box::pin(async move { Err(refusal) })
                }
            )*
        }
    };
}

sealed! {
    answers {
        get_status(v1::GetStatusRequest) -> v1::GetStatusResponse = status;
        verify(v1::VerifyRequest) -> v1::VerifyResponse = verdict;
    }
    refuses {
        list_zones(v1::ListZonesRequest) -> v1::ListZonesResponse;
        list_sections(v1::ListSectionsRequest) -> v1::ListSectionsResponse;
        list_clients(v1::ListClientsRequest) -> v1::ListClientsResponse;
        list_pages(v1::ListPagesRequest) -> v1::ListPagesResponse;
        add_sections(v1::AddSectionsRequest) -> v1::SectionsResponse;
        online_sections(v1::OnlineSectionsRequest) -> v1::SectionsResponse;
        offline_sections(v1::OfflineSectionsRequest) -> v1::SectionsResponse;
        remove_sections(v1::RemoveSectionsRequest) -> v1::SectionsResponse;
        compact(v1::CompactRequest) -> v1::CompactResponse;
        get_operation(v1::GetOperationRequest) -> v1::Operation;
        watch_operation(v1::GetOperationRequest) -> Self::WatchOperationStream;
        cancel_operation(v1::GetOperationRequest) -> v1::Operation;
        list_operations(v1::ListOperationsRequest) -> v1::ListOperationsResponse;
        get_contiguity(v1::GetContiguityRequest) -> v1::GetContiguityResponse;
        invalidate_contiguity(v1::InvalidateContiguityRequest) -> v1::InvalidateContiguityResponse;
        get_buddy_info(v1::GetBuddyInfoRequest) -> v1::GetBuddyInfoResponse;
        get_page_type_info(v1::GetPageTypeInfoRequest) -> v1::GetPageTypeInfoResponse;
        get_zone_info(v1::GetZoneInfoRequest) -> v1::GetZoneInfoResponse;
        drain_lanes(v1::DrainLanesRequest) -> v1::DrainLanesResponse;
        set_pcp(v1::SetPcpRequest) -> v1::SetPcpResponse;
        set_limits(v1::SetLimitsRequest) -> v1::SetLimitsResponse;
        list_limits(v1::ListLimitsRequest) -> v1::ListLimitsResponse;
        release_quarantined(v1::ReleaseQuarantinedRequest) -> v1::ReleaseQuarantinedResponse;
        evict_client(v1::EvictClientRequest) -> v1::EvictClientResponse;
        watch_events(v1::WatchEventsRequest) -> Self::WatchEventsStream;
    }
}
