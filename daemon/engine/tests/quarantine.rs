//! Pages of the dead that wait: nobody is lent them, they add up, they outlive the daemon.
//!
//! Seen to fail: with a burial that takes everything home, with a daemon that comes after and knows
//! nothing of the dead, with a release that forgets to count.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/mortal.rs"]
mod mortal;
mod support;

use hugepool_engine::{
    ClientState, Command, CommandError, Defaults, Quarantine, Reply, SectionRefusal, ZoneSettings,
};
use hugepool_mm::ZoneKind;
use mortal::Mortal;
use support::{PAGE, Rig, Tenant, movable, zone};

const WAIT_MS: u64 = 500;

/// A normal zone whose pages wait like that, and a movable one where nothing waits.
fn rig(quarantine: Quarantine) -> Rig {
    let normal = ZoneSettings {
        quarantine,
        ..zone("normal", ZoneKind::Normal, 2)
    };
    let zones = vec![normal, zone("movable", ZoneKind::Movable, 1)];
    let mut rig = Rig::with(zones, Defaults::default());
    rig.add("normal", 2);
    rig.add("movable", 1);
    rig
}

fn timed() -> Quarantine {
    Quarantine::For(std::time::Duration::from_millis(WAIT_MS))
}

/// A client that owns pages of both zones.
fn holder(mortal: &mut Mortal) -> Tenant {
    let tenant = mortal.tenant(1);
    mortal.call(|rig| {
        assert_eq!(rig.take(&tenant, 0, PAGE, 20).len(), 20);
        assert_eq!(rig.take(&tenant, 0, movable(), 7).len(), 7);
    });
    tenant
}

fn waiting(mortal: &Mortal) -> u64 {
    let zones = mortal.rig.engine.list_zones();
    assert_eq!(zones[1].quarantined_pages, 0);
    for zone in &zones {
        assert!(zone.pages.adds_up(), "{zone:?}");
        assert!(zone.pages.isolated >= zone.quarantined_pages);
    }
    zones[0].quarantined_pages
}

fn die(mortal: &mut Mortal, tenant: &Tenant) -> u64 {
    let of_normal = mortal.rig.engine.list_zones()[0].pages.lent;
    mortal.call(|rig| rig.engine.bury(tenant.id, rig.now));
    mortal.rig.verify();
    assert_eq!(waiting(mortal), of_normal);
    of_normal
}

#[test]
fn what_a_device_may_still_write_waits_for_its_time() {
    let mut mortal = Mortal::new(rig(timed()));
    let tenant = holder(&mut mortal);
    let nr = die(&mut mortal, &tenant);
    assert!(nr >= 20);
    assert_eq!(mortal.rig.client(tenant.id).state, ClientState::Quarantined);
    // All that is not waiting, and nothing of what is.
    let other = mortal.tenant(1);
    let left = mortal.rig.list_free();
    assert_eq!(
        u64::from(mortal.rig.alloc(other.id, 0, 300).nr_blocks),
        left
    );
    // Its section stays; a burial again, and a hang-up, change nothing.
    mortal.call(|rig| {
        assert_eq!(rig.engine.bury(tenant.id, rig.now), 0);
        rig.engine.disconnect(tenant.id);
        rig.engine
            .detach(tenant.id, rig.now, &mut hugepool_engine::NoOutside);
    });
    assert_eq!(waiting(&mortal), nr);
    let report = mortal.rig.offline(&[1, 0], 20);
    assert!(report.sections.iter().any(|section| {
        matches!(section.done, Some(Err(SectionRefusal::Held { .. })))
            && section
                .holders
                .iter()
                .any(|holder| holder.client == tenant.id)
    }));
    mortal.rig.advance(WAIT_MS / 2);
    assert_eq!(waiting(&mortal), nr);
    // The engine says itself when it wants to be called.
    let due = mortal.rig.poll().unwrap();
    assert!(due <= mortal.rig.now + std::time::Duration::from_millis(WAIT_MS));
    mortal.rig.advance(WAIT_MS);
    assert_eq!(waiting(&mortal), 0);
    assert!(mortal.rig.engine.owned_pages(tenant.id).is_none());
    assert_eq!(u64::from(mortal.rig.alloc(other.id, 0, 300).nr_blocks), nr);
    mortal.rig.verify();
}

#[test]
fn somebody_who_knows_better_releases_them() {
    let mut mortal = Mortal::new(rig(Quarantine::UntilReleased));
    let tenants = [holder(&mut mortal), holder(&mut mortal)];
    let mut nr = 0;
    for tenant in &tenants {
        let lent = mortal.rig.engine.owned_pages(tenant.id).unwrap();
        mortal.call(|rig| rig.engine.bury(tenant.id, rig.now));
        nr += lent;
    }
    // The movable zone's came home.
    let all = waiting(&mortal);
    assert!(all >= 40 && all < nr);
    mortal.rig.advance(86_400_000);
    assert_eq!(waiting(&mortal), all);
    let release = |slot, zone: Option<&str>| Command::ReleaseQuarantined {
        slot,
        zone: zone.map(str::to_owned),
    };
    let rig = &mut mortal.rig;
    let nobody = rig
        .engine
        .apply(release(Some(77), None), rig.now, &mut rig.outside);
    assert!(matches!(
        nobody,
        Err(CommandError::NoSuchClient { slot: 77 })
    ));
    let none = rig.apply(release(None, Some("movable")));
    assert!(matches!(none, Reply::Released { nr_pages: 0 }));
    let one = rig.apply(release(Some(tenants[0].id.slot), None));
    let Reply::Released { nr_pages } = one else {
        panic!("{one:?}")
    };
    rig.verify();
    assert_eq!(waiting(&mortal), all - nr_pages);
    mortal.rig.apply(release(None, None));
    assert_eq!(waiting(&mortal), 0);
    mortal.rig.verify();
}

#[test]
fn they_wait_on_when_the_daemon_dies_and_so_do_those_of_who_died_meanwhile() {
    let mut mortal = Mortal::new(rig(timed()));
    let first = holder(&mut mortal);
    let second = holder(&mut mortal);
    let of_first = mortal.rig.engine.owned_pages(first.id).unwrap();
    mortal.call(|rig| rig.engine.bury(first.id, rig.now));
    let waits = waiting(&mortal);
    assert!(waits < of_first);
    mortal.rig.advance(WAIT_MS / 2);
    mortal.die();
    mortal.rig.verify();
    assert_eq!(waiting(&mortal), waits);
    // Not longer than the first daemon would have had them wait.
    mortal.rig.advance(WAIT_MS / 2);
    assert_eq!(waiting(&mortal), 0);
    // The second one dies while no daemon is there.
    let in_normal = mortal.rig.engine.list_zones()[0].pages.lent;
    mortal.segments.remove(&second.id);
    mortal.die();
    mortal.rig.verify();
    assert_eq!(waiting(&mortal), in_normal);
    mortal.rig.advance(WAIT_MS);
    assert_eq!(waiting(&mortal), 0);
    assert_eq!(mortal.rig.pages().lent, 0);
    mortal.rig.verify();
}

#[test]
fn a_burial_is_whole_or_to_be_done_again_at_each_step_that_the_daemon_dies() {
    for fuse in 1..40 {
        let mut mortal = Mortal::new(rig(timed()));
        let tenant = holder(&mut mortal);
        let in_normal = mortal.rig.engine.list_zones()[0].pages.lent;
        mortal.fuse = fuse;
        mortal.call(|rig| rig.engine.bury(tenant.id, rig.now));
        if mortal.nr_deaths > 0 {
            mortal.call(|rig| rig.engine.bury(tenant.id, rig.now));
        }
        mortal.rig.verify();
        assert_eq!(waiting(&mortal), in_normal);
    }
}
