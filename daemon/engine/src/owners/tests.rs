//! The owner table over a tiny zone.

use super::*;
use hugepool_shm::raw::{PageParts, RawMigratetype, RawPage, is_before};

impl Owners {
    fn take(&mut self, client: ClientId, claim: RawPage) -> Result<Taken, Misuse> {
        self.take_named(client, claim.pfn(), claim.order(), claim.generation())
    }
}

const A: ClientId = ClientId {
    slot: 1,
    incarnation: 1,
};
const B: ClientId = ClientId {
    slot: 2,
    incarnation: 1,
};

fn tiny() -> Owners {
    // Pageblock of 32 pages, section of 128; two sections, the second absent.
    let geometry = Geometry::new(12, 5, 6, 7).unwrap();
    let shape = crate::state::StateShape {
        nr_pages: 256,
        geometry,
        max_clients: 2,
        max_lanes: 1,
    };
    let state = StateWords::private(&shape).unwrap();
    let mut owners = Owners::new(geometry, &state, vec![0, 0]);
    owners.set_managed(SectionId::new(0), true);
    owners.open(A);
    owners.open(B);
    owners
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn claim(pfn: u32, order: u32, generation: u32) -> RawPage {
    let migratetype = RawMigratetype::Unmovable;
    PageParts {
        pfn,
        order,
        migratetype,
        zone: 0,
        client: 0,
        generation,
    }
    .pack()
    .unwrap()
}

fn lend(owners: &mut Owners, to: ClientId, o: u8, heads: &[u32]) -> Vec<u32> {
    let heads: Vec<Pfn> = heads.iter().copied().map(Pfn::new).collect();
    let mut generations = Vec::new();
    let tell = &mut |run: HeadRun, generation| {
        generations.extend(run.heads(order(o)).map(|_| generation));
    };
    for &head in &heads {
        owners.touch(owners.place(head), Migratetype::Movable);
    }
    let mut runs = Vec::new();
    crate::head_run::cut(&heads, order(o), &mut runs);
    owners.lend(to, order(o), Migratetype::Unmovable, &runs, 0, tell);
    generations
}

#[test]
fn a_batch_has_one_generation_above_each_of_its_pages() {
    let mut owners = tiny();
    assert_eq!(lend(&mut owners, A, 0, &[5]), [1]);
    owners.take(A, claim(5, 0, 1)).unwrap();
    assert_eq!(lend(&mut owners, A, 0, &[4, 5, 6]), [3, 3, 3]);
}

#[test]
fn pages_half_a_circle_apart_get_generations_of_their_own() {
    let mut owners = tiny();
    owners.store(Pfn::new(8), Cell::home(HALF.unsigned_abs() - 1));
    let generations = lend(&mut owners, A, 0, &[7, 8]);
    assert_eq!(generations, [1, HALF.unsigned_abs()]);
    assert!(is_before(0, 1) && is_before(HALF.unsigned_abs() - 1, HALF.unsigned_abs()));
}

#[test]
fn a_wrong_claim_is_refused_and_changes_nothing() {
    let mut owners = tiny();
    lend(&mut owners, A, 2, &[8]);
    let pfn = Pfn::new(8);
    for (client, claim, misuse) in [
        (A, claim(300, 2, 1), Misuse::NoSuchPage { pfn: 300 }),
        (A, claim(130, 2, 1), Misuse::NoSuchPage { pfn: 130 }),
        (A, claim(9, 0, 1), Misuse::NotLent { pfn: Pfn::new(9) }),
        (A, claim(127, 3, 1), Misuse::NotLent { pfn: Pfn::new(127) }),
        (B, claim(8, 2, 1), Misuse::NotYours { pfn, owner: A }),
        (
            A,
            claim(8, 2, 0),
            Misuse::Stale {
                pfn,
                claimed: 0,
                there: 1,
            },
        ),
        (
            A,
            claim(8, 3, 1),
            Misuse::WrongOrder {
                pfn,
                claimed: 3,
                there: order(2),
            },
        ),
    ] {
        assert_eq!(owners.take(client, claim), Err(misuse));
        assert_eq!(owners.tally().client(A).unwrap().pages, 4);
    }
    let again = ClientId {
        incarnation: 2,
        ..A
    };
    assert_eq!(
        owners.take(again, claim(8, 2, 1)),
        Err(Misuse::NotYours { pfn, owner: A })
    );
    assert!(owners.take(A, claim(8, 2, 1)).is_ok());
    assert_eq!(owners.take(A, claim(8, 2, 1)), Err(Misuse::NotLent { pfn }));
}

#[test]
fn a_sweep_takes_all_that_is_one_clients_and_nothing_else() {
    let mut owners = tiny();
    lend(&mut owners, A, 0, &[1, 3, 31]);
    lend(&mut owners, A, 5, &[32]);
    lend(&mut owners, A, 6, &[64]);
    lend(&mut owners, B, 1, &[4]);
    let heads: Vec<u32> = owners
        .sweep(A, u32::MAX)
        .iter()
        .map(|taken| taken.pfn.get())
        .collect();
    assert_eq!(heads, [1, 3, 31, 32, 64]);
    assert_eq!(owners.tally().client(A).unwrap().pages, 0);
    assert_eq!(owners.tally().client(B).unwrap().pages, 2);
    assert!(owners.sweep(A, u32::MAX).is_empty());
}

#[test]
fn a_word_from_before_a_removal_is_stale_after_it() {
    let mut owners = tiny();
    for _ in 0..3 {
        let [generation] = lend(&mut owners, A, 0, &[40])[..] else {
            panic!()
        };
        owners.take(A, claim(40, 0, generation)).unwrap();
    }
    owners.set_managed(SectionId::new(0), false);
    owners.raise_floor(SectionId::new(0));
    owners.forget_section(SectionId::new(0));
    assert!(
        owners
            .words
            .cells()
            .iter()
            .all(|cell| cell.load(Relaxed) == 0)
    );
    owners.set_managed(SectionId::new(0), true);
    let generations = lend(&mut owners, A, 0, &[40, 41]);
    assert!(
        generations
            .iter()
            .all(|&generation| is_before(6, generation))
    );
}
