//! Exit statuses that scripts rely on, for answers that a healthy daemon seldom gives.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Output},
};

use hugepool_proto::v1::*;
use support::{Fake, Script};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn status() -> GetStatusResponse {
    GetStatusResponse {
        geometry: Some(Geometry {
            page_size_bytes: 4096,
            ..Geometry::default()
        }),
        pages: Some(counts()),
        state: "running".into(),
        ..GetStatusResponse::default()
    }
}

fn counts() -> PageCounts {
    PageCounts {
        present: 9,
        reserved: 1,
        managed: 8,
        free: 5,
        lent: 3,
        ..PageCounts::default()
    }
}

fn result(section_id: u32, ok: bool) -> SectionResult {
    let reason = if ok { "" } else { "17 pages are held" };
    SectionResult {
        section_id,
        ok,
        state: "online".into(),
        reason: reason.into(),
        ..SectionResult::default()
    }
}

fn answer_to_add(results: Vec<SectionResult>) -> Output {
    let sections = SectionsResponse {
        results,
        ..SectionsResponse::default()
    };
    let script = Script {
        status: status(),
        sections: Some(Ok(sections)),
        ..Script::default()
    };
    // Each call a folder of its own.
    let name = format!("add-{:?}", std::thread::current().id());
    Fake::start(&name, script).run(&["section", "add", "1,2", "-J"])
}

#[test]
fn done_some_and_none_are_0_64_and_1() {
    let cases = [
        (vec![result(1, true), result(2, true)], 0),
        (vec![result(1, true), result(2, false)], 64),
        (vec![result(1, false), result(2, false)], 1),
        (vec![], 1),
    ];
    for (results, code) in cases {
        let output = answer_to_add(results);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json["results"].is_array());
    }
}

#[test]
fn verify_with_findings_is_3_and_prints_them() {
    let verify = VerifyResponse {
        ok: false,
        findings: vec!["page 17 is free and lent".into()],
        pages: Some(counts()),
        ..VerifyResponse::default()
    };
    let script = Script {
        status: status(),
        verify: Some(verify),
        ..Script::default()
    };
    let output = Fake::start("verify", script).run(&["verify"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stdout).contains("broken\n  page 17 is free and lent\n"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_daemon_that_says_ok_over_counts_that_do_not_add_up_is_not_believed() {
    let off = PageCounts {
        free: 4,
        ..counts()
    };
    let verify = VerifyResponse {
        ok: true,
        pages: Some(off),
        ..VerifyResponse::default()
    };
    let pages = Some(off);
    let script = Script {
        status: GetStatusResponse { pages, ..status() },
        verify: Some(verify),
        ..Script::default()
    };
    let fake = Fake::start("off", script);
    assert_eq!(fake.run(&["verify"]).status.code(), Some(3));
    assert_eq!(fake.run(&["status"]).status.code(), Some(3));
}

#[test]
fn a_value_that_the_daemon_does_not_take_is_usage_and_the_rest_is_refusal() {
    let bad = ErrorDetails::with_bad_request_violation("online_order", "3 is neither 0 nor 9");
    let cases = [
        (
            Status::with_error_details(Code::InvalidArgument, "bad value", bad),
            2,
            "3 is neither 0 nor 9",
        ),
        (Status::not_found("no section 77"), 1, "no section 77"),
        (
            Status::resource_exhausted("no huge pages left"),
            1,
            "no huge pages left",
        ),
    ];
    for (number, (status_given, code, words)) in cases.into_iter().enumerate() {
        let script = Script {
            status: status(),
            sections: Some(Err(status_given)),
            ..Script::default()
        };
        let fake = Fake::start(&format!("refused-{number}"), script);
        let output = fake.run(&["section", "add", "77"]);
        assert_eq!(output.status.code(), Some(code));
        let line = text(&output.stderr);
        assert!(
            line.starts_with("hugepoolctl: ") && line.contains(words),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(output.stdout.is_empty());
    }
}

fn offline(state: &str, results: Vec<SectionResult>) -> Operation {
    Operation {
        id: 7,
        kind: "offline".into(),
        state: state.into(),
        results,
        ..Operation::default()
    }
}

/// A script in which an offline operation has begun and goes on until it is cancelled.
fn offline_script() -> Script {
    Script {
        status: status(),
        sections: Some(Ok(SectionsResponse {
            operation_id: 7,
            ..SectionsResponse::default()
        })),
        operation: vec![
            offline("running", vec![]),
            offline("cancelled", vec![result(3, false)]),
        ],
        ..Script::default()
    }
}

/// Waits until the tool follows the operation: it has asked for it.
fn wait_until_asked(fake: &Fake) {
    while fake.script.lock().unwrap().asked_offline.is_empty() {
        std::thread::yield_now();
    }
}

/// Seen to fail: without the cancel on an interrupt, the tool follows for ever.
#[test]
fn an_interrupt_cancels_the_offline_that_was_begun_here() {
    let fake = Fake::start("interrupt", offline_script());
    let mut tool = fake.spawn(&["section", "offline", "3"]);
    wait_until_asked(&fake);
    // It takes interrupts over before it asks, so one is enough.
    let pid = tool.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let status = tool.wait().unwrap();
    let nr_cancels = fake.script.lock().unwrap().nr_cancels;
    assert_eq!((status.code(), nr_cancels), (Some(1), 1));
    let mut lines = BufReader::new(tool.stdout.take().unwrap()).lines();
    assert_eq!(
        lines.next().unwrap().unwrap(),
        "section 3: stays online: 17 pages are held"
    );
}

#[test]
fn a_detached_offline_comes_back_with_the_id() {
    let fake = Fake::start("detach", offline_script());
    let output = fake.run(&[
        "section",
        "offline",
        "3-4",
        "--detach",
        "--timeout",
        "5s",
        "-J",
    ]);
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["operation_id"], 7);
    let asked = fake.script.lock().unwrap().asked_offline.clone();
    assert_eq!(
        (asked[0].section_ids.as_slice(), asked[0].timeout_ms),
        ([3, 4].as_slice(), 5000)
    );
}

#[test]
fn the_end_of_a_watched_operation_is_the_exit_status() {
    for (number, (state, results, code)) in [
        ("done", vec![result(3, true)], 0),
        ("done", vec![], 0),
        ("failed", vec![result(3, false), result(4, true)], 64),
        ("failed", vec![result(3, false)], 1),
        ("cancelled", vec![], 1),
    ]
    .into_iter()
    .enumerate()
    {
        let script = Script {
            status: status(),
            operation: vec![offline(state, results)],
            ..Script::default()
        };
        let fake = Fake::start(&format!("watch-{number}"), script);
        let output = fake.run(&["operation", "watch", "7"]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{state}: {}",
            text(&output.stdout)
        );
    }
}
