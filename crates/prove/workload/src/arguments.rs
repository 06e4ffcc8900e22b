//! Arguments that all programs take, and how amounts are written on the command line.
//!
//! This module only parses: it never calls a driver.

use std::fmt;
use std::fmt::Display;
use std::io::{self, Read};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use clap::Args;
use sublet_model::parse_bytes;

use crate::reach::Reach;
use crate::report::Failure;

/// Arguments of every program.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Way to reach the driver: linked[=LIBRARY], lookup[=LIBRARY], global[=LIBRARY], libcuda.so,
    /// libcuda.so.1, preloaded, or an absolute path
    #[arg(long, default_value = "linked")]
    pub(crate) reach: Reach,
    /// Number of the device, in the driver's order
    #[arg(long, default_value_t = 0)]
    pub(crate) device: i32,
    /// Call the twin functions that give each thread its own default stream
    #[arg(long)]
    pub(crate) per_thread: bool,
    /// Report progress on stderr
    #[arg(long)]
    pub(crate) verbose: bool,
}

impl Common {
    /// Prints a line of progress, if the user asked for it.
    pub(crate) fn progress(&self, text: impl Display) {
        if self.verbose {
            eprintln!("sublet-workload[{}]: {text}", std::process::id());
        }
    }

    /// The same arguments for another process of this program.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let mut list = vec![
            "--reach".to_owned(),
            self.reach.to_string(),
            format!("--device={}", self.device),
        ];
        if self.per_thread {
            list.push("--per-thread".to_owned());
        }
        if self.verbose {
            list.push("--verbose".to_owned());
        }
        list
    }
}

/// A number of bytes: `4096`, or an amount with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) usize);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = match is_plain {
            true => text.parse().ok(),
            false => parse_bytes(text).ok().map(sublet_model::Bytes::get),
        };
        bytes
            .and_then(|bytes| usize::try_from(bytes).ok())
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a size such as 4096, 64KiB, 2MiB or 1GiB"))
    }
}

impl Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// Time to keep the memory: so many seconds, or until standard input ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Hold {
    For(Duration),
    UntilStdinCloses,
}

impl FromStr for Hold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "stdin" {
            return Ok(Self::UntilStdinCloses);
        }
        let seconds: Option<f64> = text.parse().ok();
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(Self::For)
            .ok_or_else(|| format!("`{text}` is neither a number of seconds nor `stdin`"))
    }
}

impl Hold {
    /// Waits for that time.
    pub(crate) fn wait(self) -> Result<(), Failure> {
        match self {
            Self::For(time) => thread::sleep(time),
            Self::UntilStdinCloses => {
                let mut sink = [0; 256];
                while io::stdin()
                    .read(&mut sink)
                    .map_err(Failure::system("reading stdin"))?
                    > 0
                {}
            }
        }
        Ok(())
    }
}

/// A number of seconds that may have a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(Hold::For(time)) => Ok(time),
        _ => Err(format!("`{text}` is not a number of seconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Common, Hold, seconds};
    use clap::Parser;
    use std::time::Duration;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("2MiB", 2 << 20),
            ("3GiB", 3 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in [
            "",
            "-1",
            "+1",
            "MiB",
            "1MX",
            "99999999999GiB",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn holds() {
        assert_eq!("stdin".parse(), Ok(Hold::UntilStdinCloses));
        assert_eq!("1.5".parse(), Ok(Hold::For(Duration::from_millis(1500))));
        for text in ["", "-1", "NaN", "inf", "1e40", "forever"] {
            assert!(text.parse::<Hold>().is_err(), "{text:?}");
        }
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(seconds("stdin").is_err());
    }

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        common: Common,
    }

    #[test]
    fn the_arguments_survive_being_passed_on() {
        let given = [
            "x",
            "--reach",
            "lookup=/y.so",
            "--device=3",
            "--per-thread",
            "--verbose",
        ];
        let first = Alone::parse_from(given).common;
        let mut again = vec!["x".to_owned()];
        again.extend(first.to_arguments());
        let second = Alone::parse_from(again).common;
        assert_eq!(first.to_arguments(), second.to_arguments());
        assert_eq!(first.to_arguments()[1], "lookup=/y.so");
        assert!(second.per_thread && second.verbose && second.device == 3);
    }
}
