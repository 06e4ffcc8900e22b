//! Stops, changes, wrong bytes and rests.

use super::*;

/// A source that does something before a read.
#[derive(Debug)]
struct Disturbed<F> {
    inner: Arc<dyn DataSource>,
    reads: AtomicUsize,
    act: F,
}

impl<F: Fn(usize, &[u8]) -> Result<(), SourceFault> + Send + Sync> DataSource for Disturbed<F>
where
    F: std::fmt::Debug,
{
    fn name(&self) -> String {
        self.inner.name()
    }

    fn list(&self, stop: &StopFlag) -> Result<SourceTree, SourceFault> {
        self.inner.list(stop)
    }

    fn read(
        &self,
        path: &[u8],
        entry: &TreeEntry,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(), SourceFault> {
        let n = self
            .reads
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (self.act)(n, path)?;
        self.inner.read(path, entry, offset, length, buffer)
    }
}

#[test]
fn case_14_a_file_that_changes_meanwhile_is_noticed() {
    for place in Place::all() {
        for n in 0..20 {
            place.write(&format!("f{n}"), &[7; 1000]);
        }
        let listed = place.list(None);
        place.write("f11", &[8; 1000]);
        let later = SystemTime::now() + Duration::from_secs(5);
        File::open(place.source().join("f11"))
            .unwrap()
            .set_modified(later)
            .unwrap();
        let fault = place.make(&listed).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Changed);
        assert!(fault.text.contains("f11 changed"), "{}", fault.text);
        place.write("f12", &[8; 10]);
        place.make(&place.list(None)).unwrap();
    }
}

#[test]
fn case_19_a_file_that_cannot_be_read_names_itself() {
    for place in Place::all() {
        place.write("good", b"1");
        place.write("a/bad", b"2");
        let act: fn(usize, &[u8]) -> Result<(), SourceFault> = |_, path| match path {
            b"a/bad" => Err(SourceFault {
                kind: FaultKind::Lasting,
                text: "cannot read a/bad: permission denied".to_owned(),
            }),
            _ => Ok(()),
        };
        let source = Disturbed {
            inner: place.open(),
            reads: AtomicUsize::new(0),
            act,
        };
        let listed = place
            .store
            .list(Arc::new(source), None, &StopFlag::default())
            .unwrap();
        let fault = place.make(&listed).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Lasting);
        assert!(fault.text.contains("a/bad"), "{}", fault.text);
    }
}

#[test]
fn case_10_a_fetch_that_was_stopped_goes_on() {
    for place in Place::all() {
        let mut random = fastrand::Rng::with_seed(3);
        // Two packs of their own, and one of small files.
        for name in ["big1", "big2"] {
            place.write(name, &bytes(&mut random, (90 << 20) + 77));
        }
        for n in 0..100 {
            place.write(&format!("small/{n}"), &bytes(&mut random, 3_000));
        }
        let listed = place.list(None);
        let plans = place.store.plans(&listed);
        let stop = StopFlag::default();
        let order = FetchOrder {
            stop: stop.clone(),
            ..order()
        };
        let mut most = 0;
        let fault = place.store.make(&listed, &order, |bytes| {
            most = bytes;
            if bytes > 160 << 20 {
                stop.stop();
            }
        });
        assert_eq!(fault.unwrap_err().kind, FaultKind::Stopped);
        assert!(place.store.part_bytes(&plans) >= 90 << 20);
        let mut first = None;
        let made = place.store.make(&listed, &self::order(), |bytes| {
            first.get_or_insert(bytes);
        });
        let version = made.unwrap().made.version;
        let before = first.unwrap();
        // A checkpoint's distance, and what was read and not written.
        assert!(
            before >= most - (64 << 20) - (16 << 20) && before > 0,
            "{before} of {most} were kept"
        );
        assert_eq!(
            differences(&place.source(), &place.view(version)),
            Vec::<String>::new()
        );
        place.store.forget_parts(&plans);
        assert_eq!(place.parts(), 0);
    }
}

#[test]
fn a_part_with_other_bytes_begins_anew() {
    let Some(place) = Place::new(None) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(4);
    place.write("big", &bytes(&mut random, 120 << 20));
    let listed = place.list(None);
    let stop = StopFlag::default();
    let order = FetchOrder {
        stop: stop.clone(),
        ..order()
    };
    let stopped = place.store.make(&listed, &order, |bytes| {
        if bytes > 90 << 20 {
            stop.stop();
        }
    });
    stopped.unwrap_err();
    let parts = fs::read_dir(place.base.path().join("store/parts")).unwrap();
    let part = parts
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension() == Some("part".as_ref()));
    let file = OpenOptions::new().write(true).open(part.unwrap()).unwrap();
    file.write_all_at(b"wrong", 60 << 20).unwrap();
    drop(file);
    let version = place.make(&listed).unwrap().made.version;
    assert_eq!(
        differences(&place.source(), &place.view(version)),
        Vec::<String>::new()
    );
}

#[test]
fn case_29_and_30_wrong_bytes_are_replaced_where_the_source_has_them() {
    for place in Place::all() {
        let mut random = fastrand::Rng::with_seed(5);
        for n in 0..40 {
            place.write(&format!("f{n:02}"), &bytes(&mut random, 300_000));
        }
        let version = place.get(None);
        let view = place.view(version);
        let spoil = || {
            let path = match place.store.mode.is_packed() {
                true => fs::read_dir(place.store.packs())
                    .unwrap()
                    .next()
                    .unwrap()
                    .unwrap()
                    .path(),
                false => view.join("f20"),
            };
            let mode = fs::metadata(&path).unwrap().permissions();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(
                b"wrong bytes",
                if place.store.mode.is_packed() {
                    5 << 20
                } else {
                    99
                },
            )
            .unwrap();
            fs::set_permissions(&path, mode).unwrap();
            file.sync_all().unwrap();
        };
        spoil();
        let (_, damaged) = place.store.verify(version).unwrap();
        assert_eq!(damaged.len(), 1);
        assert!(place.store.repair(version, &*place.open()).unwrap());
        assert_eq!(place.store.verify(version).unwrap().1, Vec::<String>::new());
        assert_eq!(differences(&place.source(), &view), Vec::<String>::new());
        spoil();
        for n in 0..40 {
            place.write(&format!("f{n:02}"), b"another");
        }
        assert!(!place.store.repair(version, &*place.open()).unwrap());
    }
}

#[test]
fn case_12_a_pack_that_was_cut_off_is_noticed() {
    let Some(place) = Place::new(None) else {
        return;
    };
    place.write("file", &[1; 100_000]);
    let version = place.get(None);
    assert!(place.store.recover(version, Bytes::ZERO).is_ok());
    let pack = fs::read_dir(place.store.packs())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let file = OpenOptions::new().write(true).open(&pack).unwrap();
    file.set_len(50_000).unwrap();
    let error = place.store.recover(version, Bytes::ZERO).unwrap_err();
    assert!(error.to_string().contains("cut off"), "{error}");
}

#[test]
fn what_nobody_names_is_swept_away() {
    for place in Place::all() {
        place.write("file", b"1");
        let first = place.get(None);
        place.write("file", b"22");
        let second = place
            .store
            .make(&place.list(None), &order(), |_| {})
            .unwrap()
            .made;
        let packs: BTreeSet<PackId> = second.packs.keys().copied().collect();
        let parts = place.base.path().join("store/parts");
        fs::write(parts.join("rest"), b"x").unwrap();
        fs::create_dir(parts.join("tree")).unwrap();
        place
            .store
            .sweep(&BTreeSet::from([second.version]), &packs, &BTreeSet::new())
            .unwrap();
        assert!(!place.view(first).exists());
        assert_eq!(
            fs::read(place.view(second.version).join("file")).unwrap(),
            b"22"
        );
        assert_eq!(place.parts(), 0);
    }
}

#[test]
fn paths_that_lead_out_are_not_followed() {
    for place in Place::all() {
        let outside = place.base.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), b"secret").unwrap();
        place.write("d/file", b"1234567");
        let listed = place.list(None);
        // The folder becomes a link after it was listed.
        let folder = place.source().join("d");
        fs::remove_dir_all(&folder).unwrap();
        fs::write(outside.join("file"), b"secret!").unwrap();
        symlink(&outside, &folder).unwrap();
        let fault = place.make(&listed).unwrap_err();
        assert!(fault.text.contains("cannot read d/file"), "{}", fault.text);
        let version = place.get(None);
        assert_eq!(
            fs::read_link(place.view(version).join("d")).unwrap(),
            outside
        );
    }
}

#[test]
fn a_path_of_any_bytes_is_shown_and_a_thread_that_panics_is_a_fault() {
    assert_eq!(crate::tree::show(b"a\xff\n"), r"a\xff\n");
    let Some(place) = Place::new(Some(ViewMode::Files)) else {
        return;
    };
    place.write("file", b"1");
    let act: fn(usize, &[u8]) -> Result<(), SourceFault> = |_, _| panic!("on purpose");
    let source = Disturbed {
        inner: place.open(),
        reads: AtomicUsize::new(0),
        act,
    };
    let listed = place
        .store
        .list(Arc::new(source), None, &StopFlag::default())
        .unwrap();
    let fault = place.make(&listed).unwrap_err();
    assert!(fault.text.contains("panicked"), "{}", fault.text);
}
