//! A storm: processes of a hostile container and of another user do random things at every socket
//! of an arbiter, and an honest job and user notice nothing.
//!
//! Their steps are drawn from a seed (`plan`): the same seed gives the same steps. `SUBLET_STEPS`
//! and `SUBLET_SEED` choose the number and the seed; `cargo xtask soak hostile` sets them. The
//! arbiter is a process of its own (`arbiter`), so is each attacker (`attacker`, with descriptors
//! from `things` and `fuse`), and this one is honest and watches (`watch`).
//!
//! The requirement: the arbiter's thread never stands still for a second of its own clock, and
//! honest clients get every answer.

mod arbiter;
pub(crate) mod attacker;
pub(crate) mod door;
mod fuse;
mod plan;
mod things;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sublet_arbiter::admin::{Client, Reply, Request};

use self::arbiter::{Struck, socket_of};
use self::attacker::Attacker;
use self::plan::N_ATTACKERS;
use self::watch::Watch;
use crate::child::Process;
use crate::world::{PATIENCE, submit};

/// The longest that the arbiter's thread may stand still, of its own clock.
const STILL_MAX: Duration = Duration::from_secs(1);

/// Default number of steps: a few seconds.
const STEPS: u64 = 20_000;

fn asked(name: &str, usual: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(usual, |text| text.parse().expect(name))
}

#[test]
fn whatever_they_send_the_arbiter_goes_on() {
    let (steps, seed) = (asked("SUBLET_STEPS", STEPS), asked("SUBLET_SEED", 1));
    let struck = Struck::start();
    // Before this process is also one of a container, which may submit nothing.
    let honest = Honest::begin(&struck);
    let watch = Watch::begin(&struck);
    let attackers: Vec<Attacker> = (0..N_ATTACKERS)
        .map(|number| Attacker::start(&struck, seed, number, steps / N_ATTACKERS))
        .collect();
    let is_over = AtomicBool::new(false);
    let n_asked = thread::scope(|scope| {
        let honest = scope.spawn(|| honest.ask(&struck, &is_over));
        let ended = wait_for(&attackers, &watch, &struck);
        is_over.store(true, Ordering::Relaxed);
        // Where it stands still, nobody honest gets an answer either: that comes of it.
        if let Err(why) = ended {
            struck.kill();
            let at: Vec<u64> = attackers.iter().map(Attacker::step).collect();
            let said = struck.last_words();
            panic!("{why}; seed {seed}, attackers at steps {at:?}; it said: {said}");
        }
        honest.join().expect("an honest user got no answer")
    });
    assert!(n_asked > 0, "nobody honest asked anything");
    let still = watch.longest_still();
    println!("seed {seed}: {steps} steps, {n_asked} honest questions, stood still for {still:?}");
}

/// Waits until all attackers are done and their leftovers are cleared away, or until the arbiter
/// stands still.
fn wait_for(attackers: &[Attacker], watch: &Watch, struck: &Struck) -> Result<(), String> {
    let (mut told, mut done) = (Instant::now(), Instant::now());
    loop {
        // First: the thread of an arbiter that has ended stands still, too.
        if let Some(status) = struck.end() {
            return Err(format!("the arbiter has ended: {status}"));
        }
        watch.look()?;
        if !attackers.iter().all(Attacker::is_done) {
            done = Instant::now();
        } else if done.elapsed() > 2 * STILL_MAX {
            return Ok(());
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let done: u64 = attackers.iter().map(Attacker::step).sum();
            let still = watch.longest_still();
            println!("{done} steps, the arbiter's thread stood still for {still:?} at most");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A user, a job and a container that do nothing wrong.
struct Honest {
    /// The job's life line.
    _line: Client,
    job: u64,
    /// The socket of the job's processes.
    door: PathBuf,
    process: Process,
}

impl Honest {
    fn begin(struck: &Struck) -> Honest {
        let (line, reply) = submit(struck.admin(), "64MiB", 1, false);
        let Reply::Placed(placed) = reply else {
            panic!("{reply:?}")
        };
        let door = Path::new(&placed.dir).join("tenant.sock");
        let mut process = Process::start(&door);
        let said = process.tell("hello");
        assert!(said.contains(&format!("tenant {}", placed.id)), "{said}");
        Honest {
            _line: line,
            job: placed.id,
            door,
            process,
        }
    }

    /// Asks and works until all is over; returns how often.
    fn ask(mut self, struck: &Struck, is_over: &AtomicBool) -> u64 {
        let mut n_asked = 0;
        while !is_over.load(Ordering::Relaxed) {
            let reply = struck.admin().call(&Request::List, PATIENCE).unwrap();
            let Reply::Snapshot(seen) = reply else {
                panic!("{reply:?}")
            };
            let own = seen.tenants.iter().find(|row| row.id == Some(self.job));
            assert_eq!(own.and_then(|row| row.memory_limit_mib), Some(64));
            assert_eq!(self.process.tell("reserve 0 64"), "reserved");
            assert!(self.process.tell("reserve 0 1").starts_with("not reserved"));
            assert_eq!(self.process.tell("release 0 64"), "released");
            let mut new = Process::start_orphan(&socket_of(struck.base(), "honest"));
            let said = new.tell("hello");
            assert!(said.starts_with("slot "), "{said}");
            assert_eq!(new.tell("reserve 0 64"), "reserved");
            let mut another = Process::start(&self.door);
            let said = another.tell("hello");
            assert!(said.contains(&format!("tenant {}", self.job)), "{said}");
            n_asked += 1;
        }
        n_asked
    }
}

#[test]
fn the_same_seed_gives_the_same_steps() {
    let steps = |seed, number| {
        let mut plan = plan::Plan::new(seed, number);
        let steps = (0..2_000).map(|_| plan.next_step());
        steps.collect::<Vec<_>>()
    };
    assert_eq!(steps(7, 0), steps(7, 0));
    assert_ne!(steps(7, 0), steps(8, 0));
    assert_ne!(steps(7, 0), steps(7, 1));
}
