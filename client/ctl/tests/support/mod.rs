//! A stand-in for the daemon's `Admin`: says what a test wants to hear, where a real one would have
//! to be broken, slow or half refusing first. What it is not told to answer is unimplemented.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    path::PathBuf,
    pin::Pin,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use hugepool_proto::v1::{admin_server::*, *};
use tokio::{net::UnixListener, sync::oneshot};
use tokio_stream::{Stream, wrappers::UnixListenerStream};
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;
type Streaming<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the stand-in answers, and what it was asked.
#[derive(Default)]
pub struct Script {
    pub status: GetStatusResponse,
    pub verify: Option<VerifyResponse>,
    pub sections: Option<Result<SectionsResponse, Status>>,
    /// States of the one operation; a state that is not the last is followed by silence until
    /// the operation is cancelled.
    pub operation: Vec<Operation>,
    pub asked_offline: Vec<OfflineSectionsRequest>,
    pub nr_cancels: u32,
}

/// A served script, and the folder that its socket is in; both go with it.
pub struct Fake {
    pub script: Arc<Mutex<Script>>,
    dir: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    server: Option<thread::JoinHandle<()>>,
}

impl Fake {
    /// Serves `script` in a folder of the test's own.
    pub fn start(name: &str, script: Script) -> Fake {
        let dir = std::env::temp_dir().join(format!("hugepoolctl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let script = Arc::new(Mutex::new(script));
        let (stop, stopped) = oneshot::channel::<()>();
        let service = AdminServer::new(Service {
            script: script.clone(),
            cancelled: Arc::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(dir.join("admin.sock")).unwrap()
        };
        let server = thread::spawn(move || {
            runtime.block_on(async {
                let serving = tonic::transport::Server::builder()
                    .add_service(service)
                    .serve_with_incoming(UnixListenerStream::new(listener));
                tokio::select! {
                    served = serving => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Fake {
            script,
            dir,
            stop: Some(stop),
            server: Some(server),
        }
    }

    /// The tool, about to be run against this stand-in.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hugepoolctl"));
        command.arg("--runtime-dir").arg(&self.dir).args(args);
        command
    }

    /// Runs the tool to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs the tool and leaves it running.
    pub fn spawn(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[derive(Clone)]
struct Service {
    script: Arc<Mutex<Script>>,
    cancelled: Arc<tokio::sync::Notify>,
}

/// The calls that nobody scripts, as `async_trait` would write them: it does not look into macros.
macro_rules! unimplemented_calls {
    ($($name:ident($request:ty) -> $reply:ty;)*) => {
        $(fn $name<'a, 'b>(
            &'a self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<$reply>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($name))) })
        })*
    };
}

#[tonic::async_trait]
impl Admin for Service {
    type WatchOperationStream = Streaming<Operation>;
    type WatchEventsStream = Streaming<Event>;

    async fn get_status(&self, _: Request<GetStatusRequest>) -> Answer<GetStatusResponse> {
        Ok(Response::new(self.script.lock().unwrap().status.clone()))
    }

    async fn verify(&self, _: Request<VerifyRequest>) -> Answer<VerifyResponse> {
        let verify = self.script.lock().unwrap().verify.clone();
        verify
            .map(Response::new)
            .ok_or_else(|| Status::unimplemented("verify"))
    }

    async fn add_sections(&self, _: Request<AddSectionsRequest>) -> Answer<SectionsResponse> {
        self.sections()
    }

    async fn offline_sections(
        &self,
        request: Request<OfflineSectionsRequest>,
    ) -> Answer<SectionsResponse> {
        self.script
            .lock()
            .unwrap()
            .asked_offline
            .push(request.into_inner());
        self.sections()
    }

    async fn watch_operation(
        &self,
        _: Request<GetOperationRequest>,
    ) -> Answer<Streaming<Operation>> {
        let states = self.script.lock().unwrap().operation.clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let cancelled = self.cancelled.clone();
        tokio::spawn(async move {
            let nr_states = states.len();
            for (place, state) in states.into_iter().enumerate() {
                let _ = sender.send(Ok(state)).await;
                if place + 1 < nr_states {
                    cancelled.notified().await;
                }
            }
        });
        Ok(Response::new(Box::pin(
            tokio_stream::wrappers::ReceiverStream::new(receiver),
        )))
    }

    async fn cancel_operation(&self, _: Request<GetOperationRequest>) -> Answer<Operation> {
        let mut script = self.script.lock().unwrap();
        script.nr_cancels += 1;
        self.cancelled.notify_one();
        Ok(Response::new(
            script.operation.first().cloned().unwrap_or_default(),
        ))
    }

    async fn watch_events(&self, _: Request<WatchEventsRequest>) -> Answer<Streaming<Event>> {
        Err(Status::unimplemented("watch_events"))
    }

    unimplemented_calls! {
        list_zones(ListZonesRequest) -> ListZonesResponse;
        list_sections(ListSectionsRequest) -> ListSectionsResponse;
        list_clients(ListClientsRequest) -> ListClientsResponse;
        list_pages(ListPagesRequest) -> ListPagesResponse;
        online_sections(OnlineSectionsRequest) -> SectionsResponse;
        remove_sections(RemoveSectionsRequest) -> SectionsResponse;
        compact(CompactRequest) -> CompactResponse;
        get_operation(GetOperationRequest) -> Operation;
        list_operations(ListOperationsRequest) -> ListOperationsResponse;
        get_contiguity(GetContiguityRequest) -> GetContiguityResponse;
        invalidate_contiguity(InvalidateContiguityRequest) -> InvalidateContiguityResponse;
        get_buddy_info(GetBuddyInfoRequest) -> GetBuddyInfoResponse;
        get_page_type_info(GetPageTypeInfoRequest) -> GetPageTypeInfoResponse;
        get_zone_info(GetZoneInfoRequest) -> GetZoneInfoResponse;
        drain_lanes(DrainLanesRequest) -> DrainLanesResponse;
        set_pcp(SetPcpRequest) -> SetPcpResponse;
        set_limits(SetLimitsRequest) -> SetLimitsResponse;
        list_limits(ListLimitsRequest) -> ListLimitsResponse;
        release_quarantined(ReleaseQuarantinedRequest) -> ReleaseQuarantinedResponse;
        evict_client(EvictClientRequest) -> EvictClientResponse;
    }
}

impl Service {
    fn sections(&self) -> Answer<SectionsResponse> {
        let sections = self.script.lock().unwrap().sections.clone();
        sections
            .unwrap_or_else(|| Err(Status::unimplemented("sections")))
            .map(Response::new)
    }
}
