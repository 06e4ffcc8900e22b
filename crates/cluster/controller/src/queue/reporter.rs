//! Writes the messages to people, beside the decisions: no group waits for an event about another.
//!
//! Each of the two lanes sends one write after the other. Before it tells, the decider asks whether
//! a lane has anything left. To a lane that has, it adds only messages that are said once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sublet_client::Write;
use sublet_tasks::{Vital, VitalTasks};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::report::StatusReport;
use crate::shell::FencedWriter;

/// Limit on waiting messages: above it, no news is report.
const MOST_LEFT: usize = 2_000;

/// The lanes of one tenure; they end with it.
pub(crate) struct StatusReporter {
    events: Lane,
    status: Lane,
    _tasks: VitalTasks,
}

struct Lane {
    send: UnboundedSender<Write>,
    left: Arc<AtomicUsize>,
}

/// Messages that are allowed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// That something happened.
    pub(crate) news: bool,
    /// Reasons why a group waits, and objects that cannot be read.
    pub(crate) reasons: bool,
    /// The status of groups and quotas.
    pub(crate) status: bool,
}

impl StatusReporter {
    /// Begins.
    pub(crate) fn begin(writer: &FencedWriter, vital: &Vital) -> StatusReporter {
        let mut tasks = VitalTasks::new(vital);
        StatusReporter {
            events: Lane::begin(writer, &mut tasks),
            status: Lane::begin(writer, &mut tasks),
            _tasks: tasks,
        }
    }

    /// The messages that are allowed now.
    pub(crate) fn room(&self) -> Room {
        let events = self.events.left.load(Ordering::Relaxed);
        Room {
            news: events < MOST_LEFT,
            reasons: events == 0,
            status: self.status.left.load(Ordering::Relaxed) == 0,
        }
    }

    /// Tells all of it, in its own time.
    pub(crate) fn tell(&self, report: StatusReport) {
        self.events.add(report.events);
        self.status.add(report.status);
    }
}

impl Lane {
    fn begin(writer: &FencedWriter, tasks: &mut VitalTasks) -> Lane {
        let (send, writes) = unbounded_channel();
        let left = Arc::new(AtomicUsize::new(0));
        let writing = write_all(writer.clone(), writes, left.clone());
        tasks.start("a lane of the reporter", writing);
        Lane { send, left }
    }

    fn add(&self, writes: Vec<Write>) {
        for write in writes {
            self.left.fetch_add(1, Ordering::Relaxed);
            // The receiver is there as long as we are.
            let _sent = self.send.send(write);
        }
    }
}

async fn write_all(
    writer: FencedWriter,
    mut writes: UnboundedReceiver<Write>,
    left: Arc<AtomicUsize>,
) {
    while let Some(write) = writes.recv().await {
        if let Err(undone) = writer.tell(&write).await {
            tracing::debug!(%undone, "something is not told");
        }
        left.fetch_sub(1, Ordering::Relaxed);
    }
}
