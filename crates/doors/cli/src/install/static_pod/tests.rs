//! Manifests that the real kubeadm wrote (`fixtures/kubeadm`), patched and put back.

use super::*;

const PLAIN: &str = include_str!("../../../../../../fixtures/kubeadm/plain.yaml");
const OLD: &str = include_str!("../../../../../../fixtures/kubeadm/plain-1.31.yaml");
const FLAGS: &str = include_str!("../../../../../../fixtures/kubeadm/flags.yaml");
const OWN: &str = include_str!("../../../../../../fixtures/kubeadm/own-configuration.yaml");

const POLICY: &str = "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
percentageOfNodesToScore: 40
profiles:
- schedulerName: default-scheduler
extenders:
- {urlPrefix: \"http://10.0.0.1/net\", filterVerb: filter, managedResources: [{name: example.com/nic}]}
";

fn wish() -> Wish {
    Wish {
        configuration: "/etc/kubernetes/sublet/kube-scheduler.yaml".into(),
        port: 39_999,
    }
}

fn own(manifest: &str) -> Option<&'static str> {
    (manifest == OWN).then_some(POLICY)
}

fn value(text: &str) -> Value {
    read(text).unwrap()
}

fn command(text: &str) -> Vec<String> {
    flags(&value(text), 0).0
}

/// The two forms of a value, which differ only in the additions of a patch.
#[test]
fn a_patched_manifest_has_three_things_more_and_nothing_less() {
    for manifest in [PLAIN, OLD, FLAGS, OWN] {
        let patched = patch(manifest, own(manifest), &wish()).unwrap();
        let (before, mut after) = (value(manifest), value(&patched.manifest));
        let place = "/etc/kubernetes/sublet/kube-scheduler.yaml";
        let mut words = command(manifest);
        words.retain(|word| !word.starts_with("--config="));
        words.push(format!("--config={place}"));
        assert_eq!(command(&patched.manifest), words);
        after["spec"]["containers"][0]["command"] =
            before["spec"]["containers"][0]["command"].clone();
        let mount = after["spec"]["containers"][0]["volumeMounts"]
            .as_array_mut()
            .unwrap()
            .pop();
        assert_eq!(
            mount.unwrap(),
            json!({"mountPath": place, "name": VOLUME, "readOnly": true})
        );
        let volume = after["spec"]["volumes"].as_array_mut().unwrap().pop();
        assert_eq!(
            volume.unwrap(),
            json!({"hostPath": {"path": place, "type": "File"}, "name": VOLUME})
        );
        assert_eq!(mark(&after), Some(&*patched.mark));
        remove(&mut after["metadata"], "annotations");
        assert_eq!(after, before);
    }
}

#[test]
fn a_second_time_changes_nothing_and_another_port_changes_the_mark() {
    for manifest in [PLAIN, OLD, FLAGS, OWN] {
        let once = patch(manifest, own(manifest), &wish()).unwrap();
        assert_eq!(
            own_configuration(&once.manifest),
            own_configuration(manifest)
        );
        let twice = patch(&once.manifest, own(manifest), &wish()).unwrap();
        assert_eq!(twice, once);
        let moved = Wish {
            port: 40_000,
            ..wish()
        };
        let moved = patch(&once.manifest, own(manifest), &moved).unwrap();
        assert_ne!(moved.mark, once.mark);
        assert!(moved.configuration.contains("127.0.0.1:40000/sublet"));
    }
}

#[test]
fn what_is_put_back_says_what_kubeadm_wrote() {
    for manifest in [PLAIN, OLD, FLAGS, OWN] {
        assert_eq!(unpatch(manifest), Ok(None));
        let patched = patch(manifest, own(manifest), &wish()).unwrap();
        let back = unpatch(&patched.manifest).unwrap().unwrap();
        assert!(is_same(&back, manifest), "{back}");
    }
}

/// Kubelet reads YAML 1.1, where a plain `on` is a truth value.
#[test]
fn a_text_that_looks_like_something_else_keeps_its_quotes() {
    let patched = patch(FLAGS, None, &wish()).unwrap();
    assert!(
        patched.manifest.contains("value: \"on\""),
        "{}",
        patched.manifest
    );
}

#[test]
fn the_configuration_says_what_ignored_flags_said() {
    let plain = value(&patch(PLAIN, None, &wish()).unwrap().configuration);
    assert_eq!(
        plain["clientConnection"],
        json!({"kubeconfig": "/etc/kubernetes/scheduler.conf"})
    );
    assert_eq!(plain.get("enableProfiling"), None);
    let moved = value(&patch(FLAGS, None, &wish()).unwrap().configuration);
    assert_eq!(
        moved["clientConnection"],
        json!({"kubeconfig": "/etc/kubernetes/scheduler.conf", "qps": 100, "burst": 200})
    );
    assert_eq!(moved["enableProfiling"], false);
}

#[test]
fn only_gpu_pods_are_asked_about() {
    let configuration = value(&patch(PLAIN, None, &wish()).unwrap().configuration);
    let extender = &configuration["extenders"][0];
    assert_eq!(extender["urlPrefix"], "http://127.0.0.1:39999/sublet");
    assert_eq!(extender["bindVerb"], "bind");
    let managed: Vec<&str> = list(&extender["managedResources"])
        .map(|resource| resource["name"].as_str().unwrap())
        .collect();
    for asked in [
        "aliyun.com/gpu-mem",
        "sublet.dev/gpu-memory",
        "nvidia.com/gpu",
    ] {
        assert!(managed.contains(&asked), "{managed:?}");
    }
    assert!(!managed.iter().any(|name| ["cpu", "memory"].contains(name)));
}

#[test]
fn the_operators_own_configuration_keeps_what_it_says() {
    let place = own_configuration(OWN).unwrap().unwrap();
    assert_eq!(place, Path::new("/etc/kubernetes/scheduling/policy.yaml"));
    let patched = patch(OWN, Some(POLICY), &wish()).unwrap();
    let configuration = value(&patched.configuration);
    assert_eq!(configuration["percentageOfNodesToScore"], 40);
    assert_eq!(
        configuration["extenders"][0]["urlPrefix"],
        "http://10.0.0.1/net"
    );
    assert_eq!(
        configuration["extenders"][1]["urlPrefix"],
        "http://127.0.0.1:39999/sublet"
    );
    // Where it already has ours, there is still one.
    let again = patch(OWN, Some(&patched.configuration), &wish()).unwrap();
    assert_eq!(again.configuration, patched.configuration);
}

#[test]
fn what_cannot_be_kept_is_refused_with_its_reason() {
    let binds = POLICY.replace("filterVerb: filter", "bindVerb: bind");
    let manages = POLICY.replace("example.com/nic", "aliyun.com/gpu-mem");
    let beta = POLICY.replace("io/v1\n", "io/v1beta2\n");
    let bad_flag = FLAGS.replace("--kube-api-qps=100", "--kube-api-qps=fast");
    let no_kubeconfig = PLAIN.replace("    - --kubeconfig=/etc/kubernetes/scheduler.conf\n", "");
    let table = [
        (
            PLAIN.replace("hostNetwork: true", "hostNetwork: false"),
            None,
            "hostNetwork",
        ),
        (
            PLAIN.replace(
                "  securityContext:\n",
                "  securityContext:\n    runAsUser: 990\n",
            ),
            None,
            "it runs as user 990",
        ),
        (PLAIN.replace("kind: Pod", "kind: Job"), None, "kind: Pod"),
        (
            PLAIN.replace("    - kube-scheduler\n", "    - kube-proxy\n"),
            None,
            "no container",
        ),
        (no_kubeconfig, None, "neither --kubeconfig nor --config"),
        (bad_flag, None, "--kube-api-qps=fast is no whole number"),
        ("{".to_owned(), None, "no YAML"),
        (
            OWN.to_owned(),
            Some(&binds),
            "http://10.0.0.1/net, which binds pods itself",
        ),
        (
            OWN.to_owned(),
            Some(&manages),
            "which manages aliyun.com/gpu-mem",
        ),
        (
            OWN.to_owned(),
            Some(&beta),
            "KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1beta2",
        ),
    ];
    for (manifest, own, words) in table {
        let refused = patch(&manifest, own.map(|text| &**text), &wish()).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
    }
    let elsewhere = OWN.replace("mountPath: /etc/kubernetes/scheduling", "mountPath: /opt");
    assert!(matches!(
        own_configuration(&elsewhere),
        Err(Refusal::OutOfSnapshot(_))
    ));
}

#[test]
fn flags_may_stand_in_args_and_in_two_words() {
    let split = PLAIN
        .replace(
            "    - --kubeconfig=/etc/",
            "    - --kubeconfig\n    - /etc/",
        )
        .replace(
            "    image:",
            "    args: [--config, /etc/kubernetes/scheduler.conf, --v=2]\n    image:",
        );
    let place = own_configuration(&split).unwrap().unwrap();
    assert_eq!(place, Path::new("/etc/kubernetes/scheduler.conf"));
    let patched = patch(&split, Some(POLICY), &wish()).unwrap();
    let args = &value(&patched.manifest)["spec"]["containers"][0]["args"];
    assert_eq!(
        *args,
        json!([
            "--config=/etc/kubernetes/sublet/kube-scheduler.yaml",
            "--v=2"
        ])
    );
    let back = unpatch(&patched.manifest).unwrap().unwrap();
    assert_eq!(own_configuration(&back), own_configuration(&split));
}

proptest::proptest! {
    /// Any file is refused or patched, and a patched one can be restored.
    #[test]
    fn any_text_is_refused_or_comes_back(cut in 0usize..1500, more in "[ -~\n]{0,40}") {
        let at = cut.min(PLAIN.len());
        let text = format!("{}{more}{}", &PLAIN[..at], &PLAIN[at..]);
        if let Ok(patched) = patch(&text, None, &wish()) {
            let back = unpatch(&patched.manifest).unwrap().unwrap();
            proptest::prop_assert!(is_same(&back, &text), "{text}");
        }
    }
}
