//! Advice where an arbiter cannot start because another one has the machine: what that one is, and
//! the command that ends it. Looks at the other one's command line, and prints no word of it: it may
//! be another user's process.

use std::fs;

/// Ways in which an arbiter was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    /// For a job; it ends by itself.
    OnDemand,
    /// By hand, or by a service manager.
    ByHand,
    /// As the agent of a cluster's node.
    OnNode,
}

impl Started {
    /// Reads a command line as `/proc` has it. `None` for what is no arbiter.
    fn read(command_line: &[u8]) -> Option<Started> {
        let words = || command_line.split(|byte| *byte == 0).skip(1);
        let has = |wanted: &str| words().any(|word| word == wanted.as_bytes());
        let idle_exit = || words().any(|word| word.starts_with(b"--idle-exit"));
        match (has("agent"), has("--standalone")) {
            (false, _) => None,
            (true, false) => Some(Started::OnNode),
            (true, true) if idle_exit() => Some(Started::OnDemand),
            (true, true) => Some(Started::ByHand),
        }
    }
}

/// Reader of the advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The user of this process, who started it.
    Starter,
    /// Somebody who finds it in a log, or on a node's object.
    Elsewhere,
}

/// Advice about the process that has the machine; process 0 if it is not known. `user`: its user.
#[must_use]
pub fn advice_on(pid: u32, user: Option<u32>, reader: Reader) -> String {
    let started = fs::read(format!("/proc/{pid}/cmdline"));
    let started = started.ok().and_then(|line| Started::read(&line));
    let me = rustix::process::geteuid().as_raw();
    advice(started, pid, reader == Reader::Starter && may_end(me, user))
}

/// May a user end a process of that user?
fn may_end(me: u32, user: Option<u32>) -> bool {
    me == 0 || user == Some(me)
}

fn advice(started: Option<Started>, pid: u32, may_end: bool) -> String {
    let sudo = if may_end { "" } else { "sudo " };
    match started {
        Some(Started::OnDemand) => format!(
            "`sublet run` started it, and it ends when there has been no job for a while; \
             `{sudo}kill {pid}` ends it now"
        ),
        Some(Started::ByHand) => {
            format!("it is `sublet agent --standalone`; `{sudo}kill {pid}` ends it")
        }
        Some(Started::OnNode) => format!(
            "it is the agent of a cluster's node: with --allow-local-jobs it serves `sublet run`, \
             too; `{sudo}kill {pid}` ends it until its pod starts again"
        ),
        None if pid == 0 => "it may be about to start, or be in a container: `pgrep -af 'sublet \
                             agent'` on the host lists arbiters"
            .to_owned(),
        None => format!("`{sudo}ps -fp {pid}` says what it is"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Option<Started> {
        Started::read(words.replace(' ', "\0").as_bytes())
    }

    #[test]
    fn the_command_line_says_what_an_arbiter_is_for() {
        for (words, expected) in [
            (
                "/bin/sublet agent --standalone --idle-exit ",
                Some(Started::OnDemand),
            ),
            (
                "sublet agent --standalone --idle-exit=9 --fake-gpu 1x1GiB ",
                Some(Started::OnDemand),
            ),
            ("sublet agent --standalone --mps ", Some(Started::ByHand)),
            ("sublet agent --node-name n1 ", Some(Started::OnNode)),
            ("agent --standalone", None),
            ("sleep 60 ", None),
            ("", None),
        ] {
            assert_eq!(read(words), expected, "{words}");
        }
    }

    #[test]
    fn the_command_that_ends_it_is_named_and_nothing_else_is_to_be_ended() {
        let of = |started, may_end| advice(started, 4242, may_end);
        for started in [Started::OnDemand, Started::ByHand, Started::OnNode] {
            let own = of(Some(started), true);
            assert!(own.contains("`kill 4242` ends it"), "{own}");
            let theirs = of(Some(started), false);
            assert!(theirs.contains("`sudo kill 4242` ends it"), "{theirs}");
        }
        assert!(!of(None, true).contains("kill"));
        assert!(!advice(None, 0, true).contains("kill"));
        // These tests are no arbiter.
        let me = rustix::process::geteuid().as_raw();
        let own = |reader| advice_on(std::process::id(), Some(me), reader);
        assert!(own(Reader::Starter).starts_with("`ps -fp "));
        assert!(own(Reader::Elsewhere).starts_with("`sudo ps -fp "));
        assert!(may_end(0, Some(7)) && may_end(7, Some(7)));
        assert!(!may_end(7, Some(0)) && !may_end(7, None));
    }
}
