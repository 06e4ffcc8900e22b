//! Parts that this program gives to the node's arbiter and its containers: libraries, a program
//! that measures, and a machine for cards that a file describes.

use std::ffi::OsString;
use std::path::Path;

use sublet_arbiter::libraries::{LibrarySource, Store};
use sublet_arbiter::{Folder, Gauge, GpuView};
use sublet_fakegpu::{FakeMachine, Spec};
use sublet_fakeview::FakeView;
use sublet_model::Inventory;

use super::inject::FakeKit;
use super::{IsolationError, Wanted, make_private, open_to_all};

/// Source and destination of the libraries for containers.
pub(super) fn store(wanted: &Wanted) -> Result<Store, IsolationError> {
    let source = match &wanted.library_dir {
        Some(folder) => LibrarySource::Folders(vec![folder.clone()]),
        None => {
            let own = std::env::current_exe()
                .map_err(IsolationError::io("finding", Path::new("this program")))?;
            LibrarySource::of(&own, wanted.carried)
        }
    };
    Ok(Store::new(source, vec![wanted.state_dir.join("libraries")]))
}

/// The command by which `program` measures the cards, which may be a fake machine's.
pub(super) fn gauge(program: &Path, fake: Option<&FakeKit>) -> Gauge {
    let machine = fake.map(|fake| [OsString::from("--fake-gpu"), fake.machine.clone().into()]);
    let arguments = ["agent", "--standalone"].map(OsString::from).into_iter();
    let arguments = arguments.chain(machine.into_iter().flatten());
    Gauge {
        program: program.to_owned(),
        arguments: arguments.chain([OsString::from("--measure")]).collect(),
    }
}

/// A fake machine: its arbiter's folder, the view of its cards, and what containers mount of it.
pub(super) type Simulated = (Folder, Box<dyn GpuView>, Option<FakeKit>);

/// A machine with the cards of an inventory file. It is in the run folder, which is memory,
/// and which containers can mount; `/dev/shm` of a pod is the pod's own.
pub(super) fn simulated(
    wanted: &Wanted,
    store: &Store,
    inventory: &Inventory,
) -> Result<Simulated, IsolationError> {
    if inventory.gpus().is_empty() {
        return Err(IsolationError::NoCards);
    }
    let (driver, _nvml) = store.fake_driver()?;
    let spec = Spec::from_inventory(inventory)?;
    let machines = wanted.run_folder.join("machines");
    make_private(&machines)?;
    let machine = FakeMachine::open_or_create_in(&machines, &spec)?;
    // Containers' processes have any user, and are to it what they are to a card's device
    // file. Nobody else comes here: the folder above is ours alone.
    let folder = machine.folder().to_owned();
    open_to_all(&folder, 0o777)?;
    open_to_all(&folder.join("machine"), 0o666)?;
    let kit = FakeKit {
        driver: driver.parent().unwrap_or(Path::new("/")).to_owned(),
        machine: folder,
    };
    let place = Folder::within(&wanted.run_folder, &format!("fake-{}", spec.digest()));
    Ok((place, Box::new(FakeView::new(machine)), Some(kit)))
}
