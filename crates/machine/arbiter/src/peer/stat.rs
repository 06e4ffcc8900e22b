//! The kernel's line about a process: its parent, when it began, and its program. It is read several
//! times for each process that connects, so it is read in one piece.

use std::fs::File;
use std::io::Read as _;

use sublet_share::Pid;

/// The contents of `/proc/PID/stat`. Other files there say more, and some of them (`maps`)
/// make the reader wait for a lock that the process can hold for as long as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub(crate) parent: Pid,
    /// When the process began, in clock ticks.
    pub(crate) began: u64,
    pub(crate) image: Option<Image>,
}

/// The begin of a program's code and stack: chance puts both elsewhere at each exec. (With
/// address randomisation off, a program that calls exec with itself looks like one that did
/// not, and keeps its earlier charges until it ends.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    code: u64,
    stack: u64,
}

/// Longest text of a stat: 52 numbers of 20 digits and a name of 64 bytes.
const STAT_BYTES_MAX: usize = 2048;

/// Looks at one process. The kernel makes the text anew for the first read of it, and gives all of
/// it if there is room: to grow a buffer to its length takes five reads more.
pub(crate) fn stat(pid: Pid) -> Option<Stat> {
    let mut text = [0; STAT_BYTES_MAX];
    let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
    let len = file.read(&mut text).ok()?;
    Stat::parse(&text[..len])
}

impl Stat {
    /// Reads the file's text; `None` if it is no such text. The name in brackets can hold
    /// anything, brackets and line ends too: only the text after the last bracket counts.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Stat> {
        let end = text.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        // Fields 4, 22, 26 and 28 of proc_pid_stat(5); the first here is number 3.
        let parent = fields.nth(1)?.parse().ok()?;
        let began = fields.nth(17)?.parse().ok()?;
        let code = fields.nth(3).and_then(|text| text.parse().ok());
        let stack = fields.nth(1).and_then(|text| text.parse().ok());
        // No stack: the kernel does not tell us.
        let image = code.zip(stack).filter(|(_, stack)| *stack != 0);
        Some(Stat {
            parent: Pid(parent),
            began,
            image: image.map(|(code, stack)| Image { code, stack }),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_cannot_forge_a_parent() {
        let fields = "S 42 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0 0 4096 0 8192 0";
        let want = Some(Stat {
            parent: Pid(42),
            began: 777,
            image: Some(Image {
                code: 4096,
                stack: 8192,
            }),
        });
        assert_eq!(Stat::parse(format!("7 (a) {fields}").as_bytes()), want);
        assert_eq!(
            Stat::parse(format!("7 (a) S 1 1\n) {fields}").as_bytes()),
            want
        );
        assert_eq!(Stat::parse(b"7 (a) S"), None);
        let hidden = fields.replace("8192", "0");
        let hidden = Stat::parse(format!("7 (a) {hidden}").as_bytes()).unwrap();
        assert_eq!(hidden.image, None);
    }

    proptest! {
        #[test]
        fn no_stat_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stat::parse(&text);
        }
    }
}
