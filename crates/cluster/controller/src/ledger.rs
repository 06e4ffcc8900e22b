//! The ledger of the controllers: one in each tenure, for the preemptor and the queue.
//!
//! Both decide by the same nodes, pods and plans. Each tenure fills a new ledger: the lists that
//! begin it have what an earlier leader wrote. It ends with its last user, and writes nothing.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use kube::Client;
use sublet_model::Unit;
use sublet_plan::{EngineOptions, Policy, StockRules};
use sublet_scheduler::{EventSink, ReadReplica};
use sublet_tasks::Vital;

use crate::queue::watching::Board;

/// Gives each tenure its ledger.
pub(crate) struct LedgerKeeper {
    unit: Unit,
    /// Rule that chooses among places that fit, the extender's; `None` if no jobs queue.
    queue: Option<Policy>,
    vital: Vital,
    /// Number of the last tenure, and its ledger as long as that is used.
    last: Mutex<(u64, Weak<SharedLedger>)>,
}

/// The ledger of one tenure.
pub(crate) struct SharedLedger {
    pub(crate) read_replica: ReadReplica,
    /// Objects that the queue decides on; empty if no jobs queue.
    pub(crate) board: Arc<Board>,
}

impl LedgerKeeper {
    pub(crate) fn new(unit: Unit, queue: Option<Policy>, vital: Vital) -> LedgerKeeper {
        let last = Mutex::default();
        LedgerKeeper {
            unit,
            queue,
            vital,
            last,
        }
    }

    /// Returns the ledger of that tenure, the same one each time.
    pub(crate) fn of(&self, client: &Client, tenure: u64) -> Arc<SharedLedger> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ledger) = last.1.upgrade().filter(|_| last.0 == tenure) {
            return ledger;
        }
        let board = Arc::<Board>::default();
        let sink: Arc<dyn EventSink> = board.clone();
        let (policy, stock, sink) = match self.queue.clone() {
            // A plan that the stock scheduler would refuse is none.
            Some(policy) => (policy, StockRules::Here, Some(sink)),
            None => (Policy::binpack(), StockRules::Elsewhere, None),
        };
        let options = EngineOptions {
            unit: self.unit,
            stock,
            ..EngineOptions::of(policy)
        };
        let ledger = Arc::new(SharedLedger {
            read_replica: ReadReplica::begin(client.clone(), options, &self.vital, sink),
            board,
        });
        *last = (tenure, Arc::downgrade(&ledger));
        ledger
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use http::{Request, Response};
    use kube::client::Body;
    use sublet_tasks::vital;

    use super::*;

    #[tokio::test]
    async fn one_tenure_has_one_ledger_and_the_next_one_another() {
        let silent = |_: Request<Body>| pending::<Result<Response<Body>, Infallible>>();
        let client = Client::new(tower::service_fn(silent), "default");
        let keeper = LedgerKeeper::new(Unit::MiB, Some(Policy::binpack()), vital().0);
        let preemptor = keeper.of(&client, 1);
        let queue = keeper.of(&client, 1);
        assert!(Arc::ptr_eq(&preemptor, &queue));
        // The queue has not heard yet that the tenure is over.
        drop(preemptor);
        let next = keeper.of(&client, 2);
        assert!(!Arc::ptr_eq(&queue, &next));
        assert!(Arc::ptr_eq(&next, &keeper.of(&client, 2)));
    }
}
