//! Records that cannot be read: what they are of may be running.

use super::*;

#[test]
fn a_container_whose_record_cannot_be_read_keeps_its_folder_and_gets_its_limits_later() {
    let node = Node::new();
    let isolation = node.start();
    for pod in ["a", "b"] {
        let handed = handed(pod, "main", Role::Main, 0, 300);
        isolation.admit(&handed).unwrap();
    }
    isolation.stop();
    let folder = |pod: &str| node.path(&format!("state/containers/uid-{pod}/main-0"));
    let record = |pod: &str| folder(pod).join("record.json");
    let good = fs::read(record("a")).unwrap();
    for pod in ["a", "b"] {
        // The kernel says of a folder that it is no file, as a disk says that it fails.
        fs::remove_file(record(pod)).unwrap();
        fs::create_dir(record(pod)).unwrap();
    }
    let unread = |isolation: &Isolation| {
        let all = isolation.unread().into_iter();
        let mut pods: Vec<_> = all.filter_map(|one| one.pod).collect();
        pods.sort();
        pods.join(" ")
    };
    let isolation = node.start();
    let old = node.path("state/libraries/sublet-0");
    fs::create_dir(&old).unwrap();
    let then = std::time::SystemTime::now() - Duration::from_secs(200_000);
    fs::File::open(&old).unwrap().set_modified(then).unwrap();
    let both = vec![pod("a"), pod("b")];
    assert!(!isolation.settle(&now(both)));
    isolation.clear_libraries();
    assert!(old.exists(), "one of them may mount it");
    assert_eq!(
        (jobs(&isolation), unread(&isolation)),
        (String::new(), "uid-a uid-b".to_owned())
    );
    // One is mended, and the other's pod goes.
    fs::remove_dir(record("a")).unwrap();
    fs::write(record("a"), &good).unwrap();
    assert!(!isolation.settle(&now(vec![pod("a")])));
    assert_eq!(
        (jobs(&isolation).as_str(), unread(&isolation).as_str()),
        ("1:ns/a/main=300", "")
    );
    assert!(folder("a").join("tenant/tenant.sock").exists() && !folder("b").exists());
    isolation.stop();
    // What is read again when its container has come by itself is that container.
    fs::remove_file(record("a")).unwrap();
    fs::create_dir(record("a")).unwrap();
    let isolation = node.start();
    fs::remove_dir(record("a")).unwrap();
    isolation
        .admit(&handed("a", "main", Role::Main, 0, 200))
        .unwrap();
    assert!(!isolation.settle(&now(vec![pod("a")])));
    assert!(
        jobs(&isolation).ends_with(":ns/a/main=200"),
        "{}",
        jobs(&isolation)
    );
    assert_eq!(unread(&isolation), "");
    isolation.stop();
}

#[test]
fn a_stray_file_is_no_reason_to_forget_the_others() {
    let node = Node::new();
    let isolation = node.start();
    isolation
        .admit(&handed("a", "main", Role::Main, 0, 300))
        .unwrap();
    isolation.stop();
    for junk in ["state/containers/junk", "state/containers/uid-a/junk"] {
        fs::write(node.path(junk), "no folder").unwrap();
    }
    let isolation = node.start();
    assert_eq!(jobs(&isolation), "1:ns/a/main=300");
    assert_eq!(isolation.unread(), []);
    isolation.stop();
}
