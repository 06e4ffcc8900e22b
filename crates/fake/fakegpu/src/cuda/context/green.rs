//! Green contexts, and the parts of cards that they are made of.

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::context::green::Part;
use crate::driver::context::top;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::NON_BLOCKING;

/// `CU_DEV_RESOURCE_TYPE_INVALID` and `CU_DEV_RESOURCE_TYPE_SM`.
const INVALID: u32 = 0;
const SM: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING` and
/// `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`.
const APART: u32 = 1;
const CLUSTERS: u32 = 2;
/// Mark that we write into the driver's own room of a resource.
const MAGIC: u32 = u32::from_le_bytes(*b"part");

/// `CUdevResource`: 92 bytes in it are the driver's own.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Resource {
    kind: u32,
    magic: u32,
    device: i32,
    split: u32,
    padding: [u32; 20],
    n_multiprocessors: u32,
    fewest: u32,
    step: u32,
    rest: [u32; 9],
}

const _: () = assert!(size_of::<Resource>() == 144, "as cuda.h has it");

impl Resource {
    fn of(session: &Session, part: Part) -> Answer<Resource> {
        let core = session.core_of(part.device)?;
        let is_some = part.n_multiprocessors > 0;
        Ok(Resource {
            kind: if is_some { SM } else { INVALID },
            magic: MAGIC,
            device: part.device,
            split: part.split,
            padding: [0; 20],
            n_multiprocessors: part.n_multiprocessors,
            fewest: core.fewest,
            step: core.step,
            rest: [0; 9],
        })
    }

    fn part(&self) -> Answer<Part> {
        if self.kind != SM {
            return Err(Code::INVALID_RESOURCE_TYPE);
        }
        if self.magic != MAGIC || self.n_multiprocessors == 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Part {
            device: self.device,
            n_multiprocessors: self.n_multiprocessors,
            split: self.split,
        })
    }
}

functions! {
    fn cuDeviceGetDevResource(device: i32, resource: Out<Resource>, kind: u32) {
        let session = Session::open()?;
        let part = session.whole(device)?;
        resource.check()?;
        if kind != SM {
            return Err(Code::INVALID_RESOURCE_TYPE);
        }
        resource.put(Resource::of(&session, part)?)
    }

    fn cuDevSmResourceSplitByCount(result: Out<Resource>, count: Out<u32>, input: In<Resource>, remaining: Out<Resource>, flags: u32, fewest: u32) {
        split(result, count, input, remaining, flags, fewest)
    }

    fn cuDevResourceGenerateDesc(description: Out<Handle>, resources: In<Resource>, count: u32) {
        description.check()?;
        let mut session = Session::open()?;
        let resources = resources.list(count as usize)?;
        let parts: Answer<Vec<Part>> = resources.iter().map(Resource::part).collect();
        description.put(session.describe(&parts?)?)
    }

    fn cuGreenCtxCreate(green: Out<Handle>, description: Handle, device: i32, flags: u32) {
        green.check()?;
        let mut session = outside_capture()?;
        green.put(session.make_green(description, device, flags)?)
    }

    fn cuGreenCtxDestroy(green: Handle) {
        outside_capture()?.destroy_green(green)
    }

    fn cuCtxFromGreenCtx(context: Out<Handle>, green: Handle) {
        context.put(Session::open()?.green(green)?.context)
    }

    fn cuGreenCtxStreamCreate(stream: Out<Handle>, green: Handle, flags: u32, priority: i32) {
        stream.check()?;
        let mut session = Session::open()?;
        let context = session.green(green)?.context;
        if flags != NON_BLOCKING {
            return Err(Code::INVALID_VALUE);
        }
        stream.put(session.make_stream_in(context, flags, priority)?)
    }

    stream fn cuStreamGetCtx_v2(handle: Handle, context: Out<Handle>, green: Out<Handle>) {
        context.check()?;
        let mut session = Session::open()?;
        let is_of_thread = handle == 2 || (handle == 0 && PER_THREAD);
        if is_of_thread && top().is_some_and(|top| session.greens.of(top) != 0) {
            return Err(Code::INVALID_HANDLE);
        }
        let stream = session.stream(handle, PER_THREAD)?;
        let of = session.queues.get(stream).map_or(0, |stream| stream.context);
        green.put_if(session.greens.of(of));
        context.put(session.home(of))
    }
}

fn split(
    result: Out<Resource>,
    count: Out<u32>,
    input: In<Resource>,
    remaining: Out<Resource>,
    flags: u32,
    fewest: u32,
) -> Answer {
    let wanted = count.get()?;
    let mut session = Session::open()?;
    let whole = input.get()?.part()?;
    if flags & !(APART | CLUSTERS) != 0 || fewest > whole.n_multiprocessors {
        return Err(Code::INVALID_VALUE);
    }
    // A part of a split can only be split again once it is a green context's.
    if whole.split != 0 {
        return Err(Code::INVALID_RESOURCE_CONFIGURATION);
    }
    let core = session.core_of(whole.device)?;
    let (least, step) = if flags & APART != 0 {
        (2, 2)
    } else {
        (core.fewest, core.step)
    };
    let size = fewest.max(least).next_multiple_of(step);
    let possible = whole.n_multiprocessors / size;
    if possible == 0 {
        return Err(Code::INVALID_RESOURCE_CONFIGURATION);
    }
    if result.is_null() {
        return count.put(possible);
    }
    let n_groups = wanted.min(possible);
    let part = |n_multiprocessors, split| Part {
        n_multiprocessors,
        split,
        ..whole
    };
    let split = session.new_split();
    let group = Resource::of(&session, part(size, split))?;
    let rest = whole.n_multiprocessors - n_groups * size;
    remaining.put_if(Resource::of(&session, part(rest, split))?);
    result.put_all(std::iter::repeat_n(group, n_groups as usize))?;
    count.put(n_groups)
}
