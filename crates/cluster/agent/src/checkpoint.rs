//! Kubelet's checkpoint: devices and their owners. Kubelet writes it after each answer to an Allocate,
//! before it asks about another container. Afterwards the checkpoint names the container,
//! which the call itself does not. Read only; only kubelet writes them.
//!
//! The form is kubelet's internal one (`pkg/kubelet/cm/devicemanager/checkpoint`), the same since
//! Kubernetes 1.20. A checkpoint that cannot be read counts as none: then nothing is concluded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sublet_api::dialect::DIALECTS;
use sublet_api::keys;
use sublet_model::PodUid;

/// The file, in the folder of the device plugins' sockets.
const FILE: &str = "kubelet_internal_checkpoint";

#[derive(Deserialize)]
struct Checkpoint {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<CheckpointEntry>>,
}

/// The devices of one resource that one container has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CheckpointEntry {
    /// The pod's UID.
    #[serde(rename = "PodUID")]
    uid: String,
    /// The container.
    container_name: String,
    /// The resource.
    resource_name: String,
    /// The IDs, by NUMA node.
    #[serde(rename = "DeviceIDs")]
    devices: BTreeMap<i64, Vec<String>>,
}

impl CheckpointEntry {
    /// Has it that device?
    fn has(&self, device: &str) -> bool {
        self.devices.values().flatten().any(|id| id == device)
    }
}

/// Owners of the devices, as kubelet has written them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletCheckpoint(Vec<CheckpointEntry>);

impl KubeletCheckpoint {
    /// Path of the checkpoint of a kubelet with this folder for device plugins.
    pub(crate) fn place(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// Reads them; `None` where there are none that can be read.
    pub(crate) fn read(place: &Path) -> Option<KubeletCheckpoint> {
        let text = std::fs::read(place).ok()?;
        let read = KubeletCheckpoint::from_json(&text);
        if let Err(error) = &read {
            tracing::debug!(place = %place.display(), %error, "not kubelet's checkpoint as we know them");
        }
        read.ok()
    }

    /// Reads their text.
    ///
    /// # Errors
    /// Not such JSON.
    pub fn from_json(text: &[u8]) -> Result<KubeletCheckpoint, serde_json::Error> {
        let checkpoint: Checkpoint = serde_json::from_slice(text)?;
        Ok(KubeletCheckpoint(
            checkpoint.data.entries.unwrap_or_default(),
        ))
    }

    /// Has that container of that pod any of our devices?
    pub(crate) fn has_served(&self, uid: &str, container: &str) -> bool {
        let served = |one: &CheckpointEntry| {
            one.uid == uid && one.container_name == container && is_ours(&one.resource_name)
        };
        self.0.iter().any(served)
    }

    /// Has that pod any of our devices?
    pub(crate) fn has_any(&self, uid: &str) -> bool {
        let any = |one: &CheckpointEntry| one.uid == uid && is_ours(&one.resource_name);
        self.0.iter().any(any)
    }

    /// The devices of a resource, each with the pod that has it, whichever plugin offers the
    /// resource.
    pub fn holders(&self, resource: &str) -> impl Iterator<Item = (PodUid, &String)> {
        let entries = self
            .0
            .iter()
            .filter(move |one| one.resource_name == resource);
        entries.flat_map(|one| {
            let uid = PodUid::new(&one.uid).ok();
            let devices = one.devices.values().flatten();
            devices.filter_map(move |device| Some((uid.clone()?, device)))
        })
    }

    /// Returns the pod, one of `among`, that has that device.
    pub(crate) fn owner<'a>(
        &self,
        device: &str,
        mut among: impl Iterator<Item = &'a str>,
    ) -> Option<&'a str> {
        among.find(|uid| {
            let own = |one: &&CheckpointEntry| one.uid == *uid && is_ours(&one.resource_name);
            self.0.iter().filter(own).any(|one| one.has(device))
        })
    }
}

/// Is that one of the resources that agents of ours offer?
pub(crate) fn is_ours(resource: &str) -> bool {
    let mut offered = DIALECTS.iter().filter_map(|dialect| dialect.offering());
    resource == keys::GPU_SLOT || offered.any(|offering| offering.resource == resource)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_damaged_checkpoint_gives_nobody_anothers_device(
            at in 0..WRITTEN.len(),
            byte in any::<u8>(),
        ) {
            prop_assert!(KubeletCheckpoint::from_json(&WRITTEN.as_bytes()[..at]).is_err());
            let mut damaged = WRITTEN.as_bytes().to_vec();
            damaged[at] = byte;
            if let Ok(checkpoint) = KubeletCheckpoint::from_json(&damaged) {
                prop_assert!(checkpoint.0.len() <= 2);
                // One byte makes no `u1` of the other.
                let owner = checkpoint.owner("GPU-a-_-7", ["u1", "other"].into_iter());
                prop_assert!(matches!(owner, None | Some("u1")), "{owner:?}");
            }
        }
    }

    /// As kubelet 1.36 writes it, but for the answers and most devices.
    const WRITTEN: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"u1","ContainerName":"c0","ResourceName":"aliyun.com/gpu-mem",
         "DeviceIDs":{"-1":["GPU-a-_-7","GPU-a-_-8"]},"AllocResp":"CgA="},
        {"PodUID":"u2","ContainerName":"c0","ResourceName":"aliyun.com/gpu-mem",
         "DeviceIDs":{"0":["GPU-a-_-1"],"1":["GPU-b-_-1"]},"AllocResp":null}],
        "RegisteredDevices":{"aliyun.com/gpu-mem":["GPU-a-_-0"]}},"Checksum":7}"#;

    #[test]
    fn kubelets_checkpoint_says_whose_a_device_is() {
        let checkpoint = KubeletCheckpoint::from_json(WRITTEN.as_bytes()).unwrap();
        assert!(checkpoint.has_served("u1", "c0") && checkpoint.has_served("u2", "c0"));
        assert!(!checkpoint.has_served("u1", "c1") && !checkpoint.has_served("u3", "c0"));
        let owner =
            |device, among: &[&'static str]| checkpoint.owner(device, among.iter().copied());
        assert_eq!(owner("GPU-a-_-8", &["u2", "u1"]), Some("u1"));
        assert_eq!(owner("GPU-b-_-1", &["u1", "u2"]), Some("u2"));
        let holders: Vec<_> = checkpoint.holders("aliyun.com/gpu-mem").collect();
        assert_eq!((holders.len(), holders[3].0.as_str()), (4, "u2"));
        assert_eq!(checkpoint.holders("nvidia.com/gpu").count(), 0);
        // Somebody whom we would not have served, and nobody.
        assert_eq!(owner("GPU-b-_-1", &["u1"]), None);
        assert_eq!(owner("GPU-a-_-9", &["u1", "u2"]), None);
    }

    #[test]
    fn other_texts_are_no_checkpoint() {
        let empty = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
        assert_eq!(
            KubeletCheckpoint::from_json(empty.as_bytes()).unwrap(),
            KubeletCheckpoint::default()
        );
        for text in ["", "{}", r#"{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}"#] {
            assert!(
                KubeletCheckpoint::from_json(text.as_bytes()).is_err(),
                "{text}"
            );
        }
    }
}
