//! The kube-scheduler's calls to the extender; on a node's own network any local user may call.

use sublet_api::extender::{BindArgs, ExtenderArgs, PreemptArgs, from_str};

use crate::target::pod;
use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "extender_call",
    run,
};

fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(call) = from_str::<ExtenderArgs<'_>>(text) {
        let names = call.names().unwrap_or_default();
        if let Some(whole) = call.whole(&names) {
            let written = serde_json::to_string(&whole).unwrap();
            assert!(serde_json::from_str::<serde_json::Value>(&written).is_ok());
        }
        pod::read(&call.pod);
    }
    if let Ok(call) = from_str::<PreemptArgs>(text) {
        pod::read(&call.pod);
        let _ = call.victims();
    }
    let _ = from_str::<BindArgs>(text);
}
