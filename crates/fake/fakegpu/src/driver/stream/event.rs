//! Events: a mark in a stream that has a handle, can be asked and waited for.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::result::{Answer, Code};
use crate::driver::sharing::event::SharedEvent;
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Mark;
use crate::driver::{Driver, Session};

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
pub(crate) const INTERPROCESS: u32 = 4;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Context in which it was made: never a green context, but the one that it is a part of.
    pub(crate) context: Id,
    /// As it was made.
    pub(crate) flags: u32,
    /// Place of its last recording.
    pub(crate) mark: Option<Arc<Mark>>,
    /// The capture in which it was recorded last, and the nodes it stands for there.
    pub(crate) captured: Option<(Id, Vec<Id>)>,
    /// Its number for other processes; 0 if they do not know it.
    pub(crate) number: u64,
    /// Its state that other processes share.
    pub(crate) shared: Option<Arc<SharedEvent>>,
}

impl Event {
    /// The next place where it is recorded.
    pub(crate) fn renew(&mut self) -> Arc<Mark> {
        let ticket = self.shared.as_ref().map(SharedEvent::record);
        let mark = Arc::new(Mark::new(ticket));
        self.mark = Some(mark.clone());
        self.captured = None;
        mark
    }

    /// Returns the place of its last recording, here or in another process.
    #[must_use]
    pub(crate) fn latest(&self) -> Option<Arc<Mark>> {
        match &self.shared {
            Some(shared) => Some(Arc::new(Mark::new(Some(shared.latest()?)))),
            None => self.mark.clone(),
        }
    }

    /// Was the work before it finished, or was it never recorded?
    fn is_done(&self) -> bool {
        self.latest().is_none_or(|mark| mark.time().is_some())
    }
}

impl Driver {
    /// Makes an event in the current context.
    pub(crate) fn make_event(&mut self, flags: u32) -> Answer<Id> {
        let context = self.owner()?;
        let interprocess = flags & INTERPROCESS != 0;
        if flags & !7 != 0 || (interprocess && flags & DISABLE_TIMING == 0) {
            return Err(Code::INVALID_VALUE);
        }
        let (number, shared) = if interprocess {
            let (number, shared) = self.share_event()?;
            (number, Some(shared))
        } else {
            (0, None)
        };
        let id = self.new_id();
        let event = Event {
            context,
            flags,
            mark: None,
            captured: None,
            number,
            shared,
        };
        self.events.insert(id, event);
        Ok(id)
    }

    /// An event by its handle.
    pub(crate) fn event(&self, id: Id) -> Answer<&Event> {
        self.events.get(&id).ok_or(Code::INVALID_HANDLE)
    }

    /// Is everything before the event finished?
    pub(crate) fn query_event(&self, id: Id) -> Answer {
        let event = self.event(id)?;
        if event.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        if event.is_done() {
            Ok(())
        } else {
            Err(Code::NOT_READY)
        }
    }

    /// Milliseconds from one event to another.
    pub(crate) fn elapsed(&self, from: Id, to: Id) -> Answer<f32> {
        let (from, to) = (self.event(from)?, self.event(to)?);
        let timed = |event: &Event| event.flags & DISABLE_TIMING == 0;
        let (Some(first), Some(second)) = (&from.mark, &to.mark) else {
            return Err(Code::INVALID_HANDLE);
        };
        if !timed(from) || !timed(to) {
            return Err(Code::INVALID_HANDLE);
        }
        let (Some(first), Some(second)) = (first.time(), second.time()) else {
            return Err(Code::NOT_READY);
        };
        Ok((second as i64 - first as i64) as f32 / 1e6)
    }
}

impl Session {
    /// Waits until everything before the event is finished.
    pub(crate) fn finish_event(&mut self, id: Id) -> Answer {
        let event = self.event(id)?;
        if event.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        // The mark, not the event: it may be recorded again meanwhile.
        let Some(mark) = event.latest() else {
            return Ok(());
        };
        let pause = if mark.is_announced() { 20_000 } else { 200 };
        self.wait_and_look(Duration::from_micros(pause), |_| mark.time().is_some());
        Ok(())
    }
}
