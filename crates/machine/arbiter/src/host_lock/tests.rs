//! Root's arbiters and other users', in every order; and files with wrong owners or contents.

use std::process::Command;

use rustix::process::Uid;

use super::*;

/// A user without rights.
const NOBODY: u32 = 65_534;

/// A folder as root would have it, or nothing if these tests are another user's.
fn place(test: &str) -> Option<(tempfile::TempDir, HostPlace)> {
    if !is_root() {
        println!("skipped: it takes root");
        return None;
    }
    let base = tempfile::tempdir().unwrap();
    // As /run is.
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = HostPlace {
        name: format!("sublet-test-{test}-{}", std::process::id()),
        folder: Some(base.path().join("sublet")),
        cards: base.path().join("cards"),
    };
    fs::write(&place.cards, "").unwrap();
    Some((base, place))
}

fn folder(place: &HostPlace) -> &Path {
    place.folder.as_deref().unwrap()
}

fn record(place: &HostPlace) -> PathBuf {
    place.record(folder(place))
}

/// Runs something as another user: as one, the thread is all that the kernel looks at.
fn as_nobody<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let user = Uid::from_raw(NOBODY);
    let thread = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        what()
    });
    thread.join().unwrap()
}

fn take_as_nobody(place: &HostPlace) -> Result<HostLock, String> {
    let place = place.clone();
    let taken = as_nobody(move || HostLock::take(&place, false));
    taken.map_err(|error| error.to_string())
}

fn me() -> String {
    format!("process {} of user", std::process::id())
}

#[test]
fn root_is_the_one_whoever_has_the_name_and_its_record_keeps_others_out() {
    let Some((_base, place)) = place("order") else {
        return;
    };
    let user = take_as_nobody(&place).unwrap();
    assert_eq!(user.outranked(), None);
    let second = take_as_nobody(&place).unwrap_err();
    assert!(second.contains(&format!("{} {NOBODY}", me())), "{second}");
    // Root starts though the name is gone, and the user's learns of it.
    let root = HostLock::take(&place, true).unwrap();
    assert!(root.name().is_none() && root.outranked().is_none());
    let why = user.outranked().unwrap();
    assert!(
        why.contains(&format!("process {}", std::process::id())),
        "{why}"
    );
    // Another one of root's does not, and is told who it is.
    let error = HostLock::take(&place, true).unwrap_err().to_string();
    assert!(error.contains(&format!("{} 0", me())), "{error}");
    // With the name free again, the record alone keeps users' arbiters out.
    drop(user);
    let looked = place.clone();
    let holder = as_nobody(move || looked.holder());
    assert_eq!(holder, Some((std::process::id(), 0)));
    let error = take_as_nobody(&place).unwrap_err();
    assert!(error.contains(&format!("{} 0", me())), "{error}");
    drop(root);
    assert_eq!(fs::read_dir(folder(&place)).unwrap().count(), 0);
    take_as_nobody(&place).unwrap();
}

#[test]
fn nobody_else_can_hold_the_lock_or_write_the_record() {
    let Some((_base, place)) = place("modes") else {
        return;
    };
    let root = HostLock::take(&place, true).unwrap();
    let (lock, record) = (place.lock(folder(&place)), record(&place));
    as_nobody(move || {
        assert!(File::open(&lock).is_err(), "who opens it can lock it");
        assert!(read(&record).is_some_and(|holder| holder.lives()));
        assert!(OpenOptions::new().write(true).open(&record).is_err());
        assert!(fs::remove_file(&record).is_err());
    });
    // Where a folder is that only root looks into, it lets others pass.
    drop(root);
    fs::set_permissions(folder(&place), fs::Permissions::from_mode(0o700)).unwrap();
    let _root = HostLock::take(&place, true).unwrap();
    assert!(take_as_nobody(&place).is_err());
}

#[test]
fn a_record_that_is_old_or_is_not_root_s_counts_for_nothing() {
    let Some((_base, place)) = place("records") else {
        return;
    };
    drop(HostLock::take(&place, true).unwrap());
    let own = ProcessStamp::of(sublet_share::Pid(std::process::id())).unwrap();
    let may_start = |place: &HostPlace| take_as_nobody(place).is_ok();
    write(&record(&place), &own).unwrap();
    assert!(!may_start(&place));
    // Its process is dead: it was killed.
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let dead = ProcessStamp::of(sublet_share::Pid(child.id())).unwrap();
    write(&record(&place), &dead).unwrap();
    assert!(!may_start(&place));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(may_start(&place));
    // Its number was given to a process that began at another time.
    let text = serde_json::to_string(&own).unwrap();
    let began = text.find("\"began\":").unwrap() + "\"began\":".len();
    let reused = format!("{}1{}", &text[..began], &text[began..]);
    for text in [reused.as_str(), "", "{", "null", "{\"pid\": 1}"] {
        fs::write(record(&place), text).unwrap();
        assert!(may_start(&place), "{text}");
        HostLock::take(&place, true).unwrap();
    }
    // A folder that others can write to says nothing, and root goes by the name there.
    fs::write(record(&place), &text).unwrap();
    assert!(!may_start(&place));
    fs::set_permissions(folder(&place), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(may_start(&place));
    let user = take_as_nobody(&place).unwrap();
    let error = HostLock::take(&place, true).unwrap_err().to_string();
    assert!(error.contains(&format!("{} {NOBODY}", me())), "{error}");
    drop(user);
    HostLock::take(&place, true).unwrap();
    std::os::unix::fs::chown(folder(&place), Some(NOBODY), None).unwrap();
    fs::set_permissions(folder(&place), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(may_start(&place));
    // Nothing there at all, and no place to make it.
    let nowhere = HostPlace {
        folder: Some(PathBuf::from("/proc/sublet")),
        ..place.clone()
    };
    assert!(may_start(&nowhere));
    HostLock::take(&nowhere, true).unwrap();
}

#[test]
fn who_is_called_root_in_a_namespace_of_users_is_not() {
    assert!(is_whole("         0          0 4294967295\n"));
    for map in [
        "",
        "0 1000 1\n",
        "0 0 1\n",
        "0 0 65536\n",
        "0 0 4294967295\n1 1 1\n",
        "x",
    ] {
        assert!(!is_whole(map), "{map}");
    }
}

#[test]
fn a_name_is_held_by_one() {
    let name = format!("sublet-test-{}", std::process::id());
    let place = HostPlace {
        name: name.clone(),
        folder: None,
        cards: PathBuf::from("/nowhere"),
    };
    assert_eq!(place.holder(), None);
    let held = take_name(&name).unwrap();
    let error = take_name(&name).unwrap_err().to_string();
    assert!(error.contains(&me()), "{error}");
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(place.holder(), Some((std::process::id(), user)));
    drop(held);
    assert_eq!(place.holder(), None);
    take_name(&name).unwrap();
}

const HELD: &str = "SUBLET_TEST_NAME";

/// The holder is outside of the PID namespace of the one that asks: it has no number there.
#[test]
fn a_holder_that_cannot_be_seen_has_a_user_and_no_number() {
    if let Some(name) = std::env::var_os(HELD) {
        let error = take_name(name.to_str().unwrap()).unwrap_err();
        let ArbiterError::Held { pid, uid, .. } = &error else {
            panic!("{error}")
        };
        return println!("holder: {pid} {uid:?}; {error}");
    }
    if !is_root() {
        return println!("skipped: it takes root");
    }
    let name = format!("sublet-test-unseen-{}", std::process::id());
    let held = name.clone();
    let holder = as_nobody(move || take_name(&held));
    let asks = Command::new("unshare")
        .args(["--pid", "--fork"])
        .arg(std::env::current_exe().unwrap())
        .args(["--nocapture", "a_holder_that_cannot_be_seen"])
        .env(HELD, &name)
        .output();
    let (_holder, asks) = (holder.unwrap(), asks.unwrap());
    let said = String::from_utf8_lossy(&asks.stdout).into_owned();
    assert!(said.contains("holder: 0 Some(65534);"), "{said} {asks:?}");
    assert!(said.contains("a process of user 65534"), "{said}");
}

/// The folders of two fake machines, which every user may look into.
fn fake_machines() -> (tempfile::TempDir, [PathBuf; 2]) {
    let base = tempfile::tempdir().unwrap();
    let machines = ["one", "other"].map(|name| base.path().join(name));
    for folder in [base.path(), &machines[0], &machines[1]] {
        fs::create_dir_all(folder).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    (base, machines)
}

#[test]
fn a_fake_machine_has_one_arbiter_whatever_its_path_and_whoever_starts_it() {
    let (base, [one, other]) = fake_machines();
    let linked = base.path().join("linked");
    std::os::unix::fs::symlink(&one, &linked).unwrap();
    let place = |machine: &Path| HostPlace::of_fake(machine).unwrap();
    let held = HostLock::take(&place(&one), is_root()).unwrap();
    for again in [&one, &linked] {
        let error = HostLock::take(&place(again), is_root()).unwrap_err();
        assert!(error.to_string().contains(&me()), "{error}");
    }
    if is_root() {
        let error = take_as_nobody(&place(&one)).unwrap_err();
        assert!(error.contains(&format!("{} 0", me())), "{error}");
        // A fake machine is its user's: root goes before nobody.
        let theirs = take_as_nobody(&place(&other)).unwrap();
        let error = HostLock::take(&place(&other), true).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(&format!("{} {NOBODY}", me())), "{error}");
        assert_eq!(theirs.outranked(), None);
    }
    // Other machines are as free as if there were no other.
    HostLock::take(&place(&other), is_root()).unwrap();
    drop(held);
    HostLock::take(&place(&one), is_root()).unwrap();
    assert_eq!(fs::read_dir(&one).unwrap().count(), 0);
    // The next machine in the same place is another one, even while the first one's arbiter lives.
    let _old = HostLock::take(&place(&one), is_root()).unwrap();
    fs::remove_dir(&one).unwrap();
    fs::create_dir(&one).unwrap();
    HostLock::take(&place(&one), is_root()).unwrap();
    assert!(HostPlace::of_fake(Path::new("/nowhere")).is_err());
}

const PLACE: &str = "SUBLET_TEST_PLACE";

/// There the name is free, and a job can make itself such a namespace.
#[test]
fn a_network_namespace_of_its_own_has_no_arbiter_of_its_own() {
    if let Some(base) = std::env::var_os(PLACE).map(PathBuf::from) {
        let [roots, users] = places(&base);
        assert!(
            take_name(&users.name).is_ok(),
            "this namespace has the name"
        );
        let said = |place: &HostPlace, is_root| match HostLock::take(place, is_root) {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        };
        println!("root: {}", said(&roots, true));
        println!("user: {}", said(&users, false));
        // No file of the cards, as where there is no driver: then only the name counts.
        let nowhere = HostPlace {
            cards: PathBuf::from("/nowhere"),
            ..users
        };
        return println!("name alone: {}", said(&nowhere, false));
    }
    if !is_root() {
        return println!("skipped: it takes root");
    }
    let (base, [_one, _other]) = fake_machines();
    let [roots, users] = places(base.path());
    let root = HostLock::take(&roots, true).unwrap();
    let user = take_as_nobody(&users).unwrap();
    let ask = || {
        let asks = Command::new("unshare")
            .arg("--net")
            .arg(std::env::current_exe().unwrap())
            .args(["--nocapture", "a_network_namespace_of_its_own"])
            .env(PLACE, base.path())
            .output()
            .unwrap();
        assert!(asks.status.success(), "{asks:?}");
        String::from_utf8(asks.stdout).unwrap()
    };
    let said = ask();
    assert!(
        said.contains(&format!(
            "root: an arbiter looks after these GPUs already: {} 0",
            me()
        )),
        "{said}"
    );
    let in_folder = users.cards.display();
    let held = format!(
        "user: an arbiter looks after these GPUs already: a process that cannot be seen from \
         here, in {in_folder}\n"
    );
    assert!(said.contains(&held), "{said}");
    assert!(said.contains("name alone: taken"), "{said}");
    drop((root, user));
    let said = ask();
    assert!(
        said.contains("root: taken") && said.contains("user: taken"),
        "{said}"
    );
}

/// Root's real cards, and a user's.
fn places(base: &Path) -> [HostPlace; 2] {
    let test = base.file_name().unwrap().display();
    let place = |cards: &str, folder| HostPlace {
        name: format!("sublet-test-apart-{cards}-{test}"),
        folder,
        cards: base.join(cards),
    };
    [
        place("one", Some(base.join("sublet"))),
        place("other", None),
    ]
}

#[test]
fn cards_that_another_process_has_locked_keep_a_user_out_and_not_root() {
    let Some((_base, place)) = place("squatted") else {
        return;
    };
    let squatted = place.cards.clone();
    let squatter = as_nobody(move || lock_cards(&squatted).unwrap().unwrap());
    assert!(take_as_nobody(&place).is_err());
    drop(HostLock::take(&place, true).unwrap());
    drop(squatter);
    take_as_nobody(&place).unwrap();
    // What cannot be opened or locked decides nothing.
    for unlocked in ["/nowhere", "/proc/self/mem/x"] {
        assert!(lock_cards(Path::new(unlocked)).unwrap().is_none());
    }
}
