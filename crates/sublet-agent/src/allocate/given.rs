//! What an agent knows of whom it has served, beside what the pods' annotations say.

use std::collections::{BTreeMap, BTreeSet};

use sublet_api::object::{Container, Pod};
use sublet_model::{ContainerName, PodUid};

use crate::books::Books;

/// What this process has handed over. The pods' annotations say the same, but a list may come from
/// a server that lags behind.
#[derive(Clone, Debug, Default)]
pub struct Given {
    handed: BTreeMap<PodUid, BTreeSet<ContainerName>>,
    /// Were kubelet's books read just now? Without them nobody is served in doubt.
    with_books: bool,
    /// Is it known of every answer for whom it was?
    settled: bool,
}

impl Given {
    /// Notes that a container has its devices.
    pub fn note(&mut self, pod: &PodUid, container: &ContainerName) {
        let containers = self.handed.entry(pod.clone()).or_default();
        containers.insert(container.clone());
    }

    /// Notes whom kubelet has served by its own books; `None`: they cannot be read.
    pub(crate) fn learn(&mut self, pods: &[Pod], books: Option<&Books>) {
        self.with_books = books.is_some();
        for pod in pods {
            let uid = &pod.metadata.uid;
            let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
            let served = |one: &&Container| books.is_some_and(|b| b.has_served(uid, &one.name));
            for one in containers.filter(served) {
                if let (Ok(uid), Ok(name)) = (PodUid::new(uid), ContainerName::new(&one.name)) {
                    self.note(&uid, &name);
                }
            }
        }
    }

    /// Says whether it is known of every answer for whom it was. It is not when the process begins.
    pub(crate) fn settle(&mut self, settled: bool) {
        self.settled = settled;
        self.with_books = false;
    }

    /// May one of several pods be served?
    pub(super) fn has_books(&self) -> bool {
        self.with_books
    }

    /// Need kubelet's books not be read before the next answer?
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Forgets pods that are not on the node any more.
    pub fn keep(&mut self, pods: &[Pod]) {
        self.handed
            .retain(|uid, _| pods.iter().any(|pod| pod.metadata.uid == uid.as_str()));
    }

    /// Has that container its devices?
    pub(super) fn has(&self, pod: &PodUid, container: &ContainerName) -> bool {
        self.handed
            .get(pod)
            .is_some_and(|set| set.contains(container))
    }
}
