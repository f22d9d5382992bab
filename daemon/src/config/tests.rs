//! The plan: defaults, precedence, and each refusal with its advice.

use super::*;

const STEADY: &str = "/run/test";

fn around() -> Surroundings {
    Surroundings {
        runtime_directory: Some(STEADY.into()),
        ..Surroundings::default()
    }
}

fn from_file(text: &str) -> Result<Config, ConfigError> {
    let file = toml::from_str(text).expect("the test's file is valid TOML of our shape");
    Config::build(&Flags::default(), file, &around())
}

fn from_zones(zones: &[&str]) -> Result<Config, ConfigError> {
    let flags = Flags {
        zones: zones.iter().map(|zone| zone.parse().unwrap()).collect(),
        ..Flags::default()
    };
    Config::build(&flags, File::default(), &around())
}

#[test]
fn with_nothing_given_there_are_two_zones_of_one_section() {
    let config = from_file("").unwrap();
    let [normal, movable] = config.zones.as_slice() else {
        panic!("two zones")
    };
    assert_eq!(
        (normal.name.as_str(), normal.kind),
        ("normal", ZoneKind::Normal)
    );
    assert_eq!(
        (movable.name.as_str(), movable.kind),
        ("movable", ZoneKind::Movable)
    );
    for zone in [normal, movable] {
        assert_eq!(zone.nr_sections, 1);
        assert_eq!(zone.span_pages, 1 << 28, "1 TiB of 4 KiB pages");
        assert_eq!(zone.backing, BackingChoice::Auto);
        assert!(zone.allows(1000, 1000, &[]));
    }
    assert_eq!((normal.start_pfn, movable.start_pfn), (0, 1 << 28));
    assert_eq!(config.zonelist, [0, 1]);
    assert_eq!(config.runtime_dir, Path::new(STEADY));
    assert!(!config.sockets.pages_group.is_required);
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let flags = Flags {
        section_size: Some(Bytes(8 << 20)),
        zones: vec!["a=16MiB,reserve=64MiB".parse().unwrap()],
        log: Some("debug".into()),
        ..Flags::default()
    };
    let text = "log = 'warn'\n[geometry]\nsection_size = '4MiB'\nmax_page_order = 9\n\
                [[zone]]\nname = 'b'\nsize = '4MiB'";
    let config = Config::build(&flags, toml::from_str(text).unwrap(), &around()).unwrap();
    assert_eq!(config.log, "debug");
    assert_eq!(config.geometry.section_bytes(), 8 << 20);
    assert_eq!(config.geometry.max_order().get(), 9);
    assert_eq!(config.zones.len(), 1);
    assert_eq!(
        (config.zones[0].nr_sections, config.zones[0].span_pages),
        (2, 1 << 14)
    );
}

#[test]
fn the_runtime_directory_follows_its_rule() {
    let dir = |flag: Option<&str>, around: &Surroundings, file: &str| {
        let flags = Flags {
            runtime_dir: flag.map(PathBuf::from),
            ..Flags::default()
        };
        let file = toml::from_str(file).unwrap();
        Config::build(&flags, file, around).map(|config| config.runtime_dir)
    };
    let mut around = Surroundings {
        runtime_directory: Some("/run/a:/run/b".into()),
        xdg_runtime_dir: Some("/run/user/7".into()),
        is_root: true,
    };
    let file = "runtime_dir = '/run/f'";
    assert_eq!(dir(Some("/x"), &around, file).unwrap(), Path::new("/x"));
    assert_eq!(dir(None, &around, file).unwrap(), Path::new("/run/a"));
    around.runtime_directory = None;
    assert_eq!(dir(None, &around, file).unwrap(), Path::new("/run/f"));
    assert_eq!(dir(None, &around, "").unwrap(), Path::new("/run/hugepool"));
    around.is_root = false;
    assert_eq!(
        dir(None, &around, "").unwrap(),
        Path::new("/run/user/7/hugepool")
    );
    around.xdg_runtime_dir = None;
    assert!(matches!(
        dir(None, &around, ""),
        Err(ConfigError::NoRuntimeDir)
    ));
}

#[test]
fn sizes_are_whole_sections_and_the_refusal_names_the_nearest() {
    let error = from_zones(&["a=100MiB"]).unwrap_err().to_string();
    assert!(error.contains("nearest are 0B and 128MiB"), "{error}");
    let error = from_zones(&["a=256MiB,reserve=300MiB"])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("reserve 300MiB") && error.contains("384MiB"),
        "{error}"
    );
    let error = from_zones(&["a=256MiB,reserve=128MiB"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("above its reserve 128MiB"), "{error}");
    assert!(matches!(
        from_zones(&["a=0,reserve=0"]),
        Err(ConfigError::NoReserve(_))
    ));
    assert_eq!(from_zones(&["a=0"]).unwrap().zones[0].nr_sections, 0);
}

#[test]
fn a_zone_larger_than_the_default_reserve_reserves_itself() {
    let config = from_zones(&["a=2TiB"]).unwrap();
    assert_eq!(config.zones[0].span_pages, 1 << 29);
}

#[test]
fn zones_are_few_named_well_and_named_once() {
    let nine: Vec<String> = (0..9).map(|i| format!("z{i}=0,reserve=128MiB")).collect();
    let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
    assert!(matches!(
        from_zones(&nine),
        Err(ConfigError::NrZones { count: 9, .. })
    ));
    assert_eq!(from_zones(&nine[..8]).unwrap().zones.len(), 8);
    assert!(matches!(
        from_zones(&["a=0", "a=0"]),
        Err(ConfigError::ZoneTwice(_))
    ));
    assert!(matches!(
        from_zones(&["ä=0"]),
        Err(ConfigError::ZoneName(_))
    ));
    assert!(matches!(
        from_zones(&["a/b=0"]),
        Err(ConfigError::ZoneName(_))
    ));
}

#[test]
fn reserves_beyond_the_pfns_are_refused_with_the_sum() {
    let error = from_zones(&["a=0,reserve=10TiB", "b=0,reserve=7TiB"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the reserves of all zones come to 17TiB, pfns name at most 16TiB: \
         lower reserve= of some zones"
    );
    let config = from_zones(&["a=0,reserve=10TiB", "b=0,reserve=6TiB"]).unwrap();
    assert_eq!(u64::from(config.zones[1].start_pfn), 10 << 28);
}

#[test]
fn a_reserve_of_too_many_sections_is_refused() {
    let text = "[geometry]\nsection_size = '128KiB'\npageblock_order = 5\nmax_page_order = 5";
    let error = from_file(text).unwrap_err().to_string();
    assert!(error.contains("16777216 sections of 128KiB"), "{error}");
}

#[test]
fn unknown_words_come_with_the_known_ones() {
    let error = from_zones(&["a=0,kind=dma"]).unwrap_err().to_string();
    assert!(
        error.contains("kind `dma`") && error.contains("normal, movable"),
        "{error}"
    );
    let error = from_zones(&["a=0,backing=disk"]).unwrap_err().to_string();
    assert!(
        error.contains("auto, hugetlb, hugetlb-1GiB, thp, shm"),
        "{error}"
    );
    let error = toml::from_str::<File>("[limits]\nclient = 3")
        .unwrap_err()
        .to_string();
    assert!(error.contains("unknown field `client`"), "{error}");
}

#[test]
fn the_geometry_is_checked_in_the_units_it_was_given_in() {
    for (text, part) in [
        (
            "section_size = '3MiB'",
            "section_size 3MiB is not a power of two",
        ),
        ("page_size = '8KiB'", "page 8KiB"),
        ("section_size = '2MiB'", "section 2MiB"),
        ("section_size = '1KiB'", "smaller than page_size 4KiB"),
        ("pageblock_order = 4", "pageblock order 4"),
    ] {
        let error = from_file(&format!("[geometry]\n{text}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_zonelist_orders_the_zones_and_a_wrong_one_is_refused() {
    let zones = "[[zone]]\nname = 'a'\nsize = '0'\n[[zone]]\nname = 'b'\nsize = '0'";
    let config = from_file(&format!("zonelist = ['b', 'a']\n{zones}")).unwrap();
    assert_eq!(config.zonelist, [1, 0]);
    for list in ["['c']", "['a', 'a']"] {
        let result = from_file(&format!("zonelist = {list}\n{zones}"));
        assert!(matches!(result, Err(ConfigError::Zonelist(_))), "{list}");
    }
    let result = from_file(&format!("zonelist = ['b']\n{zones}"));
    assert!(matches!(result, Err(ConfigError::ZonelistLacks(_))));
}

#[test]
fn an_access_list_lets_in_its_users_its_groups_and_root() {
    let config =
        from_file("[[zone]]\nname = 'a'\nsize = '0'\nallow_uids = [1000]\nallow_gids = [44]")
            .unwrap();
    let zone = &config.zones[0];
    assert!(zone.allows(1000, 1, &[]) && zone.allows(1, 44, &[]) && zone.allows(0, 0, &[]));
    assert!(
        zone.allows(1, 1, &[2, 44]),
        "a supplementary group counts too"
    );
    assert!(!zone.allows(1, 1, &[]) && !zone.allows(1, 1, &[1000, 2]));
}

#[test]
fn compaction_and_its_caches_can_be_set() {
    let plan = from_file("").unwrap().compaction;
    assert_eq!(plan.contiguity, ContiguityMode::Both);
    assert_eq!(
        (plan.proactiveness, plan.background_pages_per_second),
        (20, 25_600)
    );
    let text =
        "[compaction]\ncontiguity = 'pageblock'\nproactiveness = 0\nbackground_rate = '8MiB'";
    let plan = from_file(text).unwrap().compaction;
    assert_eq!(plan.contiguity, ContiguityMode::Pageblock);
    assert_eq!(
        (plan.proactiveness, plan.background_pages_per_second),
        (0, 2048)
    );
    let error = from_file("[compaction]\ncontiguity = 'section'").unwrap_err();
    assert_eq!(
        error.to_string(),
        "compaction.contiguity `section` is not one of none, zone, pageblock, both"
    );
}

#[test]
fn limits_of_nothing_are_refused_with_their_range() {
    let error = from_file("[limits]\nclients = 0").unwrap_err().to_string();
    assert_eq!(error, "limits.clients is 0: give 1 to 4096");
    let error = from_file("[timeouts]\nattach_ms = 0")
        .unwrap_err()
        .to_string();
    assert_eq!(error, "timeouts.attach_ms is 0: give 1 to 60000");
    assert!(matches!(
        from_file("log = '!!'"),
        Err(ConfigError::LogFilter { .. })
    ));
}
