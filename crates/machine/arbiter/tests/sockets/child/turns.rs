//! A child that takes its turns: a thread that is at work whenever its gate is open, and writes
//! down when.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use rustix::thread::futex;
use rustix::time::ClockId;
use sublet_abi::{ControlPage, GateState, GateWord, ProcessMessage, TurnReport};

use super::{Guest, say};

/// When it was at work, in microseconds of the monotonic clock.
type Spans = Arc<Mutex<Vec<(u64, u64)>>>;

/// A child's obedience to its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It stops, says so, and waits.
    Obeys,
    /// It goes on, and says nothing.
    Mute,
    /// It answers at once, and says that it works.
    False,
    /// It answers, and says that it rests, even while it works.
    Quiet,
}

#[derive(Default)]
pub(super) struct Turns {
    spans: Spans,
    /// The page that it was handed last.
    control: Option<&'static ControlPage>,
    /// The thread that takes turns ends.
    is_over: Arc<AtomicBool>,
}

pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

impl Guest {
    /// Carries out an order about turns.
    pub(super) fn turn(&mut self, words: &[&str]) {
        match words {
            ["turns", manner] => {
                let manner = match *manner {
                    "obey" => Manner::Obeys,
                    "mute" => Manner::Mute,
                    "quiet" => Manner::Quiet,
                    _ => Manner::False,
                };
                self.take_turns(manner);
                say("at work");
            }
            ["spans"] => {
                let mut spans = self.turns.spans.lock().unwrap();
                // The last one may go on.
                let rest = spans.last().map(|(_, to)| (*to, *to));
                let told = std::mem::replace(&mut *spans, rest.into_iter().collect());
                let told = told.iter().filter(|(from, to)| from < to);
                let spans = told.map(|(from, to)| format!("{from}-{to}"));
                say(&spans.collect::<Vec<_>>().join(" "));
            }
            ["gate"] => {
                say(&format!("{:?}", self.control().gate().word().state()));
            }
            ["rules"] => {
                let control = self.control();
                let gate = control.gate();
                say(&format!("{} {:?}", gate.without_arbiter(), gate.queue_us()));
            }
            ["flood", ms] => {
                let end = Instant::now() + Duration::from_millis(ms.parse().unwrap());
                let mut n_sent = 0;
                while Instant::now() < end {
                    n_sent += u64::from(knock(self.socket.as_ref().unwrap()));
                }
                say(&format!("{}", n_sent > 0));
            }
            _ => say("what?"),
        }
    }

    /// Mapped once: it is asked again and again.
    fn control(&mut self) -> &'static ControlPage {
        let known = self.turns.control.take();
        let control = known.unwrap_or_else(|| self.map().0);
        self.turns.control.insert(control)
    }

    fn take_turns(&mut self, manner: Manner) {
        let (control, ledger) = self.map();
        let slot = self.welcome.unwrap().slot;
        let socket = self.socket.as_ref().unwrap().try_clone().unwrap();
        let spans = Arc::clone(&self.turns.spans);
        self.turns.control = Some(control);
        self.turns.is_over.store(true, Ordering::Relaxed);
        let is_over = Arc::new(AtomicBool::new(false));
        self.turns.is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            let report = ledger.slot(slot).turns();
            report.follow();
            while !is_over.load(Ordering::Relaxed) {
                let word = control.gate().word();
                let is_news = match (word.state(), manner) {
                    (GateState::Closed, Manner::Obeys) => stop(report, word),
                    (GateState::Closed, Manner::False) => {
                        report.answer(word);
                        report.set_at_work(true)
                    }
                    (state, Manner::Quiet) => {
                        if state == GateState::Closed {
                            report.answer(word);
                        }
                        report.set_at_work(false)
                    }
                    _ => work(report, &spans),
                };
                if is_news && report.must_knock() {
                    knock(&socket);
                }
                let is_open = word.state() != GateState::Closed;
                wait(control, word, if is_open { 200 } else { 20_000 });
            }
        });
    }
}

/// At work; the span goes on for as long as this is called without a pause.
fn work(report: &TurnReport, spans: &Spans) -> bool {
    let is_new = report.set_at_work(true);
    report.set_at_gate(false);
    let now = now_us();
    let mut spans = spans.lock().unwrap();
    match spans.last_mut().filter(|_| !is_new) {
        Some(last) => last.1 = now,
        None => spans.push((now, now)),
    }
    is_new
}

fn stop(report: &TurnReport, word: GateWord) -> bool {
    let stands = report.set_at_gate(true);
    report.set_at_work(false);
    let is_new = report.answered() != word.turn();
    report.answer(word);
    stands || is_new
}

/// Waits until the gate changes, or this time has passed.
fn wait(control: &ControlPage, word: GateWord, us: i64) {
    let address = control.gate().address().cast_mut();
    // SAFETY: the page stays mapped, and all who touch the word do so as an atomic; here it is
    // only read.
    let gate = unsafe { AtomicU32::from_ptr(address) };
    let pause = futex::Timespec {
        tv_sec: 0,
        tv_nsec: us * 1000,
    };
    let _ = futex::wait(gate, futex::Flags::empty(), word.bits(), Some(&pause));
    gate.load(Ordering::Relaxed);
}

fn knock(socket: &OwnedFd) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::send(socket, &ProcessMessage::Knock.encode(), flags).is_ok()
}
