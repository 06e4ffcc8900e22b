//! The files that the executable carries.

use std::fs;
use std::path::Path;

use super::*;

/// The names of the files in a folder and below it.
fn names(folder: &Path, below: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder.join(below)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let name = format!("{below}{name}");
        match entry.file_type().unwrap().is_dir() {
            true => names(folder, &format!("{name}/"), found),
            false => found.push(name),
        }
    }
    found.sort();
}

#[test]
fn every_file_of_the_chart_and_of_its_rendering_is_carried() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
    for (folder, carried) in [("chart/sublet", CHART), ("kubernetes", RENDERED)] {
        let mut there = Vec::new();
        names(&deploy.join(folder), "", &mut there);
        // What differs with the queue is for kubectl's users who have the repository.
        there.retain(|name| !name.starts_with("queue/"));
        let carried: Vec<&str> = carried.iter().map(|(name, _)| *name).collect();
        assert_eq!(carried, there, "{folder}");
    }
}

#[test]
fn the_rendering_begins_with_the_namespace() {
    let first = objects().next().unwrap();
    assert_eq!(first["kind"], "Namespace");
    assert_eq!(first["metadata"]["name"], NAMESPACE);
    let text = rendered();
    assert!(text.starts_with(&format!("---\n{NAMESPACE_MANIFEST}---\n")));
    // An anchor of YAML is what it stands for.
    let scheduler = objects()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let containers = &scheduler["spec"]["template"]["spec"]["containers"];
    assert_eq!(
        containers[0]["securityContext"],
        containers[1]["securityContext"]
    );
}
