//! Sources that a process believes, with files of the test's own user in the place of root's.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

const TEXT: &str = "sublet settings 1\nSUBLET_DIR=/s/tenant\nSUBLET_MODE=strict\n\
                    SUBLET_DRIVER_CUDA=/d/libcuda.so.1\n";

fn me() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

/// A place that lives as long as the test, as the real ones do.
fn place(path: &Path) -> &'static CStr {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
    Box::leak(path.into_boxed_c_str())
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own file");
}

#[test]
fn a_file_decides_and_without_one_the_program_s_rights_do() {
    let base = tempfile::tempdir().expect("a folder");
    let (first, second) = (base.path().join("first"), base.path().join("second"));
    let places = [place(&first), place(&second.join("settings"))];
    let told = |is_privileged| SettingsSource::at(&places, me(), is_privileged);
    assert!(matches!(told(false), SettingsSource::ByEnvironment));
    let nobody = told(true);
    assert!(matches!(nobody, SettingsSource::ByNobody));
    assert_eq!(
        (nobody.directory(), nobody.driver(DRIVER_CUDA)),
        (None, None)
    );
    // A file in the place of a folder is none of ours.
    fs::write(&second, "").expect("a file");
    assert!(matches!(told(false), SettingsSource::ByEnvironment));

    fs::write(&first, TEXT).expect("a file");
    mode(&first, 0o644);
    for is_privileged in [false, true] {
        let told = told(is_privileged);
        assert!(matches!(told, SettingsSource::ByFile(_)), "{told:?}");
        assert_eq!(told.directory(), Some("/s/tenant".into()));
        assert_eq!(told.mode(), Mode::Strict);
        assert_eq!(told.driver(DRIVER_CUDA), Some("/d/libcuda.so.1".into()));
        assert_eq!(told.driver(DRIVER_NVML), None);
    }
    // The first that is there counts, even if it is of no use.
    fs::remove_file(&second).expect("own file");
    fs::create_dir(&second).expect("a folder");
    fs::rename(&first, second.join("settings")).expect("own file");
    assert!(matches!(told(true), SettingsSource::ByFile(_)));
    fs::write(&first, "").expect("a file");
    assert!(matches!(told(true), SettingsSource::Unclear(_)));
}

#[test]
fn what_others_could_have_written_is_not_believed() {
    let base = tempfile::tempdir().expect("a folder");
    let file = base.path().join("settings");
    let why = |owner| match SettingsSource::at(&[place(&file)], owner, false) {
        SettingsSource::Unclear(why) => {
            let text = why.to_string();
            let unclear = SettingsSource::Unclear(why);
            assert_eq!((unclear.directory(), unclear.mode()), (None, Mode::Strict));
            let start = format!("cannot go by {}: ", file.display());
            text.strip_prefix(&start).expect("the place").to_owned()
        }
        other => panic!("{other:?}"),
    };
    fs::write(&file, TEXT).expect("a file");
    for bits in [0o664, 0o646] {
        mode(&file, bits);
        assert_eq!(why(me()), "others than root can write it");
    }
    mode(&file, 0o644);
    assert_eq!(why(me() + 1), "others than root can write it");
    fs::write(&file, "sublet settings 9\n").expect("a file");
    assert_eq!(why(me()), "a version that is not known");
    let long = TEXT.replace("/s/tenant", &format!("/{}", "x".repeat(BYTES_MAX)));
    fs::write(&file, long).expect("a file");
    assert_eq!(why(me()), format!("more than {BYTES_MAX} bytes"));
    fs::remove_file(&file).expect("own file");

    fs::create_dir(&file).expect("a folder");
    assert_eq!(why(me()), "it is not a file");
    fs::remove_dir(&file).expect("own folder");
    // Nobody writes into it: opening it must not wait.
    // SAFETY: a terminated path.
    assert_eq!(unsafe { libc::mkfifo(place(&file).as_ptr(), 0o600) }, 0);
    assert_eq!(why(me()), "it is not a file");
    fs::remove_file(&file).expect("own file");
    let other = base.path().join("other");
    fs::write(&other, TEXT).expect("a file");
    symlink(&other, &file).expect("a link");
    assert!(why(me()).contains("symbolic links"));
}

#[test]
fn only_the_word_strict_is_strict_in_the_environment() {
    for (value, expected) in [
        (None, Mode::Compat),
        (Some("compat"), Mode::Compat),
        (Some("Strict"), Mode::Compat),
        (Some("strict"), Mode::Strict),
    ] {
        assert_eq!(mode_of(value.map(OsStr::new)), expected, "{value:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_of_a_file_let_the_environment_decide(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        keep in 0..TEXT.len(),
    ) {
        let base = tempfile::tempdir().expect("a folder");
        let file = base.path().join("settings");
        let bytes = [&TEXT.as_bytes()[..keep], &bytes].concat();
        fs::write(&file, &bytes).expect("a file");
        mode(&file, 0o600);
        let told = SettingsSource::at(&[place(&file)], me(), false);
        prop_assert!(matches!(told, SettingsSource::ByFile(_) | SettingsSource::Unclear(_)), "{:?}", told);
    }
}
