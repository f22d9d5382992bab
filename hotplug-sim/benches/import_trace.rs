//! Speed of `import` on a long trace: reading it into events, and reading and printing as JSON.
//!
//! `cargo bench -p hotplug-sim --bench import_trace [-- MEGABYTES]` writes a trace as ftrace
//! would (allocations and frees that match, scans of compaction, 100 MB if not said) and
//! prints MB/s (10^6 bytes of trace) of one core, the median of five runs.

use std::io::Write;
use std::time::Instant;

use hotplug_sim::import::import;

/// Runs of each measurement.
const RUNS: usize = 5;

fn main() {
    let megabytes = std::env::args()
        .filter_map(|word| word.parse::<usize>().ok())
        .next()
        .unwrap_or(100);
    let trace = generate(megabytes * 1_000_000);
    let lines = trace.iter().filter(|byte| **byte == b'\n').count();
    let sources = vec![("trace".to_string(), trace)];
    let bytes = sources[0].1.len();
    println!("trace: {bytes} bytes, {lines} lines");
    measure("read", bytes, || {
        let outcome = import(&sources, None);
        let read = outcome.import.map(|import| import.events.len());
        assert!(
            read.is_some_and(|events| events > lines / 2),
            "the trace was not understood: {read:?}"
        );
    });
    measure("read and print", bytes, || {
        let outcome = import(&sources, None);
        let import = outcome
            .import
            .expect("the trace was understood in the measurement before");
        serde_json::to_writer(std::io::sink(), &import)
            .expect("nothing can fail to be written to a sink");
    });
}

fn measure(name: &str, bytes: usize, mut work: impl FnMut()) {
    let mut rates: Vec<[f64; 2]> = (0..RUNS)
        .map(|_| {
            let (start, cpu) = (Instant::now(), cpu_seconds());
            work();
            let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            #[allow(clippy::cast_precision_loss)]
            let megabytes = bytes as f64 / 1e6;
            [megabytes / cpu, megabytes / wall]
        })
        .collect();
    rates.sort_by(|one, other| f64::total_cmp(&one[0], &other[0]));
    println!(
        "{name}: {:.0} MB/s of CPU time (least {:.0}, most {:.0}), {:.0} MB/s by the clock",
        rates[RUNS / 2][0],
        rates[0][0],
        rates[RUNS - 1][0],
        rates[RUNS / 2][1]
    );
}

/// Seconds that this thread has run: on a machine with other work, the clock says little.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos: f64 = stat
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0.0);
    nanos / 1e9
}

/// A trace of about so many bytes, the same each time.
fn generate(bytes: usize) -> Vec<u8> {
    const TASKS: [&str; 6] = [
        "<idle>-0",
        "kswapd0-98",
        "kworker/u16:3-1207",
        "Web Content-4711",
        "postgres-22275",
        "kcompactd0-42",
    ];
    const FLAGS: [&str; 5] = [
        "GFP_HIGHUSER_MOVABLE|__GFP_ZERO",
        "GFP_KERNEL",
        "GFP_KERNEL|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP|__GFP_NOMEMALLOC",
        "GFP_NOWAIT",
        "GFP_HIGHUSER_MOVABLE|__GFP_COMP",
    ];
    let mut trace = Vec::with_capacity(bytes + 4096);
    trace.extend_from_slice(
        b"# tracer: nop\n#\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n",
    );
    let mut state: u64 = 1;
    let mut micros: u64 = 889_213_383;
    let mut held: Vec<u64> = Vec::new();
    let mut next: u64 = 4096;
    while trace.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let roll = usize::try_from(state >> 40).unwrap_or(0);
        micros += 1 + (state >> 60);
        let (task, cpu) = (TASKS[roll % TASKS.len()], roll % 8);
        let head = format!(
            "{task:>24} [{cpu:03}] ..... {:>5}.{:06}: ",
            micros / 1_000_000,
            micros % 1_000_000
        );
        let page = state ^ 0xffff_ea00_0000_0000;
        let _ = match roll % 16 {
            0..=8 => {
                let pfn = next;
                next += 1;
                held.push(pfn);
                let flags = FLAGS[roll % FLAGS.len()];
                writeln!(
                    trace,
                    "{head}mm_page_alloc: page={page:016x} pfn={pfn:#x} order=0 migratetype={} gfp_flags={flags}",
                    roll % 3
                )
            }
            9..=14 if !held.is_empty() => {
                let pfn = held.swap_remove(roll % held.len());
                writeln!(
                    trace,
                    "{head}mm_page_free: page={page:016x} pfn={pfn:#x} order=0"
                )
            }
            _ => writeln!(
                trace,
                "{head}mm_compaction_isolate_migratepages: range=({next:#x} ~ {:#x}) nr_scanned={} nr_taken={}",
                next + 512,
                roll % 512 + 1,
                roll % 128
            ),
        };
    }
    trace
}
