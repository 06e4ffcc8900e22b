//! The smallest possible kind of device, made by the recipe in CONTRIBUTING.md: this file, and its
//! line in `kind/list`. Only tests have it.

use std::sync::Arc;

use sublet_kubelet::deviceplugin::{ContainerAllocateResponse, Device};
use tokio::sync::watch;
use tonic::Status;

use super::{DeviceKind, Pool, Pools};
use crate::lifecycle::Ailing;
use crate::lifecycle_manager::{LifecycleManager, PATIENCE};
use crate::plugin::DeviceIds;

/// Makes as many toys as the text says.
pub(super) fn open(text: &str) -> Result<Arc<dyn DeviceKind>, String> {
    let wrong = |_| format!("`{text}` is no number of toys");
    let count: usize = text.parse().map_err(wrong)?;
    let devices = (0..count).map(|number| Device::new(format!("toy-{number}"), true, None));
    let pool = Pool {
        socket: "toy.sock".to_owned(),
        prefers: false,
        devices: devices.collect(),
    };
    let pools = Pools::from([("example.com/toy".to_owned(), pool)]);
    Ok(Arc::new(Toys(watch::Sender::new(pools))))
}

struct Toys(watch::Sender<Pools>);

#[tonic::async_trait]
impl DeviceKind for Toys {
    fn offered(&self) -> watch::Receiver<Pools> {
        self.0.subscribe()
    }

    /// A toy that cannot be cleaned is offered all the same.
    fn show(&self, _ailing: &Ailing) {}

    async fn hand_over(
        &self,
        _resource: &str,
        devices: DeviceIds,
        lifecycles: &LifecycleManager,
    ) -> Result<ContainerAllocateResponse, Status> {
        lifecycles.ready(&devices, &[], None, PATIENCE).await?;
        let envs = [("TOYS".to_owned(), devices.join(","))];
        Ok(ContainerAllocateResponse {
            envs: envs.into(),
            ..ContainerAllocateResponse::default()
        })
    }
}

#[tokio::test]
async fn a_kind_is_one_file_and_one_line() {
    use sublet_model::NodeName;

    use crate::kind::KindAllocator;
    use crate::kind::list::asked;
    use crate::node_events::node_events;
    use crate::plugin::Allocator;
    use crate::pods::PodSource;

    // Nobody listens there: without its pods a node cleans nothing, and serves all the same.
    let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let client = kube::Client::try_from(nowhere).unwrap();
    let node = NodeName::new("n1").unwrap();
    let pods = PodSource::Listed(client.clone(), node.clone());

    let kind = asked("toy:2").unwrap().kind;
    let pools = kind.offered().borrow().clone();
    let resource = "example.com/toy".to_owned();
    assert_eq!(pools[&resource].devices.len(), 2);
    let kinds = vec![Arc::clone(&kind)];
    let (events, _post) = node_events(client, node);
    let lifecycles = Arc::new(LifecycleManager::new(events, pods, "absent".into(), kinds));
    let allocator = KindAllocator {
        kind,
        resource,
        lifecycles,
    };
    let container = |id: &str| vec![id.to_owned()];
    let asked = vec![container("toy-1"), container("toy-0")];
    let answers = allocator.allocate(asked).await.unwrap();
    let toys: Vec<&str> = answers
        .iter()
        .map(|one| one.envs["TOYS"].as_str())
        .collect();
    assert_eq!(toys, ["toy-1", "toy-0"]);
}
