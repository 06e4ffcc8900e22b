//! Settings are read as they were written, and any other bytes are refused or mean one thing.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::string::ToString;
use std::vec::Vec;

use super::*;

fn written(settings: &ProcessSettings<'_>) -> Result<Vec<u8>, SettingsError> {
    let mut bytes = Vec::new();
    settings.write(|piece| bytes.extend_from_slice(piece))?;
    Ok(bytes)
}

#[test]
fn the_file_is_lines_that_a_person_can_read() {
    let settings = ProcessSettings {
        directory: b"/usr/local/sublet/tenant",
        mode: Mode::Strict,
        cuda: Some(b"/d/libcuda.so.1"),
        nvml: None,
    };
    // As the first release wrote it.
    let text = include_bytes!("../../../../../fixtures/0.1.0/settings");
    assert_eq!(written(&settings).unwrap(), text);
    assert_eq!(ProcessSettings::parse(text), Ok(settings));
    for place in PLACES {
        let place = place.to_str().unwrap();
        assert!(place.starts_with('/') && place.ends_with(&std::format!("/{FILE}")));
    }
}

#[test]
fn what_is_wrong_is_said() {
    for (text, why) in [
        ("", "the last line has no end"),
        ("\n", "a version that is not known"),
        (
            "sublet settings 2\nSUBLET_DIR=/a\n",
            "a version that is not known",
        ),
        (
            "sublet settings 1\nSUBLET_DIR=/a\nSUBLET_MODE=str",
            "the last line has no end",
        ),
        ("sublet settings 1\n", "no SUBLET_DIR"),
        ("sublet settings 1\nSUBLET_DIR=/a\n", "no SUBLET_MODE"),
        (
            "sublet settings 1\nSUBLET_DIR\n",
            "a line is not NAME=value",
        ),
        ("sublet settings 1\n\n", "a line is not NAME=value"),
        (
            "sublet settings 1\nSUBLET_DIR=a\nSUBLET_MODE=strict\n",
            "SUBLET_DIR has a wrong value",
        ),
        (
            "sublet settings 1\nSUBLET_DIR=/a\nSUBLET_MODE=\n",
            "SUBLET_MODE has a wrong value",
        ),
        (
            "sublet settings 1\nSUBLET_DIR=/a\nSUBLET_DIR=/a\n",
            "SUBLET_DIR is there twice",
        ),
        (
            "sublet settings 1\nSUBLET_DIR=/a\nSUBLET_MODE=compat\nSUBLET_DRIVER_NVML=\n",
            "SUBLET_DRIVER_NVML has a wrong value",
        ),
    ] {
        let error = ProcessSettings::parse(text.as_bytes()).expect_err(text);
        assert_eq!(error.to_string(), why, "{text}");
    }
    let long = std::vec![b'\n'; BYTES_MAX + 1];
    assert_eq!(ProcessSettings::parse(&long), Err(SettingsError::Long));
}

#[test]
fn a_line_of_a_later_build_is_passed_over() {
    let text = b"sublet settings 1\nSUBLET_NEW=x\nSUBLET_MODE=compat\n=\nSUBLET_DIR=/a=b\n";
    let settings = ProcessSettings::parse(text).unwrap();
    assert_eq!(settings.directory, b"/a=b");
    assert_eq!(settings.mode, Mode::Compat);
}

/// Lines that are nearly right, so that chance gets further than the first line.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just("SUBLET_DIR"),
        Just("SUBLET_MODE"),
        Just("SUBLET_DRIVER_CUDA"),
        Just("SUBLET_DRIVER_NVML"),
        Just("SUBLET_NEW"),
        Just(""),
    ];
    let value = prop_oneof![
        Just(b"strict".to_vec()),
        Just(b"compat".to_vec()),
        Just(b"/a/b".to_vec()),
        vec(any::<u8>(), 0..8),
    ];
    let end = prop_oneof![9 => Just("\n"), 1 => Just("")];
    let head = prop_oneof![9 => Just("sublet settings 1\n"), 1 => Just("sublet settings 10\n")];
    let line = (name, value, end)
        .prop_map(|(name, value, end)| [name.as_bytes(), b"=", &value, end.as_bytes()].concat());
    (head, vec(line, 0..6)).prop_map(|(head, lines)| [head.as_bytes(), &lines.concat()].concat())
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_mean_what_they_would_be_written_as(
        bytes in prop_oneof![nearly(), vec(any::<u8>(), 0..200)],
    ) {
        if let Ok(settings) = ProcessSettings::parse(&bytes) {
            prop_assert!(settings.directory.starts_with(b"/"));
            let again = written(&settings).expect("what was read can be written");
            prop_assert_eq!(ProcessSettings::parse(&again), Ok(settings));
        }
    }

    #[test]
    fn what_can_be_written_is_read_back(
        directory in vec(any::<u8>(), 0..20),
        is_strict: bool,
        drivers in [option::of(vec(any::<u8>(), 0..20)), option::of(vec(any::<u8>(), 0..20))],
    ) {
        let rooted = |path: &[u8]| [b"/", path].concat();
        let directory = rooted(&directory);
        let [cuda, nvml] = drivers.map(|path| path.map(|path| rooted(&path)));
        let settings = ProcessSettings {
            directory: &directory,
            mode: if is_strict { Mode::Strict } else { Mode::Compat },
            cuda: cuda.as_deref(),
            nvml: nvml.as_deref(),
        };
        let bad = |path: &&[u8]| path.contains(&0) || path.contains(&b'\n');
        let paths = [Some(settings.directory), settings.cuda, settings.nvml];
        let is_bad = paths.iter().flatten().any(bad);
        match written(&settings) {
            Ok(bytes) => prop_assert_eq!(ProcessSettings::parse(&bytes), Ok(settings)),
            Err(_) => prop_assert!(is_bad),
        }
    }
}
