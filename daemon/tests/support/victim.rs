//! Processes that use the client library, to be killed and stopped: this very test binary, run
//! again with its part in the environment.
//!
//! A test file that uses them has a test named `victim`, which is [`play`]. Each part says `ready`
//! on its standard output, and a part that writes to its pages checks them when it frees them: a
//! page that two processes were lent shows as a foreign stamp.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use hugepool::{Client, Migratetype, Options, Order, Page};

use super::{Daemon, wait_for};

const PART: &str = "HUGEPOOL_TEST_PART";
const DIR: &str = "HUGEPOOL_TEST_DIR";

/// A process of this test's.
pub struct Victim {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Victim {
    /// Starts a part, which attaches to the daemon; waits until it is ready.
    #[track_caller]
    pub fn start(daemon: &Daemon, part: &str) -> Victim {
        let mut victim = Victim::spawn(daemon, part);
        assert_eq!(victim.line(), "ready");
        victim
    }

    /// Starts a part and does not wait.
    pub fn spawn(daemon: &Daemon, part: &str) -> Victim {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["victim", "--exact", "--nocapture", "--quiet"])
            .env(PART, part)
            .env(DIR, daemon.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Victim {
            child,
            stdin,
            stdout,
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its handle, to wait for its end.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The next thing it says; the harness's own words are passed over.
    #[track_caller]
    pub fn line(&mut self) -> String {
        for line in &mut self.stdout {
            if let Some(said) = line.unwrap().strip_prefix("victim: ") {
                return said.to_owned();
            }
        }
        panic!("the victim has ended: {:?}", self.child.wait());
    }

    /// Tells it to go on to its next step.
    pub fn tell(&mut self, what: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{what}").unwrap();
    }

    /// Kills it and waits until the kernel has taken it down.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tells it that its input has ended.
    pub fn hang_up(&mut self) {
        drop(self.stdin.take());
    }

    /// Lets it end of itself: its input ends.
    pub fn end(mut self) -> ExitStatus {
        drop(self.stdin.take());
        wait_for(&mut self.child)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // By handle, not by name: a process of this test alone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The part that the environment names, if there is one, and how its client attaches.
pub fn part() -> Option<(Options, String)> {
    let part = std::env::var(PART).ok()?;
    let dir = std::env::var(DIR).unwrap();
    let options = Options::default().runtime_dir(dir).name("victim").lanes(2);
    Some((options, part))
}

/// Plays the part that the environment names; nothing when there is none.
pub fn play() {
    let Some((options, part)) = part() else {
        return;
    };
    let client = Client::attach(options).unwrap();
    match part.split_once(' ').unwrap_or((&part, "")) {
        ("churn", seed) => churn(&client, seed.parse().unwrap()),
        ("steady", nr) => steady(&client, nr.parse().unwrap()),
        ("half", nr) => half(&client, nr.parse().unwrap()),
        (other, _) => panic!("no part is called {other}"),
    }
}

/// Says something to who has started this process.
pub fn say(what: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "victim: {what}").unwrap();
    stdout.flush().unwrap();
}

/// Waits to be told; none when the input has ended.
pub fn heard() -> Option<String> {
    std::io::stdin().lines().next().map(Result::unwrap)
}

/// A small generator: the same seed, the same run.
pub struct Xorshift(pub u64);

impl Xorshift {
    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// The next index into so many things.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}

/// Writes who has the page into its first and last words.
fn stamp(page: &mut Page, mark: u64) {
    let len = page.len();
    page[..8].copy_from_slice(&mark.to_le_bytes());
    page[len - 8..].copy_from_slice(&mark.to_le_bytes());
}

#[track_caller]
fn check(page: &Page, mark: u64) {
    let len = page.len();
    assert_eq!(
        page[..8],
        mark.to_le_bytes(),
        "another process wrote to this page"
    );
    assert_eq!(
        page[len - 8..],
        mark.to_le_bytes(),
        "another process wrote to this page"
    );
}

/// Takes and frees at random, in bulk and singly, of several orders, until it is killed or its
/// input ends.
fn churn(client: &Client, seed: u64) {
    let mut random = Xorshift(seed | 1);
    let mark = u64::from(std::process::id()) << 32 | seed & 0xffff_ffff;
    let mut held: Vec<Page> = Vec::new();
    let ends = std::thread::spawn(|| while heard().is_some() {});
    say("ready");
    while !ends.is_finished() {
        match random.below(8) {
            0..=2 => {
                let before = held.len();
                // Fewer than asked is ordinary, the more so while others take all there is.
                let _ = client.alloc_pages_bulk_list(65, &mut held);
                held[before..].iter_mut().for_each(|page| stamp(page, mark));
            }
            3 => {
                let order = Order::new([1, 3, 9][random.index(3)]).unwrap();
                let movable = client.with_migratetype(Migratetype::Movable);
                if let Ok(mut page) = movable.try_alloc_pages(order) {
                    stamp(&mut page, mark);
                    held.push(page);
                }
            }
            4 => {
                held.iter().for_each(|page| check(page, mark));
                client.free_pages_bulk(held.drain(..));
            }
            _ => {
                for _ in 0..random.below(40) {
                    if held.is_empty() {
                        break;
                    }
                    let at = random.index(held.len());
                    check(&held.swap_remove(at), mark);
                }
            }
        }
        if held.len() > 500 {
            held.iter().for_each(|page| check(page, mark));
            held.truncate(100);
        }
    }
    held.iter().for_each(|page| check(page, mark));
}

/// Holds so many pages and does nothing.
fn steady(client: &Client, nr: usize) {
    let mut held = client.alloc_exact(nr).unwrap();
    held.iter_mut().for_each(|page| stamp(page, 7));
    say("ready");
    while heard().is_some() {}
    held.iter().for_each(|page| check(page, 7));
}

/// Takes so many movable pages and says which; told to, frees all that do not lie in the section
/// of the first, so that they lie unused in its lanes and returns. Then does what it is told: to
/// say how it is, it takes and frees once more.
fn half(client: &Client, nr: usize) {
    let movable = client.with_migratetype(Migratetype::Movable);
    let mut held = movable.alloc_exact(nr).unwrap();
    held.iter_mut().for_each(|page| stamp(page, 9));
    let section_pages: u32 = 1024;
    let first = held[0].pfn() / section_pages;
    held.retain(|page| page.pfn() / section_pages == first);
    say("ready");
    say(&format!("{} {}", first, held.len()));
    while heard().is_some() {
        let more = movable.alloc_exact(10).unwrap();
        drop(more);
        held.iter().for_each(|page| check(page, 9));
        say("well");
    }
}
