//! `hotplug-sim fleet`, as somebody would type it.

use std::process::Command;

fn fleet(file: &str, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
        .arg("fleet")
        .arg(file)
        .args(args)
        .output()
        .expect("the binary was built");
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    (
        output.status.code().expect("it exits"),
        text(output.stdout),
        text(output.stderr),
    )
}

fn small() -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    let text = std::fs::read_to_string(format!("{folder}/fleets/ten-thousand-hosts.toml"));
    let text = text.expect("the file is there");
    let text = text
        .replace("hosts = 10000", "hosts = 40")
        .replace("2500TiB", "10TiB");
    let path = std::env::temp_dir().join(format!("fleet-{}.toml", std::process::id()));
    std::fs::write(&path, text).expect("the folder for such files can be written");
    path.display().to_string()
}

#[test]
fn the_example_prints_every_policy_and_what_is_simplified_the_same_each_time() {
    let file = small();
    let (status, first, _) = fleet(&file, &[]);
    assert_eq!(status, 0, "{first}");
    for part in [
        "static",
        "kernel",
        "movable",
        "compact",
        "stranded",
        "Simplified:",
    ] {
        assert!(first.contains(part), "{part} in\n{first}");
    }
    assert_eq!(fleet(&file, &[]).1, first);
    assert_ne!(fleet(&file, &["--seed", "2"]).1, first);
    std::fs::remove_file(file).expect("it was written");
}

#[test]
fn a_file_that_makes_no_fleet_is_refused_by_name() {
    let (status, _, error) = fleet("/nonexistent.toml", &[]);
    assert_eq!(status, 2, "{error}");
    assert!(error.contains("/nonexistent.toml"), "{error}");
}
