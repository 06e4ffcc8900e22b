//! A stand-in for `nvidia-cuda-mps-control`, as far as the program that starts it can tell. It is a
//! daemon in the foreground with a socket in its pipe folder, and a client that sends commands from
//! standard input to the daemon. There is no MPS behind it: it takes no CUDA clients and limits
//! nothing. It records the environment that it was started with and the commands that it gets.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::report::Failure;

/// Its name in its record.
const NAME: &str = "a stand-in for nvidia-cuda-mps-control";

/// Arguments of `mps-control`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Be the daemon, in the foreground; otherwise carry standard input to it
    #[arg(short = 'f')]
    foreground: bool,
    /// The daemon adds a JSON line to this file for its start and for each word that it is told
    #[arg(long, value_name = "FILE")]
    record: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let pipe = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let pipe = pipe.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let socket = pipe.join("control");
    if arguments.foreground {
        serve(&socket, &arguments.record)
    } else {
        carry(&socket)
    }
}

/// The daemon; it serves until it gets the command `quit`.
fn serve(socket: &Path, record: &Path) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket).map_err(Failure::system("bind"))?;
    let environment: BTreeMap<String, String> = std::env::vars()
        .filter(|(name, _)| name.starts_with("CUDA_"))
        .collect();
    let pid = std::process::id();
    let started = json!({"is": NAME, "daemon": pid, "environment": environment});
    write_down(record, &started)?;
    for stream in listener.incoming() {
        let stream = stream.map_err(Failure::system("accept"))?;
        let words = BufReader::new(&stream).lines();
        for word in words.map_while(Result::ok) {
            write_down(record, &json!({"daemon": pid, "told": word}))?;
            if word == "quit" {
                return fs::remove_file(socket).map_err(Failure::system("unlink"));
            }
            // The answer is a list of servers, and there are none.
            let answer = match word.as_str() {
                "get_server_list" => "\n",
                _ => "Unknown command\n",
            };
            // The client may be gone.
            let _gone = (&stream).write_all(answer.as_bytes());
        }
    }
    Ok(())
}

/// The client: sends its standard input to the daemon, and prints the answer.
fn carry(socket: &Path) -> Result<(), Failure> {
    let mut words = Vec::new();
    let read = io::stdin().read_to_end(&mut words);
    read.map_err(Failure::system("reading the words"))?;
    let mut stream = UnixStream::connect(socket).map_err(Failure::system("no daemon: connect"))?;
    let sent = stream.write_all(&words);
    let sent = sent.and_then(|()| stream.shutdown(Shutdown::Write));
    sent.map_err(Failure::system("telling the daemon"))?;
    let mut answer = Vec::new();
    let heard = stream.read_to_end(&mut answer);
    heard.map_err(Failure::system("hearing the daemon"))?;
    let printed = io::stdout().write_all(&answer);
    printed.map_err(Failure::system("printing the answer"))
}

/// Adds a line to the record.
fn write_down(record: &Path, what: &Value) -> Result<(), Failure> {
    let file = OpenOptions::new().create(true).append(true).open(record);
    let mut file = file.map_err(Failure::system("opening the record"))?;
    let written = file.write_all(format!("{what}\n").as_bytes());
    written.map_err(Failure::system("writing the record"))
}
