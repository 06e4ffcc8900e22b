//! The manifests that the executable carries, and the changes that choices make in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

fn object(objects: &[Object], title: &str) -> Value {
    let found = objects.iter().find(|object| object.title() == title);
    found.unwrap_or_else(|| panic!("no {title}")).value.clone()
}

#[test]
fn every_shipped_file_is_carried_in_the_order_of_its_number() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes");
    let there: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    let carried: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
    assert_eq!(carried, there.iter().collect::<Vec<_>>());
}

#[test]
fn every_object_has_an_address_of_its_own() {
    let objects = objects(&Choices::default());
    let titles: BTreeSet<String> = objects
        .iter()
        .map(|object| format!("{} {}", object.address.kind.api_version, object.title()))
        .collect();
    assert_eq!(titles.len(), objects.len());
    for object in &objects {
        assert!(!object.address.name.is_empty(), "{}", object.value);
    }
    assert_eq!(objects[0].title(), "Namespace sublet-system");
    // An anchor of YAML is what it stands for.
    let scheduler = object(&objects, "Deployment sublet-system/sublet-scheduler");
    let containers = &scheduler["spec"]["template"]["spec"]["containers"];
    assert_eq!(
        containers[0]["securityContext"],
        containers[1]["securityContext"]
    );
    assert_eq!(
        containers[1]["securityContext"]["readOnlyRootFilesystem"],
        true
    );
}

#[test]
fn images_go_to_the_containers_that_run_them() {
    let choices = Choices {
        image: Some("here.test/sublet:9".to_owned()),
        kube_scheduler_image: Some("here.test/kube-scheduler:v1".to_owned()),
        default_scheduler: None,
    };
    let mut seen = Vec::new();
    for mut object in objects(&choices) {
        for container in containers(&mut object.value) {
            seen.push(format!("{} {}", container["name"], container["image"]));
        }
    }
    assert_eq!(
        seen,
        [
            r#""extender" "here.test/sublet:9""#,
            r#""stand-in" "here.test/sublet:9""#,
            r#""kube-scheduler" "here.test/kube-scheduler:v1""#,
            r#""agent" "here.test/sublet:9""#,
            r#""controller" "here.test/sublet:9""#,
        ]
    );
}

#[test]
fn for_the_clusters_own_scheduler_the_extender_is_on_its_loopback_and_knows_both_names() {
    let choices = Choices {
        default_scheduler: Some(4000),
        ..Choices::default()
    };
    let changed = objects(&choices);
    let scheduler = object(&changed, "Deployment sublet-system/sublet-scheduler");
    let pod = &scheduler["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(
        pod["nodeSelector"],
        json!({"kubernetes.io/arch": "amd64", "node-role.kubernetes.io/control-plane": ""})
    );
    let args = pod["containers"][0]["args"].to_string();
    for flag in [
        "--listen=127.0.0.1:4000",
        "--scheduler-name=sublet-scheduler",
        "--scheduler-name=default-scheduler",
    ] {
        assert!(args.contains(flag), "{args}");
    }
    assert_eq!(args.matches("--scheduler-name=").count(), 2, "{args}");
    let stand_in = pod["containers"][1]["args"].to_string();
    assert!(stand_in.contains("--listen=127.0.0.1:4000"), "{stand_in}");
    let second = &pod["containers"][2];
    assert!(second["args"].to_string().contains("--secure-port=39993"));
    assert_eq!(second["readinessProbe"]["httpGet"]["port"], 39_993);
    let list = object(&changed, "ConfigMap sublet-system/sublet-schedulers");
    assert_eq!(list["data"]["names"], "sublet-scheduler default-scheduler");
    let map = object(&changed, "ConfigMap sublet-system/sublet-kube-scheduler");
    let text = map["data"]["scheduler.yaml"].as_str().unwrap();
    assert!(text.contains("http://127.0.0.1:4000/sublet"), "{text}");
    assert_eq!(served_port(&scheduler), Some(4000));
    // The rest is as shipped.
    let shipped = objects(&Choices::default());
    let own = object(&shipped, "Deployment sublet-system/sublet-scheduler");
    assert_eq!(served_port(&own), None);
    let differ = shipped.iter().zip(&changed).filter(|(a, b)| a != b).count();
    assert_eq!(differ, 4);
}
