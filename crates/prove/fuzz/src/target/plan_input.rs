//! Kubernetes' objects in YAML and JSON, as `sublet plan` and the other commands read them from
//! files.

use sublet_cli::plan::Input;

use crate::target::pod;
use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "plan_input",
    run,
};

fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut input = Input::default();
    input.read("a file", text);
    for pod in &input.pods {
        pod::read(&pod.object);
    }
    for odd in &input.unreadable {
        serde_json::to_string(odd).unwrap();
    }
}
