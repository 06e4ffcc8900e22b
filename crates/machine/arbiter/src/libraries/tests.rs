//! The store as both doors use it, with libraries that are words.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn store(executable: &Path, run_folder: &Path, cache: Option<&Path>) -> Store {
    let mut targets = vec![run_folder.join("libraries")];
    targets.extend(cache.map(Path::to_owned));
    Store::new(LibrarySource::of(executable, None), targets)
}

fn built(folder: &Path, contents: &str) {
    std::fs::create_dir_all(folder).unwrap();
    for part in INTERPOSER.iter().chain(&FAKE_DRIVER).chain(&WORKLOAD) {
        let text = format!("{contents} {}", part.built);
        std::fs::write(folder.join(part.built), text).unwrap();
    }
}

/// Words packed as a release packs libraries.
fn packed(words: &str) -> &'static [u8] {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(words.as_bytes()).unwrap();
    packer.finish().unwrap().leak()
}

fn carried() -> &'static Carried {
    Box::leak(Box::new(Carried {
        cuda: packed("inside cuda"),
        nvml: packed("inside nvml"),
        preload: packed("inside preload"),
        fake_cuda: packed("inside fakecuda"),
        fake_nvml: packed("inside fakenvml"),
        workload: packed("inside workload"),
    }))
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn libraries_get_the_names_that_programs_load() {
    let base = tempfile::tempdir().unwrap();
    let (release, run) = (base.path().join("release"), base.path().join("run"));
    built(&release, "one");
    let store = store(&release.join("sublet"), &run, None);
    let first = store.interposer().unwrap();
    assert!(first.cuda.ends_with("libcuda.so.1"));
    assert_eq!(text(&first.nvml), "one libsublet_nvml.so");
    assert!(first.preload.ends_with("libsublet_preload.so"));
    let (cuda, nvml) = store.fake_driver().unwrap();
    assert_eq!(text(&cuda), "one libsublet_fakecuda.so");
    assert!(nvml.is_file() && cuda.parent() != first.cuda.parent());

    // The same again, though the folder is not written a second time.
    let before = first.cuda.metadata().unwrap().modified().unwrap();
    assert_eq!(store.interposer().unwrap(), first);
    assert_eq!(first.cuda.metadata().unwrap().modified().unwrap(), before);

    // A new build goes beside the old one, which programs have mapped.
    built(&release, "two");
    let second = store.interposer().unwrap();
    assert_ne!(second.cuda, first.cuda);
    assert_eq!(text(&first.cuda), "one libsublet_cuda.so");
    let left: Vec<_> = std::fs::read_dir(run.join("libraries")).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// Libraries beside it do not count: another version may have left them.
#[test]
fn an_executable_that_carries_its_libraries_uses_those() {
    let base = tempfile::tempdir().unwrap();
    let (bin, run) = (base.path().join("bin"), base.path().join("run"));
    for (round, beside) in [None, Some("beside")].into_iter().enumerate() {
        if let Some(words) = beside {
            built(&bin, words);
        }
        let source = LibrarySource::of(&bin.join("sublet"), Some(carried()));
        let store = Store::new(source, vec![run.join("libraries")]);
        let found = store.interposer_with(&[("list", "names".into())]).unwrap();
        assert_eq!(text(&found.cuda), "inside cuda", "{round}");
        assert_eq!(text(&found.nvml), "inside nvml");
        assert_eq!(text(&found.preload), "inside preload");
        assert_eq!(text(&found.cuda.with_file_name("list")), "names");
        let (cuda, nvml) = store.fake_driver().unwrap();
        assert_eq!(text(&cuda), "inside fakecuda");
        assert_eq!(text(&nvml), "inside fakenvml");
        assert_eq!(text(&store.workload().unwrap()), "inside workload");
        assert_eq!(std::fs::read_dir(run.join("libraries")).unwrap().count(), 3);
    }
}

#[test]
fn a_missing_library_is_told_with_all_places() {
    let base = tempfile::tempdir().unwrap();
    let deps = base.path().join("debug/deps");
    let store = store(&deps.join("sublet-1"), &base.path().join("run"), None);
    let text = store.interposer().unwrap_err().to_string();
    let places = format!(
        "libsublet_cuda.so is in none of {}, {}, {}",
        deps.display(),
        base.path().join("debug").display(),
        base.path().join("debug/lib/sublet").display()
    );
    assert_eq!(text, places);
    built(&base.path().join("debug"), "found");
    assert!(store.interposer().is_ok());
}

#[test]
fn a_folder_that_cannot_be_used_is_passed_over() {
    let base = tempfile::tempdir().unwrap();
    let bin = base.path().join("bin");
    built(&bin, "x");
    let blocked = base.path().join("file");
    std::fs::write(&blocked, "").unwrap();
    let cache = base.path().join("cache");
    let found = store(&bin.join("sublet"), &blocked, Some(&cache)).interposer();
    assert!(found.unwrap().cuda.starts_with(&cache));
    let error = store(&bin.join("sublet"), &blocked, None).interposer();
    let error = error.unwrap_err().to_string();
    let place = blocked.join("libraries").display().to_string();
    let expected =
        format!("there is no folder for our libraries: {place}: Not a directory (os error 20)");
    assert_eq!(error, expected);
}

/// A complete folder serves, even if it cannot be written any more; no user may write into the
/// kernel's own folder, not even root.
#[test]
fn a_folder_that_cannot_be_written_is_told_with_the_reason() {
    let store = Store::new(
        LibrarySource::Carried(carried()),
        vec![PathBuf::from("/sys/sublet/libraries")],
    );
    let error = store.interposer().unwrap_err().to_string();
    let start = "there is no folder for our libraries: /sys/sublet/libraries: ";
    let why = error
        .strip_prefix(start)
        .unwrap_or_else(|| panic!("{error}"));
    assert!(why.contains("(os error "), "{why}");
}

#[test]
fn a_store_keeps_what_it_has_named_and_what_its_caller_needs() {
    if !unused::sees_all_processes() {
        println!("skipped: this is a PID name space of its own, where nothing is removed");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let target = base.path().join("libraries");
    let bin = base.path().join("bin");
    let folder = |contents: &str| {
        built(&bin, contents);
        let store = store(&bin.join("sublet"), base.path(), None);
        let folder = store
            .interposer()
            .unwrap()
            .cuda
            .parent()
            .unwrap()
            .to_owned();
        (store, folder)
    };
    let (_current, first) = folder("one");
    let (_, second) = folder("two");
    let (_, third) = folder("three");
    let then = SystemTime::now() - Duration::from_secs(200_000);
    for folder in [&first, &second, &third] {
        let open = std::fs::File::open(folder).unwrap();
        open.set_modified(then).unwrap();
    }
    let (store, fourth) = folder("four");
    // A test beside this one may be starting a program, which has our locks until it runs.
    let deadline = Instant::now() + Duration::from_secs(30);
    while third.exists() && Instant::now() < deadline {
        let removed = store.remove_unused(std::slice::from_ref(&second));
        assert!(removed.is_empty() || removed == [&*third], "{removed:?}");
    }
    let left = std::fs::read_dir(&target).unwrap();
    let left: BTreeSet<_> = left.map(|one| one.unwrap().path()).collect();
    assert_eq!(left, [first, second, fourth].into());
}
