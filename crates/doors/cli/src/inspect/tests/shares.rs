//! Compute time of pods in the wide table and in JSON.

use std::sync::Arc;

use sublet_model::{Allocation, CardRef, Entry, GpuIndex, Grant, MiB, PodKey, PodUid, Standing};

use super::*;
use crate::compute;

/// The example, with a pod that asks for compute time. No dialect can limit it yet, so the pod is put
/// into the view by hand.
fn view_of_shares() -> view::View {
    let used = r#"10.0.0.1 sublet.dev/measured-use={"1":{"percent":40,"pods":0}} "#;
    let (nodes, pods) = cluster(&AGENT.replacen("10.0.0.1 ", used, 1));
    let mut view = view::view(&nodes, &pods, None);
    let claim = compute::tests::claim(100, 300, 600);
    let grant = Grant {
        container: claim.containers()[0].name.clone(),
        card: CardRef {
            index: GpuIndex(1),
            uuid: None,
        },
        memory: MiB::from(100),
    };
    let entry = Entry {
        pod: PodKey::new("default", "c").unwrap(),
        uid: PodUid::new("c").unwrap(),
        node: view.nodes[0].facts.name.clone(),
        claim: Arc::new(claim),
        allocation: Some(Allocation {
            grants: vec![grant],
        }),
        standing: Standing::Bound,
        assigned: true,
        priority: 0,
    };
    let pod = view::pod_view(&entry, &Pod::default(), &view.nodes[0].facts);
    view.nodes[0].pods.push(pod);
    view
}

/// Table and JSON of an example. The tables of `kubectl inspect gpushare` are another's.
pub(crate) fn answers() -> Vec<[String; 2]> {
    let view = view_of_shares();
    let json = serde_json::to_string(&json::inspect(&view)).unwrap();
    vec![[table::wide(&view), json]]
}

#[test]
fn compute_time_is_shown_where_a_pod_asks_for_it() {
    let view = view_of_shares();
    let wide = table::wide(&view);
    for part in [
        "GRANTED   MEMORY     COMPUTE GRANTED  PODS",
        "4000 MiB  16276 MiB  0 %              1 ",
        "100 MiB   8138 MiB   30 %             1 ",
        "5 MiB     -          0 %              1 ",
    ] {
        assert!(wide.contains(part), "{part}\n{wide}");
    }
    let json = serde_json::to_value(json::inspect(&view)).unwrap();
    let gpus = &json["nodes"][0]["gpus"];
    assert_eq!(gpus[0]["computeGrantedPercent"], 0.0);
    assert_eq!(gpus[1]["computeGrantedPercent"], 30.0);
    assert_eq!(
        gpus[1]["pods"][0],
        serde_json::json!({
            "namespace": "default", "name": "c", "grantedMiB": 100, "computeGrantedPercent": 30.0,
            "containers": [{
                "name": "main", "requestMiB": 100, "computeRequestPercent": 30.0,
                "computeLimitPercent": 60.0,
            }],
        })
    );
    assert_eq!(
        gpus[0]["pods"][0]["containers"][0]["computeLimitPercent"],
        100.0
    );
}
