//! Sequence lock: a snapshot that says it is whole is of one change, whenever it was taken.
//!
//! Seen to fail: the fence in `publish` taken out; the fence in `snapshot` taken out; the closing
//! store made Relaxed; the first load of `snapshot` made Relaxed; an odd sequence let pass.
#![cfg(loom)]
#![allow(
    clippy::unwrap_used,
    reason = "a model that cannot be joined has failed"
)]

use hugepool_shm::seqlock::{publish, snapshot};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

struct Table {
    sequence: AtomicU64,
    words: [AtomicU64; 2],
}

fn table() -> Arc<Table> {
    Arc::new(Table {
        sequence: AtomicU64::new(0),
        words: [AtomicU64::new(0), AtomicU64::new(0)],
    })
}

fn write(table: &Table, last: &mut u64, value: u64) {
    publish(
        &table.sequence,
        last,
        table.words.iter().map(|word| (word, value)),
    );
}

#[test]
fn a_whole_snapshot_is_of_one_change() {
    loom::model(|| {
        let table = table();
        let writer = thread::spawn({
            let table = table.clone();
            move || {
                let mut last = 0;
                write(&table, &mut last, 1);
                write(&table, &mut last, 2);
            }
        });
        let mut seen = Vec::new();
        if snapshot(&table.sequence, &table.words, &mut seen) {
            assert_eq!(seen[0], seen[1]);
        }
        writer.join().unwrap();
        assert!(snapshot(&table.sequence, &table.words, &mut seen));
        assert_eq!(seen, [2, 2]);
    });
}

#[test]
fn what_a_dead_writer_left_is_never_whole_and_the_next_change_is() {
    loom::model(|| {
        let table = table();
        // Died after its first store.
        table
            .sequence
            .store(1, loom::sync::atomic::Ordering::Relaxed);
        table.words[0].store(9, loom::sync::atomic::Ordering::Relaxed);
        let mut seen = Vec::new();
        assert!(!snapshot(&table.sequence, &table.words, &mut seen));
        write(&table, &mut 1, 3);
        assert!(snapshot(&table.sequence, &table.words, &mut seen));
        assert_eq!(seen, [3, 3]);
    });
}
