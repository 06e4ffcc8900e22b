//! The driver, behind calls that cannot be misused.
//!
//! [`Driver`] loads and initialises the driver, and [`Context`] is a device that is ready for work.
//! Everything that a program holds is freed when it is dropped. A destructor does not report an
//! error, because the process ends then anyway: programs that test frees call `free` themselves.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::time::Instant;

use serde_json::{Value, json};
use sublet_driver_api::CUDA;
use sublet_driver_api::cuda::{CUcontext, CUdevice_attribute, CUuuid};

use crate::arguments::Common;
use crate::raw::Cuda;
use crate::reach::Library;
use crate::report::{Failure, Report};
use crate::statistics::rounded;

/// Room for a name that the driver writes.
pub(crate) type Name = [c_char; 256];

/// A loaded driver; it may not be initialised yet.
pub(crate) struct Driver {
    raw: Cuda,
}

/// Memory as `cuMemGetInfo` reports it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) free: usize,
    pub(crate) total: usize,
}

impl Memory {
    pub(crate) fn to_json(self) -> Value {
        json!({"free": self.free, "total": self.total})
    }
}

impl Driver {
    /// Loads the driver in the way that `--reach` names; calls none of its functions yet.
    pub(crate) fn load(common: &Common) -> Result<Self, Failure> {
        let library = Library::open(&common.reach, &CUDA, common.per_thread)?;
        let raw = Cuda::new(library)?;
        Ok(Self { raw })
    }

    /// Loads and initialises the driver, and notes the loaded library in the report.
    pub(crate) fn start(common: &Common, report: &mut Report) -> Result<Self, Failure> {
        report.set("reach", common.reach.to_string());
        let driver = Self::load(common)?;
        report.set("library", driver.raw.file());
        let begin = Instant::now();
        driver.init()?;
        report.set("initUs", rounded(begin.elapsed().as_secs_f64() * 1e6));
        report.set("driverVersion", driver.version()?);
        Ok(driver)
    }

    pub(crate) fn init(&self) -> Result<(), Failure> {
        // SAFETY: cuInit takes a zero.
        unsafe { self.raw.cuInit(0) }
    }

    /// The newest CUDA version that the driver supports, 13000 for 13.0.
    pub(crate) fn version(&self) -> Result<c_int, Failure> {
        let mut version = 0;
        // SAFETY: the pointer is to a live value.
        unsafe { self.raw.cuDriverGetVersion(&raw mut version)? };
        Ok(version)
    }

    pub(crate) fn device_count(&self) -> Result<c_int, Failure> {
        let mut count = 0;
        // SAFETY: the pointer is to a live value.
        unsafe { self.raw.cuDeviceGetCount(&raw mut count)? };
        Ok(count)
    }

    /// The device with this ordinal, as the driver numbers the visible devices.
    pub(crate) fn device(&self, ordinal: c_int) -> Result<Device<'_>, Failure> {
        let mut device = 0;
        // SAFETY: the pointer is to a live value; the driver checks the ordinal.
        unsafe { self.raw.cuDeviceGet(&raw mut device, ordinal)? };
        Ok(Device {
            driver: self,
            number: device,
        })
    }

    /// A device that is ready for work; its context is current for the calling thread.
    pub(crate) fn context(&self, ordinal: c_int) -> Result<Context<'_>, Failure> {
        let device = self.device(ordinal)?;
        let mut handle = CUcontext::default();
        // SAFETY: the pointer is to a live value and the driver gave the device.
        unsafe {
            self.raw
                .cuDevicePrimaryCtxRetain(&raw mut handle, device.number)?;
        }
        let context = Context { device, handle };
        context.make_current()?;
        Ok(context)
    }
}

/// A device of the driver.
#[derive(Clone, Copy)]
pub(crate) struct Device<'driver> {
    driver: &'driver Driver,
    number: c_int,
}

impl Device<'_> {
    /// The driver's number for it.
    pub(crate) fn number(&self) -> c_int {
        self.number
    }

    pub(crate) fn name(&self) -> Result<String, Failure> {
        let mut name: Name = [0; 256];
        // SAFETY: the length is that of the array.
        unsafe {
            self.driver
                .raw
                .cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, self.number)?;
        }
        Ok(name_to_string(&name))
    }

    /// The UUID in the form that `nvidia-smi` prints: `GPU-8-4-4-4-12`.
    pub(crate) fn uuid(&self) -> Result<String, Failure> {
        let mut uuid = CUuuid::default();
        // SAFETY: the pointer is to a live value of 16 bytes.
        unsafe {
            self.driver
                .raw
                .cuDeviceGetUuid_v2(&raw mut uuid, self.number)?;
        }
        Ok(uuid_text(uuid))
    }

    pub(crate) fn total_memory(&self) -> Result<usize, Failure> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a live value.
        unsafe {
            self.driver
                .raw
                .cuDeviceTotalMem_v2(&raw mut bytes, self.number)?;
        }
        Ok(bytes)
    }

    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> Result<c_int, Failure> {
        let mut value = 0;
        // SAFETY: the pointer is to a live value; the driver checks the attribute.
        unsafe {
            self.driver
                .raw
                .cuDeviceGetAttribute(&raw mut value, attribute, self.number)?;
        }
        Ok(value)
    }
}

/// The primary context of a device, retained.
pub(crate) struct Context<'driver> {
    device: Device<'driver>,
    handle: CUcontext,
}

impl<'driver> Context<'driver> {
    pub(crate) fn device(&self) -> Device<'driver> {
        self.device
    }

    pub(crate) fn raw(&self) -> &'driver Cuda {
        &self.device.driver.raw
    }

    /// Makes this the calling thread's context.
    pub(crate) fn make_current(&self) -> Result<(), Failure> {
        // SAFETY: the context is retained for as long as `self` lives.
        unsafe { self.raw().cuCtxSetCurrent(self.handle) }
    }

    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: takes nothing.
        unsafe { self.raw().cuCtxSynchronize() }
    }

    /// The result of `cuMemGetInfo`.
    pub(crate) fn memory(&self) -> Result<Memory, Failure> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to live values.
        unsafe {
            self.raw().cuMemGetInfo_v2(&raw mut free, &raw mut total)?;
        }
        Ok(Memory { free, total })
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: this releases what `Driver::context` retained.
        let _at_the_end = unsafe { self.raw().cuDevicePrimaryCtxRelease_v2(self.device.number) };
    }
}

/// A name that the driver wrote into a fixed array.
pub(crate) fn name_to_string(name: &Name) -> String {
    let bytes = name.map(|byte| byte as u8);
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

fn uuid_text(CUuuid { bytes }: CUuuid) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Returns the number of blocks of so many threads that a kernel needs for `count` elements.
pub(crate) fn blocks_for(count: usize, threads: c_uint) -> c_uint {
    let blocks = count.div_ceil(threads as usize).clamp(1, 4096);
    // The clamp keeps the number small; for larger arrays, threads take several elements.
    c_uint::try_from(blocks).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::{blocks_for, name_to_string, uuid_text};
    use sublet_driver_api::cuda::CUuuid;

    #[test]
    fn uuids_are_written_as_nvidia_smi_does() {
        let mut bytes = [0; 16];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::try_from(index * 17).expect("fits");
        }
        assert_eq!(
            uuid_text(CUuuid { bytes }),
            "GPU-00112233-4455-6677-8899-aabbccddeeff"
        );
    }

    #[test]
    fn names_end_at_the_zero() {
        let mut name = [0; 256];
        for (to, from) in name.iter_mut().zip(b"H100\0old") {
            *to = from.cast_signed();
        }
        assert_eq!(name_to_string(&name), "H100");
        assert_eq!(name_to_string(&[b'x'.cast_signed(); 256]).len(), 256);
    }

    #[test]
    fn grids_cover_small_work_and_stay_bounded() {
        assert_eq!(blocks_for(0, 256), 1);
        assert_eq!(blocks_for(256, 256), 1);
        assert_eq!(blocks_for(257, 256), 2);
        assert_eq!(blocks_for(usize::MAX, 256), 4096);
    }
}
