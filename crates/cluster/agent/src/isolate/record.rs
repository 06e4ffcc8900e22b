//! The record on disk of each container: its pod, its number with the arbiter and its
//! limits. It is written when the devices are handed over. An agent that starts anew reads it,
//! because its containers look for their arbiter at once. The pod's own allocation is what counts;
//! this is a copy that can be read before the API server answers.
//!
//! Folders: `containers/<pod uid>/<place>/` (or `containers/seat-7/<place>/`, [`Seat`]), in it
//! `record.json` and `tenant/`, the folder that is mounted. A place is `main-0` or `init-2`, the
//! container's position in the pod. Names will not do: they may be 63 letters long, and the path of
//! a socket has at most 107.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sublet_model::{Class, GpuIndex, GpuUuid, MiB, Milli, PodUid, Role, SliceLength};
use sublet_share::{ComputeRange, Promise};

use super::inject::ContainerLimits;
use crate::allocate::AllocationResponse;
use crate::lifecycle::{DeviceName, card_name};

pub(super) const FILE: &str = "record.json";
const TENANT: &str = "tenant";

/// One container that is held to its part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its number with the arbiter, once it had one.
    pub id: Option<u64>,
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its pod's UID.
    pub uid: String,
    /// Its name.
    pub container: String,
    /// Its position in the pod: `main-0`, `init-2`.
    pub place: String,
    /// Does it end before the main containers start?
    pub ends_first: bool,
    /// Its cards.
    pub cards: Vec<RecordCard>,
    /// Limit of the node's memory that it may pin; nothing for no limit.
    #[serde(default, rename = "pinnedLimitMiB")]
    pub pinned_limit_mib: Option<u64>,
    /// Its compute time of each card; nothing where an earlier agent has written this, which
    /// promised none.
    #[serde(default)]
    pub compute: Option<RecordCompute>,
    /// Length of its turns while others wait, as the pod writes it; nothing for the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// Were its programs told to be clients of MPS?
    #[serde(default)]
    pub mps: bool,
    /// The host's folders of libraries that it mounts, whenever kubelet starts it again; none
    /// where an earlier agent has written this.
    #[serde(default)]
    pub libraries: Vec<PathBuf>,
    /// Set where the devices were handed over to one of several pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<Seat>,
}

/// Devices of one of several equal pods, while it is not known which of them has these devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The name of its folder, which cannot be the pod's.
    pub folder: String,
    /// The first of its devices in kubelet's checkpoint.
    pub device: String,
    /// The pods that it may be: UID, namespace and name. None once it is known.
    pub twins: Vec<[String; 3]>,
}

/// A card of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordCard {
    /// Its number on the node.
    pub index: u16,
    /// Its UUID, where that is known.
    pub uuid: Option<String>,
    /// Memory of the card that the container may use.
    #[serde(rename = "limitMiB")]
    pub limit_mib: u64,
}

/// Compute time of a container, in thousandths of each of its cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordCompute {
    /// Compute time that it is promised.
    pub request_milli: u16,
    /// The most.
    pub limit_milli: u16,
    /// Is it promised nothing, and gets what others leave?
    pub opportunistic: bool,
}

impl Record {
    /// Its compute time, and the class that decides which container gives way.
    #[must_use]
    pub fn compute_time(&self) -> (ComputeRange, Class) {
        let kept = self.compute.and_then(|kept| {
            let (request, limit) = (
                Milli::new(kept.request_milli)?,
                Milli::new(kept.limit_milli)?,
            );
            let class = if kept.opportunistic {
                Class::Opportunistic
            } else {
                Class::Guaranteed
            };
            Some((ComputeRange::new(request, limit)?, class))
        });
        kept.unwrap_or((ComputeRange::ANY, Class::Guaranteed))
    }

    /// Length of its turns while others wait.
    #[must_use]
    pub fn slice(&self) -> Option<SliceLength> {
        self.slice.as_deref()?.parse().ok()
    }

    /// Limits of the container on its cards.
    #[must_use]
    pub fn limits(&self) -> ContainerLimits {
        let memory = self.cards.iter().map(|card| MiB::new(card.limit_mib));
        ContainerLimits {
            compute: self.compute_time().0.limit(),
            memory: memory.map(|limit| limit.unwrap_or(MiB::MAX)).collect(),
        }
    }

    /// Makes the record of a container that gets its devices now.
    #[must_use]
    pub fn of(handed: &AllocationResponse) -> Record {
        let list = match handed.role {
            Role::Main => "main",
            Role::Init | Role::Sidecar => "init",
        };
        let cards = handed.cards.iter().map(|card| RecordCard {
            index: card.index.0,
            uuid: card.uuid.as_ref().map(ToString::to_string),
            limit_mib: card.memory.get(),
        });
        Record {
            id: None,
            namespace: handed.pod.namespace().to_owned(),
            pod: handed.pod.name().to_owned(),
            uid: handed.uid.to_string(),
            container: handed.container.to_string(),
            place: format!("{list}-{}", handed.position),
            ends_first: handed.role == Role::Init,
            cards: cards.collect(),
            pinned_limit_mib: handed.pinned.map(MiB::get),
            compute: Some(RecordCompute {
                request_milli: handed.compute.request().get(),
                limit_milli: handed.compute.limit().get(),
                opportunistic: handed.class == Class::Opportunistic,
            }),
            slice: handed.slice.map(|slice| slice.to_string()),
            mps: false,
            libraries: Vec::new(),
            seat: None,
        }
    }

    /// Does it say the same as a new one, but for the number?
    pub(crate) fn is_same(&self, new: &Record) -> bool {
        let id = self.id;
        *self == Record { id, ..new.clone() }
    }

    /// The pods that may have it; at most one of them does.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        let known = self.twins().is_empty().then_some(self.uid.as_str());
        let twins = self.twins().iter().map(|[uid, ..]| uid.as_str());
        twins.chain(known)
    }

    /// The pods that may have its cards, as far as that can be said: the names of its cards, each
    /// with a pod.
    pub(crate) fn held(&self) -> Vec<(DeviceName, PodUid)> {
        let uids = self.holders().filter_map(|uid| PodUid::new(uid).ok());
        let cards = || {
            self.cards.iter().map(|card| {
                let uuid = card.uuid.as_deref();
                let uuid = uuid.and_then(|uuid| GpuUuid::new(uuid).ok());
                card_name(GpuIndex(card.index), uuid.as_ref())
            })
        };
        uids.flat_map(|uid| cards().map(move |card| (card, uid.clone())))
            .collect()
    }

    /// The pods that it may be; none where that is known.
    #[must_use]
    pub fn twins(&self) -> &[[String; 3]] {
        self.seat.as_ref().map_or(&[], |seat| &seat.twins)
    }

    /// Its pod and its turn in it, for the arbiter's accounts.
    #[must_use]
    pub fn promise(&self) -> Promise {
        let (list, position) = self.place.split_once('-').unwrap_or((&self.place, ""));
        Promise {
            // Of a seat it stays what it was at first: the pod has no other container of ours.
            pod: self.own_folder().into(),
            role: match list {
                "init" if self.ends_first => Role::Init,
                "init" => Role::Sidecar,
                _ => Role::Main,
            },
            position: position.parse().unwrap_or(0),
        }
    }

    /// Name of the container for people.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.pod, self.container)
    }

    /// Its folder below that of all containers.
    #[must_use]
    pub fn folder(&self, containers: &Path) -> PathBuf {
        containers.join(self.own_folder()).join(&self.place)
    }

    fn own_folder(&self) -> &str {
        self.seat.as_ref().map_or(&self.uid, |seat| &seat.folder)
    }

    /// The part of it that is mounted.
    #[must_use]
    pub fn tenant(&self, containers: &Path) -> PathBuf {
        self.folder(containers).join(TENANT)
    }

    /// Makes the folders: the mounted one for everybody in the container, those above it for
    /// nobody but us.
    ///
    /// # Errors
    /// The system refused to make a folder.
    pub fn make_folders(&self, containers: &Path) -> io::Result<()> {
        let mut make = fs::DirBuilder::new();
        make.recursive(true).mode(0o700);
        make.create(self.folder(containers))?;
        let tenant = self.tenant(containers);
        make.create(&tenant)?;
        fs::set_permissions(&tenant, fs::Permissions::from_mode(0o755))
    }

    /// Writes it, complete or not at all.
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn write(&self, containers: &Path) -> io::Result<()> {
        let folder = self.folder(containers);
        let draft = folder.join("record.new");
        fs::write(&draft, serde_json::to_vec(self)?)?;
        fs::rename(&draft, folder.join(FILE))
    }

    /// Removes the folder, and its pod's if it was the last.
    pub fn remove(&self, containers: &Path) -> io::Result<()> {
        let folder = self.folder(containers);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // It stays while other containers of the pod have theirs in it.
        let _not_empty = fs::remove_dir(containers.join(self.own_folder()));
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::isolate::found::read_all;

    pub(in crate::isolate) fn record(pod: &str, id: Option<u64>) -> Record {
        Record {
            id,
            namespace: "ns".to_owned(),
            pod: pod.to_owned(),
            uid: format!("uid-{pod}"),
            container: "main".to_owned(),
            place: "main-0".to_owned(),
            ends_first: false,
            cards: vec![RecordCard {
                index: 1,
                uuid: Some("GPU-1".to_owned()),
                limit_mib: 300,
            }],
            pinned_limit_mib: Some(64),
            compute: Some(RecordCompute {
                request_milli: 300,
                limit_milli: 600,
                opportunistic: false,
            }),
            slice: None,
            mps: false,
            libraries: vec!["/l/sublet-1".into()],
            seat: None,
        }
    }

    #[test]
    fn what_was_written_is_found_again_in_the_order_of_numbers() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        let (late, early) = (record("a", Some(7)), record("b", Some(2)));
        for record in [&late, &early] {
            record.make_folders(base).unwrap();
            record.write(base).unwrap();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&late.tenant(base)), 0o755);
        assert_eq!(mode(&base.join("uid-a")), 0o700);
        let records = || read_all(base).unwrap().records;
        assert_eq!(records(), [early.clone(), late.clone()]);
        early.remove(base).unwrap();
        early.remove(base).unwrap();
        assert_eq!(records(), [late]);
        assert!(!base.join("uid-b").exists());
        assert_eq!(early.name(), "ns/b/main");
    }

    #[test]
    fn the_first_release_s_record_is_read_and_written_alike() {
        let text = include_str!("../../../../../fixtures/0.1.0/agent/record.json");
        let record: Record = serde_json::from_str(text).unwrap();
        let (compute, class) = record.compute_time();
        assert_eq!(
            (compute.to_string().as_str(), class, record.id),
            ("30 %..60 %", Class::Guaranteed, Some(7))
        );
        assert_eq!(record.seat.as_ref().unwrap().twins.len(), 2);
        assert_eq!(serde_json::to_string(&record).unwrap(), text.trim_end());
    }

    #[test]
    fn what_an_earlier_agent_wrote_promises_no_compute_time() {
        let mut new = record("a", None);
        let (compute, class) = new.compute_time();
        assert_eq!(
            (compute.to_string().as_str(), class),
            ("30 %..60 %", Class::Guaranteed)
        );
        let mut old = serde_json::to_value(&new).unwrap();
        assert!(old.as_object_mut().unwrap().remove("compute").is_some());
        let old: Record = serde_json::from_value(old).unwrap();
        assert_eq!(old.compute_time(), (ComputeRange::ANY, Class::Guaranteed));
        new.compute = Some(RecordCompute {
            request_milli: 0,
            limit_milli: 1000,
            opportunistic: true,
        });
        assert_eq!(
            new.compute_time(),
            (ComputeRange::ANY, Class::Opportunistic)
        );
    }

    #[test]
    fn a_record_knows_its_turn_in_its_pod() {
        let turn = |place: &str, ends_first| {
            let mut record = record("a", None);
            record.place = place.to_owned();
            record.ends_first = ends_first;
            let promise = record.promise();
            assert_eq!(&*promise.pod, "uid-a");
            (promise.role, promise.position)
        };
        assert_eq!(turn("main-1", false), (Role::Main, 1));
        assert_eq!(turn("init-12", true), (Role::Init, 12));
        assert_eq!(turn("init-0", false), (Role::Sidecar, 0));
    }

    #[test]
    fn a_socket_s_path_is_short_enough() {
        let mut long = record("x", None);
        long.uid = "0".repeat(36);
        long.place = "init-99".to_owned();
        let socket = long.tenant(Path::new("/var/lib/sublet/containers"));
        let socket = socket.join("tenant.sock").display().to_string();
        assert!(socket.len() < 108, "{socket} has {} bytes", socket.len());
    }
}
