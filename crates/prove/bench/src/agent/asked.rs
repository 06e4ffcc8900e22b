//! Between the runtime and the agent: passes on what they say to each other, and measures how long the
//! runtime waits for each answer about a container.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prost::Message as _;
use sublet_nri::Request;
use sublet_nri::frame::{Decoder, MessageKind, PLUGIN_SERVICE};

/// When calls about containers were made that have no answer yet, by their numbers.
type Open = Arc<Mutex<BTreeMap<u32, Instant>>>;

/// Stands at the runtime's socket from now on; the runtime's own gets another name beside it. Returns
/// where the waits come.
///
/// # Errors
/// The socket is not there, or cannot be moved.
pub(super) fn between(socket: &Path) -> Result<Receiver<Duration>> {
    let runtime = socket.with_extension("runtime");
    fs::rename(socket, &runtime).with_context(|| format!("move {}", socket.display()))?;
    let listener = UnixListener::bind(socket)?;
    let (waits, measured) = channel();
    std::thread::spawn(move || {
        for agent in listener.incoming().map_while(Result::ok) {
            // A connection that cannot be made ends, and the agent makes another.
            let _closed =
                UnixStream::connect(&runtime).map(|runtime| pass_on(&agent, &runtime, &waits));
        }
    });
    Ok(measured)
}

/// Passes on both ways, each in a thread of its own, until one side closes.
fn pass_on(agent: &UnixStream, runtime: &UnixStream, waits: &Sender<Duration>) {
    let open = Open::default();
    for (from, to, asks) in [(runtime, agent, true), (agent, runtime, false)] {
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else {
            return;
        };
        let (open, waits) = (Arc::clone(&open), waits.clone());
        std::thread::spawn(move || {
            let _closed = one_way(from, to, |bytes, decoder| {
                let now = Instant::now();
                for message in decoder.push(bytes)? {
                    let mut open = open.lock().expect("no thread panics with it");
                    match (message.service, message.kind) {
                        (PLUGIN_SERVICE, MessageKind::Request) if asks => {
                            let request = Request::decode(&message.payload[..])?;
                            if request.method == "CreateContainer" {
                                open.insert(message.call, now);
                            }
                        }
                        (PLUGIN_SERVICE, MessageKind::Response) if !asks => {
                            if let Some(asked) = open.remove(&message.call) {
                                // Whoever does not measure any more does not listen.
                                let _unheard = waits.send(now - asked);
                            }
                        }
                        _ => {}
                    }
                }
                Ok(())
            });
        });
    }
}

fn one_way(
    mut from: UnixStream,
    mut to: UnixStream,
    look: impl Fn(&[u8], &mut Decoder) -> Result<()>,
) -> Result<()> {
    let mut decoder = Decoder::default();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes)?;
        if count == 0 {
            to.shutdown(std::net::Shutdown::Both)?;
            return Ok(());
        }
        // Before they are passed on: the answer must not come first.
        look(&bytes[..count], &mut decoder)?;
        to.write_all(&bytes[..count])?;
    }
}
