//! Compares our structs with a C compiler's measurements of NVIDIA's headers.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{align_of, size_of};

use crate::as_in_c::Layout;
use crate::{Zeroed, cuda, nvml};

/// Name of a member (`-` for the whole type), to its offset (or alignment) and its size.
type Members = BTreeMap<&'static str, (usize, usize)>;

fn measured() -> BTreeMap<&'static str, Members> {
    let mut types: BTreeMap<&str, Members> = BTreeMap::new();
    for line in include_str!("../table/layout.tsv").lines().skip(1) {
        let columns: Vec<&'static str> = line.split('\t').collect();
        let [name, member, at, size] = columns[..] else {
            panic!("`{line}` has not four columns");
        };
        let place = (at.parse().unwrap(), size.parse().unwrap());
        types.entry(name).or_default().insert(member, place);
    }
    types
}

fn ours() -> impl Iterator<Item = &'static Layout> {
    [
        cuda::LAYOUTS,
        cuda::memory::LAYOUTS,
        cuda::copy::LAYOUTS,
        cuda::launch::LAYOUTS,
        cuda::graph::LAYOUTS,
        nvml::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}

/// Lists the differences of one struct. A member that C has and we lack must lie inside one of our
/// members: then it is of the same union, or of a record that we wrote as numbers.
fn differences(own: &Layout, measured: &Members) -> Vec<String> {
    let mut wrong = Vec::new();
    let whole = measured.get("-").copied();
    if whole != Some((own.align, own.size)) {
        let (align, size) = (own.align, own.size);
        wrong.push(format!("align {align}, size {size}, in C {whole:?}"));
    }
    for (member, at, size) in own.members {
        let place = measured.get(member.trim_start_matches("r#")).copied();
        if place != Some((*at, *size)) {
            wrong.push(format!("{member} at {at}, size {size}, in C {place:?}"));
        }
    }
    for (member, (at, size)) in measured {
        let inside = |own: &(&str, usize, usize)| own.1 <= *at && at + size <= own.1 + own.2;
        if *member != "-" && !own.members.iter().any(inside) {
            wrong.push(format!("{member} at {at}, size {size}, is in C only"));
        }
    }
    wrong
}

#[test]
fn structs_lie_as_in_c() {
    let measured = measured();
    let wrong: Vec<_> = ours()
        .map(|own| match measured.get(own.name) {
            Some(members) => (own.name, differences(own, members)),
            None => (own.name, vec!["was not measured".to_owned()]),
        })
        .filter(|(_, wrong)| !wrong.is_empty())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn plain_types_are_as_in_c() {
    let plain = [
        ("CUdeviceptr_v1", size_of::<cuda::CUdeviceptr_v1>()),
        ("CUdeviceptr_v2", size_of::<cuda::CUdeviceptr_v2>()),
        ("CUdevice_v1", size_of::<cuda::CUdevice>()),
        (
            "CUmemGenericAllocationHandle_v1",
            size_of::<cuda::CUmemGenericAllocationHandle>(),
        ),
        ("CUcontext", size_of::<cuda::CUcontext>()),
        ("CUhostFn", size_of::<cuda::CUhostFn>()),
        ("CUresult", size_of::<cuda::CUresult>()),
        (
            "CUlaunchAttributeID",
            size_of::<cuda::CUlaunchAttributeID>(),
        ),
        ("nvmlDevice_t", size_of::<nvml::nvmlDevice_t>()),
        ("nvmlReturn_t", size_of::<nvml::nvmlReturn_t>()),
        ("nvmlProcessInfo_t", size_of::<nvml::nvmlProcessInfo_t>()),
    ];
    let measured = measured();
    for (name, size) in plain {
        assert_eq!(measured[name]["-"].1, size, "{name}");
        assert_eq!(
            measured[name]["-"].0,
            size.min(align_of::<usize>()),
            "{name}"
        );
    }
    // Nothing was measured that no test looks at.
    let structs: BTreeSet<&str> = ours().map(|own| own.name).collect();
    let unused: Vec<_> = measured
        .keys()
        .filter(|name| !structs.contains(*name) && !name.contains('.'))
        .filter(|name| !plain.iter().any(|(plain, _)| plain == *name))
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn constants_have_the_values_of_c() {
    assert_eq!(cuda::CUDA_ERROR_OUT_OF_MEMORY, cuda::CUresult(2));
    assert_eq!(cuda::CUDA_ERROR_NOT_PERMITTED, cuda::CUresult(800));
    assert_eq!(nvml::NVML_ERROR_NO_PERMISSION, nvml::nvmlReturn_t(4));
    assert_eq!(cuda::CU_IPC_HANDLE_SIZE, 64);
    assert_eq!(cuda::CU_PARAM_TR_DEFAULT, -1);
    // NVML's version of a struct is its size and a number: the compiler's size and ours.
    let size = u32::try_from(size_of::<nvml::nvmlMemory_v2_t>()).unwrap();
    assert_eq!(nvml::nvmlMemory_v2, size | 2 << 24);
    assert_eq!(cuda::CUresult(2).name(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(
        format!("{:?}", cuda::CUresult(2)),
        "CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(format!("{:?}", cuda::CUresult(12345)), "CUresult(12345)");
}

#[test]
fn zeroed_structs_are_zero() {
    let prop = cuda::memory::CUmemAllocationProp_v1::default();
    assert!(prop.win32HandleMetaData.is_null());
    assert_eq!(prop.location.id, 0);
    assert!(cuda::launch::CUlaunchConfig::ZERO.hStream.is_null());
}

#[test]
fn a_wrong_layout_is_found() {
    let right: Members = [("-", (8, 16)), ("a", (0, 4)), ("b", (8, 8)), ("c", (8, 4))].into();
    let own = |members| Layout {
        name: "S",
        size: 16,
        align: 8,
        members,
    };
    assert_eq!(
        differences(&own(&[("a", 0, 4), ("b", 8, 8)]), &right),
        [""; 0]
    );
    // `c` overlaps `b`, but `b` is not inside `c`; a moved member; a missing one.
    assert_eq!(
        differences(&own(&[("a", 0, 4), ("c", 8, 4)]), &right).len(),
        1
    );
    assert_eq!(
        differences(&own(&[("a", 4, 4), ("b", 8, 8)]), &right).len(),
        2
    );
    assert_eq!(differences(&own(&[("r#a", 0, 4)]), &right).len(), 2);
}
