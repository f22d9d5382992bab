//! Machines of real size: built as scattered as they were, the same run for the same seed, small
//! where memory is concerned; a failing run is made small; a report needs nothing else.

// The exemption of tests covers test functions, not what they call.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hotplug_sim::host::Host;
use hotplug_sim::import::machine::Machine;

/// A folder of its own for a test, gone when it is dropped.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Room {
        let path = std::env::temp_dir().join(format!("hotplug-sim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Room(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // What cannot be removed is not worth failing for.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hotplug-sim"))
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn case(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Two zones of half of `gib` GiB each, scattered.
fn machine(gib: u64) -> String {
    let pages = gib * 262_144 / 2;
    let zone = |name: &str, start: u64| {
        format!(
            "[[zone]]\nnode = 0\nname = \"{name}\"\nstart_pfn = {start}\nspanned = {pages}\npresent = {pages}\n\
             managed = {}\nfree_blocks_by_order = [{}, 500, 400, 300, 200, 100, 50, 40, 30, 20, {}]\n",
            pages - pages / 64,
            gib * 50,
            gib * 30
        )
    };
    format!(
        "version = 1\npage_size_bytes = 4096\npageblock_order = 9\nsection_bytes = 134217728\n{}{}",
        zone("Normal", 0),
        zone("Movable", pages)
    )
}

#[test]
fn free_lists_come_out_as_they_were() {
    for (name, zones) in [
        ("P02.txt", &["DMA32", "Normal"][..]),
        ("Z16.txt", &["DMA32", "Normal"]),
    ] {
        let bytes = std::fs::read(case(name)).unwrap();
        let import = hotplug_sim::import::import(&[(name.to_owned(), bytes)], None)
            .import
            .unwrap();
        let machine = Machine::of(&import, Vec::new());
        let host = Host::build(&machine, 7).unwrap();
        host.verify().unwrap();
        for zone in zones {
            let built = &host.zones[host.zone_named(zone).unwrap()].zone;
            let wanted = machine.zones.iter().find(|one| one.name == *zone).unwrap();
            let Some(blocks) = &wanted.free_blocks_by_order else {
                assert_eq!(
                    i64::try_from(built.free_pages()).ok(),
                    wanted.free,
                    "{name} {zone}"
                );
                continue;
            };
            let blocks: Vec<u64> = blocks
                .iter()
                .map(|nr| u64::try_from(*nr).unwrap())
                .collect();
            assert_eq!(built.buddyinfo(), blocks, "{name} {zone}");
            for row in built
                .pagetypeinfo()
                .rows
                .iter()
                .filter(|row| row.migratetype.is_some())
            {
                let kinds = &wanted.free_blocks_by_type;
                let Some(listed) = kinds.get(row.name()).and_then(toml::Value::as_array) else {
                    continue;
                };
                let listed: Vec<u64> = listed
                    .iter()
                    .map(|nr| u64::try_from(nr.as_integer().unwrap()).unwrap())
                    .collect();
                assert_eq!(row.free_blocks, listed, "{name} {zone} {}", row.name());
            }
        }
    }
}

/// Without optimisation a sixth of it, which says the same.
#[test]
fn twelve_tebibytes_fit_into_one_gibibyte() {
    let tib = if cfg!(debug_assertions) { 2 } else { 12 };
    let room = Room::new("large");
    let path = room.file("machine.toml", &machine(tib * 1024));
    let run = sim(&["run", &path, "--steps", "2000"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    // The simulator says what its own process took at most.
    let stderr = text(&run.stderr);
    let kib: u64 = stderr
        .split_once("peak ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{stderr}"));
    assert!(kib < tib * (1 << 20) / 12, "{kib} KiB");
}

#[test]
fn the_same_seed_is_the_same_run_to_the_byte() {
    let room = Room::new("same");
    let path = room.file("machine.toml", &machine(16));
    let args = ["run", &path, "--seed", "5", "--steps", "4000", "--trace"];
    let first = sim(&args);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert!(first.stdout == sim(&args).stdout);
    let other = sim(&["run", &path, "--seed", "6", "--steps", "4000", "--trace"]);
    assert!(first.stdout != other.stdout);
    // A part of it is its beginning.
    let part = sim(&[
        "run", &path, "--seed", "5", "--steps", "4000", "--trace", "--until", "100",
    ]);
    let units = |run: &Output| -> Vec<String> {
        let lines = text(&run.stdout).lines();
        lines
            .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(units(&part), units(&first)[..100]);
}

/// Fails: the second request finds the first client's pages gone only if nothing else happens.
const WRONG: &str = r#"
about = "a deliberately wrong expectation"
machine = { zone = [{ name = "Normal", size = "64MiB" }], block = "64MiB" }

[[step]]
do = "mix"
zone = "Normal"
ops = 400
parts = [{ client = "noise" }, { client = "kernel", migratetype = "unmovable" }]

[[step]]
do = "alloc"
client = "culprit"
count = 3

[[step]]
do = "mix"
zone = "Normal"
ops = 400
parts = [{ client = "noise" }]

[[step]]
do = "verify"
expect = ["client.culprit.pages == 0"]
"#;

#[test]
fn a_failing_run_exits_1_and_is_made_small() {
    let room = Room::new("wrong");
    let path = room.file("wrong.toml", WRONG);
    let run = sim(&["run", "--scenario", &path]);
    assert_eq!(run.status.code(), Some(1), "{}", text(&run.stdout));
    assert!(text(&run.stdout).contains("expected client.culprit.pages == 0, found 3 and 0"));
    let small = room.0.join("small.toml");
    let minimized = sim(&[
        "minimize",
        "--scenario",
        &path,
        "-o",
        small.to_str().unwrap(),
    ]);
    assert_eq!(
        minimized.status.code(),
        Some(0),
        "{}",
        text(&minimized.stderr)
    );
    assert!(
        text(&minimized.stdout).starts_with("# 2 of 802 units are left"),
        "{}",
        text(&minimized.stdout)
    );
    // What is left is the allocation and the question.
    let again = sim(&["run", "--scenario", small.to_str().unwrap(), "--trace"]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stdout));
    let units: Vec<&str> = text(&again.stdout)
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    assert!(
        units.len() == 2 && units[0].contains("alloc culprit") && units[1].contains("verify"),
        "{units:?}"
    );
    // A run that does not fail has nothing to be made small.
    let right = room.file("right.toml", &WRONG.replace("== 0", "== 3"));
    assert_eq!(
        sim(&["minimize", "--scenario", &right]).status.code(),
        Some(1)
    );
}

#[test]
fn what_makes_no_sense_is_usage() {
    let room = Room::new("usage");
    for (name, wrong) in [
        ("verb", WRONG.replace("\"verify\"", "\"verfy\"")),
        ("field", WRONG.replace("count = 3", "countt = 3")),
        ("foreign", WRONG.replace("count = 3", "kib = 3")),
        (
            "zone",
            WRONG.replace("zone = \"Normal\"", "zone = \"Norml\""),
        ),
        (
            "name",
            WRONG.replace("client.culprit.pages", "client.culprit.page"),
        ),
    ] {
        let run = sim(&["run", "--scenario", &room.file(name, &wrong)]);
        assert_eq!(run.status.code(), Some(2), "{name}: {}", text(&run.stdout));
    }
    assert_eq!(sim(&["run", "/nonexistent.toml"]).status.code(), Some(2));
}

/// A page that opens from a disk: every element closed, no name twice, nothing that could make a
/// browser ask for something else.
/// [`what_would_be_no_such_page`] shows what it finds.
fn check_page(html: &str) {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(html);
    reader.config_mut().check_comments = true;
    let mut depth = 0_i32;
    let mut names = Vec::new();
    loop {
        let event = reader
            .read_event()
            .unwrap_or_else(|error| panic!("at byte {}: {error}", reader.error_position()));
        let element = match event {
            Event::Eof => break,
            Event::Start(element) => {
                depth += 1;
                element
            }
            Event::Empty(element) => element,
            Event::End(_) => {
                depth -= 1;
                continue;
            }
            Event::Text(text) => {
                assert!(depth > 0 || text.trim().is_empty());
                continue;
            }
            Event::GeneralRef(name) => {
                let known = ["amp", "lt", "gt", "quot"];
                assert!(known.contains(&&name[..]), "{name:?}");
                continue;
            }
            Event::DocType(kind) => {
                assert_eq!(&kind[..], "html");
                continue;
            }
            other => panic!("{other:?}"),
        };
        let name = element.name().as_ref().to_owned();
        for attribute in element.attributes() {
            // An attribute that is there twice is an error here.
            let attribute = attribute.unwrap();
            let key = attribute.key.as_ref().to_owned();
            let value = attribute.value.to_string();
            let outside = [
                "src",
                "href",
                "action",
                "data",
                "background",
                "xmlns",
                "xlink:href",
            ];
            assert!(!outside.contains(&key.as_str()), "<{name} {key}>");
            assert!(!key.starts_with("on"), "<{name} {key}>");
            let asks = value.contains("url(") || value.contains("//") || value.contains("data:");
            assert!(!asks, "<{name} {key}={value:?}>");
        }
        names.push(name);
    }
    assert_eq!(depth, 0, "elements are open at the end");
    for once in ["html", "head", "title", "body"] {
        assert_eq!(
            names.iter().filter(|name| *name == once).count(),
            1,
            "{once}"
        );
    }
    let known = [
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "th",
        "td", "ul", "li", "svg", "rect", "text", "line", "polyline", "polygon", "circle", "path",
    ];
    for name in &names {
        assert!(known.contains(&name.as_str()), "<{name}>");
    }
    for outside in ["http", "url(", "@import", "<script", "<link"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn what_would_be_no_such_page() {
    let page = |body: &str| {
        format!("<!DOCTYPE html>\n<html><head><title>t</title></head><body>{body}</body></html>\n")
    };
    check_page(&page("<p>one &amp; two</p>"));
    for wrong in [
        "<p>one",
        "<p>one<br></p>",
        "<p>one & two</p>",
        "<p>one</p></p>",
        "<p class=\"a\" class=\"b\">one</p>",
        "<p class=a>one</p>",
        "<img src=\"a.png\"/>",
        "<svg xmlns=\"x\"></svg>",
        "<rect fill=\"url(#a)\"/>",
        "<p onclick=\"go()\">one</p>",
        "<script>go()</script>",
        "<iframe></iframe>",
        "<title>again</title>",
    ] {
        let found = std::panic::catch_unwind(|| check_page(&page(wrong)));
        assert!(found.is_err(), "{wrong}");
    }
}

#[test]
fn a_report_needs_nothing_else() {
    let room = Room::new("report");
    let page = room.0.join("page.html");
    let run = sim(&[
        "report",
        &case("P02.txt"),
        "--steps",
        "3000",
        "-o",
        page.to_str().unwrap(),
    ]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let html = std::fs::read_to_string(page).unwrap();
    check_page(&html);
    assert!(html.matches("<svg").count() >= 6 && html.matches("<rect").count() > 500);
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    let plots = room.0.join("plots");
    let run = sim(&[
        "run",
        &case("P02.txt"),
        "--steps",
        "500",
        "--plot",
        plots.to_str().unwrap(),
    ]);
    assert_eq!(run.status.code(), Some(0));
    for picture in [
        "map-Normal.svg",
        "map-DMA32.svg",
        "free-blocks.svg",
        "unusable.svg",
        "offline.svg",
    ] {
        let svg = std::fs::read_to_string(plots.join(picture)).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{picture}"
        );
    }
}
