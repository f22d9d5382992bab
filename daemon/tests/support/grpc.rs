//! A gRPC client on a Unix socket, and the calls that most tests make.

use std::path::{Path, PathBuf};

use hugepool_proto::v1;
use hugepool_proto::v1::admin_client::AdminClient;
use hugepool_proto::v1::pages_client::PagesClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::service_fn;

use super::Daemon;

/// A channel of its own connection.
pub async fn channel(socket: &Path) -> Channel {
    let socket: PathBuf = socket.to_owned();
    let connect = move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    Endpoint::from_static("http://localhost")
        .connect_with_connector(service_fn(connect))
        .await
        .unwrap()
}

/// The admin service of a daemon.
pub async fn admin(daemon: &Daemon) -> AdminClient<Channel> {
    AdminClient::new(channel(&daemon.socket("admin.sock")).await)
}

/// The pages service of a daemon, on a connection that is a session of its own.
pub async fn pages(daemon: &Daemon) -> PagesClient<Channel> {
    PagesClient::new(channel(&daemon.socket("pages.sock")).await)
}

/// The code of a refusal; a success is a failure of the test.
#[track_caller]
pub fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> Code {
    answer.unwrap_err().code()
}

/// The equations hold and so does everything else.
pub async fn verify(admin: &mut AdminClient<Channel>) -> v1::PageCounts {
    let answer = admin
        .verify(v1::VerifyRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(answer.ok, "{:?}", answer.findings);
    let pages = answer.pages.unwrap();
    assert_eq!(pages.present, pages.managed + pages.reserved);
    assert_eq!(
        pages.managed,
        pages.free + pages.pcp + pages.lent + pages.isolated
    );
    pages
}

/// Pages that are at home: free, or in the daemon's own lists.
pub async fn at_home(admin: &mut AdminClient<Channel>) -> u64 {
    let pages = verify(admin).await;
    pages.free + pages.pcp
}

/// Waits until so many pages are lent.
pub async fn until_lent(admin: &mut AdminClient<Channel>, wanted: u64) {
    let end = tokio::time::Instant::now() + super::DEADLINE;
    loop {
        let lent = verify(admin).await.lent;
        if lent == wanted {
            return;
        }
        assert!(
            tokio::time::Instant::now() < end,
            "{lent} pages are lent, not {wanted}"
        );
        // tidy: sleep: between two looks at a condition that has a deadline
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// A request for so many blocks.
pub fn want(request_id: u64, nr_pages: u32, order: u32) -> v1::AllocBulkRequest {
    v1::AllocBulkRequest {
        request_id,
        nr_pages,
        order,
        migratetype: v1::Migratetype::Movable.into(),
        ..v1::AllocBulkRequest::default()
    }
}
