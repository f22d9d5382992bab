//! The real grpcurl against both sockets: what a person types, by reflection alone.

#![allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::{Daemon, skipped};

/// A tool and the sockets of a daemon.
struct Grpcurl {
    daemon: Daemon,
}

/// What it printed and how it ended.
struct Answer {
    ok: bool,
    text: String,
}

impl Grpcurl {
    /// None, and said so, where the tool is not installed.
    fn start(test: &str) -> Option<Grpcurl> {
        let found = Command::new("grpcurl")
            .arg("-version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            skipped(test, "no grpcurl");
            return None;
        }
        Some(Grpcurl {
            daemon: Daemon::tiny(),
        })
    }

    fn run(&self, socket: &str, options: &[&str], arguments: &[&str]) -> Answer {
        let socket = self.daemon.socket(socket);
        let output = Command::new("grpcurl")
            .args([
                "-plaintext",
                "-unix",
                "-authority",
                "localhost",
                "-max-time",
                "30",
            ])
            .args(options)
            .arg(Path::new(&socket))
            .args(arguments)
            .output()
            .unwrap();
        Answer {
            ok: output.status.success(),
            text: String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
        }
    }

    /// A call that is answered.
    #[track_caller]
    fn call(&self, socket: &str, method: &str, data: &str) -> String {
        let answer = self.run(socket, &["-d", data], &[method]);
        assert!(answer.ok, "{method} {data}: {}", answer.text);
        answer.text
    }

    #[track_caller]
    fn admin(&self, method: &str, data: &str) -> String {
        self.call("admin.sock", &format!("hugepool.v1.Admin/{method}"), data)
    }

    /// A call that is refused with this code.
    #[track_caller]
    fn refused(&self, socket: &str, method: &str, data: &str, code: &str) {
        let answer = self.run(socket, &["-d", data], &[method]);
        assert!(!answer.ok, "{method} {data}: {}", answer.text);
        let wanted = format!("Code: {code}");
        assert!(
            answer.text.contains(&wanted),
            "{method} {data}: {}",
            answer.text
        );
    }
}

#[test]
fn both_sockets_describe_themselves() {
    let Some(grpcurl) = Grpcurl::start("both_sockets_describe_themselves") else {
        return;
    };
    for (socket, service) in [
        ("pages.sock", "hugepool.v1.Pages"),
        ("admin.sock", "hugepool.v1.Admin"),
    ] {
        let listed = grpcurl.run(socket, &[], &["list"]);
        assert!(listed.ok, "{}", listed.text);
        let services: Vec<_> = listed.text.lines().collect();
        assert!(services.contains(&service), "{services:?}");
        assert!(services.contains(&"grpc.health.v1.Health"), "{services:?}");
        let described = grpcurl.run(socket, &[], &["describe", service]);
        assert!(described.ok, "{}", described.text);
        let health = grpcurl.call(socket, "grpc.health.v1.Health/Check", "{}");
        assert!(health.contains("SERVING"), "{health}");
        let one = format!("{{\"service\": \"{service}\"}}");
        assert!(
            grpcurl
                .call(socket, "grpc.health.v1.Health/Check", &one)
                .contains("SERVING")
        );
    }
    let methods = grpcurl
        .run("admin.sock", &[], &["list", "hugepool.v1.Admin"])
        .text;
    assert_eq!(methods.lines().count(), 27, "{methods}");
    let message = grpcurl
        .run("admin.sock", &[], &["describe", "hugepool.v1.PageCounts"])
        .text;
    assert!(message.contains("isolated"), "{message}");
}

#[test]
fn each_admin_rpc_answers() {
    let Some(grpcurl) = Grpcurl::start("each_admin_rpc_answers") else {
        return;
    };
    for (method, data, part) in [
        ("GetStatus", "{}", "\"state\": \"running\""),
        ("ListZones", "{}", "\"kind\": \"movable\""),
        (
            "ListSections",
            "{\"zone\": \"normal\"}",
            "\"state\": \"online\"",
        ),
        ("ListClients", "{}", "{"),
        ("ListPages", "{}", "{"),
        (
            "AddSections",
            "{\"zone\": \"movable\", \"count\": 1}",
            "\"ok\": true",
        ),
        (
            "OfflineSections",
            "{\"zone\": \"movable\", \"count\": 1}",
            "\"ok\": true",
        ),
        (
            "OnlineSections",
            "{\"zone\": \"movable\", \"count\": 1}",
            "\"ok\": true",
        ),
        (
            "OfflineSections",
            "{\"section_ids\": [18]}",
            "\"state\": \"offline\"",
        ),
        ("RemoveSections", "{\"section_ids\": [18]}", "\"ok\": true"),
        ("ListOperations", "{}", "\"kind\": \"remove\""),
        ("GetOperation", "{\"id\": 3}", "\"state\": \"done\""),
        ("WatchOperation", "{\"id\": 3}", "\"state\": \"done\""),
        ("CancelOperation", "{\"id\": 3}", "\"state\": \"done\""),
        ("GetContiguity", "{}", "pbCached"),
        ("InvalidateContiguity", "{}", "\"nrZones\": 2"),
        ("GetBuddyInfo", "{}", "freeBlocksByOrder"),
        ("GetPageTypeInfo", "{}", "Unmovable"),
        ("GetZoneInfo", "{}", "watermarks"),
        ("DrainLanes", "{}", "{"),
        ("SetPcp", "{\"batch\": 31}", "\"batch\": 31"),
        ("SetLimits", "{\"ceiling_pages\": 1000000}", "{"),
        ("Verify", "{}", "\"ok\": true"),
    ] {
        let text = grpcurl.admin(method, data);
        assert!(text.contains(part), "{method} {data}: no {part} in {text}");
    }
    // A stream without an end: cut by the caller, with what has happened so far.
    let events = grpcurl.run(
        "admin.sock",
        &["-max-time", "0.3", "-d", "{}"],
        &["hugepool.v1.Admin/WatchEvents"],
    );
    assert!(events.text.contains("\"seq\""), "{}", events.text);
}

#[test]
fn odd_inputs_get_their_code() {
    let Some(grpcurl) = Grpcurl::start("odd_inputs_get_their_code") else {
        return;
    };
    for (method, data, code) in [
        ("ListSections", "{\"zone\": \"dma\"}", "NotFound"),
        ("GetBuddyInfo", "{\"zone\": \"no\\u0000zone\"}", "NotFound"),
        ("AddSections", "{}", "InvalidArgument"),
        ("AddSections", "{\"zone\": \"normal\"}", "InvalidArgument"),
        (
            "AddSections",
            "{\"zone\": \"normal\", \"count\": 4294967295}",
            "InvalidArgument",
        ),
        (
            "OnlineSections",
            "{\"section_ids\": [4294967295]}",
            "NotFound",
        ),
        (
            "OfflineSections",
            "{\"section_ids\": [15]}",
            "FailedPrecondition",
        ),
        (
            "RemoveSections",
            "{\"section_ids\": [0]}",
            "FailedPrecondition",
        ),
        (
            "GetOperation",
            "{\"id\": \"18446744073709551615\"}",
            "NotFound",
        ),
        ("EvictClient", "{\"slot\": 4294967295}", "NotFound"),
        ("DrainLanes", "{\"slot\": 9}", "NotFound"),
        ("SetPcp", "{\"batch\": 4294967295}", "InvalidArgument"),
        ("ListPages", "{\"page_token\": \"x\"}", "InvalidArgument"),
        ("NoSuchMethod", "{}", "Unimplemented"),
    ] {
        if method == "NoSuchMethod" {
            // Reflection knows better than to call it.
            let answer = grpcurl.run(
                "admin.sock",
                &["-d", data],
                &["hugepool.v1.Admin/NoSuchMethod"],
            );
            assert!(!answer.ok, "{}", answer.text);
            continue;
        }
        grpcurl.refused(
            "admin.sock",
            &format!("hugepool.v1.Admin/{method}"),
            data,
            code,
        );
    }
    // Reflection knows the types of the details too, so they can be read. Seen to fail without
    // them: base64 in their place.
    for (data, part) in [
        ("{\"zone\": \"dma\"}", "\"resourceName\":\"dma\""),
        ("{\"page_token\": \"x\"}", "\"field\":\"page_token\""),
    ] {
        let method = "hugepool.v1.Admin/ListSections";
        let answer = grpcurl.run("admin.sock", &["-d", data], &[method]);
        let text = answer.text.replace(": ", ":");
        assert!(text.contains(part), "{data}: {}", answer.text);
    }
}

#[test]
fn pages_can_be_tried_without_a_token_and_go_home_at_the_end_of_the_call() {
    let name = "pages_can_be_tried_without_a_token";
    let Some(grpcurl) = Grpcurl::start(name) else {
        return;
    };
    let alloc = "hugepool.v1.Pages/AllocBulk";
    let data = "{\"request_id\": 1, \"nr_pages\": 65, \"migratetype\": \"MIGRATETYPE_MOVABLE\"}";
    let lent = grpcurl.call("pages.sock", alloc, data);
    assert!(
        lent.contains("\"nrPages\": 65") && lent.contains("firstPfn"),
        "{lent}"
    );
    support::until("the pages are home: the connection has closed", || {
        !grpcurl.admin("GetStatus", "{}").contains("\"lent\"")
    });
    let forged = [
        "-rpc-header",
        "hugepool-session: 00112233445566778899aabbccddeeff",
        "-d",
        data,
    ];
    let answer = grpcurl.run("pages.sock", &forged, &[alloc]);
    assert!(
        !answer.ok && answer.text.contains("Unauthenticated"),
        "{}",
        answer.text
    );
    grpcurl.refused(
        "pages.sock",
        alloc,
        "{\"order\": 99, \"nr_pages\": 1}",
        "InvalidArgument",
    );
    let free = "hugepool.v1.Pages/FreeBulk";
    let data = "{\"request_id\": 1, \"runs\": [{\"first_pfn\": 5, \"nr_pages\": 2}]}";
    let answer = grpcurl.call("pages.sock", free, data);
    assert!(answer.contains("REASON_NOT_YOURS"), "{answer}");
}
