//! What hostile bytes are to the daemon: attach messages, gRPC requests, configuration.
//!
//! Each target is a function of bytes that panics on a finding. `fuzzed.rs` gives it a corpus and
//! seeded mutations of it, `.ci/fuzz` the same under libFuzzer.

use std::path::Path;
use std::time::Duration;

use hugepool_daemon::config::{Config, File, Surroundings};
use hugepool_daemon::flags::Flags;
use hugepool_shm::attach::AttachMessage;
use hyper_util::rt::TokioIo;
use prost::bytes::{Buf as _, BufMut as _};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};

/// Messages on the attach socket: what is understood is what its sender meant.
pub fn attach(bytes: &[u8]) {
    if let Ok(message) = AttachMessage::decode(bytes) {
        let again = AttachMessage::decode(&message.encode().expect("it was understood"));
        assert_eq!(again.ok(), Some(message), "not what was understood");
    }
}

/// A configuration file: it is refused, or makes a plan that can be written and read again.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (flags, around) = (Flags::default(), Surroundings::default());
    let plan = |text: &str| Config::of_text(text, Path::new("fuzzed"), &flags, &around);
    let Ok(config) = plan(text) else {
        return;
    };
    let written = toml::to_string(&File::of(&config)).expect("a plan can be written");
    let again = plan(&written).expect("what was written is right");
    assert_eq!(format!("{again:?}"), format!("{config:?}"), "{written}");
}

/// The calls of a contract, by path.
fn calls(proto: &str) -> Vec<String> {
    let service = |line: &str| Some(line.strip_prefix("service ")?.split(' ').next()?.to_owned());
    let mut current = String::new();
    let mut paths = Vec::new();
    for line in proto.lines() {
        if let Some(name) = service(line) {
            current = name;
        }
        if let Some(rest) = line.trim_start().strip_prefix("rpc ") {
            let name = rest.split('(').next().unwrap_or_default();
            paths.push(format!("/hugepool.v1.{current}/{name}"));
        }
    }
    paths
}

/// Calls with bodies of any bytes.
pub struct Caller {
    admin: (Channel, Vec<String>),
    pages: (Channel, Vec<String>),
}

impl Caller {
    /// One that calls the daemon in this run-time directory.
    pub async fn new(runtime_dir: &Path) -> Caller {
        const ADMIN: &str = include_str!("../../../proto/hugepool/v1/admin.proto");
        const PAGES: &str = include_str!("../../../proto/hugepool/v1/pages.proto");
        Caller {
            admin: (channel(&runtime_dir.join("admin.sock")).await, calls(ADMIN)),
            pages: (channel(&runtime_dir.join("pages.sock")).await, calls(PAGES)),
        }
    }

    /// The first byte says which call, the rest is the request. Any answer will do.
    pub async fn call(&self, bytes: &[u8]) {
        let Some((&which, body)) = bytes.split_first() else {
            return;
        };
        let (channel, paths) = if which & 1 == 0 {
            &self.admin
        } else {
            &self.pages
        };
        let path = &paths[usize::from(which >> 1) % paths.len()];
        let path = path.parse().expect("a path of the contract");
        let mut grpc = Grpc::new(channel.clone());
        let call = async {
            grpc.ready().await.expect("the daemon is there");
            let _ = grpc.unary(Request::new(body.to_vec()), path, Raw).await;
        };
        // One that waits, or streams, is given up.
        let _ = tokio::time::timeout(Duration::from_millis(50), call).await;
    }
}

async fn channel(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connect = move |_: Uri| {
        let socket = socket.clone();
        async move {
            tokio::net::UnixStream::connect(socket)
                .await
                .map(TokioIo::new)
        }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    let connected = endpoint
        .connect_with_connector(tower::service_fn(connect))
        .await;
    connected.expect("the daemon is there")
}

/// Bodies as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}
