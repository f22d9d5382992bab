//! A forked child has no pages: whatever it does with those it finds in its memory, the parent
//! notices nothing. Without a harness, so that the process has one thread when it forks.
#![cfg_attr(loom, allow(unused, reason = "not run under loom"))]
#![allow(clippy::unwrap_used, reason = "a test")]

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
fn main() {
    test::a_forked_child_can_neither_use_nor_lose_its_parents_pages();
    println!("test a_forked_child_can_neither_use_nor_lose_its_parents_pages ... ok");
}

#[cfg(not(loom))]
mod test {
    use std::num::NonZeroUsize;
    use std::os::fd::AsFd;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use hugepool_shm::control::{ControlGeometry, ControlSegment};
    use hugepool_shm::doorbell::Doorbell;
    use hugepool_shm::handle::PinError;
    use hugepool_shm::lane_client::{Miss, Taken};
    use hugepool_shm::lane_daemon::{ClassSettings, LaneDaemon, TakeState};
    use hugepool_shm::mapping::Mapping;
    use hugepool_shm::movable::Movable;
    use hugepool_shm::page::Page;
    use hugepool_shm::process::{
        ClientHandle, LocalLane, Registration, ReserveError, ZoneBytes, reserve_client_index,
    };
    use hugepool_shm::raw::{Class, PageParts, RawMigratetype};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork, ftruncate};

    const NR_PAGES: u32 = 64;
    const SETTINGS: ClassSettings = ClassSettings {
        batch: 8,
        high: 64,
        low_mark: 0,
        zones: u32::MAX,
    };

    /// What the child finds in its memory.
    struct Found {
        client: ClientHandle,
        local: LocalLane,
        pages: Vec<Page>,
        movable: [Movable; 2],
        control: ControlSegment,
        lone: Mapping,
    }

    pub fn a_forked_child_can_neither_use_nor_lose_its_parents_pages() {
        let geometry = ControlGeometry {
            nr_lanes: 2,
            nr_sections: 1,
            nr_pages: u64::from(NR_PAGES) + 2,
        };
        let len = geometry.len_bytes().unwrap();
        let file = memfd_create(c"hugepool-fork-test", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&file, len.try_into().unwrap()).unwrap();
        let for_daemon = Mapping::of_fd(file.as_fd(), len).unwrap();
        let for_client = Mapping::of_fd(file.as_fd(), len).unwrap();
        let lone = Mapping::of_fd(file.as_fd(), 4096).unwrap();
        let made = ControlSegment::create(for_daemon, geometry).unwrap();
        let control = ControlSegment::open(for_client, geometry).unwrap();
        let mut daemon = LaneDaemon::new(made.clone(), 0).unwrap();
        daemon.configure(Class::PAGE, SETTINGS);

        let index = reserve_client_index().unwrap();
        let client_index = index.get();
        let raw = |pfn, migratetype| {
            let parts = PageParts {
                pfn,
                order: 0,
                migratetype,
                zone: 0,
                client: client_index,
                generation: 1,
            };
            parts.pack().unwrap()
        };
        let lent: Vec<_> = (0..NR_PAGES)
            .map(|pfn| raw(pfn, RawMigratetype::Unmovable))
            .collect();
        daemon.grant(Class::PAGE, &lent).unwrap();
        let memory = Mapping::anonymous((NR_PAGES as usize + 2) * 4096).unwrap();
        let registration = Registration {
            control: control.clone(),
            zones: vec![ZoneBytes::of_mapping(memory, 0, 0, 12).unwrap()],
            doorbell: Doorbell::new(|| ()),
            pageblock_order: 9,
            registered: false,
        };
        let client = index.register(registration).unwrap();
        let local = client.local();
        let mut pages = Vec::new();
        let _ = local.take_into(Class::PAGE, 20, &mut pages);
        local.put(pages.pop().unwrap());
        pages.iter_mut().for_each(|page| page.fill(5));
        let movable = [NR_PAGES, NR_PAGES + 1].map(|pfn| {
            let page = client.adopt(raw(pfn, RawMigratetype::Movable)).unwrap();
            client.make_movable(page).unwrap()
        });
        let before = client.stats();
        assert_eq!(before.nr_held, 21);

        // SAFETY: the process has one thread, so the child may do all that the parent may.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let found = Found {
                    client,
                    local,
                    pages,
                    movable,
                    control,
                    lone,
                };
                let outcome = catch_unwind(AssertUnwindSafe(|| child(found)));
                std::process::exit(i32::from(outcome.is_err()));
            }
            ForkResult::Parent { child } => {
                let status = waitpid(child, None).unwrap();
                assert_eq!(
                    status,
                    WaitStatus::Exited(child, 0),
                    "see the child's panic above"
                );
            }
        }

        assert_eq!(client.stats(), before);
        let pfns = movable.each_ref().map(|page| page.pin().unwrap().pfn());
        assert_eq!(pfns, [NR_PAGES, NR_PAGES + 1]);
        drop(movable);
        assert!(pages.iter().all(|page| page.iter().all(|&byte| byte == 5)));
        drop((pages, local));
        let mut home = Vec::new();
        daemon.settle(&mut |word| home.push(word)).unwrap();
        daemon.close();
        assert_eq!(daemon.try_take(false, &mut home), Ok(TakeState::Emptied));
        assert!(!made.free_map().may_have_any());
        let mut pfns: Vec<_> = home.iter().map(|word| word.pfn()).collect();
        pfns.sort_unstable();
        assert_eq!(pfns, (0..NR_PAGES + 2).collect::<Vec<_>>());
    }

    fn child(found: Found) {
        let Found {
            client,
            local,
            mut pages,
            movable,
            control,
            lone,
        } = found;
        let [dropped, kept] = movable;
        assert_eq!(dropped.pin().unwrap_err(), PinError::Forked);
        assert_eq!(kept.into_page().unwrap_err(), PinError::Forked);
        drop(dropped);
        assert_eq!(client.take_one(Class::PAGE).unwrap_err(), Miss::Detached);
        assert_eq!(local.take_one(Class::PAGE).unwrap_err(), Miss::Detached);
        let refused = Taken {
            count: 0,
            miss: Some(Miss::Detached),
        };
        assert_eq!(client.fill(Class::PAGE, &mut [None, None]), refused);
        assert_eq!(local.take_into(Class::PAGE, 3, &mut pages), refused);
        assert!(client.local().is_shared());
        assert_eq!(reserve_client_index().unwrap_err(), ReserveError::Forked);

        std::panic::set_hook(Box::new(|_| ()));
        let touch = catch_unwind(AssertUnwindSafe(|| pages[0][0]));
        let _ = std::panic::take_hook();
        assert!(touch.is_err(), "a child has touched a page of its parent's");

        // A mapping's addresses are free here: somebody else's memory comes to lie there.
        let len = NonZeroUsize::new(4096).unwrap();
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
        let place = NonZeroUsize::new(lone.base().as_ptr().addr());
        // SAFETY: the flags make the call fail rather than replace anything.
        let mine = unsafe { mmap_anonymous(place, len, ProtFlags::PROT_WRITE, flags) }.unwrap();
        let mine = mine.cast::<u8>();
        // SAFETY: mapped just now, writable, and nobody else's.
        unsafe { mine.write_volatile(9) };

        drop(pages.pop());
        local.put(pages.pop().unwrap());
        local.put_list(&mut pages);
        drop((local, client, control, lone));
        // SAFETY: as above; would fault if one of the drops had unmapped it.
        assert_eq!(unsafe { mine.read_volatile() }, 9);
    }
}
