//! The original's outputs for five clusters, blank by blank, and our own forms.
//!
//! The expected tables were printed by the original's own display code, compiled against
//! k8s.io/api 0.36.3 (`·` is a blank, so that those at line ends are seen).

pub(crate) mod shares;

use sublet_api::keys;
use sublet_api::object::{Container, Node, NodeAddress, Pod, Quantity};

use super::*;

/// `node cn-1 30/2 10.0.0.4` and `pod default/a cn-1 3 KEY=value`, a line each.
fn cluster(picture: &str) -> (Vec<Node>, Vec<Pod>) {
    let (mut nodes, mut pods) = (Vec::new(), Vec::new());
    for line in picture.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["node", name, amounts, ref rest @ ..] => nodes.push(node(name, amounts, rest)),
            ["pod", key, node, amounts, ref rest @ ..] => pods.push(pod(key, node, amounts, rest)),
            _ => panic!("what is {line}?"),
        }
    }
    (nodes, pods)
}

fn node(name: &str, amounts: &str, rest: &[&str]) -> Node {
    let mut node = Node::default();
    node.metadata.name = name.to_owned();
    let (memory, count) = amounts.split_once('/').unwrap();
    let resources = match memory {
        "whole" => vec![(keys::NVIDIA_GPU, count)],
        _ => vec![
            (keys::ALIYUN_GPU_MEM, memory),
            (keys::ALIYUN_GPU_COUNT, count),
        ],
    };
    for (resource, amount) in resources {
        let amount = Quantity(amount.to_owned());
        node.status.capacity.insert(resource.to_owned(), amount);
    }
    let address = |kind: &str, address: &str| NodeAddress {
        kind: kind.to_owned(),
        address: address.to_owned(),
    };
    node.status.addresses.push(address("Hostname", name));
    for word in rest {
        match word.split_once('=') {
            Some((key, value)) => {
                let annotations = &mut node.metadata.annotations;
                annotations.insert(key.to_owned(), value.to_owned());
            }
            None => node.status.addresses.push(address("InternalIP", word)),
        }
    }
    node
}

fn pod(key: &str, node: &str, amounts: &str, rest: &[&str]) -> Pod {
    let mut pod = Pod::default();
    let (namespace, name) = key.split_once('/').unwrap();
    pod.metadata.namespace = namespace.to_owned();
    pod.metadata.name = name.to_owned();
    pod.metadata.uid = key.replace('/', "_");
    pod.spec.node_name = node.to_owned();
    for (at, amount) in amounts.split('+').enumerate() {
        let (resource, amount) = match amount.strip_suffix('w') {
            Some(count) => (keys::NVIDIA_GPU, count),
            None => (keys::ALIYUN_GPU_MEM, amount),
        };
        let mut container = Container {
            name: format!("c{at}"),
            ..Container::default()
        };
        let limits = &mut container.resources.limits;
        limits.insert(resource.to_owned(), Quantity(amount.to_owned()));
        pod.spec.containers.push(container);
    }
    for word in rest {
        match word.split_once('=').unwrap() {
            ("phase", phase) => phase.clone_into(&mut pod.status.phase),
            ("deleted", time) => pod.metadata.deletion_timestamp = Some(time.to_owned()),
            (key, value) => {
                let annotations = &mut pod.metadata.annotations;
                annotations.insert(key.to_owned(), value.to_owned());
            }
        }
    }
    pod
}

fn shown(picture: &str, format: InspectFormat, details: bool) -> String {
    let (nodes, pods) = cluster(picture);
    let answer = print(&nodes, &pods, None, format, details).unwrap();
    answer.notes.join("\n") + &answer.text
}

/// Compares both tables with the original's output.
fn check(picture: &str, summary: &str, details: &str) {
    let table = |details| {
        let (nodes, pods) = cluster(picture);
        let answer = print(&nodes, &pods, None, InspectFormat::Table, details).unwrap();
        answer.text.replace(' ', "·")
    };
    assert_eq!(table(false), summary);
    assert_eq!(table(true), details);
}

#[test]
fn case_1_two_nodes_in_gib_one_with_fewer_cards() {
    check(
        "
        node cn-2 15/1 10.0.0.5
        node cn-1 30/2 10.0.0.4
        pod default/b cn-1 3 ALIYUN_COM_GPU_MEM_IDX=0 deleted=2026-01-01T00:00:00Z
        pod default/a cn-1 3 ALIYUN_COM_GPU_MEM_IDX=0
        pod default/gone cn-1 3 ALIYUN_COM_GPU_MEM_IDX=0 phase=Succeeded
        ",
        "\
NAME··IPADDRESS··GPU0(Allocated/Total)··GPU1(Allocated/Total)··GPU·Memory(GiB)
cn-1··10.0.0.4···6/15···················0/15···················6/30
cn-2··10.0.0.5···0/15···················0/0····················0/15
-------------------------------------------------
Allocated/Total·GPU·Memory·In·Cluster:
6/45·(13%)··
",
        "
NAME:·······cn-1
IPADDRESS:··10.0.0.4

NAME·········NAMESPACE··GPU0(Allocated)··GPU1(Allocated)··
a············default····3················0················
b············default····3················0················
Allocated·:··6·(20%)····
Total·:······30·········
----------------------------------------

NAME:·······cn-2
IPADDRESS:··10.0.0.5

NAME·········NAMESPACE··GPU0(Allocated)··
Allocated·:··0·(0%)·····
Total·:······15·········
----------------------------------------


Allocated/Total·GPU·Memory·In·Cluster:··6/45·(13%)··
",
    );
}

#[test]
fn case_2_a_pod_without_an_index_and_a_node_without_an_address() {
    check(
        "
        node gpu-node-1 32552/2 192.168.0.11
        node gpu-node-2 16276/1
        pod default/binpack-0 gpu-node-1 8138 ALIYUN_COM_GPU_MEM_IDX=1
        pod default/wait-0 gpu-node-1 2000
        ",
        "\
NAME········IPADDRESS·····GPU0(Allocated/Total)··GPU1(Allocated/Total)··PENDING(Allocated)··GPU·Memory(MiB)
gpu-node-1··192.168.0.11··0/16276················8138/16276·············2000················10138/32552
gpu-node-2··unknown·······0/16276················0/0········································0/16276
--------------------------------------------------------------------------------
Allocated/Total·GPU·Memory·In·Cluster:
10138/48828·(20%)··
",
        "
NAME:·······gpu-node-1
IPADDRESS:··192.168.0.11

NAME·········NAMESPACE····GPU0(Allocated)··GPU1(Allocated)··Pending(Allocated)··
binpack-0····default······0················8138·············0···················
wait-0·······default······0················0················2000················
Allocated·:··10138·(31%)··
Total·:······32552········
---------------------------------------------------------------

NAME:·······gpu-node-2
IPADDRESS:··unknown

NAME·········NAMESPACE··GPU0(Allocated)··
Allocated·:··0·(0%)·····
Total·:······16276······
---------------------------------------------------------------


Allocated/Total·GPU·Memory·In·Cluster:··10138/48828·(20%)··
",
    );
}

#[test]
fn case_3_several_containers_on_several_cards() {
    check(
        r#"
        node n1 60/4 10.1.1.1
        pod team-a/multi n1 5+10 scheduler.framework.gpushare.allocation={"0":{"1":5},"1":{"3":10}}
        pod default/one n1 7 ALIYUN_COM_GPU_MEM_IDX=1
        "#,
        "\
NAME··IPADDRESS··GPU0(Allocated/Total)··GPU1(Allocated/Total)··GPU2(Allocated/Total)··GPU3(Allocated/Total)··GPU·Memory(GiB)
n1····10.1.1.1···0/15···················12/15··················0/15···················10/15··················22/60
------------------------------------------------------------
Allocated/Total·GPU·Memory·In·Cluster:
22/60·(36%)··
",
        // The original's order of pods on one card is the API server's: namespace, then name.
        "
NAME:·······n1
IPADDRESS:··10.1.1.1

NAME·········NAMESPACE··GPU0(Allocated)··GPU1(Allocated)··GPU2(Allocated)··GPU3(Allocated)··
one··········default····0················7················0················0················
multi········team-a·····0················5················0················10···············
Allocated·:··22·(36%)···
Total·:······60·········
------------------------------------------------------


Allocated/Total·GPU·Memory·In·Cluster:··22/60·(36%)··
",
    );
}

#[test]
fn case_4_no_gpu_node() {
    check(
        "",
        "\
NAME··IPADDRESS··GPU·Memory()

Allocated/Total·GPU·Memory·In·Cluster:
0/0·(0%)··
",
        "

Allocated/Total·GPU·Memory·In·Cluster:··0/0·(0%)··
",
    );
}

#[test]
fn case_5_an_idle_node() {
    check(
        "node n1 15/1 10.1.1.1",
        "\
NAME··IPADDRESS··GPU0(Allocated/Total)··GPU·Memory(GiB)
n1····10.1.1.1···0/15···················0/15
------------------------------------------
Allocated/Total·GPU·Memory·In·Cluster:
0/15·(0%)··
",
        "
NAME:·······n1
IPADDRESS:··10.1.1.1

NAME·········NAMESPACE··GPU0(Allocated)··
Allocated·:··0·(0%)·····
Total·:······15·········
----------


Allocated/Total·GPU·Memory·In·Cluster:··0/15·(0%)··
",
    );
}

#[test]
fn odd_nodes_are_counted_as_the_original_counts() {
    let table = |picture| shown(picture, InspectFormat::Table, false);
    // A total that its cards do not divide; a node with memory but no card.
    assert!(table("node n1 301/2").contains("0/150                  0/150                  0/301"));
    assert!(table("node n1 7/0").contains("n1    unknown    0/7\n"));
    // An index beyond the node's cards only shows where another node has that column.
    let beyond = "node n1 300/2\n pod default/a n1 5 ALIYUN_COM_GPU_MEM_IDX=2";
    assert!(table(beyond).contains(" 0/300\n"));
    let wider = format!("{beyond}\n node n2 600/4");
    assert!(table(&wider).contains("5/150"));
    assert!(shown(beyond, InspectFormat::Table, true).contains("Allocated :  5 (1%)"));
    // Garbage is as if absent.
    let garbage = "node n1 300/2\n pod default/a n1 5 ALIYUN_COM_GPU_MEM_IDX=x";
    assert!(table(garbage).contains("PENDING(Allocated)"));
}

#[test]
fn whole_card_nodes_are_in_the_wide_table_only() {
    let picture = r#"
        node n1 32552/2 10.0.0.1
        node n2 whole/2 10.0.0.2
        pod default/a n1 8138 ALIYUN_COM_GPU_MEM_IDX=1
        pod default/w n2 1w
        "#;
    assert!(!shown(picture, InspectFormat::Table, false).contains("n2"));
    assert_eq!(
        shown(picture, InspectFormat::Wide, false),
        "\
NAME  ADDRESS   SHARING  IDENTITY  GPU      HEALTH   GRANTED   MEMORY     PODS  UUID
n1    10.0.0.1  memory   none      0        healthy  0 MiB     16276 MiB  0     -
n1    10.0.0.1  memory   none      1        healthy  8138 MiB  16276 MiB  1     -
n2    10.0.0.2  whole    none      0        healthy  0 MiB     0 MiB      0     -
n2    10.0.0.2  whole    none      1        healthy  0 MiB     0 MiB      0     -
n2    10.0.0.2  whole    none      pending  -        0 MiB     -          1     -

8138 of 32552 MiB granted, 4 GPUs on 2 nodes
"
    );
}

/// A node with an agent: GPU 1 has another size and is sick.
const AGENT: &str = concat!(
    r#"node n1 24414/2 10.0.0.1 sublet.dev/inventory={"version":1,"unit":"MiB","#,
    r#""sharing":"memory","identity":"size-and-order","advertise":"units","gpus":["#,
    r#"{"index":0,"uuid":"GPU-a","memoryMiB":16276},"#,
    r#"{"index":1,"uuid":"GPU-b","memoryMiB":8138,"sick":"xid-79"}]}"#,
    "\n",
    r#"pod default/a n1 3000+1000 sublet.dev/allocation=[{"container":"c0","index":7,"#,
    r#""uuid":"GPU-a","memoryMiB":3000},{"container":"c1","index":7,"uuid":"GPU-a","#,
    r#""memoryMiB":1000}]"#,
    "\n pod default/b n1 5",
);

#[test]
fn the_uuid_decides_and_sick_cards_are_named() {
    let wide = shown(AGENT, InspectFormat::Wide, false);
    for expected in [
        "size-and-order  0        healthy             4000 MiB",
        "unhealthy (xid-79)  0 MiB     8138 MiB",
    ] {
        assert!(wide.contains(expected), "{wide}");
    }
    let used = r#"10.0.0.1 sublet.dev/measured-use={"1":{"percent":40,"pods":0}} "#;
    let busy = AGENT.replacen("10.0.0.1 ", used, 1);
    let wide = shown(&busy, InspectFormat::Wide, false);
    assert!(wide.contains("  40 %          GPU-b\n"), "{wide}");
    let json = shown(&busy, InspectFormat::Json, false);
    assert!(json.contains("\"computeUsedPercent\": 40.0"), "{json}");
}

#[test]
fn a_card_that_the_agent_has_handed_over_is_no_secret() {
    let known = AGENT.replace(
        "sublet.dev/inventory",
        r#"sublet.dev/handed-over={"default_b":[{"index":1,"uuid":"GPU-b"}]} sublet.dev/inventory"#,
    );
    assert_ne!(known, AGENT);
    let text = shown(&known, InspectFormat::Json, false);
    assert!(
        !text.contains("warning") && !text.contains("kept"),
        "{text}"
    );
    assert!(
        text.contains("\"grantedMiB\": 5,") && text.contains("\"pending\": []"),
        "{text}"
    );
}

#[test]
fn the_json_form_is_as_promised() {
    assert_eq!(
        shown(AGENT, InspectFormat::Yaml, false),
        "\
warning: pod default/b does not say which GPU of node n1 it has: 5 MiB of each is kept free for it \
(sublet explain pod)nodes:
- name: n1
  address: \"10.0.0.1\"
  sharing: memory
  identity: size-and-order
  unit: MiB
  memoryMiB: 24414
  grantedMiB: 4005
  gpus:
  - gpu: 0
    uuid: GPU-a
    health: healthy
    memoryMiB: 16276
    grantedMiB: 4000
    keptMiB: 5
    pods:
    - namespace: default
      name: a
      grantedMiB: 4000
      containers:
      - name: c0
        requestMiB: 3000
      - name: c1
        requestMiB: 1000
  - gpu: 1
    uuid: GPU-b
    health: unhealthy
    problem: xid-79
    memoryMiB: 8138
    grantedMiB: 0
    keptMiB: 5
    pods: []
  pending:
  - namespace: default
    name: b
    grantedMiB: 5
    containers:
    - name: c0
      requestMiB: 5
memoryMiB: 24414
grantedMiB: 4005
"
    );
    let (nodes, pods) = cluster(AGENT);
    let answer = print(&nodes, &pods, None, InspectFormat::Json, true).unwrap();
    let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(json["nodes"][0]["gpus"][0]["grantedMiB"], 4000);
    assert_eq!(json["grantedMiB"], 4005);
}

#[test]
fn memory_is_in_mib_even_where_nodes_count_in_gib() {
    let picture = "node n1 30/2\n pod default/a n1 3 ALIYUN_COM_GPU_MEM_IDX=0";
    let json: serde_json::Value =
        serde_json::from_str(&shown(picture, InspectFormat::Json, false)).unwrap();
    assert_eq!(json["nodes"][0]["unit"], "GiB");
    assert_eq!(json["memoryMiB"], 30 * 1024);
    assert_eq!(json["nodes"][0]["gpus"][0]["grantedMiB"], 3 * 1024);
}

#[test]
fn what_cannot_be_understood_is_named_and_nothing_else_is_lost() {
    let text = shown(
        "node n1 x/2\n node n2 30/2\n pod default/bad n2 1.5\n pod default/a n2 3",
        InspectFormat::Table,
        false,
    );
    assert!(
        text.starts_with("warning: node n1 is left out: status.capacity"),
        "{text}"
    );
    assert!(
        text.contains("warning: pod default/bad is left out: container c0"),
        "{text}"
    );
    assert!(text.contains("3/30"), "{text}");
}
