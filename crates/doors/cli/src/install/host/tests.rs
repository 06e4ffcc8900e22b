//! The files of a control plane's node, in a folder of the test.

use super::*;

const PLAIN: &str = include_str!("../../../../../../fixtures/kubeadm/plain.yaml");

/// A folder with `manifests/kube-scheduler.yaml`.
fn node() -> (tempfile::TempDir, Place) {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("kube-scheduler.yaml"), PLAIN).unwrap();
    let place = Place::new(&manifests);
    (dir, place)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_was_there_is_saved_outside_and_comes_back_byte_by_byte() {
    let (dir, place) = node();
    assert!(place.restored().unwrap().is_none());
    let change = place.patched(39_999).unwrap();
    assert!(!change.is_none());
    place.make(&change).unwrap();
    assert_eq!(
        names(&dir.path().join("manifests")),
        ["kube-scheduler.yaml"]
    );
    assert_eq!(fs::read_to_string(place.backup()).unwrap(), PLAIN);
    assert!(place.patched(39_999).unwrap().is_none(), "a second time");

    let back = place.restored().unwrap().unwrap();
    place.make(&back).unwrap();
    place.tidy().unwrap();
    assert_eq!(fs::read_to_string(place.manifest()).unwrap(), PLAIN);
    assert_eq!(names(dir.path()), ["manifests"]);
}

#[test]
fn what_was_changed_meanwhile_stays_when_the_patch_goes() {
    let (_dir, place) = node();
    place.make(&place.patched(39_999).unwrap()).unwrap();
    let edited = fs::read_to_string(place.manifest()).unwrap();
    fs::write(place.manifest(), edited.replace("cpu: 100m", "cpu: 200m")).unwrap();
    let back = place.restored().unwrap().unwrap();
    place.make(&back).unwrap();
    let text = fs::read_to_string(place.manifest()).unwrap();
    assert!(
        text.contains("cpu: 200m") && !text.contains("--config"),
        "{text}"
    );
}

#[test]
fn a_newer_manifest_of_kubeadms_is_saved_anew() {
    let (_dir, place) = node();
    place.make(&place.patched(39_999).unwrap()).unwrap();
    let upgraded = PLAIN.replace("v1.36.3", "v1.37.0");
    fs::write(place.manifest(), &upgraded).unwrap();
    place.make(&place.patched(39_999).unwrap()).unwrap();
    assert_eq!(fs::read_to_string(place.backup()).unwrap(), upgraded);
    place.make(&place.restored().unwrap().unwrap()).unwrap();
    assert_eq!(fs::read_to_string(place.manifest()).unwrap(), upgraded);
}

#[test]
fn a_change_can_be_undone() {
    let (_dir, place) = node();
    let first = place.patched(39_999).unwrap();
    place.make(&first).unwrap();
    let patched = fs::read_to_string(place.manifest()).unwrap();
    let configuration = fs::read_to_string(place.configuration()).unwrap();
    // From one port to another and back.
    let second = place.patched(40_000).unwrap();
    place.make(&second).unwrap();
    assert_ne!(fs::read_to_string(place.manifest()).unwrap(), patched);
    let undone = second.undone();
    assert_eq!(undone.mark, first.mark);
    place.make(&undone).unwrap();
    assert_eq!(fs::read_to_string(place.manifest()).unwrap(), patched);
    let now = fs::read_to_string(place.configuration()).unwrap();
    assert_eq!(now, configuration);
    // And from patched to plain.
    let undone = first.undone();
    assert_eq!(undone.mark, None);
    place.make(&undone).unwrap();
    assert_eq!(fs::read_to_string(place.manifest()).unwrap(), PLAIN);
}

#[test]
fn what_is_wrong_comes_with_advice() {
    let nowhere = Place::new(Path::new("/nonexistent/manifests"));
    let trouble = nowhere.patched(1).unwrap_err();
    assert_eq!(
        trouble.to_string(),
        "there is no /nonexistent/manifests/kube-scheduler.yaml"
    );
    assert!(trouble.advice().contains("--manifests-dir"));
    let (_dir, place) = node();
    let pod_network = PLAIN.replace("hostNetwork: true", "hostNetwork: false");
    fs::write(place.manifest(), pod_network).unwrap();
    let trouble = place.patched(1).unwrap_err();
    assert!(trouble.to_string().contains("hostNetwork"), "{trouble}");
    assert!(trouble.advice().contains("schedulerName: sublet-scheduler"));
}
