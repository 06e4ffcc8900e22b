//! Pools and memory in stream order.

use sublet_driver_api::cuda::graph::CUDA_MEM_ALLOC_NODE_PARAMS_v1;
use sublet_driver_api::cuda::memory::{CUmemAccessDesc_v1, CUmemLocation_v1, CUmemPoolProps_v1};
use sublet_driver_api::cuda::{CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE};

use crate::cuda::arguments::{In, Out};
use crate::cuda::graph::node::remember;
use crate::cuda::memory::physical::location;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::graph::Content;
use crate::driver::memory::ranges::Kind;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Action;

functions! {
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) {
        let session = Session::open()?;
        session.card_of(device)?;
        pool.put(session.pools.default[device as usize])
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) {
        let session = Session::open()?;
        session.card_of(device)?;
        pool.put(session.pools.current[device as usize])
    }

    fn cuDeviceSetMemPool(device: i32, pool: Handle) {
        set_pool(device, pool)
    }

    fn cuMemGetDefaultMemPool(pool: Out<Handle>, place: In<CUmemLocation_v1>, _kind: u32) {
        let session = Session::open()?;
        let card = location(&session, &place.get()?)?.ok_or(Code::NOT_SUPPORTED)?;
        pool.put(session.pools.default[session.device_of(card) as usize])
    }

    fn cuMemGetMemPool(pool: Out<Handle>, place: In<CUmemLocation_v1>, _kind: u32) {
        let session = Session::open()?;
        let card = location(&session, &place.get()?)?.ok_or(Code::NOT_SUPPORTED)?;
        pool.put(session.pools.current[session.device_of(card) as usize])
    }

    fn cuMemSetMemPool(place: In<CUmemLocation_v1>, _kind: u32, pool: Handle) {
        let place = place.get()?;
        if place.r#type.0 != 1 {
            return Err(Code::NOT_SUPPORTED);
        }
        set_pool(place.id, pool)
    }

    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<CUmemPoolProps_v1>) {
        pool.check()?;
        let mut session = Session::open()?;
        let properties = properties.get()?;
        if properties.allocType.0 != 1 {
            return Err(Code::INVALID_VALUE);
        }
        if properties.handleTypes.0 & !1 != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let card = location(&session, &properties.location)?;
        let limit = properties.maxSize as u64;
        pool.put(session.make_pool(card, limit, properties.handleTypes.0))
    }

    fn cuMemPoolDestroy(pool: Handle) {
        Session::open()?.destroy_pool(pool)
    }

    fn cuMemPoolTrimTo(pool: Handle, keep: usize) {
        Session::open()?.trim_pool(pool, keep as u64)
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: Out<u64>) {
        let mut session = Session::open()?;
        let pool = session.pool(pool)?;
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = value.cast::<u32>().get()?,
            4 => pool.threshold = value.get()?,
            // The highest amounts can be set back, to 0 only.
            6 | 8 if value.get()? == 0 => {
                let amounts = if attribute == 6 { &mut pool.reserved } else { &mut pool.used };
                amounts.1 = amounts.0;
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: Out<u64>) {
        let mut session = Session::open()?;
        let pool = session.pool(pool)?;
        match attribute {
            1..=3 => value.cast::<u32>().put(pool.reuse[attribute as usize - 1]),
            4 => value.put(pool.threshold),
            5 => value.put(pool.reserved.0),
            6 => value.put(pool.reserved.1),
            7 => value.put(pool.used.0),
            8 => value.put(pool.used.1),
            9 => value.cast::<u32>().put(1),
            10 => value.cast::<u32>().put(pool.handle_types),
            12 => value.cast::<u32>().put(if pool.card.is_some() { 1 } else { 2 }),
            13 => value.put(pool.limit),
            14 => value.cast::<u32>().put(0),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAccess(pool: Handle, wanted: In<CUmemAccessDesc_v1>, count: usize) {
        let mut session = Session::open()?;
        session.pool(pool)?;
        for one in wanted.list(count)? {
            location(&session, &one.location)?;
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: Handle, place: In<CUmemLocation_v1>) {
        let mut session = Session::open()?;
        session.pool(pool)?;
        location(&session, &place.get()?)?;
        flags.put(3)
    }

    stream fn cuMemAllocAsync(address: Out<u64>, size: usize, stream: Handle) {
        address.check()?;
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        let card = session.queues.get(stream).map_or(0, |stream| stream.card);
        let device = session.device_of(card) as usize;
        let pool = session.pools.current[device];
        address.put(allocate(&mut session, pool, size as u64, stream)?)
    }

    stream fn cuMemAllocFromPoolAsync(address: Out<u64>, size: usize, pool: Handle, stream: Handle) {
        address.check()?;
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.pool(pool)?;
        address.put(allocate(&mut session, pool, size as u64, stream)?)
    }

    stream fn cuMemFreeAsync(address: u64, stream: Handle) {
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.forbid_implicit(stream)?;
        let range = session.memory.ranges.starting(address).ok_or(Code::INVALID_VALUE)?;
        if !matches!(range.kind, Kind::Pool { .. } | Kind::Borrowed { .. } | Kind::Device) {
            return Err(Code::INVALID_VALUE);
        }
        session.issue(stream, Action::Free(address)).map(drop)
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        let mut session = Session::open()?;
        session.card_of(device)?;
        session.trim_graph_memory(device as usize)
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: Out<u64>) {
        let mut session = Session::open()?;
        session.card_of(device)?;
        let pool = session.pools.graph[device as usize];
        let pool = session.pool(pool)?;
        value.put(match attribute {
            0 => pool.used.0,
            1 => pool.used.1,
            2 => pool.reserved.0,
            3 => pool.reserved.1,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: In<u64>) {
        let mut session = Session::open()?;
        session.card_of(device)?;
        let pool = session.pools.graph[device as usize];
        let pool = session.pool(pool)?;
        match (attribute, value.get()?) {
            (1, 0) => pool.used.1 = pool.used.0,
            (3, 0) => pool.reserved.1 = pool.reserved.0,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}

fn set_pool(device: i32, pool: Handle) -> Answer {
    let mut session = Session::open()?;
    let card = session.card_of(device)?;
    let known = session.pool(pool)?;
    if known.card != Some(card) || known.is_imported() {
        return Err(Code::INVALID_VALUE);
    }
    session.pools.current[device as usize] = pool;
    Ok(())
}

/// In a capture the memory becomes a node of the graph. The node returns its parameters as if it
/// had been added by hand.
fn allocate(session: &mut Session, pool: Id, size: u64, stream: Id) -> Answer<u64> {
    session.forbid_implicit(stream)?;
    if session.captures.of(stream).is_none() {
        return session.allocate_from(pool, size);
    }
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let card = session.pool(pool)?.card.ok_or(Code::NOT_SUPPORTED)?;
    let (graph, after) = match session.captures.of(stream) {
        Some((_, capture, tips)) => (capture.graph, tips.to_vec()),
        None => return Err(Code::ILLEGAL_STATE),
    };
    let address = session.place_in_graph(graph, &after, card, size)?;
    let node = session.capture_node(stream, Content::Action(Action::Alloc(address)))?;
    let given = CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
        poolProps: CUmemPoolProps_v1 {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation_v1 {
                r#type: CU_MEM_LOCATION_TYPE_DEVICE,
                id: session.device_of(card),
            },
            ..CUmemPoolProps_v1::default()
        },
        bytesize: size as usize,
        dptr: address,
        ..CUDA_MEM_ALLOC_NODE_PARAMS_v1::default()
    };
    remember(session, node, &given)?;
    Ok(address)
}
