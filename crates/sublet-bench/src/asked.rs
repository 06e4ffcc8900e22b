//! What pods ask of a card, in the forms that six systems have for it.

use serde_json::{Value, json};
use sublet_api::keys;

/// How many forms there are. They come in turn.
pub(crate) const FORMS: usize = 6;

/// What one pod asks: the resources of its container, and what is written on the pod.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    resources: Value,
    labels: Vec<(&'static str, String)>,
    annotations: Vec<(&'static str, String)>,
}

impl From<Value> for Asked {
    /// These resources, and nothing on the pod.
    fn from(resources: Value) -> Asked {
        Asked {
            resources,
            labels: Vec::new(),
            annotations: Vec::new(),
        }
    }
}

impl Asked {
    /// So much memory of a card in MiB, in a form of its own for each of six numbers in succession.
    pub(crate) fn part(number: usize, size_mib: u64) -> Asked {
        let mib = size_mib.to_string();
        let quantity = format!("{size_mib}Mi");
        let with_limits = |limits: Value| {
            Asked::from(json!({
                "requests": { "cpu": "100m", "memory": "128Mi" },
                "limits": limits,
            }))
        };
        match number % FORMS {
            0 => with_limits(json!({ keys::ALIYUN_GPU_MEM: mib })),
            1 => with_limits(json!({ keys::NVIDIA_GPU: "1", keys::HAMI_MEMORY: mib })),
            2 => with_limits(json!({
                keys::KOORDINATOR_MEMORY: quantity, keys::KOORDINATOR_CORE: "10",
                keys::GPU_SLOT: "1",
            })),
            3 => Asked {
                labels: vec![
                    (keys::KUBESHARE_REQUEST, "0.1".to_owned()),
                    (keys::KUBESHARE_LIMIT, "1.0".to_owned()),
                    (keys::KUBESHARE_MEMORY, (size_mib << 20).to_string()),
                ],
                ..with_limits(json!({ keys::GPU_SLOT: "1" }))
            },
            4 => Asked {
                annotations: vec![(keys::KAI_MEMORY, mib)],
                ..with_limits(json!({ keys::GPU_SLOT: "1" }))
            },
            _ => with_limits(json!({ keys::GPU_MEMORY: quantity, keys::GPU_SLOT: "1" })),
        }
    }

    /// The resources of the container.
    pub(crate) fn resources(&self) -> &Value {
        &self.resources
    }

    /// Writes on the pod what stands there, beside what stands there already.
    pub(crate) fn write_on(&self, pod: &mut Value) {
        for (field, marks) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            for (key, value) in marks {
                pod["metadata"][field][key] = json!(value);
            }
        }
    }
}
