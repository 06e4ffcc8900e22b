//! Settings of a card. Nobody can change them here, so each question has one answer.

use sublet_driver_api::nvml::{
    NVML_COMPUTEMODE_DEFAULT, NVML_DEVICE_MIG_DISABLE, NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED, NVML_FEATURE_DISABLED, NVML_FEATURE_ENABLED,
    NVML_GPU_VIRTUALIZATION_MODE_NONE, NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS,
    NVML_RESTRICTED_API_SET_AUTO_BOOSTED_CLOCKS, nvmlComputeMode_t, nvmlDevice_t,
    nvmlDeviceAttributes_t, nvmlEnableState_t, nvmlGpuVirtualizationMode_t, nvmlRestrictedAPI_t,
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

    fn nvmlDeviceGetEccMode(
        device: nvmlDevice_t,
        current: Out<nvmlEnableState_t>,
        pending: Out<nvmlEnableState_t>,
    ) {
        card(device)?;
        current.check()?;
        pending.check()?;
        Err(NVML_ERROR_NOT_SUPPORTED)
    }

    fn nvmlDeviceGetVirtualizationMode(
        device: nvmlDevice_t,
        mode: Out<nvmlGpuVirtualizationMode_t>,
    ) {
        card(device)?;
        mode.write(NVML_GPU_VIRTUALIZATION_MODE_NONE)
    }

    fn nvmlDeviceGetAPIRestriction(
        device: nvmlDevice_t,
        kind: nvmlRestrictedAPI_t,
        is_restricted: Out<nvmlEnableState_t>,
    ) {
        card(device)?;
        match kind {
            NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS => {
                is_restricted.write(NVML_FEATURE_ENABLED)
            }
            NVML_RESTRICTED_API_SET_AUTO_BOOSTED_CLOCKS => Err(NVML_ERROR_NOT_SUPPORTED),
            _ => Err(NVML_ERROR_INVALID_ARGUMENT),
        }
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

    /// `nvml.h` says that it is for instances only.
    fn nvmlDeviceGetAttributes(
        device: nvmlDevice_t,
        attributes: Out<nvmlDeviceAttributes_t>,
    ) {
        card(device)?;
        attributes.check()?;
        Err(NVML_ERROR_NOT_SUPPORTED)
    }

    fn nvmlDeviceGetAttributes_v2(
        device: nvmlDevice_t,
        attributes: Out<nvmlDeviceAttributes_t>,
    ) {
        card(device)?;
        attributes.check()?;
        Err(NVML_ERROR_NOT_SUPPORTED)
    }
}
