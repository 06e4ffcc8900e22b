//! Nodes, pods and Deployments as a user writes them.

use std::fmt::Write;

use anyhow::Result;
use sublet_api::dialect::{DIALECTS, OfferedCards};
use sublet_api::{NodeReport, report_to_json};
use sublet_model::{Advertise, Gpu, GpuIndex, GpuUuid, Identity, Inventory, MiB, Sharing, Unit};
use sublet_testbed::{PodForm, kwok_node};

/// Containers that may share a card of a played node, in the forms that count them.
const SPLITS: u32 = 100;

/// A node of GPUShare, played by KWOK. Its cards have `memory_mib` together.
#[must_use]
pub fn share_node(name: &str, cards: u32, memory_mib: u64) -> String {
    let (cards, memory) = (cards.to_string(), memory_mib.to_string());
    kwok_node(
        name,
        &[],
        &[
            ("aliyun.com/gpu-mem", &memory),
            ("aliyun.com/gpu-count", &cards),
        ],
    )
}

/// A node played by KWOK with the amounts that an agent writes, so that pods of every dialect can
/// go there; and the inventory that an agent reports. Each card has `memory_mib`.
///
/// # Errors
/// The cards make no inventory.
pub fn agent_node(name: &str, cards: u16, memory_mib: u32) -> Result<(String, String)> {
    let gpu = |index| {
        anyhow::Ok(Gpu {
            uuid: Some(GpuUuid::new(&format!("GPU-{name}-{index}"))?),
            ..Gpu::plain(GpuIndex(index), MiB::from(memory_mib))
        })
    };
    let gpus = (0..cards).map(gpu).collect::<Result<_>>()?;
    let inventory = Inventory::new(gpus, vec![], vec![], vec![])?;
    let offered = OfferedCards {
        count: cards.into(),
        memory: inventory.memory(),
        sharing: Sharing::Memory,
        containers: SPLITS.into(),
    };
    let mut amounts: Vec<(&str, String)> = DIALECTS
        .iter()
        .flat_map(|dialect| dialect.amounts(&offered))
        .map(|(resource, amount)| (resource, amount.to_string()))
        .collect();
    // The devices that the agent offers to kubelet.
    let slots = u32::from(cards) * SPLITS;
    amounts.push(("aliyun.com/gpu-mem", inventory.memory().get().to_string()));
    amounts.push(("nvidia.com/gpu", slots.to_string()));
    amounts.push(("sublet.dev/gpu-slot", slots.to_string()));
    let amounts: Vec<_> = amounts
        .iter()
        .map(|(key, amount)| (*key, amount.as_str()))
        .collect();
    let report = report_to_json(&NodeReport {
        inventory,
        sharing: Sharing::Memory,
        identity: Identity::NoAgent,
        advertise: Advertise::Units,
        unit: Unit::MiB,
        splits: None,
    });
    Ok((kwok_node(name, &[], &amounts), report))
}

/// A pod that waits, in this form.
#[must_use]
pub fn pod_of_form(name: &str, form: &PodForm) -> String {
    let mut pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "sublet-scheduler",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c0", "image": "sublet.test/busybox:1",
                "resources": form.resources(),
            }],
        },
    });
    form.write_on(&mut pod);
    // JSON is YAML.
    format!("---\n{pod}\n")
}

/// The specification of a pod that asks for little, in GPUShare's form.
#[must_use]
pub fn small_pod_spec() -> serde_json::Value {
    serde_json::json!({
        "schedulerName": "sublet-scheduler",
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "main",
            "image": "sublet.test/busybox:1",
            "imagePullPolicy": "Never",
            "command": ["sleep", "1000"],
            "resources": {"limits": {"aliyun.com/gpu-mem": "64"}},
        }],
    })
}

/// Requests of a pod, and the nodes that it accepts.
#[derive(Debug, Clone, Default)]
pub struct Pod<'a> {
    /// Its name, or its Deployment's.
    pub name: &'a str,
    /// Limits of each container, such as `aliyun.com/gpu-mem: 8138`.
    pub limits: &'a [&'a str],
    /// The one node it may go to; any if empty.
    pub node: &'a str,
    /// More lines of its metadata, such as `annotations: {a: b}`.
    pub metadata: &'a str,
    /// More lines of its spec.
    pub spec: &'a str,
}

impl Pod<'_> {
    /// The pod alone.
    #[must_use]
    pub fn yaml(&self) -> String {
        let mut yaml = format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n",
            self.name
        );
        let _ = writeln!(yaml, "  {}\nspec:", self.metadata);
        yaml + &self.template("  ")
    }

    /// A Deployment of so many of these pods.
    #[must_use]
    pub fn deployment(&self, replicas: u32) -> String {
        let name = self.name;
        let mut yaml = format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
             replicas: {replicas}\n  selector: {{matchLabels: {{app: {name}}}}}\n  \
             template:\n    metadata:\n      labels: {{app: {name}}}\n"
        );
        let _ = writeln!(yaml, "      {}\n    spec:", self.metadata);
        yaml + &self.template("      ")
    }

    fn template(&self, indent: &str) -> String {
        let mut yaml = format!(
            "{indent}schedulerName: sublet-scheduler\n{indent}terminationGracePeriodSeconds: 1\n\
             {indent}automountServiceAccountToken: false\n"
        );
        if !self.node.is_empty() {
            let _ = writeln!(
                yaml,
                "{indent}nodeSelector: {{kubernetes.io/hostname: {}}}",
                self.node
            );
        }
        if !self.spec.is_empty() {
            let _ = writeln!(yaml, "{indent}{}", self.spec);
        }
        let _ = writeln!(yaml, "{indent}containers:");
        for (number, limits) in self.limits.iter().enumerate() {
            let _ = writeln!(
                yaml,
                "{indent}- name: c{number}\n{indent}  image: sublet.test/busybox:1\n\
                 {indent}  imagePullPolicy: Never\n\
                 {indent}  args: [sh, -c, exec sleep 100000]\n\
                 {indent}  resources: {{limits: {{{limits}}}}}"
            );
        }
        yaml
    }
}
