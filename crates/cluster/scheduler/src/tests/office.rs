//! A leader that takes office while the API server is ill.

use std::future::pending;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use sublet_client::ObjectAddress;
use sublet_plan::{EngineOptions, Policy};
use sublet_replicas::leader::{SWIFT, campaign, candidacy};
use tokio::sync::watch;

use super::world::World;
use crate::replicas::{Holder, Replicas, take_office};

/// An ill API server needs a full list of pods every 50 ms least of all.
#[tokio::test]
async fn a_new_leader_lists_with_growing_pauses_while_the_api_server_is_ill() {
    let world = World::of_none(EngineOptions::of(Policy::binpack()));
    // A Lease that was given back.
    *world.api.pod.lock().unwrap() = Some(json!({
        "metadata": {"name": "l", "resourceVersion": "7"}, "spec": {"holderIdentity": ""},
    }));
    let (campaigner, leadership) = candidacy();
    let (_link, links) = watch::channel(None);
    let me = Holder {
        name: "me".to_owned(),
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
    };
    let replicas = Replicas::new(me, leadership, links);
    let lease = ObjectAddress::of::<Lease>(Some("a"), "l");
    let leading = world.scheduler.metrics.leading.clone();
    let client = world.api.clone().client();
    let me = replicas.me.to_string();
    let campaigns = campaign(client, lease, me, SWIFT, campaigner, leading, pending());
    let office = take_office(world.scheduler.clone(), replicas.into());
    let begun = Instant::now();
    let until_listed = async {
        while world.api.lists.lock().unwrap().len() < 6 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "it lists no more"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ended = campaigns => panic!("the campaign has ended"),
        () = office => panic!("the office has ended"),
        () = until_listed => {}
    }
    let lists = world.api.lists.lock().unwrap().clone();
    let gaps = lists.windows(2).map(|pair| pair[1] - pair[0]);
    for (gap, least) in gaps.zip([50, 100, 200, 400, 800]) {
        assert!(
            gap >= Duration::from_millis(least),
            "{gap:?}, not {least} ms"
        );
    }
}
