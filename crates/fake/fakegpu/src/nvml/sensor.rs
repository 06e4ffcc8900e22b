//! Temperature, power and clocks. They follow from how busy the card was in the last
//! second, so a chart of them looks alive; nothing else is meant by them.

use std::time::{SystemTime, UNIX_EPOCH};

use sublet_driver_api::nvml::{
    NVML_CLOCK_COUNT, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO, NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_FI_DEV_MEMORY_TEMP,
    NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_PCIE_REPLAY_COUNTER, NVML_FI_DEV_POWER_AVERAGE,
    NVML_FI_DEV_POWER_CURRENT_LIMIT, NVML_FI_DEV_POWER_DEFAULT_LIMIT, NVML_FI_DEV_POWER_INSTANT,
    NVML_FI_DEV_POWER_MAX_LIMIT, NVML_FI_DEV_POWER_MIN_LIMIT, NVML_FI_DEV_POWER_REQUESTED_LIMIT,
    NVML_FI_MAX, NVML_PSTATE_0, NVML_SUCCESS, NVML_TEMPERATURE_GPU, NVML_VALUE_TYPE_UNSIGNED_INT,
    nvmlClockType_t, nvmlDevice_t, nvmlFieldValue_t, nvmlPstates_t, nvmlReturn_t,
    nvmlTemperature_v1, nvmlTemperature_v1_t, nvmlTemperatureSensors_t, nvmlValue_t,
};

use super::exported::{Answer, functions};
use super::library::{Card, card};
use super::pointer::Out;

/// Degrees Celsius of a card that does nothing, and how many more when it is busy.
const COOL: u32 = 30;
const WARMER: u32 = 40;
/// An idle card takes a tenth of its limit.
const IDLE_POWER: u32 = 10;
/// The clock of an idle data-centre card in MHz.
const IDLE_MHZ: u32 = 345;
/// Time for which encoder and decoder are watched, in microseconds, as on real cards.
const SAMPLING: u32 = 167_000;

functions! {
    fn nvmlDeviceGetTemperature(
        device: nvmlDevice_t,
        sensor: nvmlTemperatureSensors_t,
        degrees: Out<u32>,
    ) {
        let card = card(device)?;
        if sensor != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        degrees.write(temperature(&card))
    }

    fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, wanted: Out<nvmlTemperature_v1_t>) {
        let card = card(device)?;
        let mut asked = wanted.read()?;
        if asked.version != nvmlTemperature_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        if asked.sensorType != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        asked.temperature = temperature(&card).cast_signed();
        wanted.write(asked)
    }

    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, milliwatts: Out<u32>) {
        milliwatts.write(power(&card(device)?))
    }

    fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, milliwatts: Out<u32>) {
        milliwatts.write(limit(&card(device)?))
    }

    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, milliwatts: Out<u32>) {
        milliwatts.write(limit(&card(device)?))
    }

    fn nvmlDeviceGetPerformanceState(device: nvmlDevice_t, state: Out<nvmlPstates_t>) {
        card(device)?;
        state.write(NVML_PSTATE_0)
    }

    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, mhz: Out<u32>) {
        let card = card(device)?;
        mhz.write(clock(&card, kind)?)
    }

    fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, mhz: Out<u32>) {
        let card = card(device)?;
        mhz.write(highest_clock(&card, kind)?)
    }

    fn nvmlDeviceGetEncoderUtilization(device: nvmlDevice_t, percent: Out<u32>, us: Out<u32>) {
        unused_engine(device, percent, us)
    }

    fn nvmlDeviceGetDecoderUtilization(device: nvmlDevice_t, percent: Out<u32>, us: Out<u32>) {
        unused_engine(device, percent, us)
    }

    /// Each value has its own code; the whole succeeds if the list can be read.
    fn nvmlDeviceGetFieldValues(
        device: nvmlDevice_t,
        count: i32,
        values: Out<nvmlFieldValue_t>,
    ) {
        let card = card(device)?;
        let count = usize::try_from(count).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
        if count == 0 {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for index in 0..count {
            let place = values.check()?.at(index);
            let mut value = place.read()?;
            value.timestamp = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
            value.latencyUsec = 0;
            match field(&card, value.fieldId) {
                Ok(number) => {
                    value.nvmlReturn = NVML_SUCCESS;
                    value.valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
                    // A union: the low half is its `unsigned int`.
                    value.value = nvmlValue_t { ullVal: number.into() };
                }
                Err(code) => value.nvmlReturn = code,
            }
            place.write(value)?;
        }
        Ok(())
    }
}

fn temperature(card: &Card) -> u32 {
    COOL + WARMER * card.percent_busy() / 100
}

/// In milliwatts, as all powers.
fn limit(card: &Card) -> u32 {
    card.product().watts * 1000
}

fn least_limit(card: &Card) -> u32 {
    limit(card) / 2
}

fn power(card: &Card) -> u32 {
    let percent = IDLE_POWER + (100 - IDLE_POWER) * card.percent_busy() / 100;
    card.product().watts * percent * 10
}

fn highest_clock(card: &Card, kind: nvmlClockType_t) -> Answer<u32> {
    let product = card.product();
    match kind {
        NVML_CLOCK_MEM => Ok(product.memory_mhz),
        NVML_CLOCK_VIDEO => Ok(product.graphics_mhz * 9 / 10),
        kind if kind < NVML_CLOCK_COUNT => Ok(product.graphics_mhz),
        _ => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}

fn clock(card: &Card, kind: nvmlClockType_t) -> Answer<u32> {
    let highest = highest_clock(card, kind)?;
    // Memory keeps its clock in the highest performance state.
    if card.percent_busy() > 0 || kind == NVML_CLOCK_MEM {
        Ok(highest)
    } else {
        Ok(IDLE_MHZ)
    }
}

/// Nothing here encodes or decodes.
fn unused_engine(device: nvmlDevice_t, percent: Out<u32>, us: Out<u32>) -> Answer {
    card(device)?;
    us.check()?;
    percent.write(0)?;
    us.write(SAMPLING)
}

fn field(card: &Card, id: u32) -> Result<u32, nvmlReturn_t> {
    match id {
        NVML_FI_DEV_MEMORY_TEMP => Ok(temperature(card)),
        NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT => Ok(power(card)),
        NVML_FI_DEV_POWER_MIN_LIMIT => Ok(least_limit(card)),
        NVML_FI_DEV_POWER_MAX_LIMIT
        | NVML_FI_DEV_POWER_DEFAULT_LIMIT
        | NVML_FI_DEV_POWER_CURRENT_LIMIT
        | NVML_FI_DEV_POWER_REQUESTED_LIMIT => Ok(limit(card)),
        NVML_FI_DEV_NVLINK_LINK_COUNT | NVML_FI_DEV_PCIE_REPLAY_COUNTER => Ok(0),
        1..NVML_FI_MAX => Err(NVML_ERROR_NOT_SUPPORTED),
        _ => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}
