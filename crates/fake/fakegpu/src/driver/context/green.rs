//! Green contexts: a part of a card's multiprocessors with streams of its own. Everything
//! else in one (memory, code, events) is its device's primary context's, which it keeps
//! alive: that is its *home*.
//!
//! Kernels take as long on a part of a card as on all of it, and run one after the other unless they
//! say that they leave room: a limit of the fake.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::{Driver, Session};
use crate::product::Multiprocessor;

/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: u32 = 1;

/// A part of a device's multiprocessors, as programs carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// `CUdevice`.
    pub(crate) device: i32,
    /// Number of multiprocessors.
    pub(crate) n_multiprocessors: u32,
    /// The split that it came from; 0 if it was not split off.
    pub(crate) split: u32,
}

/// A green context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Green {
    /// Its ordinary context.
    pub(crate) context: Id,
    /// `CUdevice`.
    device: i32,
}

/// All green contexts of a process, and their parts.
#[derive(Debug, Default)]
pub(crate) struct Greens {
    by_id: BTreeMap<Id, Green>,
    /// Devices of the parts that `cuDevResourceGenerateDesc` put together.
    descriptions: HashMap<Id, i32>,
    /// Streams of green contexts that are gone.
    lost_streams: BTreeSet<Id>,
    n_splits: u32,
}

impl Greens {
    /// The green context that an ordinary handle stands for; 0 if it is no such context's.
    #[must_use]
    pub(crate) fn of(&self, context: Id) -> Id {
        let mut greens = self.by_id.iter();
        let found = greens.find(|(_, green)| green.context == context);
        found.map_or(0, |(id, _)| *id)
    }

    /// Was this a stream of a green context that is gone?
    #[must_use]
    pub(crate) fn has_lost(&self, stream: Id) -> bool {
        self.lost_streams.contains(&stream)
    }
}

impl Driver {
    /// All multiprocessors of a device.
    pub(crate) fn whole(&self, device: i32) -> Answer<Part> {
        let card = self.card_of(device)?;
        Ok(Part {
            device,
            n_multiprocessors: self.product(card).n_multiprocessors,
            split: 0,
        })
    }

    /// Returns the properties of a device's multiprocessors.
    pub(crate) fn core_of(&self, device: i32) -> Answer<Multiprocessor> {
        Ok(self.product(self.card_of(device)?).multiprocessor())
    }

    /// A green context by its handle.
    pub(crate) fn green(&self, id: Id) -> Answer<Green> {
        let green = self.greens.by_id.get(&id);
        green.copied().ok_or(Code::INVALID_CONTEXT)
    }

    /// A number for the parts of one split.
    pub(crate) fn new_split(&mut self) -> u32 {
        self.greens.n_splits += 1;
        self.greens.n_splits
    }

    /// Puts parts together for a green context. They are of one device and one split.
    pub(crate) fn describe(&mut self, parts: &[Part]) -> Answer<Id> {
        let first = parts.first().ok_or(Code::INVALID_VALUE)?;
        let together = |part: &Part| part.device == first.device && part.split == first.split;
        let whole = self.whole(first.device)?.n_multiprocessors;
        let sum = parts.iter().try_fold(0_u32, |sum, part| {
            sum.checked_add(part.n_multiprocessors)
                .filter(|sum| *sum <= whole)
        });
        if sum.is_none() || !parts.iter().all(together) {
            return Err(Code::INVALID_RESOURCE_CONFIGURATION);
        }
        let id = self.new_id();
        self.greens.descriptions.insert(id, first.device);
        Ok(id)
    }

    /// Makes a green context, which retains the primary context of its device.
    pub(crate) fn make_green(&mut self, description: Id, device: i32, flags: u32) -> Answer<Id> {
        let card = self.card_of(device)?;
        let described = self.greens.descriptions.get(&description);
        let described = *described.ok_or(Code::INVALID_VALUE)?;
        if flags != DEFAULT_STREAM || described != device {
            return Err(Code::INVALID_VALUE);
        }
        let home = self.retain_primary(device)?;
        let context = self.new_id();
        self.open_part(context, card, home);
        let id = self.new_id();
        self.greens.by_id.insert(id, Green { context, device });
        Ok(id)
    }

    /// Returns the context that owns the objects made in a context: itself, or a green one's
    /// primary.
    #[must_use]
    pub(crate) fn home(&self, context: Id) -> Id {
        let known = self.contexts.get(&context);
        known.map_or(context, |context| context.home)
    }

    /// Is a context another one, or a green part of it?
    #[must_use]
    pub(crate) fn is_part(&self, context: Id, whole: Id) -> bool {
        context == whole || self.home(context) == whole
    }

    fn streams_of(&self, context: Id) -> Vec<Id> {
        let streams = self.queues.iter();
        let of = streams.filter(|(_, stream)| self.is_part(stream.context, context));
        of.map(|(id, _)| id).collect()
    }

    /// Removes a green context. Its work is done. Its streams' handles are dead.
    fn close_green(&mut self, id: Id) {
        if let Some(green) = self.greens.by_id.remove(&id) {
            let streams = self.streams_of(green.context);
            self.greens.lost_streams.extend(streams);
            self.close_context(green.context);
        }
    }

    /// Ends the green contexts of a primary context that ends, even if they have users.
    pub(crate) fn close_greens_of(&mut self, home: Id) {
        let greens = self.greens.by_id.iter();
        let of = greens.filter(|(_, green)| self.home(green.context) == home);
        let ids: Vec<Id> = of.map(|(id, _)| *id).collect();
        for id in ids {
            self.close_green(id);
        }
    }
}

impl Session {
    /// Destroys a green context, and releases the primary one of its device.
    pub(crate) fn destroy_green(&mut self, id: Id) -> Answer {
        let Green { context, device } = self.green(id)?;
        self.finish_context(context);
        self.close_green(id);
        self.release_primary(device)
    }
}
