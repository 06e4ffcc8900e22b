//! Processes that begin while rounds keep their distance.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use sublet_abi::message::MESSAGE_BYTES_MAX;
use sublet_abi::{ArbiterMessage, Hello, Mode, OLDEST, ProcessMessage, VERSION};
use sublet_model::{Bytes, Gpu, GpuIndex, GpuUuid, Inventory, MiB, Role};
use sublet_share::{ComputeRange, Promise};

use super::*;
use crate::arbiter::sources::Source;
use crate::arbiter::{ContainerCard, ContainerJob, Options};
use crate::gpu::{CardReading, GpuView, GpuViewError};
use crate::machine_folder::Folder;

const UUID: &str = "GPU-00000000-0000-0000-0000-000000000000";

/// A machine with one card that nobody uses.
struct OneCard;

impl GpuView for OneCard {
    fn inventory(&mut self) -> Result<Inventory, GpuViewError> {
        let gpu = Gpu {
            uuid: GpuUuid::new(UUID).ok(),
            ..Gpu::plain(GpuIndex(0), MiB::from(1024))
        };
        Ok(Inventory::new(vec![gpu], vec![], vec![], vec![])?)
    }

    fn driver(&self) -> String {
        "of this test".to_owned()
    }

    fn read(&mut self) -> Vec<Option<CardReading>> {
        let (used, processes) = (Bytes::ZERO, Vec::new());
        vec![Some(CardReading { used, processes })]
    }
}

fn container(folder: &Path) -> ContainerJob {
    ContainerJob {
        id: None,
        name: "pod".to_owned(),
        dir: folder.to_owned(),
        cards: vec![ContainerCard {
            uuid: UUID.to_owned(),
            limit: MiB::from(100),
        }],
        pinned_limit: None,
        compute: ComputeRange::ANY,
        class: Class::Guaranteed,
        mode: Mode::Strict,
        mps: false,
        slice: None,
        promise: Promise {
            pod: "pod".into(),
            role: Role::Main,
            position: 0,
        },
    }
}

/// A process's end of a connection.
struct Client(OwnedFd);

impl Client {
    fn connect(place: &Path) -> Client {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(place).unwrap()).unwrap();
        Client(socket)
    }

    fn say(&self, message: &ProcessMessage) {
        rustix::net::send(&self.0, &message.encode(), SendFlags::NOSIGNAL).unwrap();
    }

    /// The message that has come, if one has.
    fn hear(&self) -> Option<ArbiterMessage> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (_, len) = rustix::net::recv(&self.0, &mut bytes, RecvFlags::DONTWAIT).ok()?;
        ArbiterMessage::parse(&bytes[..len]).ok()
    }
}

/// Has a round due that may not be for a while, and lets the arbiter pass the time.
fn keep_a_distance(arbiter: &mut Arbiter) {
    arbiter.turns.is_due = true;
    arbiter.turns.events.clear();
    arbiter.turns.pace.next = monotonic() + Duration::from_secs(2);
    arbiter.take_turns().unwrap();
    assert!(arbiter.turns.is_due(), "the round came early");
}

#[test]
fn a_process_is_answered_between_two_rounds_and_its_knock_waits_for_the_next() {
    let base = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(Folder::within(base.path(), "gpu"));
    let mut arbiter = Arbiter::start(options, Box::new(OneCard)).unwrap();
    let handle = arbiter.handle();
    thread::scope(|scope| {
        let added = scope.spawn(|| handle.add_container(container(folder.path())));
        while !added.is_finished() {
            arbiter.step().unwrap();
        }
        added.join().unwrap().unwrap();
    });
    let place = folder.path().join("tenant.sock");
    let hello = ProcessMessage::Hello(Hello {
        min_version: OLDEST,
        max_version: VERSION,
        held: None,
    });
    let welcomed = |client: &Client| matches!(client.hear(), Some(ArbiterMessage::Welcome(_)));
    // One has said hello when the arbiter looks, another one has only connected.
    let (quick, slow) = (Client::connect(&place), Client::connect(&place));
    quick.say(&hello);
    keep_a_distance(&mut arbiter);
    assert!(welcomed(&quick));
    slow.say(&hello);
    keep_a_distance(&mut arbiter);
    assert!(welcomed(&slow));
    quick.say(&ProcessMessage::Knock);
    let now = Duration::ZERO;
    assert!(arbiter.sources.wait_for_callers(now).unwrap().is_empty());
    let news = arbiter.sources.wait(now).unwrap().into_iter();
    let mut news = news.filter_map(|key| arbiter.sources.get(key));
    assert!(news.any(|source| matches!(source, Source::ProcessConnection)));
}
