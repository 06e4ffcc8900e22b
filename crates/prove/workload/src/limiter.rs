//! The token bucket at work in a program: launches wait for tokens, and a thread refills it by
//! NVML's samples. It decides nothing itself: the bucket does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use sublet_driver_api::cuda::{
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};

use crate::driver::Context;
use crate::nvml::Utilisation;
use crate::report::Failure;
use crate::token_bucket::{REFILL_MS, TokenBucket, WAIT_MS};

/// Arguments of a program that can be limited.
#[derive(Debug, Clone, Args)]
pub(crate) struct LimiterArguments {
    /// Limit the program to so many percent of the card as HAMi-core does, by NVML's file
    #[arg(long, requires = "nvml", value_parser = clap::value_parser!(u32).range(1..=100))]
    token_bucket: Option<u32>,
    /// The driver's NVML library
    #[arg(long)]
    nvml: Option<String>,
    /// Thread blocks that a kernel counts as in the bucket
    #[arg(long, default_value_t = 16_384)]
    blocks: u32,
}

/// The token bucket, and the source of the process's utilisation.
pub(crate) struct Limiter {
    bucket: Mutex<TokenBucket>,
    utilisation: Mutex<Utilisation>,
    blocks: i64,
}

impl LimiterArguments {
    /// The limiter, if one was asked for.
    pub(crate) fn limiter(&self, context: &Context<'_>) -> Result<Option<Limiter>, Failure> {
        let (Some(limit), Some(nvml)) = (self.token_bucket, &self.nvml) else {
            return Ok(None);
        };
        let device = context.device();
        let multiprocessors = device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let threads = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        let bucket = TokenBucket::new(limit.into(), multiprocessors.into(), threads.into());
        Ok(Some(Limiter {
            bucket: Mutex::new(bucket),
            utilisation: Mutex::new(Utilisation::of_first_device(nvml)?),
            blocks: self.blocks.into(),
        }))
    }
}

impl Limiter {
    /// Waits until a kernel may be launched.
    pub(crate) fn wait(&self) {
        while !locked(&self.bucket).take(self.blocks) {
            thread::sleep(Duration::from_millis(WAIT_MS));
        }
    }

    fn refill_until(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            let begin = Instant::now();
            // While the driver has no sample, the process counts as idle, as in HAMi-core.
            let busy = locked(&self.utilisation).of_this_process().unwrap_or(0);
            locked(&self.bucket).refill(busy.into());
            thread::sleep(Duration::from_millis(REFILL_MS).saturating_sub(begin.elapsed()));
        }
    }
}

/// Does the work of a program while its bucket, if it has one, is refilled.
pub(crate) fn with_refills<T>(limiter: Option<&Limiter>, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        if let Some(limiter) = limiter {
            scope.spawn(|| limiter.refill_until(&is_over));
        }
        let done = work();
        is_over.store(true, Ordering::Release);
        done
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
