//! Attach messages against hostile bytes: cut at every length, every byte changed, other kinds.
//!
//! What must hold: no panic, no message with a value that `check` would refuse, and no bytes
//! accepted beyond the ones that were sent.

use hugepool_shm::attach::*;
use hugepool_shm::attach_wire::{ATTACH_FORMAT, DecodeError};
use proptest::prelude::*;

fn zone(zone: u8, start_pfn: u64) -> AttachZone {
    AttachZone {
        zone,
        name: format!("zone{zone}"),
        kind: AttachZoneKind::Movable,
        start_pfn,
        span_pages: 1 << 20,
        writable: zone == 0,
    }
}

fn reply() -> AttachReply {
    AttachReply {
        layout_version: LAYOUT_VERSION,
        slot: 7,
        incarnation: 300,
        token: [0xa5; 16],
        nr_lanes: 4,
        geometry: AttachGeometry {
            page_shift: 12,
            pageblock_order: 9,
            max_order: 10,
            section_order: 15,
        },
        zones: vec![zone(0, 0), zone(1, 1 << 20), zone(5, 1 << 22)],
        control_bytes: 1 << 20,
        first_sequence: 7,
    }
}

fn messages() -> Vec<AttachMessage> {
    vec![
        AttachMessage::Request(AttachRequest {
            layout_version: LAYOUT_VERSION,
            nr_lanes: 2,
            client_index: 0,
            name: "nfsd über alles".to_owned(),
        }),
        AttachMessage::Reply(reply()),
        AttachMessage::Refused(AttachRefused {
            code: RefusalCode::NotAllowed,
            message: "no zone lets uid 1000 in".to_owned(),
        }),
        AttachMessage::Ready(AttachReady { registered: true }),
    ]
}

#[test]
fn each_message_comes_back_as_it_was() {
    for message in messages() {
        let bytes = message.encode().unwrap();
        assert_eq!(AttachMessage::decode(&bytes), Ok(message));
    }
}

#[test]
fn a_message_cut_anywhere_is_refused_and_so_is_one_with_more() {
    for message in messages() {
        let mut bytes = message.encode().unwrap();
        for length in 0..bytes.len() {
            let cut = AttachMessage::decode(&bytes[..length]);
            assert!(cut.is_err(), "{message:?} cut to {length}");
        }
        bytes.push(0);
        assert!(
            AttachMessage::decode(&bytes).is_err(),
            "{message:?} plus one"
        );
    }
}

/// The length in the header agrees with a cut archive here, so the archive's own checks are met.
#[test]
fn an_archive_cut_anywhere_is_refused_or_means_something() {
    for message in messages() {
        let bytes = message.encode().unwrap();
        for length in 16..bytes.len() {
            let mut cut = bytes[..length].to_vec();
            let said = u32::try_from(length - 16).unwrap();
            cut[12..16].copy_from_slice(&said.to_le_bytes());
            if let Ok(found) = AttachMessage::decode(&cut) {
                assert_eq!(found.check(), Ok(()));
            }
        }
    }
}

#[test]
fn no_change_of_a_byte_panics_or_passes_a_meaningless_value() {
    let mut accepted = 0;
    for message in messages() {
        let bytes = message.encode().unwrap();
        for index in 0..bytes.len() {
            for value in [0x00, 0x01, 0x7f, 0x80, 0xff, bytes[index] ^ 0x01] {
                let mut changed = bytes.clone();
                changed[index] = value;
                if let Ok(found) = AttachMessage::decode(&changed) {
                    assert_eq!(found.check(), Ok(()));
                    accepted += 1;
                }
            }
        }
    }
    assert!(accepted > 0, "a changed name is still a name");
}

#[test]
fn a_peer_of_another_age_is_told_so() {
    let mut bytes = messages()[0].encode().unwrap();
    bytes[4..8].copy_from_slice(&(ATTACH_FORMAT + 1).to_le_bytes());
    let theirs = ATTACH_FORMAT + 1;
    assert_eq!(
        AttachMessage::decode(&bytes),
        Err(DecodeError::Format { theirs })
    );
    bytes[0] = b'X';
    assert_eq!(AttachMessage::decode(&bytes), Err(DecodeError::NotOurs));
}

#[test]
fn an_unknown_kind_is_named() {
    let mut bytes = messages()[0].encode().unwrap();
    bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
    assert_eq!(
        AttachMessage::decode(&bytes),
        Err(DecodeError::UnknownKind { kind: 99 })
    );
}

#[test]
fn a_request_out_of_range_is_refused_on_both_sides() {
    let good = AttachRequest {
        layout_version: 1,
        nr_lanes: 1,
        client_index: 0,
        name: "a".to_owned(),
    };
    let bad = [
        AttachRequest {
            layout_version: 0,
            ..good.clone()
        },
        AttachRequest {
            nr_lanes: 0,
            ..good.clone()
        },
        AttachRequest {
            nr_lanes: MAX_LANES + 1,
            ..good.clone()
        },
        AttachRequest {
            client_index: MAX_CLIENTS_PER_PROCESS,
            ..good.clone()
        },
        AttachRequest {
            name: String::new(),
            ..good.clone()
        },
        AttachRequest {
            name: "n".repeat(MAX_NAME_BYTES + 1),
            ..good.clone()
        },
        AttachRequest {
            name: "two\nlines".to_owned(),
            ..good.clone()
        },
    ];
    for request in bad {
        let shown = format!("{request:?}");
        assert!(AttachMessage::Request(request).encode().is_err(), "{shown}");
    }
    let longest = AttachRequest {
        name: "n".repeat(MAX_NAME_BYTES),
        ..good
    };
    assert!(AttachMessage::Request(longest).encode().is_ok());
}

#[test]
fn a_reply_with_impossible_zones_is_refused() {
    type Change = fn(&mut AttachReply);
    let changes: [(&str, Change); 16] = [
        ("no zones", |r| r.zones.clear()),
        ("nine zones", |r| {
            r.zones = (0..9).map(|z| zone(z, u64::from(z) << 20)).collect()
        }),
        ("index", |r| r.zones[0].zone = MAX_ZONES),
        ("twice", |r| r.zones[1].zone = 0),
        ("overlap", |r| r.zones[1].start_pfn = (1 << 20) - (1 << 15)),
        ("empty", |r| r.zones[0].span_pages = 0),
        ("unaligned span", |r| r.zones[0].span_pages = 3),
        ("unaligned start", |r| r.zones[2].start_pfn += 1),
        ("beyond the last pfn", |r| r.zones[2].start_pfn = MAX_PFNS),
        ("overflow", |r| r.zones[2].start_pfn = u64::MAX - 5),
        ("name", |r| r.zones[0].name.clear()),
        ("page", |r| r.geometry.page_shift = 13),
        ("order", |r| r.geometry.max_order = 8),
        ("section", |r| r.geometry.section_order = 200),
        ("no control segment", |r| r.control_bytes = 0),
        ("absurd control segment", |r| r.control_bytes = 1 << 60),
    ];
    for (what, change) in changes {
        let mut reply = reply();
        change(&mut reply);
        assert!(AttachMessage::Reply(reply).check().is_err(), "{what}");
    }
    assert_eq!(reply().nr_fds(), 9);
}

#[test]
fn neighbours_agree_on_a_layout_and_strangers_hear_both_versions() {
    assert_eq!(agree_on_layout(LAYOUT_VERSION), Ok(LAYOUT_VERSION));
    assert_eq!(agree_on_layout(LAYOUT_VERSION + 1), Ok(LAYOUT_VERSION));
    let stranger = agree_on_layout(OLDEST_LAYOUT_VERSION - 1).unwrap_err();
    let text = stranger.to_string();
    let theirs = format!("version {}", OLDEST_LAYOUT_VERSION - 1);
    let ours = format!("versions {OLDEST_LAYOUT_VERSION} to {LAYOUT_VERSION}");
    assert!(text.contains(&theirs) && text.contains(&ours), "{text}");
}

proptest! {
    #[test]
    fn random_archives_never_panic(
        kind in 0_u32..6,
        archive in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let said = u32::try_from(archive.len()).unwrap();
        let mut bytes = b"HPAT".to_vec();
        for word in [ATTACH_FORMAT, kind, said] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&archive);
        if let Ok(found) = AttachMessage::decode(&bytes) {
            prop_assert_eq!(found.check(), Ok(()));
        }
    }

    /// Several bytes of a real reply at once, where the interesting shapes are near.
    #[test]
    fn scribbled_replies_never_panic(
        scribbles in proptest::collection::vec((16_usize..600, any::<u8>()), 1..12),
    ) {
        let mut bytes = AttachMessage::Reply(reply()).encode().unwrap();
        let length = bytes.len();
        for (index, value) in scribbles {
            bytes[16 + index % (length - 16)] = value;
        }
        if let Ok(found) = AttachMessage::decode(&bytes) {
            prop_assert_eq!(found.check(), Ok(()));
        }
    }
}
