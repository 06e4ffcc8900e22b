//! Writes the messages to people, beside the decisions: no group waits for an event about another.
//!
//! Each of the two lanes sends one write after the other, events at a bounded rate. Before it tells, the decider asks whether
//! a lane has anything left. To a lane that has, it adds only messages that are said once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sublet_client::Write;
use sublet_tasks::{Vital, VitalTasks};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::report::StatusReport;
use crate::pace::Pace;
use crate::shell::FencedWriter;

/// Events in a second, at most. One costs the API server as much as the release of a Job, and releases go
/// before reports. Where thousands wait they are told their reasons within minutes.
const EVENTS_A_SECOND: NonZeroU32 = NonZeroU32::new(25).unwrap();

/// Limit on waiting events, ten seconds of them: above it, no news is told, for nobody wants it late.
const MOST_LEFT: usize = 250;

/// So many events about reasons at a time, so that news does not wait behind them.
const MOST_REASONS: usize = 50;

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
    /// So many events about reasons why a group waits, and about objects that cannot be read.
    pub(crate) reasons: usize,
    /// The status of groups and quotas.
    pub(crate) status: bool,
}

impl StatusReporter {
    /// Begins.
    pub(crate) fn begin(writer: &FencedWriter, vital: &Vital) -> StatusReporter {
        let mut tasks = VitalTasks::new(vital);
        StatusReporter {
            events: Lane::begin(writer, Some(Pace::new(EVENTS_A_SECOND)), &mut tasks),
            status: Lane::begin(writer, None, &mut tasks),
            _tasks: tasks,
        }
    }

    /// The messages that are allowed now.
    pub(crate) fn room(&self) -> Room {
        let events = self.events.left.load(Ordering::Relaxed);
        Room {
            news: events < MOST_LEFT,
            reasons: MOST_REASONS.saturating_sub(events),
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
    fn begin(writer: &FencedWriter, pace: Option<Pace>, tasks: &mut VitalTasks) -> Lane {
        let (send, writes) = unbounded_channel();
        let left = Arc::new(AtomicUsize::new(0));
        let writing = write_all(writer.clone(), pace, writes, left.clone());
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
    pace: Option<Pace>,
    mut writes: UnboundedReceiver<Write>,
    left: Arc<AtomicUsize>,
) {
    while let Some(write) = writes.recv().await {
        if let Some(pace) = &pace {
            pace.turn().await;
        }
        if let Err(undone) = writer.tell(&write).await {
            tracing::debug!(%undone, "something is not told");
        }
        left.fetch_sub(1, Ordering::Relaxed);
    }
}
