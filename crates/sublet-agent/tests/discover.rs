//! Following a node's devices: a simulated node whose file is edited while it runs, and
//! a machine without NVIDIA's library. The format of the file is tested beside its
//! parser.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use sublet_agent::discover::nvml::NvmlSource;
use sublet_agent::discover::simulated::SimulatedSource;
use sublet_agent::discover::{DiscoverError, follow};
use sublet_model::{Health, Inventory, NodeName};
use tokio::sync::watch;

fn simulate(path: &Path) -> Result<watch::Receiver<Arc<Inventory>>, DiscoverError> {
    let node = NodeName::new("n1").expect("a node name");
    follow(SimulatedSource::new(path.to_owned(), node))
}

async fn wait(
    devices: &mut watch::Receiver<Arc<Inventory>>,
    wanted: impl FnMut(&Arc<Inventory>) -> bool,
) -> Result<Arc<Inventory>> {
    let seen = tokio::time::timeout(Duration::from_secs(20), devices.wait_for(wanted)).await??;
    Ok(Arc::clone(&seen))
}

#[tokio::test]
async fn an_edited_file_is_followed_and_a_broken_one_is_not() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("gpus.yaml");
    fs::write(&path, "gpus: [{memory: 16276MiB, count: 2}]")?;
    let mut devices = simulate(&path)?;
    let uuid = devices.borrow().gpus()[0].uuid.clone();
    assert!(uuid.is_some());

    fs::write(&path, "gpus: [{memory: 16276MiB, health: xid 79}, {memory: 16276MiB}]")?;
    let sick = wait(&mut devices, |now| !now.gpus()[0].health.is_healthy()).await?;
    assert_eq!(sick.gpus()[0].health, Health::Sick("xid 79".into()));
    assert_eq!(sick.gpus()[0].uuid, uuid, "a sick card keeps its name");

    // Broken, then gone, then good again: the last good one stands until then.
    fs::write(&path, "gpus: [{memory: much}]")?;
    devices.mark_unchanged();
    let quiet = tokio::time::timeout(Duration::from_millis(2500), devices.changed()).await;
    assert!(quiet.is_err(), "a broken file changed the devices");
    fs::remove_file(&path)?;
    let quiet = tokio::time::timeout(Duration::from_millis(1500), devices.changed()).await;
    assert!(quiet.is_err(), "a missing file changed the devices");
    fs::write(&path, "gpus: [{memory: 1GiB}]")?;
    let one = wait(&mut devices, |now| now.gpus().len() == 1).await?;
    assert_eq!(one.memory().get(), 1024);
    Ok(())
}

#[test]
fn a_first_file_that_is_bad_is_an_error_that_says_where() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("gpus.yaml");
    let missing = simulate(&path).unwrap_err().to_string();
    assert!(missing.ends_with("gpus.yaml cannot be read"), "{missing}");

    fs::write(&path, "gpus:\n- memory: much\n")?;
    let bad = simulate(&path).unwrap_err().to_string();
    for part in ["gpus.yaml", "line 2", "`much` is not an amount of memory"] {
        assert!(bad.contains(part), "{bad:?} without {part:?}");
    }
    Ok(())
}

#[test]
fn a_machine_without_the_driver_says_what_to_do() {
    let library = Path::new("libnvidia-ml.so.absent");
    let error = NvmlSource::open(library).err().expect("no such library");
    assert_eq!(
        error.to_string(),
        "libnvidia-ml.so.absent not found; \
         install the NVIDIA driver, or use --inventory FILE to simulate"
    );
    assert!(std::error::Error::source(&error).is_some());
}
