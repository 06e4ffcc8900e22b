//! The driver's knowledge of an address.

use crate::cuda::arguments::{In, Out};
use crate::cuda::functions;
use crate::cuda::memory::managed::check_managed;
use crate::driver::memory::ranges::{Kind, Range};
use crate::driver::result::{Answer, Code};
use crate::driver::{Driver, Session};

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

functions! {
    fn cuPointerGetAttribute(value: Out<u64>, attribute: u32, address: u64) {
        value.check()?;
        let session = Session::open()?;
        session.current()?;
        let range = session.memory.ranges.at(address).ok_or(Code::INVALID_VALUE)?;
        tell(&session, range, attribute, address, value)
    }

    fn cuMemRangeGetAttribute(value: Out<i32>, size: usize, attribute: u32, address: u64, count: usize) {
        advice(value, size, attribute, address, count)
    }

    fn cuMemRangeGetAttributes(values: In<Out<i32>>, sizes: In<usize>, attributes: In<u32>, n: usize, address: u64, count: usize) {
        let (values, sizes) = (values.list(n)?, sizes.list(n)?);
        for ((value, size), attribute) in values.into_iter().zip(sizes).zip(attributes.list(n)?) {
            advice(value, size, attribute, address, count)?;
        }
        Ok(())
    }
}

fn tell(driver: &Driver, range: &Range, attribute: u32, address: u64, value: Out<u64>) -> Answer {
    let on_card = range.kind.is_on_card();
    let is_managed = matches!(range.kind, Kind::Managed { .. });
    let word = value.cast::<u32>();
    let flag = value.cast::<u8>();
    match attribute {
        1 if range.context == 0 => Err(Code::INVALID_VALUE),
        1 => value.put(range.context),
        2 => word.put(if on_card { DEVICE } else { HOST }),
        3 => value.put(address),
        4 if on_card && !is_managed => Err(Code::INVALID_VALUE),
        4 => value.put(address),
        6 => word.put(0),
        7 => value.put(range.number),
        8 => flag.put(u8::from(is_managed)),
        9 => word.put(driver.device_of(range.card).cast_unsigned()),
        10 => flag.put(u8::from(range.kind == Kind::Device)),
        11 => value.put(range.start),
        12 => value.put(range.size),
        13 => flag.put(u8::from(driver.memory.is_accessible(address, 1))),
        14 => {
            let types = match range.kind {
                Kind::Mapped { physical, .. } => {
                    driver
                        .memory
                        .physicals
                        .get(physical)?
                        .properties
                        .handle_types
                }
                _ => 0,
            };
            value.put(u64::from(types))
        }
        15 | 21 => flag.put(0),
        16 => word.put(3),
        17 => value.put(match range.kind {
            Kind::Pool { pool, .. } | Kind::Borrowed { pool, .. } => pool,
            _ => 0,
        }),
        18 => value.put(range.size),
        19 => value.put(range.start),
        20 => value.put(range.number),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Nothing was ever advised that would make a difference here.
fn advice(value: Out<i32>, size: usize, attribute: u32, address: u64, count: usize) -> Answer {
    check_managed(address, count)?;
    if size < 4 || !size.is_multiple_of(4) {
        return Err(Code::INVALID_VALUE);
    }
    match attribute {
        1 | 5 | 7 => value.put(0),
        2 | 4 | 6 | 8 => value.put(-2),
        3 => value.put_all(std::iter::repeat_n(-2, size / 4)),
        _ => Err(Code::INVALID_VALUE),
    }
}
