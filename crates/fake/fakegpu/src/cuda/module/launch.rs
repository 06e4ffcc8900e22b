//! Launches of kernels.

use std::ffi::c_void;

use sublet_driver_api::cuda::launch::CUlaunchConfig;

use crate::cuda::arguments::{Arguments, In};
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::{Action, Kernel};
use crate::product::Multiprocessor;

functions! {
    stream fn cuLaunchKernel(function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle, each: In<In<c_void>>, extra: In<u64>) {
        let grid = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        launch(function, grid, shared, stream, PER_THREAD, Arguments { each, extra })
    }

    stream fn cuLaunchCooperativeKernel(function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle, each: In<In<c_void>>) {
        let grid = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        check_resident(grid, shared, stream, PER_THREAD)?;
        launch(function, grid, shared, stream, PER_THREAD, Arguments { each, extra: In::null() })
    }

    stream fn cuLaunchKernelEx(config: In<CUlaunchConfig>, function: Handle, each: In<In<c_void>>, extra: In<u64>) {
        let config = config.get()?;
        let grid = [
            config.gridDimX, config.gridDimY, config.gridDimZ,
            config.blockDimX, config.blockDimY, config.blockDimZ,
        ];
        if config.numAttrs > 0 && config.attrs.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let stream = config.hStream.0 as u64;
        launch(function, grid, config.sharedMemBytes, stream, PER_THREAD, Arguments { each, extra })
    }
}

fn launch(
    function: Handle,
    grid: [u32; 6],
    shared: u32,
    stream: Handle,
    per_thread: bool,
    arguments: Arguments,
) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    session.forbid_implicit(stream)?;
    let function = session.launched(function)?;
    let kernel = plan(&session, function, grid, shared, stream, arguments)?;
    session.issue(stream, Action::Kernel(kernel)).map(drop)
}

/// Returns the work of a launch, if it is possible.
pub(crate) fn plan(
    session: &Session,
    function: Handle,
    grid: [u32; 6],
    shared: u32,
    stream: Handle,
    arguments: Arguments,
) -> Answer<Kernel> {
    let known = session.known_function(function)?;
    let card = session.queues.get(stream).map_or(0, |stream| stream.card);
    check(&session.product(card).multiprocessor(), grid, shared)?;
    let params = &known.declared.params;
    session.kernel(function, stream, |number| {
        let (offset, size) = *params.get(number)?;
        arguments.value(number, offset, size)
    })
}

/// All blocks of a cooperative launch must be on the card at one time.
fn check_resident(grid: [u32; 6], shared: u32, stream: Handle, per_thread: bool) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let card = session.queues.get(stream).map_or(0, |stream| stream.card);
    let product = session.product(card);
    let core = product.multiprocessor();
    check(&core, grid, shared)?;
    let [blocks @ .., x, y, z] = grid.map(u64::from);
    let on_one = (u64::from(core.n_threads) / (x * y * z)).min(core.n_blocks.into());
    if blocks.iter().product::<u64>() > u64::from(product.n_multiprocessors) * on_one {
        return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    Ok(())
}

fn check(core: &Multiprocessor, grid: [u32; 6], shared: u32) -> Answer {
    let [grid_x, grid_y, grid_z, x, y, z] = grid;
    let threads = u64::from(x) * u64::from(y) * u64::from(z);
    let sound = threads > 0
        && threads <= 1024
        && z <= 64
        && (1..=i32::MAX.cast_unsigned()).contains(&grid_x)
        && (1..=65535).contains(&grid_y)
        && (1..=65535).contains(&grid_z)
        && shared <= core.shared_of_block;
    if sound {
        Ok(())
    } else {
        Err(Code::INVALID_VALUE)
    }
}
