//! From the request to the cards: submits a job and waits for its place, telling why. The
//! connection that comes out of it keeps the job.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::SIGHUP;
use sublet_arbiter::admin::{Client, ClientError, Placed, PlacedGpu, Reply, Request, Submit};

use super::arbiter::{self, LaunchOptions};
use super::request;
use super::signals::{Arrived, Sender, Signals};
use super::terminal::Terminal;
use crate::answer::Advised;
use crate::machine::Machine;

/// Number of times that a lost queue is joined again without placing the job.
const JOINS_MAX: u32 = 5;

/// A job with its place, and the connection that keeps it.
pub(super) struct PlacedJob {
    pub(super) client: Client,
    pub(super) placed: Placed,
    pub(super) submit: Submit,
}

/// End of a wait.
pub(super) enum Waited {
    /// The job has its cards.
    Placed(Box<PlacedJob>),
    /// The user does not want it any more.
    Left(Arrived),
}

/// Submits a job and waits for its place. `say` is given a line for people each time there is
/// something new.
///
/// # Errors
/// The arbiter refuses the job, cannot be reached, or is too old for what is asked.
pub(super) fn for_place(
    machine: &Machine,
    launch: &LaunchOptions,
    submit: Submit,
    signals: &mut Signals,
    mut say: impl FnMut(&str),
) -> anyhow::Result<Waited> {
    let began = Instant::now();
    let mut told = Told::default();
    let mut n_joins = 0;
    let terminal = Terminal::of_this_process(signals.ignore(SIGHUP));
    loop {
        n_joins += 1;
        let mut client = arbiter::open(machine, launch)?;
        let sent = client.send(&Request::Submit(submit.clone()));
        let outcome =
            sent.and_then(|()| replies(&mut client, signals, &terminal, &mut told, &mut say));
        match outcome {
            Ok(Reached::Placed(placed)) => {
                if let Some(line) = told.placed(&placed, began.elapsed()) {
                    say(&line);
                }
                too_small(&placed).iter().for_each(|line| say(line));
                request::check(&submit, &placed)?;
                return Ok(Waited::Placed(Box::new(PlacedJob {
                    client,
                    placed,
                    submit,
                })));
            }
            Ok(Reached::Left(signal)) => return Ok(Waited::Left(signal)),
            Ok(Reached::Refused(refusal)) => {
                return Err(refusal.told(machine, &submit).into());
            }
            Ok(Reached::Unexpected(reply)) => return Err(machine.unexpected(&reply).into()),
            // An arbiter that is replaced while somebody waits: a place at the end of the
            // new one's queue.
            Err(error) if error.is_closed() && n_joins < JOINS_MAX => {
                say("the arbiter is gone: joining the queue again");
            }
            Err(error) => return Err(machine.unusable(error.into()).into()),
        }
    }
}

/// Result of the arbiter's replies.
enum Reached {
    Placed(Placed),
    Refused(RefusedJob),
    Left(Arrived),
    Unexpected(Reply),
}

fn replies(
    client: &mut Client,
    signals: &mut Signals,
    terminal: &Terminal,
    told: &mut Told,
    say: &mut impl FnMut(&str),
) -> Result<Reached, ClientError> {
    loop {
        while let Some(reply) = client.try_receive()? {
            match reply {
                Reply::Placed(placed) => return Ok(Reached::Placed(placed)),
                Reply::Refused {
                    reason,
                    is_final,
                    hint,
                } => {
                    return Ok(Reached::Refused(RefusedJob {
                        reason,
                        is_final,
                        hint,
                    }));
                }
                Reply::Waiting {
                    position, reason, ..
                } => {
                    if let Some(line) = told.waiting(position, &reason) {
                        say(&line);
                    }
                }
                other => return Ok(Reached::Unexpected(other)),
            }
        }
        if let Some(left) = signals.take().into_iter().find(|it| it.ends_waiting()) {
            return Ok(Reached::Left(left));
        }
        let mut fds = vec![
            PollFd::new(client, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
        ];
        fds.extend(terminal.fd());
        // A signal's handler interrupts it, and its byte is read in the next round.
        let _interrupted = poll(&mut fds, None);
        if fds.get(2).is_some_and(Terminal::is_gone) {
            return Ok(Reached::Left(Arrived {
                signal: SIGHUP,
                sender: Sender::Kernel,
            }));
        }
    }
}

/// The last message, so that nothing is said twice.
#[derive(Debug, Default)]
struct Told {
    last: Option<(u32, String)>,
}

impl Told {
    /// The line to say about a place in the queue, if it is news.
    fn waiting(&mut self, position: u32, reason: &str) -> Option<String> {
        let now = (position, reason.to_owned());
        if self.last.as_ref() == Some(&now) {
            return None;
        }
        self.last = Some(now);
        let place = match position {
            0 | 1 => "next in the queue".to_owned(),
            n => format!("place {n} in the queue"),
        };
        Some(format!("waiting, {place}: {reason}"))
    }

    /// The line that ends a wait; `None` if the job got its place at once.
    fn placed(&self, placed: &Placed, waited: Duration) -> Option<String> {
        self.last.as_ref()?;
        let gpus: Vec<_> = placed
            .gpus
            .iter()
            .map(|gpu| gpu.index.to_string())
            .collect();
        let word = if gpus.len() == 1 { "GPU" } else { "GPUs" };
        let seconds = waited.as_secs();
        Some(format!(
            "job {} has {word} {} after {seconds} s",
            placed.id,
            gpus.join(", ")
        ))
    }
}

/// A line for each card on which the job has less memory than one context takes. Its programs would
/// be refused there before they have asked for anything, and would say only that memory is short.
fn too_small(placed: &Placed) -> Vec<String> {
    let small = placed
        .gpus
        .iter()
        .filter(|gpu| gpu.context_mib > gpu.limit_mib);
    let line = |gpu: &PlacedGpu| {
        format!(
            "the job has {} MiB of GPU {}, and a context alone takes {} MiB there: ask for more",
            gpu.limit_mib, gpu.index, gpu.context_mib
        )
    };
    small.map(line).collect()
}

/// Refusal of a place by the arbiter.
struct RefusedJob {
    reason: String,
    is_final: bool,
    hint: Option<String>,
}

impl RefusedJob {
    fn told(self, machine: &Machine, submit: &Submit) -> Advised {
        let hint = match self.hint {
            Some(hint) => hint,
            None if self.is_final => {
                let others = match submit.cards {
                    Some(_) => "name others with --allowed-gpus, or ask",
                    None => "ask",
                };
                let cards = machine.command("top --once");
                format!("`{cards}` shows the GPUs; {others} for less with --memory or --gpus")
            }
            None if submit.wait => format!("`{}` shows who has the room", machine.command("ps")),
            None => "without --no-wait it would wait for its place".to_owned(),
        };
        let (name, reason) = (&submit.name, self.reason);
        Advised::new(format!("job `{name}` is refused: {reason}"), hint)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use sublet_arbiter::admin::{Class, Mode, PROTOCOL};

    use super::*;

    fn submit() -> Submit {
        Submit {
            name: "a".to_owned(),
            memory: None,
            pinned_memory: None,
            compute: None,
            class: Class::Guaranteed,
            slice: None,
            gpus: 1,
            cards: None,
            wait: true,
            priority: 0,
            mode: Mode::Strict,
        }
    }

    fn placed() -> Placed {
        let gpu = PlacedGpu {
            index: 1,
            uuid: "GPU-b".to_owned(),
            limit_mib: 16,
            context_mib: 0,
        };
        Placed {
            id: 7,
            gpus: vec![gpu],
            pinned_limit_mib: None,
            compute: None,
            mps: None,
            dir: "/r".to_owned(),
        }
    }

    /// An arbiter that answers each `submit` with the next of `scripts` and then closes.
    fn arbiter(folder: &Path, scripts: Vec<Vec<Reply>>) -> std::thread::JoinHandle<Vec<Request>> {
        let listener = UnixListener::bind(folder.join("admin.sock")).unwrap();
        std::thread::spawn(move || {
            let mut scripts = scripts.into_iter();
            let mut asked = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                let Ok(request) = serde_json::from_str(&line) else {
                    continue;
                };
                let mut say = |reply: &Reply| {
                    let line = serde_json::to_string(reply).unwrap() + "\n";
                    stream.write_all(line.as_bytes()).unwrap();
                };
                if request == Request::Hello {
                    say(&Reply::Hello {
                        protocol: PROTOCOL,
                        version: "1".to_owned(),
                        pid: 1,
                        epoch: 1,
                    });
                    continue;
                }
                asked.push(request);
                scripts.next().unwrap().iter().for_each(say);
                if scripts.len() == 0 {
                    return asked;
                }
            }
        })
    }

    fn run(scripts: Vec<Vec<Reply>>) -> (Result<Waited, String>, Vec<String>, Vec<Request>) {
        let base = tempfile::tempdir().unwrap();
        let machine = Machine::below(base.path(), None);
        machine.prepare().unwrap();
        let arbiter = arbiter(machine.folder.path(), scripts);
        let mut signals = Signals::listen().unwrap();
        let mut said = Vec::new();
        let say = |line: &str| said.push(line.to_owned());
        let outcome = for_place(
            &machine,
            &LaunchOptions::default(),
            submit(),
            &mut signals,
            say,
        );
        let outcome = outcome.map_err(|error| crate::error_text(&error));
        (outcome, said, arbiter.join().unwrap())
    }

    fn waiting(position: u32, reason: &str) -> Reply {
        Reply::Waiting {
            id: 7,
            position,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_wait_is_told_once_for_each_change() {
        let script = vec![
            waiting(2, "GPU 0 lacks 1 MiB"),
            waiting(2, "GPU 0 lacks 1 MiB"),
            waiting(1, "GPU 0 lacks 1 MiB"),
            Reply::Placed(placed()),
        ];
        let (outcome, said, asked) = run(vec![script]);
        assert!(matches!(outcome, Ok(Waited::Placed(job)) if job.placed == placed()));
        assert_eq!(
            said,
            [
                "waiting, place 2 in the queue: GPU 0 lacks 1 MiB",
                "waiting, next in the queue: GPU 0 lacks 1 MiB",
                "job 7 has GPU 1 after 0 s",
            ]
        );
        assert_eq!(asked, [Request::Submit(submit())]);
    }

    #[test]
    fn a_place_at_once_is_not_talked_about() {
        let (outcome, said, _) = run(vec![vec![Reply::Placed(placed())]]);
        assert!(matches!(outcome, Ok(Waited::Placed(..))));
        assert_eq!(said, [""; 0]);
    }

    #[test]
    fn a_part_that_no_context_fits_in_is_talked_about() {
        let mut small = placed();
        small.gpus[0].context_mib = 17;
        let (outcome, said, _) = run(vec![vec![Reply::Placed(small)]]);
        assert!(matches!(outcome, Ok(Waited::Placed(..))));
        let line = "the job has 16 MiB of GPU 1, and a context alone takes 17 MiB there: \
                    ask for more";
        assert_eq!(said, [line]);
    }

    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        let (outcome, ..) = run(vec![vec![Reply::Refused {
            reason: "no card has 99999 MiB".to_owned(),
            is_final: true,
            hint: None,
        }]]);
        let text = outcome.err().unwrap();
        assert!(text.starts_with("error: job `a` is refused: no card has 99999 MiB\nhint: "));
        let (outcome, ..) = run(vec![vec![Reply::Refused {
            reason: "they are a cluster's".to_owned(),
            is_final: true,
            hint: Some("run it as a pod".to_owned()),
        }]]);
        let text = outcome.err().unwrap();
        assert!(
            text.ends_with("a cluster's\nhint: run it as a pod\n"),
            "{text}"
        );
        let (outcome, ..) = run(vec![vec![Reply::Error {
            reason: "what?".to_owned(),
        }]]);
        let text = outcome.err().unwrap();
        assert!(
            text.contains("did not understand the request\n  caused by: what?"),
            "{text}"
        );
    }

    #[test]
    fn a_new_arbiter_s_queue_is_joined() {
        let (outcome, said, asked) = run(vec![
            vec![waiting(1, "full")],
            vec![Reply::Placed(placed())],
        ]);
        assert!(matches!(outcome, Ok(Waited::Placed(..))));
        assert_eq!(said[1], "the arbiter is gone: joining the queue again");
        assert_eq!(asked.len(), 2);
    }
}
