//! The result codes of the driver that we give, by the names people say.

/// Reason why a call failed, as a `CUresult`. 0 is success and never occurs here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub u32);

/// Result of a driver function inside this crate.
pub(crate) type Answer<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal,)*) => {
        impl Code {
            $(
                #[doc = concat!("`CUDA_ERROR_", stringify!($name), "`")]
                pub(crate) const $name: Code = Code($value);
            )*

            #[cfg(test)]
            const NAMES: &[(&str, u32)] = &[$((stringify!($name), $value),)*];
        }
    };
}

codes! {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    MAP_FAILED = 205,
    UNSUPPORTED_LIMIT = 215,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    FILE_NOT_FOUND = 301,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_UNJOINED = 904,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    STREAM_CAPTURE_WRONG_THREAD = 908,
    INVALID_RESOURCE_TYPE = 914,
    INVALID_RESOURCE_CONFIGURATION = 915,
    UNKNOWN = 999,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_header() {
        for (name, value) in Code::NAMES {
            let header = sublet_driver_api::cuda::CUresult(*value).name();
            assert_eq!(header, Some(format!("CUDA_ERROR_{name}").as_str()));
        }
    }
}
