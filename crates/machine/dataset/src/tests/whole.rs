//! Trees that are shown as they are.

use super::*;

#[test]
fn cases_01_to_03_every_tree_is_shown_as_it_is() {
    for place in Place::all() {
        let empty = place.get(None);
        assert_eq!(fs::read_dir(place.view(empty)).unwrap().count(), 0);
        for seed in 0..6 {
            let source = place.source();
            fs::remove_dir_all(&source).unwrap();
            fs::create_dir(&source).unwrap();
            grow(&source, &mut fastrand::Rng::with_seed(seed), 3);
            let version = place.get(None);
            let view = place.view(version);
            assert_eq!(differences(&source, &view), Vec::<String>::new(), "{seed}");
            let (_, damaged) = place.store.verify(version).unwrap();
            assert_eq!(damaged, Vec::<String>::new());
            // The same again is the same version, byte by byte.
            let again = place.list(Some(version));
            assert_eq!(
                again.listing.fingerprint,
                place.list(None).listing.fingerprint
            );
            assert_eq!(place.make(&again).unwrap().made.version, version);
            referee(&place, version);
        }
        assert_eq!(place.parts(), 0, "nothing is left over");
    }
}

/// Debian's `fsck.erofs`, where it is installed, reads our images too.
fn referee(place: &Place, version: VersionDigest) {
    if !place.store.mode.is_packed() {
        return;
    }
    let store = place.base.path().join("store");
    let image = store.join("sets").join(version.to_string()).join("image");
    let manifest = place.store.manifest(version).unwrap();
    let packs = manifest.packs.iter();
    let devices = packs.map(|pack| {
        format!(
            "--device={}",
            crate::pack::pack_file(&place.store.packs(), pack.id).display()
        )
    });
    match Command::new("fsck.erofs")
        .args(devices)
        .arg(&image)
        .output()
    {
        Err(_) => eprintln!("skipped: no fsck.erofs"),
        Ok(said) => assert!(
            said.status.success(),
            "{}",
            String::from_utf8_lossy(&said.stderr)
        ),
    }
}

#[test]
fn case_04_a_folder_of_many_names_has_them_all() {
    for place in Place::all() {
        for n in 0..5_000 {
            place.write(
                &format!("d/{n:x}-{}", "x".repeat(n % 90)),
                &[u8::try_from(n % 256).unwrap()],
            );
        }
        let version = place.get(None);
        assert_eq!(
            differences(&place.source(), &place.view(version)),
            Vec::<String>::new()
        );
    }
}

#[test]
fn cases_15_and_27_a_new_version_reads_only_what_changed() {
    for place in Place::all() {
        let mut random = fastrand::Rng::with_seed(1);
        for n in 0..50 {
            place.write(&format!("f{n}"), &bytes(&mut random, 100_000));
        }
        let first = place.get(None);
        place.write("f7", b"other");
        fs::remove_file(place.source().join("f9")).unwrap();
        place.write("new/file", b"new");
        let listed = place.list(Some(first));
        let share = listed.listing.need.get() as f64 / listed.listing.whole.get() as f64;
        assert!(share < 0.4, "{share}");
        let second = place.make(&listed).unwrap().made;
        assert_ne!(second.version, first);
        assert_eq!(
            differences(&place.source(), &place.view(second.version)),
            Vec::<String>::new()
        );
        assert_eq!(
            fs::read(place.view(first).join("f9")).unwrap().len(),
            100_000
        );
        // The old one goes, and the new one keeps what both had.
        place.store.claim(&second).unwrap();
        place.store.evict(first).unwrap();
        assert!(!place.view(first).exists());
        assert_eq!(
            differences(&place.source(), &place.view(second.version)),
            Vec::<String>::new()
        );
        place.store.claims().clear();
        place.store.evict(second.version).unwrap();
        let left = fs::read_dir(place.store.packs()).unwrap().count();
        assert_eq!(left, 0);
    }
}

#[test]
fn case_34_devices_and_pipes_are_passed_over_and_counted() {
    for place in Place::all() {
        place.write("file", b"1");
        let pipe = place.source().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        fs::set_permissions(place.source().join("file"), Permissions::from_mode(0o4755)).unwrap();
        let tree = place.open().list(&StopFlag::default()).unwrap();
        assert_eq!((tree.skipped, tree.files()), (1, 1));
        let version = place.get(None);
        let about = fs::metadata(place.view(version).join("file")).unwrap();
        assert_eq!(about.mode() & 0o7777, 0o555);
    }
}

#[test]
fn case_35_nothing_can_be_changed_in_a_mount() {
    let Some(place) = Place::new(None) else {
        return;
    };
    place.write("file", b"1");
    let view = place.view(place.get(None));
    let file = view.join("file");
    let refused = |result: io::Result<()>| {
        assert_eq!(
            result.unwrap_err().kind(),
            io::ErrorKind::ReadOnlyFilesystem
        );
    };
    refused(OpenOptions::new().write(true).open(&file).map(drop));
    refused(fs::set_permissions(&file, Permissions::from_mode(0o777)));
    refused(fs::remove_file(&file));
    refused(File::create(view.join("new")).map(drop));
}
