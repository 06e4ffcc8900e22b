//! Pods and nodes as they are written, and the sums that Kubernetes makes of them.

use sublet_model::Unit;

use super::*;
use crate::dialect::device_resources;
use crate::{NodeDefaults, facts_with_stock, keys};

fn pod(spec: &str) -> Pod {
    serde_json::from_str(&format!(r#"{{"metadata":{{"name":"p"}},{spec}}}"#)).unwrap()
}

/// CPU and memory of a pod with these containers (JSON). `rest`: the pod's other fields.
fn host(containers: &str, rest: &str) -> (u64, u64) {
    let text = format!(r#""spec":{{"containers":[{containers}]{rest}}}"#);
    let host = host_of(&pod(&text)).unwrap();
    (host.cpu.get(), host.memory.get())
}

fn asks(requests: &str) -> String {
    format!(r#"{{"name":"c","resources":{{"requests":{{{requests}}}}}}}"#)
}

#[test]
fn cpu_and_memory_are_counted_as_kubernetes_counts_them() {
    let two = asks(r#""cpu":"1500m","memory":"1Ki""#) + "," + &asks(r#""cpu":"0.1""#);
    assert_eq!(host(&two, ""), (1600, 1024));
    let init = asks(r#""cpu":"4","memory":"1k""#);
    let init = format!(r#","initContainers":[{init}]"#);
    assert_eq!(host(&asks(r#""cpu":1"#), &init), (4000, 1000));
    let sidecar = init.replace(r#""name":"c""#, r#""name":"s","restartPolicy":"Always""#);
    assert_eq!(host(&asks(r#""cpu":1"#), &sidecar), (5000, 1000));
    let limits = r#"{"name":"c","resources":{"limits":{"cpu":"2"},"requests":{"memory":"1k"}}}"#;
    assert_eq!(host(limits, r#","overhead":{"cpu":"250m"}"#), (2250, 1000));
    let bad = pod(&format!(
        r#""spec":{{"containers":[{}]}}"#,
        asks(r#""cpu":"x""#)
    ));
    assert_eq!(
        host_of(&bad).unwrap_err().to_string(),
        "container c: `cpu` is `x`: it is not a number such as `8138` or `8k`"
    );
}

#[test]
fn what_a_pod_asks_as_a_whole_goes_before_its_containers() {
    let one = asks(r#""cpu":"1""#);
    let whole = |list: &str| format!(r#","resources":{{{list}}}"#);
    let requests = whole(r#""requests":{"cpu":"3"}"#);
    assert_eq!(host(&one, &requests), (3000, 0));
    // The API server fills in what is missing: from the containers, else from the limits.
    let limits = whole(r#""limits":{"cpu":"3","memory":"1k"}"#);
    assert_eq!(host(&one, &limits), (1000, 1000));
}

#[test]
fn scores_count_the_whole_of_pods_that_have_a_node_only() {
    let counted = |containers: &str, rest: &str| {
        let text = format!(r#""spec":{{"containers":[{containers}]{rest}}}"#);
        let ask = stock_ask(&pod(&text)).unwrap();
        [ask.nonzero, ask.scored].map(|host| (host.cpu.get(), host.memory.get()))
    };
    let whole = |list: &str| format!(r#","resources":{{"requests":{{{list}}}}}"#);
    let two = asks(r#""cpu":"100m""#) + "," + &asks(r#""cpu":"100m","memory":"1Ki""#);
    let little = 200 << 20;
    for (whole, expected) in [
        (String::new(), [(200, little + 1024), (200, little + 1024)]),
        (
            whole(r#""cpu":"9","memory":"2Ki""#),
            [(9000, 2048), (200, little + 1024)],
        ),
        // One container says how much memory: the other one is not taken to ask any.
        (whole(r#""cpu":"9""#), [(9000, 1024), (200, little + 1024)]),
        (
            whole(r#""memory":"2Ki""#),
            [(200, 2048), (200, little + 1024)],
        ),
    ] {
        assert_eq!(counted(&two, &whole), expected, "{whole}");
    }
    let one = asks("");
    let expected = [(9000, little), (100, little)];
    assert_eq!(counted(&one, &whole(r#""cpu":"9""#)), expected);
}

#[test]
fn a_container_that_is_resized_counts_with_the_most() {
    let status = |resources: &str, condition: &str| {
        let text = format!(
            r#""spec":{{"containers":[{}]}},"status":{{"containerStatuses":[{{"name":"c",{resources}}}],
               "conditions":[{{"type":"PodResizePending","reason":"{condition}"}}]}}"#,
            asks(r#""cpu":"2""#)
        );
        host_of(&pod(&text)).unwrap().cpu.get()
    };
    let has = r#""resources":{"requests":{"cpu":"3"}}"#;
    assert_eq!(status(has, "Deferred"), 3000);
    let promised = r#""resources":{"requests":{"cpu":"1"}},"allocatedResources":{"cpu":"4"}"#;
    assert_eq!(status(promised, "Deferred"), 4000);
    let less = r#""resources":{"requests":{"cpu":"1"}},"allocatedResources":{"cpu":"1"}"#;
    assert_eq!(
        (status(less, "Deferred"), status(less, "Infeasible")),
        (2000, 1000)
    );
    assert_eq!(status(r#""allocatedResources":{"cpu":"4"}"#, ""), 2000);
}

#[test]
fn all_else_that_the_stock_scheduler_counts() {
    let text = r#""spec":{"hostNetwork":true,
        "containers":[{"name":"c","resources":{"limits":{"aliyun.com/gpu-mem":"3","example.com/nic":"1",
                       "ephemeral-storage":"1k","cpu":"1"}},
                       "ports":[{"containerPort":80},{"containerPort":81,"hostPort":8081,"hostIP":"10.0.0.1",
                       "protocol":"UDP"},{"containerPort":82,"hostPort":82,"hostIP":"0.0.0.0"}]},
                      {"name":"d","resources":{"limits":{"example.com/nic":"2","nvidia.com/gpu":"0"}}}],
        "initContainers":[{"name":"i","ports":[{"hostPort":9}]}]}"#;
    let ask = stock_ask(&pod(text)).unwrap();
    let list = |resources: &Resources| {
        let all = resources
            .iter()
            .map(|(name, amount)| format!("{name}={amount}"));
        all.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list(&ask.devices), "aliyun.com/gpu-mem=3");
    assert_eq!(
        list(&ask.resources),
        "ephemeral-storage=1000 example.com/nic=3"
    );
    let ports: Vec<String> = ask.ports.iter().map(ToString::to_string).collect();
    assert_eq!(ports, ["80/TCP", "8081/UDP of 10.0.0.1", "82/TCP"]);
    // The first container asks no memory, the second neither; the init container runs alone.
    assert_eq!(ask.nonzero.cpu, MilliCpu::new(1100));
    assert_eq!(ask.nonzero.memory, Bytes::new(400 << 20));
    let plain = pod(&text.replace("\"hostNetwork\":true,", ""));
    assert_eq!(stock_ask(&plain).unwrap().ports.len(), 2);
}

/// Resources of a node that pods can have, in words.
fn node(text: &str) -> String {
    let node: Node = serde_json::from_str(text).unwrap();
    let unit = Unit::MiB;
    let facts = match facts_with_stock(&node, NodeDefaults { unit }) {
        Ok(facts) => facts,
        Err(error) => return error.to_string(),
    };
    let stock = facts.stock.unwrap();
    let amount = |amount: u64| match amount {
        u64::MAX => "any".to_owned(),
        amount => amount.to_string(),
    };
    let mut words = vec![
        format!("cpu={}", facts.host.cpu.get()),
        format!("pods={}", amount(stock.pods)),
    ];
    let all = stock.resources.iter();
    // Of our own resources, those that the nodes of these tests are about.
    let about = [
        "aliyun.com/gpu-count",
        "aliyun.com/gpu-mem",
        "nvidia.com/gpu",
        keys::GPU_SLOT,
    ];
    let is_other = |name: &str| {
        let mut all = device_resources().filter(|resource| !about.contains(resource));
        all.any(|resource| resource == name)
    };
    let shown = all.filter(|(name, _)| !is_other(name));
    words.extend(shown.map(|(name, has)| format!("{name}={}", amount(has))));
    words.join(" ")
}

#[test]
fn a_node_of_a_cluster_has_what_it_lists_and_one_of_a_file_whatever_that_leaves_out() {
    let of = |uid: &str, status: &str| {
        node(&format!(
            r#"{{"metadata":{{"name":"n","uid":"{uid}"}},"status":{{{status}}}}}"#
        ))
    };
    let cards = r#""capacity":{"cpu":"8","aliyun.com/gpu-mem":"20","aliyun.com/gpu-count":"2"}"#;
    // The API server takes the capacity where nothing is said to be allocatable.
    assert_eq!(
        of("u", cards),
        "cpu=8000 pods=0 aliyun.com/gpu-count=2 aliyun.com/gpu-mem=20"
    );
    assert_eq!(
        of("", cards),
        "cpu=8000 pods=any aliyun.com/gpu-count=2 aliyun.com/gpu-mem=20 ephemeral-storage=any \
         nvidia.com/gpu=any sublet.dev/gpu-slot=any"
    );
    let gone =
        format!(r#"{cards},"allocatable":{{"cpu":"7","pods":"110","aliyun.com/gpu-mem":"0"}}"#);
    assert_eq!(of("u", &gone), "cpu=7000 pods=110");
    assert!(of("", &gone).contains("aliyun.com/gpu-count=any ephemeral"));
    assert_eq!(of("", ""), "cpu=1000000000 pods=any ephemeral-storage=any");
    assert_eq!(
        of("u", r#""allocatable":{"pods":"many"}"#),
        "status.allocatable `pods` is `many`: it is not a number such as `8138` or `8k`"
    );
}
