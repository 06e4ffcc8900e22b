//! The device plugin against a kubelet that behaves as the real one does at its worst:
//! late, restarted, refusing, forgetful. Real sockets, no GPU, no cluster. `sublet-e2e` tests it
//! with the real kubelet.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fake_kubelet::FakeKubelet;
use sublet_agent::plugin::{Allocator, DeviceIds, Plugin, PluginSpec};
use sublet_kubelet::deviceplugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, Device, DeviceList,
    MESSAGE_LIMIT, PreferredAllocationRequest,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

mod fake_kubelet;

const MEMORY: &str = "aliyun.com/gpu-mem";
const CARDS: &str = "nvidia.com/gpu";

/// Answers with the IDs it was asked for; errors and miscounts on demand.
struct Echo;

#[tonic::async_trait]
impl Allocator for Echo {
    async fn allocate(
        &self,
        containers: Vec<DeviceIds>,
    ) -> Result<Vec<ContainerAllocateResponse>, Status> {
        let asked = containers.concat();
        if asked.iter().any(|id| id == "two-pods") {
            return Err(Status::failed_precondition("pods a/x and a/y ask the same"));
        }
        if asked.iter().any(|id| id == "miscount") {
            return Ok(Vec::new());
        }
        let answers = containers.into_iter().map(|ids| ContainerAllocateResponse {
            envs: [("IDS".to_owned(), ids.join(","))].into(),
            ..ContainerAllocateResponse::default()
        });
        Ok(answers.collect())
    }

    async fn preferred(
        &self,
        containers: Vec<ContainerPreferredAllocationRequest>,
    ) -> Result<Vec<DeviceIds>, Status> {
        let last = |one: ContainerPreferredAllocationRequest| {
            let skip = one.available_device_i_ds.len() - one.allocation_size as usize;
            one.available_device_i_ds[skip..].to_vec()
        };
        Ok(containers.into_iter().map(last).collect())
    }
}

/// A plugin that runs until it is dropped or stopped.
struct Running {
    devices: watch::Sender<DeviceList>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    registrations: mpsc::UnboundedReceiver<String>,
}

fn run(folder: &Path, resource: &str, devices: DeviceList) -> Running {
    let (devices, offered) = watch::channel(devices);
    let (stop, stopped) = watch::channel(false);
    let (registered, registrations) = mpsc::unbounded_channel();
    let plugin = Plugin {
        spec: PluginSpec {
            resource: resource.to_owned(),
            socket_name: format!("{}.sock", resource.replace('/', "-")),
            prefers: true,
        },
        devices: offered,
        allocator: Arc::new(Echo),
        registered,
    };
    let task = tokio::spawn(plugin.run(folder.to_owned(), stopped));
    Running {
        devices,
        stop,
        task,
        registrations,
    }
}

fn devices(n: usize, sick: usize) -> DeviceList {
    (0..n)
        .map(|i| Device::new(format!("GPU-0-_-{i}"), i >= sick, None))
        .collect()
}

fn sockets(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn two_resources_register_and_push_changes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kubelet = FakeKubelet::start(folder.path(), 0)?;
    let mut memory = run(folder.path(), MEMORY, devices(30, 0));
    let _cards = run(folder.path(), CARDS, devices(2, 0));

    kubelet
        .wait(MEMORY, "30 healthy", |known| known.n_healthy() == 30)
        .await;
    kubelet
        .wait(CARDS, "2 healthy", |known| known.n_healthy() == 2)
        .await;

    memory.devices.send_replace(devices(30, 10));
    kubelet
        .wait(MEMORY, "20 healthy", |known| known.n_healthy() == 20)
        .await;
    let known = kubelet.knows(MEMORY);
    assert_eq!(
        known.devices.map(|list| list.len()),
        Some(30),
        "a sick device stays capacity"
    );
    assert_eq!(known.n_registered, 1, "a change is pushed, not registered");
    assert_eq!(memory.registrations.recv().await.as_deref(), Some(MEMORY));
    assert!(memory.registrations.is_empty());
    assert_eq!(kubelet.knows(CARDS).n_healthy(), 2);
    Ok(())
}

#[tokio::test]
async fn kubelet_restarted_empties_the_folder_and_finds_the_plugin_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let first = FakeKubelet::start(folder.path(), 0)?;
    let _memory = run(folder.path(), MEMORY, devices(3, 0));
    first
        .wait(MEMORY, "3 healthy", |known| known.n_healthy() == 3)
        .await;
    drop(first);

    let second = FakeKubelet::start(folder.path(), 0)?;
    second
        .wait(MEMORY, "3 healthy after the restart", |known| {
            known.n_healthy() == 3
        })
        .await;
    let answer = second.allocate(MEMORY, &[&["GPU-0-_-1"]]).await?;
    assert_eq!(answer.container_responses[0].envs["IDS"], "GPU-0-_-1");
    Ok(())
}

#[tokio::test]
async fn a_broken_stream_is_answered_by_registering_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kubelet = FakeKubelet::start(folder.path(), 0)?;
    let _memory = run(folder.path(), MEMORY, devices(3, 0));
    kubelet
        .wait(MEMORY, "3 healthy", |known| known.n_healthy() == 3)
        .await;

    kubelet.break_streams();
    kubelet
        .wait(MEMORY, "3 healthy again", |known| known.n_healthy() == 3)
        .await;
    assert_eq!(kubelet.knows(MEMORY).n_registered, 2);
    Ok(())
}

#[tokio::test]
async fn an_absent_kubelet_is_waited_for_and_a_refusal_tried_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let memory = run(folder.path(), MEMORY, devices(3, 0));
    let serving = async {
        while sockets(folder.path()).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), serving).await?;
    assert!(!memory.task.is_finished());

    let kubelet = FakeKubelet::start(folder.path(), 2)?;
    kubelet
        .wait(MEMORY, "3 healthy", |known| known.n_healthy() == 3)
        .await;
    assert_eq!(kubelet.knows(MEMORY).n_registered, 1);
    Ok(())
}

#[tokio::test]
async fn stopping_withdraws_the_devices_and_the_socket() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kubelet = FakeKubelet::start(folder.path(), 0)?;
    // A socket that a killed agent left behind is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(
        folder.path().join("aliyun.com-gpu-mem.sock"),
    )?);
    let memory = run(folder.path(), MEMORY, devices(3, 0));
    kubelet
        .wait(MEMORY, "3 healthy", |known| known.n_healthy() == 3)
        .await;

    memory.stop.send_replace(true);
    kubelet
        .wait(MEMORY, "the end of the stream", |known| {
            known.devices.is_none()
        })
        .await;
    tokio::time::timeout(Duration::from_secs(20), memory.task).await??;
    assert_eq!(sockets(folder.path()), ["kubelet.sock"]);
    Ok(())
}

#[tokio::test]
async fn allocate_reaches_the_allocator_in_any_order() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kubelet = FakeKubelet::start(folder.path(), 0)?;
    let _memory = run(folder.path(), MEMORY, devices(3, 0));
    kubelet
        .wait(MEMORY, "3 healthy", |known| known.n_healthy() == 3)
        .await;

    let answer = kubelet
        .allocate(MEMORY, &[&["c", "a"], &[], &["b"]])
        .await?;
    let ids: Vec<&str> = answer
        .container_responses
        .iter()
        .map(|one| one.envs["IDS"].as_str())
        .collect();
    assert_eq!(ids, ["c,a", "", "b"]);

    let both = [&["late"][..]];
    let (late, early) = tokio::join!(
        kubelet.allocate(MEMORY, &both),
        kubelet.allocate(MEMORY, &[&["early"]])
    );
    assert_eq!(late?.container_responses[0].envs["IDS"], "late");
    assert_eq!(early?.container_responses[0].envs["IDS"], "early");

    let refused = kubelet
        .allocate(MEMORY, &[&["two-pods"]])
        .await
        .unwrap_err();
    let status: &Status = refused.downcast_ref().unwrap();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(status.message(), "pods a/x and a/y ask the same");
    let miscounted = kubelet
        .allocate(MEMORY, &[&["miscount"]])
        .await
        .unwrap_err();
    let status: &Status = miscounted.downcast_ref().unwrap();
    assert_eq!(
        status.message(),
        "1 containers asked for devices, 0 got an answer"
    );
    Ok(())
}

#[tokio::test]
async fn the_largest_list_passes_kubelets_limit_and_so_does_its_echo() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kubelet = FakeKubelet::start(folder.path(), 0)?;
    let uuid = "GPU-fef8089b-4820-abfc-e83e-94318197576e";
    let endless = (0..).map(|i| Device::new(format!("{uuid}-_-{i}"), true, Some(1)));
    let list = endless.take(45_000).collect::<DeviceList>();
    assert!(list.encoded_size() > MESSAGE_LIMIT / 2 && list.encoded_size() < MESSAGE_LIMIT);
    let ids: Vec<String> = list.iter().map(|device| device.id).collect();
    let _memory = run(folder.path(), MEMORY, list);
    kubelet
        .wait(MEMORY, "45000 healthy", |known| known.n_healthy() == 45_000)
        .await;

    let request = PreferredAllocationRequest {
        container_requests: vec![ContainerPreferredAllocationRequest {
            available_device_i_ds: ids.clone(),
            must_include_device_i_ds: ids.clone(),
            allocation_size: 2,
        }],
    };
    let answer = kubelet
        .client(MEMORY)?
        .get_preferred_allocation(request)
        .await?
        .into_inner();
    assert_eq!(
        answer.container_responses[0].device_i_ds,
        ids[ids.len() - 2..]
    );
    Ok(())
}

#[tokio::test]
async fn the_socket_of_a_newer_agent_is_left_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kubelet = FakeKubelet::start(folder.path(), 0)?;
    let old = run(folder.path(), MEMORY, devices(3, 0));
    kubelet
        .wait(MEMORY, "3 healthy", |known| known.n_healthy() == 3)
        .await;
    let new = run(folder.path(), MEMORY, devices(5, 0));
    kubelet
        .wait(MEMORY, "5 healthy", |known| known.n_healthy() == 5)
        .await;

    old.stop.send_replace(true);
    tokio::time::timeout(Duration::from_secs(20), old.task).await??;
    assert_eq!(
        sockets(folder.path()),
        ["aliyun.com-gpu-mem.sock", "kubelet.sock"]
    );
    assert!(!new.task.is_finished());
    Ok(())
}
