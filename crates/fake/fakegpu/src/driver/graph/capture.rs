//! Capture: while a stream is being captured, its requests become nodes of a graph and nothing
//! runs. Calls that could break the order which is being recorded are refused and spoil the
//! capture, as the modes of `cuStreamBeginCapture` demand.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::thread::ThreadId;

use crate::driver::Driver;
use crate::driver::graph::Content;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Action;

/// Strictness of a capture: `CUstreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// No thread may make unsafe calls.
    Global,
    /// This thread may not.
    ThreadLocal,
    /// Everybody may.
    Relaxed,
}

impl Mode {
    /// By C's number.
    pub(crate) fn of(number: u32) -> Answer<Mode> {
        match number {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets this thread's mode; the one it had.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

/// A capture.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The graph that is being recorded.
    pub(crate) graph: Id,
    /// The stream where it began.
    pub(crate) origin: Id,
    /// Was it spoilt?
    pub(crate) is_broken: bool,
    mode: Mode,
    thread: ThreadId,
    /// Was the graph there before?
    keeps_graph: bool,
    nodes: BTreeSet<Id>,
}

/// All captures of a process.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    by_id: BTreeMap<Id, Capture>,
    /// By stream that takes part: its capture, and the nodes that are last in the stream.
    streams: HashMap<Id, (Id, Vec<Id>)>,
}

impl Captures {
    /// The capture that a stream takes part in, and the nodes that its next node depends on.
    #[must_use]
    pub(crate) fn of(&self, stream: Id) -> Option<(Id, &Capture, &[Id])> {
        let (id, tips) = self.streams.get(&stream)?;
        Some((*id, self.by_id.get(id)?, tips))
    }

    /// A stream's handle is gone: its capture cannot be ended.
    pub(crate) fn abandon(&mut self, stream: Id) {
        if let Some((id, _)) = self.streams.remove(&stream)
            && let Some(capture) = self.by_id.get_mut(&id)
        {
            capture.is_broken = true;
        }
    }

    /// A capture can no longer give a graph.
    pub(crate) fn spoil(&mut self, id: Id) {
        if let Some(capture) = self.by_id.get_mut(&id) {
            capture.is_broken = true;
        }
    }
}

impl Driver {
    /// Begins to capture a stream, into a new graph or one that is there.
    pub(crate) fn begin_capture(
        &mut self,
        stream: Id,
        mode: Mode,
        into: Option<(Id, Vec<Id>)>,
    ) -> Answer {
        let facts = self.queues.get(stream).ok_or(Code::INVALID_HANDLE)?;
        if facts.legacy {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.captures.streams.contains_key(&stream) {
            return Err(Code::ILLEGAL_STATE);
        }
        let keeps_graph = into.is_some();
        let (graph, tips) = match into {
            Some(given) => given,
            None => (self.make_graph(), Vec::new()),
        };
        let id = self.new_id();
        let capture = Capture {
            graph,
            origin: stream,
            is_broken: false,
            mode,
            thread: std::thread::current().id(),
            keeps_graph,
            nodes: BTreeSet::new(),
        };
        self.captures.by_id.insert(id, capture);
        self.captures.streams.insert(stream, (id, tips));
        Ok(())
    }

    /// Records an action of a stream that is being captured.
    pub(crate) fn capture(&mut self, stream: Id, action: Action) -> Answer {
        match action {
            Action::Record(event) => {
                let (id, _, tips) = self.unbroken(stream)?;
                let tips = tips.to_vec();
                let event = self.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)?;
                event.captured = Some((id, tips));
                Ok(())
            }
            Action::Wait(event) => {
                let (id, _, _) = self.unbroken(stream)?;
                let event = self.event(event)?;
                let (other, more) = match &event.captured {
                    Some(captured) => captured.clone(),
                    None => {
                        // Work outside of the capture cannot be waited for in it.
                        self.captures.spoil(id);
                        return Err(Code::STREAM_CAPTURE_ISOLATION);
                    }
                };
                if other != id {
                    self.captures.spoil(id);
                    self.captures.spoil(other);
                    return Err(Code::STREAM_CAPTURE_MERGE);
                }
                if let Some((_, tips)) = self.captures.streams.get_mut(&stream) {
                    let new = more.into_iter().filter(|node| !tips.contains(node));
                    let new: Vec<Id> = new.collect();
                    tips.extend(new);
                }
                Ok(())
            }
            action => self.capture_node(stream, Content::Action(action)).map(drop),
        }
    }

    /// Adds a node to the graph that a stream is captured into; its handle.
    pub(crate) fn capture_node(&mut self, stream: Id, content: Content) -> Answer<Id> {
        let (id, capture, tips) = self.unbroken(stream)?;
        let (graph, tips) = (capture.graph, tips.to_vec());
        let node = self.add_node(graph, &tips, content)?;
        if let Some(capture) = self.captures.by_id.get_mut(&id) {
            capture.nodes.insert(node);
        }
        self.captures.streams.insert(stream, (id, vec![node]));
        Ok(node)
    }

    /// A stream that is not captured waits for an event that is: it takes part from now on.
    pub(crate) fn join_capture(&mut self, stream: Id, event: Id) -> Answer<bool> {
        let Some((id, tips)) = self.event(event)?.captured.clone() else {
            return Ok(false);
        };
        let capture = self.captures.by_id.get(&id).ok_or(Code::CAPTURED_EVENT)?;
        if capture.is_broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if self.queues.get(stream).is_some_and(|stream| stream.legacy) {
            self.captures.spoil(id);
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        self.captures.streams.insert(stream, (id, tips));
        Ok(true)
    }

    /// Ends a capture; its graph.
    pub(crate) fn end_capture(&mut self, stream: Id) -> Answer<Id> {
        let (id, capture, _) = self.captures.of(stream).ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != stream {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let tips = self.tips_of(id, stream);
        let joined = self.is_joined(id, &tips);
        self.captures.streams.retain(|_, (other, _)| *other != id);
        let Some(capture) = self.captures.by_id.remove(&id) else {
            return Err(Code::ILLEGAL_STATE);
        };
        for event in self.events.values_mut() {
            if event
                .captured
                .as_ref()
                .is_some_and(|(other, _)| *other == id)
            {
                event.captured = None;
            }
        }
        let failure = if capture.is_broken {
            Some(Code::STREAM_CAPTURE_INVALIDATED)
        } else if !joined {
            Some(Code::STREAM_CAPTURE_UNJOINED)
        } else {
            None
        };
        match failure {
            None => Ok(capture.graph),
            Some(code) => {
                if !capture.keeps_graph {
                    self.drop_graph(capture.graph)?;
                }
                Err(code)
            }
        }
    }

    /// Refuses an unsafe call while a capture that forbids it goes on, and spoils that capture.
    pub(crate) fn forbid_in_capture(&mut self) -> Answer {
        let mine = MODE.get();
        if self.captures.by_id.is_empty() || mine == Mode::Relaxed {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let mut forbidden = false;
        for capture in self.captures.by_id.values_mut() {
            let own = capture.thread == thread && capture.mode != Mode::Relaxed;
            if own || (mine == Mode::Global && capture.mode == Mode::Global) {
                capture.is_broken = true;
                forbidden = true;
            }
        }
        if forbidden {
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// Refuses to wait for a stream that is being captured, and spoils the capture.
    pub(crate) fn forbid_if_captured(&mut self, stream: Id) -> Answer {
        match self.captures.of(stream).map(|(id, _, _)| id) {
            Some(id) => {
                self.captures.spoil(id);
                Err(Code::STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Refuses to wait for a context if one of its streams is being captured.
    pub(crate) fn forbid_if_any_captured(&mut self, context: Id) -> Answer {
        let streams = self.captures.streams.keys();
        let of = |stream: &&Id| {
            self.queues
                .get(**stream)
                .is_some_and(|it| self.is_part(it.context, context))
        };
        match streams.copied().find(|stream| of(&stream)) {
            Some(stream) => self.forbid_if_captured(stream),
            None => Ok(()),
        }
    }

    /// The legacy stream waits for ordered streams, which a captured one cannot be.
    pub(crate) fn forbid_implicit(&mut self, stream: Id) -> Answer {
        let Some(legacy) = self.queues.get(stream).filter(|stream| stream.legacy) else {
            return Ok(());
        };
        let context = legacy.context;
        let involved = self.captures.streams.iter().find(|(other, _)| {
            let other = self.queues.get(**other);
            other.is_some_and(|other| other.ordered && other.context == context)
        });
        match involved.map(|(_, (id, _))| *id) {
            Some(id) => {
                self.captures.spoil(id);
                Err(Code::STREAM_CAPTURE_IMPLICIT)
            }
            None => Ok(()),
        }
    }

    fn unbroken(&self, stream: Id) -> Answer<(Id, &Capture, &[Id])> {
        let found = self.captures.of(stream).ok_or(Code::ILLEGAL_STATE)?;
        if found.1.is_broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        Ok(found)
    }

    fn tips_of(&self, id: Id, stream: Id) -> Vec<Id> {
        let tips = self.captures.streams.get(&stream);
        tips.filter(|(other, _)| *other == id)
            .map_or_else(Vec::new, |(_, tips)| tips.clone())
    }

    /// Does every node of the capture come before one of `tips`?
    fn is_joined(&self, id: Id, tips: &[Id]) -> bool {
        let Some(capture) = self.captures.by_id.get(&id) else {
            return false;
        };
        let mut seen = BTreeSet::new();
        let mut next: Vec<Id> = tips.to_vec();
        while let Some(node) = next.pop() {
            if seen.insert(node)
                && let Ok(node) = self.node(node)
            {
                next.extend(&node.after);
            }
        }
        capture.nodes.is_subset(&seen)
    }
}
