//! Namespaces with quotas, row H16 of HAMi's tests among them.

use proptest::prelude::*;
use serde_json::{Value, json};
use sublet_client::Change;

use super::world::World;

/// Cards of 16,000 MiB, and the quota `q` of the namespace `default`.
fn world(cards: u64, hard: &Value) -> World {
    let world = World::of_none(sublet_plan::EngineOptions::default());
    world.node("n1", cards * 16_000, cards);
    set_quota(&world, hard);
    world.ready();
    world
}

fn quota(hard: &Value) -> sublet_api::ResourceQuota {
    let metadata = json!({"namespace": "default", "name": "q"});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"hard": hard}})).unwrap()
}

fn set_quota(world: &World, hard: &Value) {
    let change = Change::Set(quota(hard));
    crate::quotas::quotas(&world.scheduler, &mut None, change);
}

/// `init 800, 800 + 500`: MiB of each container; `2x400` of two cards, `50%` of a card, `@30` with
/// that much of its compute time.
fn pod(name: &str, picture: &str) -> Value {
    let one = |(at, text): (usize, &str)| {
        let (text, cores) = text.split_once('@').unwrap_or((text, "0"));
        let (count, amount) = text.split_once('x').unwrap_or(("1", text));
        let (key, amount) = match amount.strip_suffix('%') {
            Some(percent) => ("nvidia.com/gpumem-percentage", percent),
            None => ("nvidia.com/gpumem", amount),
        };
        let limits = json!({ "nvidia.com/gpu": count, key: amount, "nvidia.com/gpucores": cores });
        json!({ "name": format!("c{at}"), "resources": { "limits": limits } })
    };
    let all = |text: &str| -> Value { text.split(" + ").enumerate().map(one).collect() };
    let mut spec = match picture.strip_prefix("init ") {
        None => json!({ "containers": all(picture) }),
        Some(text) => {
            let (init, main) = text.split_once(", ").unwrap_or((text, "1"));
            json!({ "initContainers": all(init), "containers": all(main) })
        }
    };
    let init = spec["initContainers"].as_array_mut();
    for (at, container) in init.into_iter().flatten().enumerate() {
        container["name"] = json!(format!("i{at}"));
    }
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": name },
        "spec": spec,
    })
}

impl World {
    /// Creates the pod; true if filter lets it pass.
    async fn passes(&self, name: &str, picture: &str) -> bool {
        let pod = pod(name, picture);
        let answer = self.filter(&pod, &["n1"]).await;
        let parsed = serde_json::from_value(pod.clone()).unwrap();
        self.scheduler.state().set_pod(&parsed);
        *self.api.pod.lock().unwrap() = Some(pod);
        let passes = answer["NodeNames"] == json!(["n1"]);
        let why = answer["FailedAndUnresolvableNodes"]["n1"].as_str();
        let why = why.unwrap_or_default();
        assert_eq!(
            !passes,
            why.contains("its quota limits.nvidia.com/"),
            "{answer}"
        );
        passes
    }
}

#[tokio::test]
async fn h16_memory_of_all_cards_of_all_pods_counts_at_its_worst_moment() {
    let memory = |amount: &str| json!({ "limits.nvidia.com/gpumem": amount });
    for (hard, picture, expected) in [
        (memory("1000"), "100", true),
        (memory("1000"), "1024", false),
        (memory("1000"), "2x400", true),
        (memory("1000"), "2x1024", false),
        (memory("1000"), "init 800, 800 + 500", false),
        (memory("1000"), "init 800 + 800, 500", true),
        (memory("1000"), "init 1500, 1", false),
        (memory("1k"), "500 + 500", true),
        (memory("7999"), "50%", false),
        (memory("8000"), "50%", true),
        (memory("0"), "1", false),
        (
            json!({ "limits.nvidia.com/gpucores": "60" }),
            "2x400@30",
            true,
        ),
        (
            json!({ "limits.nvidia.com/gpucores": "59" }),
            "2x400@30",
            false,
        ),
        (json!({ "limits.nvidia.com/gpucores": "0" }), "400", true),
        (json!({ "requests.nvidia.com/gpumem": "0" }), "400", true),
    ] {
        let world = world(4, &hard);
        assert_eq!(
            world.passes("a", picture).await,
            expected,
            "{hard} {picture}"
        );
    }
}

#[tokio::test]
async fn of_two_pods_that_pass_together_one_is_bound() {
    let world = world(1, &json!({ "limits.nvidia.com/gpumem": "1000" }));
    assert!(world.passes("b", "500").await);
    assert!(world.passes("a", "600").await);
    assert_eq!(world.bind("a", "n1").await, "");
    let refused = world.bind("b", "n1").await;
    let why = "500 MiB of GPU memory asked, and namespace default has 600 MiB of the 1000 MiB that its \
               quota limits.nvidia.com/gpumem allows";
    assert_eq!(refused, why);
    assert_eq!(world.standing("b"), None, "it keeps no place");

    // Other forms count too, and other namespaces do not.
    assert!(!world.passes("c", "401").await && world.passes("d", "400").await);
    let units = super::world::pod("units", 401);
    let answer = world.filter(&units, &["n1"]).await;
    assert!(answer["FailedAndUnresolvableNodes"]["n1"].is_string());
    let mut elsewhere = pod("e", "500");
    elsewhere["metadata"]["namespace"] = json!("other");
    assert_eq!(
        world.filter(&elsewhere, &["n1"]).await["NodeNames"],
        json!(["n1"])
    );

    // The quota goes.
    let gone = Change::Gone(quota(&json!({})));
    crate::quotas::quotas(&world.scheduler, &mut None, gone);
    assert!(world.passes("b", "500").await);
}

#[tokio::test]
async fn nothing_is_decided_before_the_quotas_are_known() {
    let world = World::of_none(sublet_plan::EngineOptions::default());
    world.scheduler.mark_listed(crate::state::Listed::Nodes);
    world.scheduler.mark_listed(crate::state::Listed::Pods);
    assert!(!world.scheduler.is_ready());
    let mut listed = None;
    for change in [
        Change::ListBegins,
        Change::Set(quota(&json!({}))),
        Change::ListEnds,
    ] {
        crate::quotas::quotas(&world.scheduler, &mut listed, change);
    }
    assert!(world.scheduler.is_ready());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// For any requests in any order, and though every pod passed filter before any was bound.
    #[test]
    fn a_namespace_never_has_more_than_its_quota(
        asked in proptest::collection::vec((1..3_u64, 1..900_u64, 0..40_u64), 1..8),
        limit in 0..3_000_u64,
        cores in 0..120_u64,
    ) {
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        executor.block_on(async {
            let hard = json!({ "limits.nvidia.com/gpumem": limit.to_string(), "limits.nvidia.com/gpucores": cores.to_string() });
            let world = world(3, &hard);
            let picture = |(count, memory, cores): &(u64, u64, u64)| format!("{count}x{memory}@{cores}");
            let mut passed = Vec::new();
            for (at, one) in asked.iter().enumerate() {
                if world.passes(&at.to_string(), &picture(one)).await {
                    passed.push(at);
                }
            }
            let (mut memory, mut compute) = (0, 0);
            for at in passed {
                let (count, each, percent) = asked[at];
                let name = at.to_string();
                *world.api.pod.lock().unwrap() = Some(pod(&name, &picture(&asked[at])));
                let fits = memory + count * each <= limit
                    && (percent == 0 || compute + count * percent <= cores);
                let said = world.bind(&name, "n1").await;
                assert_eq!(said.is_empty(), fits, "{said}");
                if fits {
                    memory += count * each;
                    compute += count * percent;
                }
            }
        });
    }
}
