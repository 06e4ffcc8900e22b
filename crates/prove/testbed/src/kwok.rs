//! Nodes that KWOK plays, as YAML to apply.
//!
//! Such a node is Ready within a second and runs any pod at once, without a container. It has
//! the capacity that is written here; nothing checks whether that makes sense.

use std::fmt::Write;

/// A node with these annotations and extended resources, and with plenty of CPU, memory and pods.
/// Returns one YAML document, which begins with its separator.
#[must_use]
pub fn kwok_node(name: &str, annotations: &[(&str, &str)], resources: &[(&str, &str)]) -> String {
    let mut yaml = format!(
        "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  \
         labels: {{type: kwok, kubernetes.io/hostname: {name}, kubernetes.io/os: linux, \
         kubernetes.io/arch: amd64}}\n  \
         annotations:\n    kwok.x-k8s.io/node: fake\n"
    );
    for (key, value) in annotations {
        // A YAML string in single quotes takes everything but the quote itself.
        let _ = writeln!(yaml, "    {key}: '{}'", value.replace('\'', "''"));
    }
    yaml += "status:\n";
    for list in ["allocatable", "capacity"] {
        let _ = writeln!(
            yaml,
            "  {list}:\n    cpu: '64'\n    memory: 512Gi\n    pods: '500'"
        );
        for (resource, amount) in resources {
            let _ = writeln!(yaml, "    {resource}: '{amount}'");
        }
    }
    yaml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_what_was_asked() {
        let yaml = kwok_node("n1", &[("a/b", "it's")], &[("aliyun.com/gpu-mem", "32552")]);
        assert!(yaml.starts_with("---\napiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n"));
        assert!(yaml.contains("\n    a/b: 'it''s'\nstatus:\n"), "{yaml}");
        assert_eq!(
            yaml.matches("    aliyun.com/gpu-mem: '32552'\n").count(),
            2,
            "{yaml}"
        );
    }
}
