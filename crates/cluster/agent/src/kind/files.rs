//! Device files in a folder, such as those of a site's network cards: each is a device of its own, or
//! several that share it. The agent needs the same folder at the same path as the node. A file that
//! was there and is gone stays as an unhealthy device, so that kubelet, and readers of the node,
//! learn of it; only a new agent forgets it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::num::NonZeroU16;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{major, minor};
use sublet_api::dialect;
use sublet_kubelet::deviceplugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, Device, DeviceSpec,
};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tonic::Status;
use tracing::{info, warn};

use super::{DeviceKind, Pool, Pools};
use crate::allocate::ID_SEPARATOR;
use crate::lifecycle::{Ailing, DeviceName};
use crate::lifecycle_manager::{LifecycleManager, PATIENCE};
use crate::plugin::DeviceIds;
use crate::watched::send_if_new;

/// Reads the operator's text.
pub(super) fn open(text: &str) -> Result<Arc<dyn DeviceKind>, String> {
    let wish = FilesWish::parse(text)?;
    Ok(Arc::new(Files::of(wish)))
}

/// Interval between looks at the folder: a system call for each file.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The domain of resources whose name has none.
const DOMAIN: &str = "sublet.dev";

/// The longest name of a resource: kubelet's folder, this and some letters are the path of a socket,
/// which has at most 107.
const RESOURCE_MAX: usize = 60;

/// The operator's setting: `NAME=DIR[,times=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FilesWish {
    resource: String,
    folder: PathBuf,
    times: NonZeroU16,
}

impl FilesWish {
    fn parse(text: &str) -> Result<FilesWish, String> {
        let form = "the form is files:NAME=DIR or files:NAME=DIR,times=N";
        let (name, rest) = text.split_once('=').ok_or(form)?;
        let (folder, times) = match rest.rsplit_once(",times=") {
            Some((folder, times)) => {
                let wrong = |_| format!("times={times} is no number from 1 to 65535");
                (folder, times.parse().map_err(wrong)?)
            }
            None => (rest, NonZeroU16::MIN),
        };
        let folder = PathBuf::from(folder);
        if !folder.is_absolute() {
            return Err(format!(
                "`{}` is no absolute path; {form}",
                folder.display()
            ));
        }
        Ok(FilesWish {
            resource: resource(name)?,
            folder,
            times,
        })
    }

    /// The devices of one file.
    fn devices<'a>(&'a self, name: &'a str, seen: &Seen) -> impl Iterator<Item = Device> + 'a {
        let (is_there, numa) = (seen.is_there, seen.numa);
        (0..self.times.get()).map(move |number| match self.times {
            NonZeroU16::MIN => Device::new(name.to_owned(), is_there, numa),
            _ => Device::new(format!("{name}{ID_SEPARATOR}{number}"), is_there, numa),
        })
    }
}

/// The resource of that name, checked as the API server would.
fn resource(name: &str) -> Result<String, String> {
    let (domain, last) = name.split_once('/').unwrap_or((DOMAIN, name));
    let is_label = |text: &str, more: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        text.chars().all(inner) && ends(text.chars().next()) && ends(text.chars().last())
    };
    let is_domain = domain.split('.').all(|part| is_label(part, "-"))
        && !domain.contains(|c: char| c.is_ascii_uppercase());
    if !is_domain || !is_label(last, "-_.") || last.contains('/') {
        return Err(format!(
            "`{name}` cannot be a resource; write a name such as rdma, or example.com/rdma"
        ));
    }
    let resource = format!("{domain}/{last}");
    if resource.len() > RESOURCE_MAX {
        return Err(format!(
            "`{resource}` is longer than {RESOURCE_MAX} letters"
        ));
    }
    if domain.ends_with("kubernetes.io") {
        return Err(format!(
            "`{resource}`: names of kubernetes.io are Kubernetes' own"
        ));
    }
    if dialect::device_resources().any(|known| known == resource) {
        return Err(format!("`{resource}` means GPUs"));
    }
    Ok(resource)
}

/// A file as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    is_there: bool,
    numa: Option<u16>,
}

/// By file name.
type Folder = BTreeMap<String, Seen>;

/// Adds the files that were found to the known ones.
fn add(known: &mut Folder, found: Folder) {
    for (name, seen) in &mut *known {
        if seen.is_there && !found.contains_key(name) {
            warn!(name, "a device file is gone");
        }
        seen.is_there = false;
    }
    known.extend(found);
}

/// Looks at a folder. Names that are no text cannot be told to kubelet, and links may point
/// anywhere: both are passed over.
///
/// # Errors
/// There is no folder; or nothing is known of some file now: descriptors have run out, a disk fails.
fn look(folder: &Path) -> io::Result<Folder> {
    let mut found = Folder::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let data = match entry.metadata() {
            // It went between the two looks.
            Err(error) if is_gone(&error) => continue,
            data => data?,
        };
        if is_device(&data) {
            let numa = numa_of(&data);
            found.insert(
                name,
                Seen {
                    is_there: true,
                    numa,
                },
            );
        }
    }
    Ok(found)
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    gone.contains(&error.kind())
}

fn is_device(data: &fs::Metadata) -> bool {
    data.file_type().is_char_device() || data.file_type().is_block_device()
}

/// The NUMA node of the hardware behind a device file, where the kernel knows one.
fn numa_of(data: &fs::Metadata) -> Option<u16> {
    let kind = if data.file_type().is_block_device() {
        "block"
    } else {
        "char"
    };
    let (major, minor) = (major(data.rdev()), minor(data.rdev()));
    let path = format!("/sys/dev/{kind}/{major}:{minor}/device/numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// One folder of device files.
struct Files {
    wish: FilesWish,
    pools: watch::Sender<Pools>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    folder: Folder,
    /// Devices that cannot be cleaned.
    ailing: Ailing,
    /// Last problem that was logged.
    complaint: Option<String>,
}

impl Files {
    fn of(wish: FilesWish) -> Files {
        Files {
            wish,
            pools: watch::Sender::default(),
            known: Mutex::default(),
        }
    }

    /// Takes note of a look. A folder that is gone has no files any more; any other failure says
    /// nothing of them, and all stay as they were.
    fn see(&self, looked: io::Result<Folder>) {
        self.learn(|known| {
            let why = looked.as_ref().err().map(ToString::to_string);
            if let Some(why) = why
                .as_ref()
                .filter(|why| known.complaint.as_ref() != Some(why))
            {
                let folder = self.wish.folder.display();
                warn!(%folder, why, "device files not seen, will look again");
            }
            known.complaint = why;
            match looked {
                Ok(found) => add(&mut known.folder, found),
                Err(error) if is_gone(&error) => add(&mut known.folder, Folder::new()),
                Err(_) => {}
            }
        });
    }

    /// Takes note of something, and offers what then is.
    fn learn(&self, note: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut known);
        let files: Folder = known
            .folder
            .iter()
            .map(|(name, seen)| {
                let is_well = !known.ailing.contains_key(&self.path(name));
                let is_there = seen.is_there && is_well;
                (name.clone(), Seen { is_there, ..*seen })
            })
            .collect();
        drop(known);
        self.offer(&files);
    }

    fn path(&self, name: &str) -> DeviceName {
        self.wish.folder.join(name).display().to_string()
    }

    fn file_of<'a>(&self, id: &'a str) -> &'a str {
        match self.wish.times {
            NonZeroU16::MIN => id,
            _ => file_of(id),
        }
    }

    /// Makes the specifications of these devices for a container, by path.
    ///
    /// # Errors
    /// A file is gone.
    fn specs(
        &self,
        resource: &str,
        devices: &DeviceIds,
    ) -> Result<BTreeMap<DeviceName, DeviceSpec>, Status> {
        let mut specs = BTreeMap::new();
        for id in devices {
            let name = self.file_of(id);
            let path = self.path(name);
            // No name leads out of the folder: kubelet gives back what it was told.
            let is_there = fs::symlink_metadata(&path).is_ok_and(|data| is_device(&data));
            if !is_there || name.contains('/') {
                let why = format!("{resource}: {path} is no device file any more");
                warn!(resource, path, "no devices handed over");
                return Err(Status::failed_precondition(why));
            }
            let spec = DeviceSpec {
                container_path: path.clone(),
                host_path: path.clone(),
                permissions: "rw".to_owned(),
            };
            specs.insert(path, spec);
        }
        Ok(specs)
    }

    fn offer(&self, known: &Folder) {
        let files = known.iter();
        let devices = files.flat_map(|(name, seen)| self.wish.devices(name, seen));
        let resource = &self.wish.resource;
        let pool = Pool {
            socket: format!("sublet-{}.sock", resource.replace('/', "_")),
            prefers: self.wish.times > NonZeroU16::MIN,
            devices: devices.collect(),
        };
        let pools = Pools::from([(resource.clone(), pool)]);
        let pools = if known.is_empty() {
            Pools::new()
        } else {
            pools
        };
        if send_if_new(&self.pools, &pools) {
            let healthy = known.values().filter(|seen| seen.is_there).count();
            info!(
                resource,
                files = known.len(),
                healthy,
                "device files changed"
            );
        }
    }
}

#[tonic::async_trait]
impl DeviceKind for Files {
    async fn discover(&self) -> Infallible {
        loop {
            let folder = self.wish.folder.clone();
            let looked = spawn_blocking(move || look(&folder)).await;
            self.see(looked.unwrap_or_else(|panic| Err(io::Error::other(panic))));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn offered(&self) -> watch::Receiver<Pools> {
        self.pools.subscribe()
    }

    fn device_of(&self, id: &str) -> DeviceName {
        self.path(self.file_of(id))
    }

    fn show(&self, ailing: &Ailing) {
        self.learn(|known| known.ailing.clone_from(ailing));
    }

    async fn hand_over(
        &self,
        resource: &str,
        devices: DeviceIds,
        lifecycles: &LifecycleManager,
    ) -> Result<ContainerAllocateResponse, Status> {
        let specs = self.specs(resource, &devices)?;
        let names: Vec<DeviceName> = specs.keys().cloned().collect();
        // Kubelet does not say for whom; its checkpoint will.
        lifecycles.ready(&names, &[], None, PATIENCE).await?;
        info!(resource, files = ?names, "device files handed over");
        Ok(ContainerAllocateResponse {
            devices: specs.into_values().collect(),
            ..ContainerAllocateResponse::default()
        })
    }
    /// Different files first: a container that asks for two is not to get one of them twice.
    async fn preferred(
        &self,
        _resource: &str,
        asked: Vec<ContainerPreferredAllocationRequest>,
    ) -> Vec<DeviceIds> {
        asked.iter().map(apart).collect()
    }
}

/// The file of a device ID, where several share it.
fn file_of(id: &str) -> &str {
    id.rsplit_once(ID_SEPARATOR).map_or(id, |(name, _)| name)
}

/// Chooses as many devices as asked, of different files as far as there are so many; first from the
/// file with most free devices.
fn apart(asked: &ContainerPreferredAllocationRequest) -> DeviceIds {
    let mut left: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for id in &asked.available_device_i_ds {
        if !asked.must_include_device_i_ds.contains(id) {
            left.entry(file_of(id)).or_default().push(id);
        }
    }
    let mut chosen = asked.must_include_device_i_ds.clone();
    let count = usize::try_from(asked.allocation_size).unwrap_or(0);
    while chosen.len() < count {
        let times = |name: &str| chosen.iter().filter(|id| file_of(id) == name).count();
        let best = left
            .iter()
            .filter(|(_, ids)| !ids.is_empty())
            .min_by_key(|(name, ids)| (times(name), usize::MAX - ids.len()))
            .map(|(name, _)| *name);
        let Some(id) = best.and_then(|name| left.get_mut(name)?.pop()) else {
            break;
        };
        chosen.push(id.clone());
    }
    chosen
}

#[cfg(test)]
mod tests;
