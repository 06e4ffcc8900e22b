//! `sublet dataset get`: asks for a data set, and shows how far it is.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sublet_dataset::{DatasetClient, DatasetReply, DatasetRequest, DatasetRow, check_dataset_name};

use super::show;
use super::start::{Store, StoreArgs, unexpected};
use crate::answer::{Advised, Answer, DONE, Format, document};
use crate::jobs::duration;

/// Arguments of `sublet dataset get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet dataset get /mnt/nfs/imagenet            the set `imagenet` from a folder
  sublet dataset get /mnt/nfs/a/train --name cats another name
  sublet dataset get imagenet                     the same again: nothing moves if nothing changed

Ctrl-C stops it; the same command goes on where it was. A source that changed becomes a new version;
jobs that have the old one keep it.

EXIT CODES
  0  it is here
  1  it is not: the source or the disk failed, or there is no room
  2  wrong arguments")]
pub struct Args {
    /// Absolute path of a folder, or the name of a data set that was here before
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Its name here; else the last part of the source's path
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Take the copy that is here, without a look at the source
    #[arg(long)]
    cached: bool,
    /// Wait where data sets in use take all the room
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// A source and a name, as the arguments mean them.
fn meant(args: &Args) -> Result<(Option<String>, String), Advised> {
    let wrong = |what: String, hint: &str| Advised::new(what, hint).of_input();
    let is_path = args.source.contains('/') || args.source == "." || args.source == "..";
    let (source, name) = match (is_path, &args.name) {
        (false, None) => (None, args.source.clone()),
        (false, Some(_)) => {
            let what = format!(
                "`{}` is no path, so it is a name, and --name is another",
                args.source
            );
            return Err(wrong(what, "give the absolute path of a folder"));
        }
        (true, name) => {
            let path = std::path::absolute(&args.source).map_err(|cause| {
                wrong(
                    format!("`{}` is no path", args.source),
                    "give the path of a folder",
                )
                .caused_by(cause)
            })?;
            let last = || {
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned())
            };
            let name = name.clone().or_else(last).unwrap_or_default();
            let text = path.to_str().map(str::to_owned).ok_or_else(|| {
                wrong(
                    format!("the path {} is no text", path.display()),
                    "make a link to it with another name",
                )
            })?;
            (Some(text), name)
        }
    };
    check_dataset_name(&name)
        .map_err(|reason| wrong(reason, "`--name NAME` gives it another name"))?;
    Ok((source, name))
}

pub(super) fn run(args: &Args) -> anyhow::Result<Answer> {
    let (source, name) = meant(args)?;
    let request = DatasetRequest::Get {
        name,
        source,
        cached: args.cached,
        wait: args.wait,
    };
    let (_lease, path, set) = follow(&args.store, &request)?;
    let text = match args.output {
        Format::Table => format!(
            "{}: {} files, {}, in {path}\n",
            set.name,
            set.files,
            show::size(set.size_bytes)
        ),
        Format::Json => document(&set, false)?,
        Format::Yaml => document(&set, true)?,
    };
    Ok(Answer {
        text,
        notes: Vec::new(),
        code: DONE,
    })
}

/// Brings a data set here for a job. As long as the connection is open, it stays.
///
/// # Errors
/// It is not known, or cannot be had.
pub(crate) fn held(store: &StoreArgs, name: &str) -> anyhow::Result<(DatasetClient, PathBuf)> {
    let request = DatasetRequest::Get {
        name: name.to_owned(),
        source: None,
        cached: false,
        wait: true,
    };
    let (lease, path, _) = follow(store, &request)?;
    Ok((lease, PathBuf::from(path)))
}

/// Shows how far a set is until it is here: the lease, its folder, and the set.
fn follow(
    store: &StoreArgs,
    request: &DatasetRequest,
) -> anyhow::Result<(DatasetClient, String, DatasetRow)> {
    let mut client = Store::of(store)?.ask(request)?;
    let mut progress = Progress::new();
    loop {
        match client.reply()? {
            DatasetReply::Progress(row) => progress.show(&row),
            DatasetReply::Ready { path, set } => {
                progress.clear();
                return Ok((client, path, *set));
            }
            other => {
                progress.clear();
                return Err(unexpected(&other));
            }
        }
    }
}

/// A line that changes on a terminal; elsewhere a line now and then.
struct Progress {
    asked: Instant,
    /// When bytes began to come.
    began: Instant,
    /// Bytes that were there at the first sight.
    before: Option<u64>,
    shown: Option<Instant>,
    is_terminal: bool,
}

/// Time without a line, where nothing can be written over: most sets are here by then.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// Interval of the lines after that.
const LINES: Duration = Duration::from_secs(10);

impl Progress {
    fn new() -> Progress {
        Progress {
            asked: Instant::now(),
            began: Instant::now(),
            before: None,
            shown: None,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, row: &DatasetRow) {
        if row.state == "fetching" && self.before.is_none() {
            (self.before, self.began) = (Some(row.fetched_bytes), Instant::now());
        }
        let is_due = match self.shown {
            None => self.asked.elapsed() >= FIRST_LINE,
            Some(shown) => shown.elapsed() >= LINES,
        };
        if !self.is_terminal && !is_due {
            return;
        }
        self.shown = Some(Instant::now());
        let text = progress_text(row, self.before.unwrap_or(0), self.began.elapsed());
        let mut out = std::io::stderr().lock();
        let _nobody_looks = match self.is_terminal {
            true => write!(out, "\r\x1b[K{text}").and_then(|()| out.flush()),
            false => writeln!(out, "{text}"),
        };
    }

    fn clear(&self) {
        if self.is_terminal && self.shown.is_some() {
            let mut out = std::io::stderr().lock();
            let _nobody_looks = write!(out, "\r\x1b[K").and_then(|()| out.flush());
        }
    }
}

/// Progress of a set: what came, how fast, and the time that is left.
fn progress_text(row: &DatasetRow, before: u64, elapsed: Duration) -> String {
    let name = &row.name;
    match row.state.as_str() {
        "fetching" => {
            let came = row.fetched_bytes.saturating_sub(before) as f64;
            let rate = came / elapsed.as_secs_f64().max(0.001);
            let left = row.needed_bytes.saturating_sub(row.fetched_bytes) as f64 / rate.max(1.0);
            let sizes = format!(
                "{} of {}",
                show::size(row.fetched_bytes),
                show::size(row.needed_bytes)
            );
            match came > 0.0 {
                true => format!(
                    "{name}: {sizes}, {}/s, {} left",
                    show::size(rate as u64),
                    duration((left * 1_000.0) as u64)
                ),
                false => format!("{name}: {sizes}"),
            }
        }
        "listing" => format!("{name}: its source is compared"),
        "waiting" => format!("{name}: waits for {} of room", show::size(row.needed_bytes)),
        "resting" => {
            let reason = row.reason.as_deref().unwrap_or("it failed");
            format!("{name}: {reason}; another try follows")
        }
        "repairing" => format!("{name}: wrong bytes are replaced"),
        state => format!("{name}: {state}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(source: &str, name: Option<&str>) -> Args {
        Args {
            source: source.to_owned(),
            name: name.map(str::to_owned),
            cached: false,
            wait: false,
            store: StoreArgs::default(),
            output: Format::Table,
        }
    }

    #[test]
    fn a_path_is_a_source_and_a_word_a_name() {
        let rows = [
            ("/a/b", None, Some("/a/b"), "b"),
            ("/a/b/", Some("c"), Some("/a/b/"), "c"),
            ("b", None, None, "b"),
        ];
        for (source, name, path, meant_name) in rows {
            let (found, called) = meant(&args(source, name)).unwrap();
            assert_eq!(
                (found.as_deref(), called.as_str()),
                (path, meant_name),
                "{source}"
            );
        }
        let (found, _) = meant(&args("./b", None)).unwrap();
        assert!(found.is_some_and(|path| path.starts_with('/')));
        for (source, name) in [("b", Some("c")), ("/", None), ("/a/b c", None), ("", None)] {
            assert!(meant(&args(source, name)).is_err(), "{source}");
        }
    }

    #[test]
    fn progress_says_rate_and_time_left() {
        let mut row = DatasetRow {
            name: "a".to_owned(),
            state: "fetching".to_owned(),
            fetched_bytes: 3 << 30,
            needed_bytes: 9 << 30,
            ..DatasetRow::default()
        };
        let text = progress_text(&row, 1 << 30, Duration::from_secs(100));
        assert_eq!(text, "a: 3.0 GiB of 9.0 GiB, 20.5 MiB/s, 5 min left");
        row.state = "waiting".to_owned();
        assert_eq!(
            progress_text(&row, 0, Duration::ZERO),
            "a: waits for 9.0 GiB of room"
        );
    }
}
