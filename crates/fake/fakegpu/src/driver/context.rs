//! Contexts. A process has one primary context per device and as
//! many others as it makes; each thread has a stack of them, the last one is current.

use std::collections::{BTreeSet, HashMap};
use std::thread::ThreadId;

use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::{CURRENT, Driver, Session};

pub(crate) mod green;

/// The variable by which a program has other queues for launches: `0.25x` to `4x` of the usual.
const QUEUES: &str = "CUDA_SCALE_LAUNCH_QUEUES";

/// Returns how often this program's contexts have the usual queues beyond the usual.
pub(super) fn more_queues() -> u64 {
    let text = std::env::var(QUEUES).unwrap_or_default();
    let times = text.strip_suffix('x').and_then(|times| times.parse().ok());
    times.unwrap_or(1_u64).clamp(1, 4) - 1
}

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    /// The context that owns the objects made in it: itself, or a green context's primary one.
    pub(crate) home: Id,
    /// Its card.
    pub(crate) card: usize,
    /// Is it its device's primary one?
    pub(crate) is_primary: bool,
    /// Its legacy default stream.
    pub(crate) legacy: Id,
    /// The default streams of threads that use one of their own.
    pub(crate) threads: HashMap<ThreadId, Id>,
    /// Values set by `cuCtxSetLimit`, by the number of the limit.
    pub(crate) limits: HashMap<u32, usize>,
    /// Contexts whose memory it may use.
    pub(crate) peers: BTreeSet<Id>,
    /// Number of times that the program must detach from it before it goes.
    pub(crate) usage: u32,
    /// Bytes of its card that the program made it set aside beyond the initial amount, by the
    /// number of the limit.
    pub(crate) set_aside: HashMap<u32, u64>,
    /// The error that ended it: every later call gives it.
    pub(crate) broken: Option<Code>,
}

/// State of a device's primary context, whether the context exists or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Primary {
    /// Its handle, the same for the life of the process. 0 before the first use.
    pub(crate) id: Id,
    /// Number of times that it is retained.
    pub(crate) n_users: u32,
}

impl Driver {
    /// The context that is current to this thread.
    pub(crate) fn current(&self) -> Answer<Id> {
        let id = top().ok_or(Code::INVALID_CONTEXT)?;
        let context = self.contexts.get(&id).ok_or(Code::CONTEXT_IS_DESTROYED)?;
        context.broken.map_or(Ok(id), Err)
    }

    /// The context that owns the objects of this thread.
    pub(crate) fn owner(&self) -> Answer<Id> {
        let current = self.current()?;
        Ok(self.home(current))
    }

    /// A context by its handle; 0 is the current one.
    pub(crate) fn context(&self, id: Id) -> Answer<&Context> {
        let id = if id == 0 { self.current()? } else { id };
        self.contexts.get(&id).ok_or(Code::INVALID_CONTEXT)
    }

    /// As [`Driver::context`], to change it.
    pub(crate) fn context_mut(&mut self, id: Id) -> Answer<&mut Context> {
        let id = if id == 0 { self.current()? } else { id };
        self.contexts.get_mut(&id).ok_or(Code::INVALID_CONTEXT)
    }

    /// The card of the current context.
    pub(crate) fn current_card(&self) -> Answer<usize> {
        let id = self.current()?;
        Ok(self.context(id)?.card)
    }

    /// Makes a context. It takes memory of its card.
    pub(crate) fn make_context(&mut self, card: usize, flags: u32) -> Answer<Id> {
        // The low bits are a choice of four ways to wait; then host mapping, local memory,
        // core dumps and synchronous memory operations.
        if flags & !0xff != 0 || matches!(flags & 7, 3 | 5..) {
            return Err(Code::INVALID_VALUE);
        }
        let id = self.new_id();
        self.open_context(id, card, false)?;
        Ok(id)
    }

    fn open_context(&mut self, id: Id, card: usize, is_primary: bool) -> Answer {
        let charged = self.registration.open_context(card);
        charged.map_err(|_| Code::OUT_OF_MEMORY)?;
        self.insert_context(id, id, card, is_primary);
        Ok(())
    }

    /// Opens a context on a part of a card. Its home context is there and pays.
    pub(crate) fn open_part(&mut self, id: Id, card: usize, home: Id) {
        self.insert_context(id, home, card, false);
    }

    fn insert_context(&mut self, id: Id, home: Id, card: usize, is_primary: bool) {
        let legacy = self.new_stream(id, card, true, 0, 0);
        let context = Context {
            home,
            card,
            is_primary,
            legacy,
            threads: HashMap::new(),
            limits: HashMap::new(),
            peers: BTreeSet::new(),
            usage: 1,
            set_aside: HashMap::new(),
            broken: None,
        };
        self.contexts.insert(id, context);
    }

    /// Adds a user to the primary context of a device, which is made for the first one.
    pub(crate) fn retain_primary(&mut self, device: i32) -> Answer<Id> {
        let card = self.card_of(device)?;
        let place = device as usize;
        if self.primaries[place].id == 0 {
            self.primaries[place].id = self.new_id();
        }
        let id = self.primaries[place].id;
        if !self.contexts.contains_key(&id) {
            self.open_context(id, card, true)?;
        }
        self.primaries[place].n_users += 1;
        Ok(id)
    }

    /// Removes everything that belongs to a context. Its work is done.
    pub(crate) fn close_context(&mut self, id: Id) {
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
        self.registration.refund(context.card, set_aside);
        if context.home == id {
            self.registration.close_context(context.card);
        }
    }
}

impl Session {
    /// One user more of the current context; its handle.
    pub(crate) fn attach(&mut self) -> Answer<Id> {
        let id = self.current()?;
        self.context_mut(id)?.usage += 1;
        Ok(id)
    }

    /// One user less of the current context; the last one ends it.
    pub(crate) fn detach(&mut self, id: Id) -> Answer {
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
    pub(crate) fn set_limit(&mut self, limit: u32, value: usize, bytes: u64) -> Answer {
        let context = self.context_mut(0)?;
        let card = context.card;
        let before = context.set_aside.insert(limit, bytes).unwrap_or(0);
        if self
            .registration
            .charge(card, bytes.saturating_sub(before))
            .is_err()
        {
            self.context_mut(0)?.set_aside.insert(limit, before);
            return Err(Code::OUT_OF_MEMORY);
        }
        self.registration.refund(card, before.saturating_sub(bytes));
        self.context_mut(0)?.limits.insert(limit, value);
        Ok(())
    }

    /// Destroys a context that is not a primary one.
    pub(crate) fn destroy_context(&mut self, id: Id) -> Answer {
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
    pub(crate) fn release_primary(&mut self, device: i32) -> Answer {
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

    /// Ends the primary context of a device, even if it has users. They still have to release it.
    pub(crate) fn reset_primary(&mut self, device: i32) -> Answer {
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
pub(crate) fn top() -> Option<Id> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

/// Pushes a context.
pub(crate) fn push(id: Id) {
    CURRENT.with_borrow_mut(|stack| stack.push(id));
}

/// Pops the context that was pushed last.
pub(crate) fn pop() -> Option<Id> {
    CURRENT.with_borrow_mut(Vec::pop)
}
