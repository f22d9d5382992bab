//! The importer gives the right values for every real input in `cases/`, alone and together.

mod support;

use std::fs;

use serde_json::Value;
use support::expect::failures;

#[test]
fn every_real_input_comes_out_right() {
    let expect = fs::read(support::cases_dir().join("expect.json")).unwrap();
    let Value::Object(expect) = serde_json::from_slice(&expect).unwrap() else {
        panic!("expect.json is an object")
    };
    let common = expect["*"].as_array().unwrap();
    let mut bad = Vec::new();
    for (case, assertions) in expect.iter().filter(|(case, _)| *case != "*") {
        let names: Vec<String> = case.split('+').map(|part| format!("{part}.txt")).collect();
        let sources: Vec<_> = names
            .iter()
            .map(|name| {
                (
                    name.clone(),
                    fs::read(support::cases_dir().join(name)).unwrap(),
                )
            })
            .collect();
        let run = support::run(&sources);
        let todo = common
            .iter()
            .filter(|_| sources.len() == 1 && !run.document.is_null());
        for assertion in todo.chain(assertions.as_array().unwrap()) {
            bad.extend(
                failures(assertion, &run)
                    .into_iter()
                    .map(|what| format!("{case}: {what}")),
            );
        }
    }
    assert!(bad.is_empty(), "{} fail:\n{}", bad.len(), bad.join("\n"));
}

#[test]
fn the_evaluator_can_say_no() {
    let run = support::run_text(b"Node 0, zone Normal 258 9 5 0 1 2 0 1 1 0 0\n");
    for wrong in [
        r#"{"path": "nodes[node=0].zones[name=Normal].free", "eq": 761}"#,
        r#"{"path": "nodes[0].zones[name=Normal].free", "absent_or_null": true}"#,
        r#"{"path": "nodes[*].zones[*]", "len": 2}"#,
        r#"{"path": "nothing", "pages_eq": 0}"#,
        r#"{"path": "formats", "contains": "zoneinfo"}"#,
        r#"{"sum": "nodes[*].zones[*].free_pages_by_order", "eq": 1}"#,
        r#"{"exit_in": [1, 64]}"#,
        r#"{"any": [[{"exit_in": [1]}], [{"path": "page_size_bytes", "eq": 4096}]]}"#,
    ] {
        let assertion = serde_json::from_str(wrong).unwrap();
        assert_eq!(failures(&assertion, &run).len(), 1, "{wrong}");
    }
    let right = r#"{"path": "nodes[*].zones[-1].free_blocks_by_order", "pages_eq": 760}"#;
    assert_eq!(
        failures(&serde_json::from_str(right).unwrap(), &run),
        Vec::<String>::new()
    );
}
