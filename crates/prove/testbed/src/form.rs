//! Requests of pods on a card, in the forms that six systems have for them. Written as their users
//! write them, with the slot that the webhook would add.

use serde_json::{Value, json};

/// Number of forms. They come in turn.
pub const FORMS: usize = 6;

/// One pod's request: the resources of its container, and the pod's annotations and labels.
#[derive(Debug, Clone)]
pub struct PodForm {
    resources: Value,
    labels: Vec<(&'static str, String)>,
    annotations: Vec<(&'static str, String)>,
}

impl From<Value> for PodForm {
    /// These resources, and nothing on the pod.
    fn from(resources: Value) -> PodForm {
        PodForm {
            resources,
            labels: Vec::new(),
            annotations: Vec::new(),
        }
    }
}

impl PodForm {
    /// So much memory of a card in MiB, in a form of its own for each of six numbers in succession.
    #[must_use]
    pub fn part(number: usize, size_mib: u64) -> PodForm {
        let mib = size_mib.to_string();
        let quantity = format!("{size_mib}Mi");
        let with_limits = |limits: Value| {
            PodForm::from(json!({
                "requests": { "cpu": "100m", "memory": "128Mi" },
                "limits": limits,
            }))
        };
        match number % FORMS {
            0 => with_limits(json!({ "aliyun.com/gpu-mem": mib })),
            1 => with_limits(json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib })),
            2 => with_limits(json!({
                "koordinator.sh/gpu-memory": quantity, "koordinator.sh/gpu-core": "10",
                "sublet.dev/gpu-slot": "1",
            })),
            3 => PodForm {
                labels: vec![
                    ("sharedgpu/gpu_request", "0.1".to_owned()),
                    ("sharedgpu/gpu_limit", "1.0".to_owned()),
                    ("sharedgpu/gpu_mem", (size_mib << 20).to_string()),
                ],
                ..with_limits(json!({ "sublet.dev/gpu-slot": "1" }))
            },
            4 => PodForm {
                annotations: vec![("gpu-memory", mib)],
                ..with_limits(json!({ "sublet.dev/gpu-slot": "1" }))
            },
            _ => with_limits(
                json!({ "sublet.dev/gpu-memory": quantity, "sublet.dev/gpu-slot": "1" }),
            ),
        }
    }

    /// The resources of the container.
    #[must_use]
    pub fn resources(&self) -> &Value {
        &self.resources
    }

    /// Adds the request's annotations and labels to the pod.
    pub fn write_on(&self, pod: &mut Value) {
        for (field, marks) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            for (key, value) in marks {
                pod["metadata"][field][key] = json!(value);
            }
        }
    }
}
