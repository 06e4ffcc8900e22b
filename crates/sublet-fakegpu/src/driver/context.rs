//! Contexts, and the streams in them. A process has one primary context per device and as
//! many others as it makes; each thread has a stack of them, the last one is current.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::ThreadId;

use super::code::{Answer, Code};
use super::queue::{Id, Stream};
use super::work::Mark;
use super::{CURRENT, Driver, Session};

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
/// Streams have priorities from 0 (last) to this (first).
pub const PRIORITY_FIRST: i32 = -5;

/// A context.
#[derive(Debug)]
pub struct Context {
    /// Its handle.
    pub id: Id,
    /// The context that owns what is made in it: itself, or a green context's primary one.
    pub home: Id,
    /// Its card.
    pub card: usize,
    /// As it was made.
    pub flags: u32,
    /// Is it its device's primary one?
    pub is_primary: bool,
    /// Its legacy default stream.
    pub legacy: Id,
    /// The default streams of threads that use one of their own.
    pub threads: HashMap<ThreadId, Id>,
    /// What `cuCtxSetLimit` set, by the number of the limit.
    pub limits: HashMap<u32, usize>,
    /// Preferred configuration of the cache.
    pub cache: u32,
    /// Contexts whose memory it may use.
    pub peers: BTreeSet<Id>,
    /// What new streams have to wait for.
    pub(super) awaited: Vec<Arc<Mark>>,
    /// The stream in which all others meet for an event; 0 before the first.
    pub(super) meeting: Id,
    /// How often the program must detach from it before it goes.
    pub usage: u32,
    /// Bytes of its card that the program has it set aside beyond what is there at first, by
    /// the number of the limit.
    pub set_aside: HashMap<u32, u64>,
    /// The error that ended it: every later call gives it.
    pub broken: Option<Code>,
}

/// What a device's primary context is, whether it exists or not.
#[derive(Debug, Clone, Default)]
pub struct Primary {
    /// Its handle, the same for the life of the process. 0 before the first use.
    pub id: Id,
    /// How often it is retained.
    pub n_users: u32,
    /// Flags for the next time it is made.
    pub flags: u32,
}

/// What is known of a stream beside its work.
#[derive(Debug, Clone)]
pub struct StreamFacts {
    /// As it was made.
    pub flags: u32,
    /// A number that no other stream ever has.
    pub number: u64,
    /// What `cuStreamSetAttribute` set, by the number of the attribute.
    pub attributes: HashMap<u32, [u64; 8]>,
}

impl Driver {
    /// The context that is current to this thread.
    pub fn current(&self) -> Answer<Id> {
        let id = top().ok_or(Code::INVALID_CONTEXT)?;
        let context = self.contexts.get(&id).ok_or(Code::CONTEXT_IS_DESTROYED)?;
        context.broken.map_or(Ok(id), Err)
    }

    /// The context that owns what this thread makes.
    pub fn owner(&self) -> Answer<Id> {
        let current = self.current()?;
        Ok(self.home(current))
    }

    /// A context by its handle; 0 is the current one.
    pub fn context(&self, id: Id) -> Answer<&Context> {
        let id = if id == 0 { self.current()? } else { id };
        self.contexts.get(&id).ok_or(Code::INVALID_CONTEXT)
    }

    /// As [`Driver::context`], to change it.
    pub fn context_mut(&mut self, id: Id) -> Answer<&mut Context> {
        let id = if id == 0 { self.current()? } else { id };
        self.contexts.get_mut(&id).ok_or(Code::INVALID_CONTEXT)
    }

    /// The card of the current context.
    pub fn current_card(&self) -> Answer<usize> {
        let id = self.current()?;
        Ok(self.context(id)?.card)
    }

    /// Makes a context. It takes memory of its card.
    pub fn make_context(&mut self, card: usize, flags: u32) -> Answer<Id> {
        // The low bits are a choice of four ways to wait; then host mapping, local memory,
        // core dumps and synchronous memory operations.
        if flags & !0xff != 0 || matches!(flags & 7, 3 | 5..) {
            return Err(Code::INVALID_VALUE);
        }
        let id = self.new_id();
        self.open_context(id, card, flags, false)?;
        Ok(id)
    }

    fn open_context(&mut self, id: Id, card: usize, flags: u32, is_primary: bool) -> Answer {
        let charged = self.seat.open_context(card);
        charged.map_err(|_| Code::OUT_OF_MEMORY)?;
        self.insert_context(id, id, card, flags, is_primary);
        Ok(())
    }

    /// A context on a part of a card, whose home is there and pays.
    pub(super) fn open_part(&mut self, id: Id, card: usize, home: Id) -> Answer {
        let flags = self.context(home)?.flags;
        self.insert_context(id, home, card, flags, false);
        Ok(())
    }

    fn insert_context(&mut self, id: Id, home: Id, card: usize, flags: u32, is_primary: bool) {
        let legacy = self.new_stream(id, card, true, 0, 0);
        let context = Context {
            id,
            home,
            card,
            flags,
            is_primary,
            legacy,
            threads: HashMap::new(),
            limits: HashMap::new(),
            cache: 0,
            peers: BTreeSet::new(),
            awaited: Vec::new(),
            meeting: 0,
            usage: 1,
            set_aside: HashMap::new(),
            broken: None,
        };
        self.contexts.insert(id, context);
    }

    /// Adds a user to the primary context of a device, which is made for the first one.
    pub fn retain_primary(&mut self, device: i32) -> Answer<Id> {
        let card = self.card_of(device)?;
        let place = device as usize;
        if self.primaries[place].id == 0 {
            self.primaries[place].id = self.new_id();
        }
        let Primary { id, flags, .. } = self.primaries[place];
        if !self.contexts.contains_key(&id) {
            self.open_context(id, card, flags, true)?;
        }
        self.primaries[place].n_users += 1;
        Ok(id)
    }

    /// A stream by the handle that a program gave: 0 is the default stream of the kind
    /// that the function stands for, 1 the legacy one, 2 this thread's.
    pub fn stream(&mut self, handle: u64, per_thread: bool) -> Answer<Id> {
        match handle {
            _ if self.greens.has_lost(handle) => Err(Code::CONTEXT_IS_DESTROYED),
            0 if per_thread => self.thread_stream(),
            0 | 1 => {
                let context = self.current()?;
                Ok(self.context(context)?.legacy)
            }
            2 => self.thread_stream(),
            id if self.streams.contains_key(&id) => {
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
        self.hold_back(stream, id)?;
        Ok(stream)
    }

    /// Makes a stream in the current context.
    pub fn make_stream(&mut self, flags: u32, priority: i32) -> Answer<Id> {
        let context = self.current()?;
        self.make_stream_in(context, flags, priority)
    }

    /// Makes a stream in a context.
    pub fn make_stream_in(&mut self, context: Id, flags: u32, priority: i32) -> Answer<Id> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let card = self.context(context)?.card;
        // Priorities outside of the range are moved into it, says the manual.
        let priority = priority.clamp(PRIORITY_FIRST, 0);
        let stream = self.new_stream(context, card, false, flags, priority);
        self.hold_back(stream, context)?;
        Ok(stream)
    }

    pub(super) fn new_stream(
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
        let facts = StreamFacts {
            flags,
            number: (id / 64) & 0xffff_ffff,
            attributes: HashMap::new(),
        };
        self.streams.insert(id, facts);
        id
    }

    /// Destroys a stream's handle; its work goes on.
    pub fn destroy_stream(&mut self, id: Id) -> Answer {
        if self.greens.has_lost(id) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        let legacy = self.queues.get(id).is_some_and(|stream| stream.legacy);
        if legacy || self.streams.remove(&id).is_none() {
            return Err(Code::INVALID_HANDLE);
        }
        self.captures.abandon(id);
        self.bury_streams();
        Ok(())
    }

    /// Forgets streams whose handle is gone and whose work is done.
    pub(super) fn bury_streams(&mut self) {
        if self.queues.n_streams() == self.streams.len() {
            return;
        }
        let gone: Vec<Id> = self
            .queues
            .iter()
            .filter(|(id, stream)| stream.is_idle() && !self.streams.contains_key(id))
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            self.queues.remove(id);
        }
    }

    /// Takes everything away that belongs to a context, whose work is done.
    pub(super) fn close_context(&mut self, id: Id) {
        let Some(context) = self.contexts.remove(&id) else {
            return;
        };
        self.free_memory_of(id, context.card);
        self.unload_all_of(id);
        self.events.retain(|_, event| event.context != id);
        let streams: Vec<Id> = self
            .queues
            .iter()
            .filter(|(_, stream)| stream.context == id)
            .map(|(stream, _)| stream)
            .collect();
        for stream in streams {
            self.queues.remove(stream);
            self.streams.remove(&stream);
        }
        for other in self.contexts.values_mut() {
            other.peers.remove(&id);
        }
        let set_aside = context.set_aside.values().sum();
        self.seat.refund(context.card, set_aside);
        if context.home == id {
            self.seat.close_context(context.card);
        }
    }
}

impl Session {
    /// One user more of the current context; its handle.
    pub fn attach(&mut self) -> Answer<Id> {
        let id = self.current()?;
        self.context_mut(id)?.usage += 1;
        Ok(id)
    }

    /// One user less of the current context; the last one ends it.
    pub fn detach(&mut self, id: Id) -> Answer {
        if self.current()? != id {
            return Err(Code::INVALID_CONTEXT);
        }
        let context = self.context_mut(id)?;
        context.usage = context.usage.saturating_sub(1);
        if context.usage == 0 {
            self.destroy_context(id)?;
        }
        Ok(())
    }

    /// Has a context set more or less of its card aside.
    pub fn set_limit(&mut self, limit: u32, value: usize, bytes: u64) -> Answer {
        let context = self.context_mut(0)?;
        let card = context.card;
        let before = context.set_aside.insert(limit, bytes).unwrap_or(0);
        if self
            .seat
            .charge(card, bytes.saturating_sub(before))
            .is_err()
        {
            self.context_mut(0)?.set_aside.insert(limit, before);
            return Err(Code::OUT_OF_MEMORY);
        }
        self.seat.refund(card, before.saturating_sub(bytes));
        self.context_mut(0)?.limits.insert(limit, value);
        Ok(())
    }

    /// Destroys a context that is not a primary one.
    pub fn destroy_context(&mut self, id: Id) -> Answer {
        if id == 0 || self.context(id)?.is_primary || self.home(id) != id {
            return Err(Code::INVALID_CONTEXT);
        }
        self.finish_context(id);
        self.close_context(id);
        if top() == Some(id) {
            pop();
        }
        Ok(())
    }

    /// Takes a user from the primary context of a device; the last one ends it.
    pub fn release_primary(&mut self, device: i32) -> Answer {
        self.card_of(device)?;
        let primary = &mut self.primaries[device as usize];
        if primary.n_users == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        primary.n_users -= 1;
        let Primary { id, n_users, .. } = *primary;
        if n_users == 0 && self.contexts.contains_key(&id) {
            self.finish_context(id);
            self.close_context(id);
        }
        Ok(())
    }

    /// Ends the primary context of a device, whoever uses it. They have to release it still.
    pub fn reset_primary(&mut self, device: i32) -> Answer {
        self.card_of(device)?;
        let id = self.primaries[device as usize].id;
        if self.contexts.contains_key(&id) {
            self.finish_context(id);
            self.close_greens_of(id);
            self.close_context(id);
        }
        Ok(())
    }
}

/// The context that this thread pushed last.
#[must_use]
pub fn top() -> Option<Id> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

/// Pushes a context.
pub fn push(id: Id) {
    CURRENT.with_borrow_mut(|stack| stack.push(id));
}

/// Pops the context that was pushed last.
pub fn pop() -> Option<Id> {
    CURRENT.with_borrow_mut(Vec::pop)
}
