//! Streams: their handles, and their properties beside their work.
//!
//! [`queue`] holds the order of the work and [`work`] its kinds; `worker` does it, kernels in the
//! time of [`card_time`]; [`event`] marks a place in it.

use crate::driver::Driver;
use crate::driver::result::{Answer, Code};

pub(crate) mod card_time;
pub(crate) mod event;
pub(crate) mod queue;
pub(crate) mod work;
pub(crate) mod worker;

use queue::{Id, Stream};

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;
/// Streams have priorities from 0 (last) to this (first).
pub(crate) const PRIORITY_FIRST: i32 = -5;

impl Driver {
    /// A stream by the handle that a program gave: 0 is the default stream of the kind
    /// that the function stands for, 1 the legacy one, 2 this thread's.
    pub(crate) fn stream(&mut self, handle: u64, per_thread: bool) -> Answer<Id> {
        match handle {
            _ if self.greens.has_lost(handle) => Err(Code::CONTEXT_IS_DESTROYED),
            0 if per_thread => self.thread_stream(),
            0 | 1 => {
                let context = self.current()?;
                Ok(self.context(context)?.legacy)
            }
            2 => self.thread_stream(),
            id if self.streams.contains(&id) => {
                let context = self.queues.get(id).map_or(0, |stream| stream.context);
                let context = self
                    .contexts
                    .get(&context)
                    .ok_or(Code::CONTEXT_IS_DESTROYED)?;
                context.broken.map_or(Ok(id), Err)
            }
            _ => Err(Code::INVALID_HANDLE),
        }
    }

    fn thread_stream(&mut self) -> Answer<Id> {
        let id = self.current()?;
        let thread = std::thread::current().id();
        let context = self.context(id)?;
        if let Some(stream) = context.threads.get(&thread) {
            return Ok(*stream);
        }
        let stream = self.new_stream(id, context.card, false, 0, 0);
        self.context_mut(id)?.threads.insert(thread, stream);
        Ok(stream)
    }

    /// Makes a stream in the current context.
    pub(crate) fn make_stream(&mut self, flags: u32, priority: i32) -> Answer<Id> {
        let context = self.current()?;
        self.make_stream_in(context, flags, priority)
    }

    /// Makes a stream in a context.
    pub(crate) fn make_stream_in(&mut self, context: Id, flags: u32, priority: i32) -> Answer<Id> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let card = self.context(context)?.card;
        // Priorities outside of the range are moved into it, says the manual.
        let priority = priority.clamp(PRIORITY_FIRST, 0);
        Ok(self.new_stream(context, card, false, flags, priority))
    }

    pub(crate) fn new_stream(
        &mut self,
        context: Id,
        card: usize,
        legacy: bool,
        flags: u32,
        priority: i32,
    ) -> Id {
        let id = self.new_id();
        let ordered = flags & NON_BLOCKING == 0;
        let stream = Stream::new(context, card, legacy, ordered, priority);
        self.queues.insert(id, stream);
        self.streams.insert(id);
        id
    }

    /// Destroys a stream's handle; its work goes on.
    pub(crate) fn destroy_stream(&mut self, id: Id) -> Answer {
        if self.greens.has_lost(id) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        let legacy = self.queues.get(id).is_some_and(|stream| stream.legacy);
        if legacy || !self.streams.remove(&id) {
            return Err(Code::INVALID_HANDLE);
        }
        self.captures.abandon(id);
        self.drop_finished_streams();
        Ok(())
    }

    /// Forgets streams whose handle is gone and whose work is done.
    pub(crate) fn drop_finished_streams(&mut self) {
        if self.queues.n_streams() == self.streams.len() {
            return;
        }
        let gone: Vec<Id> = self
            .queues
            .iter()
            .filter(|(id, stream)| stream.is_idle() && !self.streams.contains(id))
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            self.queues.remove(id);
        }
    }
}
