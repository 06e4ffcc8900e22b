//! Lists as NVML hands them over: a pointer to a number and a pointer to an array.
//!
//! The number is how many there is room for, and becomes how many there are. A hook that leaves
//! some out must first have all, however little room its caller has; so it reads them into an
//! array of its own, and the caller's is filled afterwards, by the same rules as the library's.

use sublet_driver_api::Zeroed;
use sublet_driver_api::nvml::*;

use super::pids::{Process, Whose};

/// Room for a first attempt. Cards have seldom more processes.
const ROOM: u32 = 64;

/// The list can grow between two attempts, but not for ever.
const ATTEMPTS: usize = 8;

/// Reads a whole list. `call` gets the number and the array.
///
/// # Errors
/// The library's error.
pub fn read_all<T: Zeroed + Clone>(
    call: impl Fn(*mut u32, *mut T) -> nvmlReturn_t,
) -> Result<Vec<T>, nvmlReturn_t> {
    let mut room = ROOM;
    for _ in 0..ATTEMPTS {
        let mut list = vec![T::ZERO; room as usize];
        let mut count = room;
        match call(&raw mut count, list.as_mut_ptr()) {
            NVML_SUCCESS => {
                list.truncate(count as usize);
                return Ok(list);
            }
            NVML_ERROR_INSUFFICIENT_SIZE => room = count.max(room).saturating_add(ROOM),
            error => return Err(error),
        }
    }
    Err(NVML_ERROR_INSUFFICIENT_SIZE)
}

/// Answers a list to a caller that must have room for all of it.
///
/// # Safety
/// `count` is null or points to a number; `room` is null or points to so many elements.
pub unsafe fn answer<T: Copy>(list: &[T], count: *mut u32, room: *mut T) -> nvmlReturn_t {
    // SAFETY: null, or a number, as the caller says.
    let Some(count) = (unsafe { count.as_mut() }) else {
        return NVML_ERROR_INVALID_ARGUMENT;
    };
    let has_room = *count as usize >= list.len();
    *count = u32::try_from(list.len()).unwrap_or(u32::MAX);
    if !has_room {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if list.is_empty() {
        return NVML_SUCCESS;
    }
    if room.is_null() {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: not null, and as many elements as the caller said there is room for.
    unsafe { room.copy_from_nonoverlapping(list.as_ptr(), list.len()) };
    NVML_SUCCESS
}

/// Answers a list to a caller that may ask for the number alone (0), or for the first few.
///
/// # Safety
/// As for [`answer`].
pub unsafe fn answer_first<T: Copy>(list: &[T], count: *mut u32, room: *mut T) -> nvmlReturn_t {
    // SAFETY: null, or a number, as the caller says.
    let Some(number) = (unsafe { count.as_mut() }) else {
        return NVML_ERROR_INVALID_ARGUMENT;
    };
    if *number == 0 {
        *number = u32::try_from(list.len()).unwrap_or(u32::MAX);
        return NVML_SUCCESS;
    }
    let first = &list[..list.len().min(*number as usize)];
    // SAFETY: as the caller says; there is room for these.
    unsafe { answer(first, count, room) }
}

/// Answers the elements of the library's own list that `keep` keeps.
///
/// # Safety
/// As for [`answer`].
pub unsafe fn answer_kept<T: Zeroed + Copy>(
    real: impl Fn(*mut u32, *mut T) -> nvmlReturn_t,
    keep: impl FnOnce(Vec<T>) -> Vec<T>,
    count: *mut u32,
    room: *mut T,
) -> nvmlReturn_t {
    match read_all(real) {
        // SAFETY: as the caller says.
        Ok(list) => unsafe { answer(&keep(list), count, room) },
        Err(error) => error,
    }
}

/// A struct by which a function is asked for a list: number and array are among its members.
pub trait Asking: Copy {
    /// Type of the list's elements.
    type Element: Zeroed + Copy;

    /// The version of the struct that is known here. A later one may hold unknown members.
    const VERSION: u32;

    /// The version that the caller gives.
    fn version(&self) -> u32;

    /// The number.
    fn count(&mut self) -> &mut u32;

    /// The array.
    fn room(&mut self) -> &mut *mut Self::Element;
}

macro_rules! asking {
    ($($type:ident { $version:ident, $count:ident, $room:ident: $element:ident })*) => {$(
        impl Asking for $type {
            type Element = $element;
            const VERSION: u32 = $version;

            fn version(&self) -> u32 {
                self.version
            }

            fn count(&mut self) -> &mut u32 {
                &mut self.$count
            }

            fn room(&mut self) -> &mut *mut $element {
                &mut self.$room
            }
        }
    )*};
}
asking! {
    nvmlProcessDetailList_v1_t {
        nvmlProcessDetailList_v1, numProcArrayEntries, procArray: nvmlProcessDetail_v1_t
    }
    nvmlProcessesUtilizationInfo_v1_t {
        nvmlProcessesUtilizationInfo_v1, processSamplesCount,
        procUtilArray: nvmlProcessUtilizationInfo_v1_t
    }
}

/// The struct that a caller gives.
///
/// # Errors
/// It is missing, or of another version.
///
/// # Safety
/// `asked` is null or points to such a struct, which nobody else uses meanwhile.
pub unsafe fn asked<'a, T: Asking>(asked: *mut T) -> Result<&'a mut T, nvmlReturn_t> {
    // SAFETY: null, or the struct, as the caller says.
    match unsafe { asked.as_mut() } {
        None => Err(NVML_ERROR_INVALID_ARGUMENT),
        Some(asked) if asked.version() != T::VERSION => Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH),
        Some(asked) => Ok(asked),
    }
}

/// Reads the whole list that a struct asks for.
///
/// # Errors
/// The library's error.
pub fn read_asked<T: Asking>(
    asked: &T,
    real: impl Fn(*mut T) -> nvmlReturn_t,
) -> Result<Vec<T::Element>, nvmlReturn_t> {
    read_all(|count, room| {
        let mut own = *asked;
        *own.room() = room;
        // SAFETY: `read_all` gives a live pointer.
        *own.count() = unsafe { *count };
        let result = real(&raw mut own);
        // SAFETY: as above.
        unsafe { *count = *own.count() };
        result
    })
}

/// Answers a list in the struct that asked for it.
///
/// # Safety
/// The struct's array has room for as many elements as the struct says.
pub unsafe fn answer_asked<T: Asking>(list: &[T::Element], asked: &mut T) -> nvmlReturn_t {
    let room = *asked.room();
    // SAFETY: the struct's own number, and its array, as the caller says.
    unsafe { answer(list, asked.count(), room) }
}

/// An element that names a process.
pub trait OfProcess: Copy {
    /// The number.
    fn pid(&self) -> u32;

    /// The same about the process as this namespace calls it.
    fn renamed(self, pid: u32) -> Self;
}

/// Keeps the elements of the tenant's processes, with their numbers in this namespace.
#[must_use]
pub fn keep_own<T: OfProcess>(list: &[T], processes: &[Process]) -> Vec<(T, Process)> {
    let numbers: Vec<u32> = list.iter().map(OfProcess::pid).collect();
    let whose = Whose::of(&numbers, processes);
    list.iter()
        .filter_map(|element| {
            let process = whose.find(element.pid(), processes)?;
            Some((element.renamed(process.here?), *process))
        })
        .collect()
}

macro_rules! with_member_pid {
    ($($type:ident)*) => {$(
        impl OfProcess for $type {
            fn pid(&self) -> u32 {
                self.pid
            }

            fn renamed(self, pid: u32) -> Self {
                Self { pid, ..self }
            }
        }
    )*};
}
with_member_pid! {
    nvmlProcessInfo_v1_t nvmlProcessInfo_v2_t nvmlProcessDetail_v1_t
    nvmlProcessUtilizationSample_t nvmlProcessUtilizationInfo_v1_t
}

impl OfProcess for u32 {
    fn pid(&self) -> u32 {
        *self
    }

    fn renamed(self, pid: u32) -> Self {
        pid
    }
}

/// `nvmlEncoderSessionInfo_t` and `nvmlFBCSessionInfo_t`: numbers of 32 bits; the second number is
/// the process.
impl<const WORDS: usize> OfProcess for [u32; WORDS] {
    fn pid(&self) -> u32 {
        self[1]
    }

    fn renamed(mut self, pid: u32) -> Self {
        self[1] = pid;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with a list of so many.
    fn with(n: u32) -> impl Fn(*mut u32, *mut u32) -> nvmlReturn_t {
        let list: Vec<u32> = (0..n).collect();
        // SAFETY: the tests give live pointers.
        move |count, room| unsafe { answer(&list, count, room) }
    }

    #[test]
    fn a_list_is_read_whole_whatever_its_length() {
        for n in [0, 1, ROOM, ROOM + 1, 1000] {
            let list = read_all(with(n)).expect("the list");
            assert_eq!(list, (0..n).collect::<Vec<u32>>());
        }
        let error = read_all::<u32>(|_, _| NVML_ERROR_GPU_IS_LOST);
        assert_eq!(error, Err(NVML_ERROR_GPU_IS_LOST));
        let growing = read_all::<u32>(|count, _| {
            // SAFETY: `read_all` gives a live pointer.
            unsafe { *count += 1 };
            NVML_ERROR_INSUFFICIENT_SIZE
        });
        assert_eq!(growing, Err(NVML_ERROR_INSUFFICIENT_SIZE));
    }

    #[test]
    fn a_caller_gets_all_or_the_number() {
        for (n, room, result, filled) in [
            (0, 0, NVML_SUCCESS, 0),
            (2, 0, NVML_ERROR_INSUFFICIENT_SIZE, 0),
            (2, 1, NVML_ERROR_INSUFFICIENT_SIZE, 0),
            (2, 2, NVML_SUCCESS, 2),
            (2, 9, NVML_SUCCESS, 2),
        ] {
            let list = &[7_u32, 8][..n];
            let (mut count, mut array) = (room, [0_u32; 9]);
            // SAFETY: both are live, and there is room for nine.
            let answered = unsafe { answer(list, &raw mut count, array.as_mut_ptr()) };
            assert_eq!((answered, count), (result, n as u32), "{n} of {room}");
            assert_eq!(array.iter().filter(|&&number| number != 0).count(), filled);
        }
        let null = std::ptr::null_mut();
        // SAFETY: null is allowed.
        let answered = unsafe { answer(&[1_u32], null, null) };
        assert_eq!(answered, NVML_ERROR_INVALID_ARGUMENT);
        let mut count = 5;
        // SAFETY: null is allowed.
        let answered = unsafe { answer(&[1_u32], &raw mut count, null) };
        assert_eq!(answered, NVML_ERROR_INVALID_ARGUMENT);
    }

    #[test]
    fn a_caller_gets_the_first_few_or_the_number() {
        for (room, result) in [(0, 3), (1, 1), (3, 3), (8, 3)] {
            let (mut count, mut array) = (room, [0_u32; 8]);
            // SAFETY: both are live, and there is room for eight.
            let answered = unsafe { answer_first(&[7, 8, 9], &raw mut count, array.as_mut_ptr()) };
            assert_eq!((answered, count), (NVML_SUCCESS, result));
            assert_eq!(array[0], if room == 0 { 0 } else { 7 });
        }
    }

    #[test]
    fn only_the_tenants_own_are_kept_and_renamed() {
        let own = Process {
            told: 900,
            here: Some(7),
            bytes: 5,
        };
        let nameless = Process {
            told: 901,
            here: None,
            bytes: 6,
        };
        let sample = |pid| nvmlProcessUtilizationSample_t {
            pid,
            smUtil: pid,
            ..Default::default()
        };
        let kept = keep_own(&[sample(900), sample(901), sample(17)], &[own, nameless]);
        let [(kept, process)] = kept[..] else {
            panic!("one is the tenant's and has a name here");
        };
        assert_eq!((kept.pid, kept.smUtil, process), (7, 900, own));
        let sessions = [[1_u32, 900, 3], [1, 17, 4]];
        assert_eq!(keep_own(&sessions, &[own]), [([1, 7, 3], own)]);
    }
}
