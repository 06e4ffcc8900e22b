//! Nodes, pods and Deployments as a user writes them.

use std::fmt::Write;

use sublet_testbed::kwok_node;

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

/// What a pod asks for, and where it may go.
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
