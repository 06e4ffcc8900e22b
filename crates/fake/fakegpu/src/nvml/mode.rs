//! Settings of a card. Nobody can change them here, so each question has one answer.

use sublet_driver_api::nvml::{
    NVML_COMPUTEMODE_DEFAULT, NVML_DEVICE_MIG_DISABLE, NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED, NVML_FEATURE_DISABLED, NVML_FEATURE_ENABLED,
    nvmlComputeMode_t, nvmlDevice_t, nvmlEnableState_t,
};

use super::exported::functions;
use super::library::card;
use super::pointer::Out;

/// The most instances of a card that can be split.
const INSTANCES_MAX: u32 = 7;

functions! {
    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: Out<nvmlComputeMode_t>) {
        card(device)?;
        mode.write(NVML_COMPUTEMODE_DEFAULT)
    }

    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, mode: Out<nvmlEnableState_t>) {
        card(device)?;
        mode.write(NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetDisplayMode(device: nvmlDevice_t, mode: Out<nvmlEnableState_t>) {
        card(device)?;
        mode.write(NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetDisplayActive(device: nvmlDevice_t, is_active: Out<nvmlEnableState_t>) {
        card(device)?;
        is_active.write(NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: Out<u32>, pending: Out<u32>) {
        if !card(device)?.product().has_mig {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        pending.check()?;
        current.write(NVML_DEVICE_MIG_DISABLE)?;
        pending.write(NVML_DEVICE_MIG_DISABLE)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: Out<u32>) {
        let has_mig = card(device)?.product().has_mig;
        count.write(if has_mig { INSTANCES_MAX } else { 0 })
    }

    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig: Out<u32>) {
        card(device)?;
        is_mig.write(0)
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: nvmlDevice_t,
        _index: u32,
        instance: Out<nvmlDevice_t>,
    ) {
        let has_mig = card(device)?.product().has_mig;
        instance.check()?;
        Err(if has_mig { NVML_ERROR_NOT_FOUND } else { NVML_ERROR_NOT_SUPPORTED })
    }

    /// Every handle is a whole card's, so none is an instance's.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        instance: nvmlDevice_t,
        _device: Out<nvmlDevice_t>,
    ) {
        card(instance)?;
        Err(NVML_ERROR_INVALID_ARGUMENT)
    }
}
