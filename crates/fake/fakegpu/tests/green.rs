//! Green contexts: parts of a card, and the owners of memory and streams.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use own_process::{Latch, context, event, kernel, memory, spin, with_machine};

const MIB: usize = 1 << 20;

/// `CUdevResource`, as far as programs read it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Resource {
    kind: u32,
    driver: [u8; 92],
    n_multiprocessors: u32,
    fewest: u32,
    step: u32,
    rest: [u32; 9],
}

const NONE: Resource = Resource {
    kind: 7,
    driver: [0; 92],
    n_multiprocessors: 0,
    fewest: 0,
    step: 0,
    rest: [0; 9],
};

fn whole(device: i32) -> Resource {
    let mut resource = NONE;
    ok!(cuDeviceGetDevResource, device => i32, &raw mut resource => *mut Resource, 1 => u32);
    resource
}

/// Splits off `n` groups. Returns the code, the groups, and the rest.
fn split(input: &Resource, n: u32, flags: u32, fewest: u32) -> (u32, Vec<Resource>, Resource) {
    let (mut groups, mut count, mut rest) = (vec![NONE; n as usize], n, NONE);
    let code = cu!(cuDevSmResourceSplitByCount, groups.as_mut_ptr() => *mut Resource, &raw mut count => *mut u32,
        std::ptr::from_ref(input) => *const Resource, &raw mut rest => *mut Resource, flags => u32, fewest => u32);
    groups.truncate(count as usize);
    (code, groups, rest)
}

fn describe(resources: &[Resource]) -> (u32, u64) {
    let mut description = 0_u64;
    let count = u32::try_from(resources.len()).unwrap();
    let code = cu!(cuDevResourceGenerateDesc, &raw mut description => *mut u64, resources.as_ptr() => *const Resource, count => u32);
    (code, description)
}

fn create(description: u64, device: i32, flags: u32) -> (u32, u64) {
    let mut green = 0_u64;
    let code = cu!(cuGreenCtxCreate, &raw mut green => *mut u64, description => u64, device => i32, flags => u32);
    (code, green)
}

fn regular(green: u64) -> u64 {
    let mut context = 0_u64;
    ok!(cuCtxFromGreenCtx, &raw mut context => *mut u64, green => u64);
    context
}

fn stream_of(green: u64) -> u64 {
    let mut stream = 0_u64;
    ok!(cuGreenCtxStreamCreate, &raw mut stream => *mut u64, green => u64, 1 => u32, 0 => i32);
    stream
}

#[test]
fn a_card_is_split_as_its_product_allows() {
    const NAME: &str = "a_card_is_split_as_its_product_allows";
    with_machine(NAME, "2x80GiB,name=NVIDIA H100", || {
        ok!(cuInit, 0 => u32);
        let all = whole(0);
        assert_eq!(
            (all.kind, all.n_multiprocessors, all.fewest, all.step),
            (1, 132, 8, 8)
        );
        let mut other = NONE;
        assert_eq!(
            cu!(cuDeviceGetDevResource, 0 => i32, &raw mut other => *mut Resource, 3 => u32),
            914
        );
        let mut count = 0_u32;
        ok!(cuDevSmResourceSplitByCount, std::ptr::null_mut() => *mut Resource, &raw mut count => *mut u32,
            &raw const all => *const Resource, std::ptr::null_mut() => *mut Resource, 0 => u32, 20 => u32);
        assert_eq!(count, 5, "24 each");
        let (code, groups, rest) = split(&all, 2, 0, 20);
        let sizes: Vec<u32> = groups.iter().map(|group| group.n_multiprocessors).collect();
        assert_eq!((code, sizes, rest.n_multiprocessors), (0, vec![24, 24], 84));
        // As many as there are, and nothing left of a card without a rest.
        let (_, groups, rest) = split(&all, 100, 1, 3);
        assert_eq!(
            (groups.len(), groups[0].n_multiprocessors, rest.kind),
            (33, 4, 0)
        );
        assert_eq!(split(&all, 1, 0, 133).0, 1, "more than there are");
        assert_eq!(split(&all, 1, 4, 8).0, 1, "no such flag");
        assert_eq!(
            split(&groups[0], 1, 0, 2).0,
            915,
            "a part is not split again"
        );
        assert_eq!(split(&rest, 1, 0, 2).0, 914, "nothing is split");
        let (_, halves, _) = split(&all, 2, 0, 64);
        assert_eq!(describe(&halves).0, 0);
        assert_eq!(describe(&[halves[0], groups[0]]).0, 915, "of two splits");
        assert_eq!(describe(&[whole(0), whole(1)]).0, 915, "of two cards");
        assert_eq!(describe(&[whole(0), whole(0)]).0, 915, "more than the card");
        assert_eq!(describe(&[NONE]).0, 914);
        assert_eq!(describe(&[]).0, 1);
    });
}

#[test]
fn other_products_are_split_otherwise() {
    const NAME: &str = "other_products_are_split_otherwise";
    with_machine(NAME, "1x15GiB,name=Tesla T4", || {
        ok!(cuInit, 0 => u32);
        let all = whole(0);
        assert_eq!((all.n_multiprocessors, all.fewest, all.step), (40, 2, 2));
        assert_eq!(split(&all, 20, 0, 1).1.len(), 20);
    });
}

#[test]
fn a_green_context_is_a_part_of_the_primary_one() {
    const NAME: &str = "a_green_context_is_a_part_of_the_primary_one";
    with_machine(NAME, "2x1GiB,context=24MiB,name=NVIDIA H100", || {
        ok!(cuInit, 0 => u32);
        let (_, groups, _) = split(&whole(0), 2, 0, 32);
        let (_, description) = describe(&groups[..1]);
        assert_eq!(create(description, 0, 0).0, 1, "the flag is required");
        assert_eq!(create(description, 1, 1).0, 1, "of another device");
        assert_eq!(create(77, 0, 1).0, 1, "no description");
        // It makes the primary context, which costs what it costs, once.
        let (code, green) = create(description, 0, 1);
        let (again, second) = create(description, 0, 1);
        assert_eq!((code, again), (0, 0));
        let primary = context();
        assert_eq!(memory().0, 1000 * MIB);
        let part = regular(green);
        assert_ne!(part, primary);
        assert_eq!(
            cu!(cuCtxSetCurrent, green => u64),
            201,
            "it must be converted"
        );
        // Memory and code that are made in it are the primary context's.
        ok!(cuCtxSetCurrent, part => u64);
        let mut address = 0_u64;
        ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 100 * MIB => usize);
        let spinner = kernel("spin");
        let mut owner = 0_u64;
        ok!(cuPointerGetAttribute, &raw mut owner => *mut u64, 1 => u32, address => u64);
        assert_eq!(owner, primary);
        assert_eq!(cu!(cuCtxDestroy_v2, part => u64), 201);
        ok!(cuGreenCtxDestroy, green => u64);
        assert_eq!(cu!(cuGreenCtxDestroy, green => u64), 201);
        ok!(cuCtxSetCurrent, primary => u64);
        ok!(cuMemsetD8_v2, address => u64, 1 => u8, 100 * MIB => usize);
        spin(spinner, 0, 10);
        ok!(cuCtxSynchronize);
        assert_eq!(memory().0, 898 * MIB);
        // Both others are gone before the primary context is.
        ok!(cuGreenCtxDestroy, second => u64);
        ok!(cuDevicePrimaryCtxRelease_v2, 0 => i32);
        assert_eq!(cu!(cuCtxSynchronize), 709);
        let (code, third) = create(description, 0, 1);
        assert_eq!(code, 0);
        ok!(cuDevicePrimaryCtxReset_v2, 0 => i32);
        assert_eq!(
            cu!(cuGreenCtxDestroy, third => u64),
            201,
            "gone with its primary one"
        );
    });
}

#[test]
fn streams_know_their_green_context() {
    const NAME: &str = "streams_know_their_green_context";
    with_machine(NAME, "1x1GiB,context=24MiB", || {
        let primary = context();
        let spinner = kernel("spin");
        let (_, description) = describe(&[whole(0)]);
        let (_, green) = create(description, 0, 1);
        let stream = stream_of(green);
        let mut ordered = 0_u64;
        assert_eq!(
            cu!(cuGreenCtxStreamCreate, &raw mut ordered => *mut u64, green => u64, 0 => u32, 0 => i32),
            1
        );
        let of = |stream: u64| {
            let (mut context, mut part) = (0_u64, 0_u64);
            let code = cu!(cuStreamGetCtx_v2, stream => u64, &raw mut context => *mut u64, &raw mut part => *mut u64);
            (code, context, part)
        };
        assert_eq!(of(stream), (0, primary, green));
        assert_eq!(of(0), (0, primary, 0));
        let mut context = 0_u64;
        ok!(cuStreamGetCtx, stream => u64, &raw mut context => *mut u64);
        assert_eq!(context, regular(green));
        ok!(cuCtxPushCurrent_v2, context => u64);
        assert_eq!((of(0), of(2)), ((0, primary, green), (400, 0, 0)));
        ok!(cuCtxPopCurrent_v2, &raw mut context => *mut u64);
        // Code of the primary context runs there, and its events are recorded there.
        let (done, latch) = (event(), Latch::new());
        latch.hold(stream);
        spin(spinner, stream, 1000);
        ok!(cuEventRecord, done => u64, stream => u64);
        assert_eq!(cu!(cuEventQuery, done => u64), 600);
        latch.open();
        ok!(cuCtxSynchronize);
        ok!(cuEventQuery, done => u64);
        ok!(cuGreenCtxDestroy, green => u64);
        assert_eq!(cu!(cuStreamQuery, stream => u64), 709);
        assert_eq!(cu!(cuStreamDestroy_v2, stream => u64), 709);
    });
}
