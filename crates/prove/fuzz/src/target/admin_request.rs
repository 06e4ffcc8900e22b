//! Messages between commands and the arbiter on `admin.sock`, and the calls that the agent's `top`
//! port takes: every client that is let in there may write any line.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sublet_arbiter::admin::{Reply, Request};

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "admin_request",
    run,
};

fn run(bytes: &[u8]) {
    survives::<Request>(bytes);
    survives::<Reply>(bytes);
}

fn survives<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(read) = serde_json::from_slice::<T>(bytes) {
        let written = serde_json::to_vec(&read).unwrap();
        assert_eq!(serde_json::from_slice::<T>(&written).unwrap(), read);
    }
}
