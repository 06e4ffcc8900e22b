//! Following a node's devices: a simulated node whose file is edited while it runs, and
//! a machine without NVIDIA's library. The format of the file is tested beside its
//! parser, and no real card is needed.

use std::collections::VecDeque;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use sublet_agent::discover::nvml::NvmlSource;
use sublet_agent::discover::simulated::SimulatedSource;
use sublet_agent::discover::{DeviceSource, DiscoverError, follow};
use sublet_model::{Health, Inventory, MiB, NodeName};

fn simulated(path: &Path) -> SimulatedSource {
    SimulatedSource::new(path.to_owned(), NodeName::new("n1").expect("a node name"))
}

/// The next reading after a change of the file.
fn next(source: &mut SimulatedSource) -> Result<Result<Inventory, DiscoverError>> {
    ensure!(
        (0..20).any(|_| source.changed()),
        "the change of the file was not seen"
    );
    Ok(source.read())
}

#[test]
fn an_edited_file_is_read_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("gpus.yaml");
    fs::write(&path, "gpus: [{memory: 16276MiB, count: 2}]")?;
    let mut source = simulated(&path);
    let first = source.read()?;
    assert!(first.gpus()[0].uuid.is_some());
    assert!(!source.changed(), "an untouched file changed");

    fs::write(
        &path,
        "gpus: [{memory: 16276MiB, health: xid 79}, {memory: 16276MiB}]",
    )?;
    let second = next(&mut source)??;
    assert_eq!(second.gpus()[0].health, Health::Sick("xid 79".into()));
    assert_eq!(
        second.gpus()[0].uuid,
        first.gpus()[0].uuid,
        "a sick card keeps its name"
    );
    assert_eq!(second.gpus()[1], first.gpus()[1]);

    fs::write(&path, "gpus: [{memory: much}]")?;
    assert!(matches!(
        next(&mut source)?,
        Err(DiscoverError::File { .. })
    ));
    fs::remove_file(&path)?;
    assert!(matches!(
        next(&mut source)?,
        Err(DiscoverError::Unreadable { .. })
    ));
    fs::write(&path, "gpus: [{memory: 1GiB}]")?;
    assert_eq!(next(&mut source)??.memory().get(), 1024);
    Ok(())
}

/// Reads one thing after the other, as quickly as it is asked.
struct Script(VecDeque<Result<Inventory, DiscoverError>>);

impl DeviceSource for Script {
    fn read(&mut self) -> Result<Inventory, DiscoverError> {
        self.0.pop_front().expect("another reading")
    }

    fn changed(&mut self) -> bool {
        !self.0.is_empty()
    }
}

#[tokio::test]
async fn a_failed_reading_leaves_the_last_good_one() -> Result<()> {
    let cards = |count| Inventory::equal_cards(count, MiB::from(100)).expect("few cards");
    let bad = || DiscoverError::File {
        path: PathBuf::from("f"),
        problem: "bad".to_owned(),
    };
    let readings = [
        Ok(cards(1)),
        Err(bad()),
        Ok(cards(2)),
        Ok(cards(2)),
        Err(bad()),
    ];
    let mut devices = follow(Script(readings.into()))?;
    let limit = Duration::from_secs(20);
    let two = tokio::time::timeout(limit, devices.wait_for(|now| now.gpus().len() == 2)).await??;
    assert_eq!(**two, cards(2));

    let first_is_bad = follow(Script([Err(bad())].into()));
    assert_eq!(
        first_is_bad.map(|_| ()).unwrap_err().to_string(),
        "inventory file f: bad"
    );
    Ok(())
}

#[test]
fn a_bad_file_is_an_error_that_says_where() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("gpus.yaml");
    let missing = simulated(&path).read().unwrap_err().to_string();
    assert!(missing.ends_with("gpus.yaml cannot be read"), "{missing}");

    fs::write(&path, "gpus:\n- memory: much\n")?;
    let bad = simulated(&path).read().unwrap_err().to_string();
    for part in ["gpus.yaml", "line 2", "`memory`", "`much` is not a size"] {
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
    assert!(error.source().is_some());
}
