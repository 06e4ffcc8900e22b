//! Values of the chart that the options of `sublet install` stand for. Pure.

use std::str::FromStr;

use serde_json::{Value, json};

/// The second kube-scheduler's port in the host's network, where the first one has 10259.
const SECOND_PORT: u16 = 39_993;

/// Label of the nodes where the cluster's own scheduler runs.
pub(super) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Name of an image, with the tag or the digest that the chart asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// As it was written.
    pub(super) name: String,
    /// As the chart takes it.
    values: Value,
}

impl FromStr for Image {
    type Err = String;

    fn from_str(text: &str) -> Result<Image, String> {
        let (tagged, digest) = text.split_once('@').unwrap_or((text, ""));
        let (repository, tag) = match tagged.rsplit_once(':') {
            // A colon before the last slash is that of a registry's port.
            Some((repository, tag)) if !tag.contains('/') => (repository, tag),
            _ => (tagged, ""),
        };
        let mut values = json!({"repository": repository, "digest": digest});
        if digest.is_empty() {
            values["tag"] = tag.into();
        }
        match repository.is_empty() || (tag.is_empty() && digest.is_empty()) {
            true => Err("it needs a tag or a digest: REGISTRY/NAME:TAG".to_owned()),
            false => Ok(Image {
                name: text.to_owned(),
                values,
            }),
        }
    }
}

/// Differences from the chart's default values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Choices {
    /// Sublet's image.
    pub(super) image: Option<Image>,
    /// The stock kube-scheduler's.
    pub(super) kube_scheduler_image: Option<Image>,
    /// The cluster's own scheduler asks the extender too, at this port of its node's loopback.
    pub(super) default_scheduler: Option<u16>,
    /// Files of values for helm, which count before what is above.
    pub(super) files: Vec<String>,
    /// Single values for helm, which count before those files.
    pub(super) set: Vec<String>,
}

impl Choices {
    /// Values for all but the user's own. With the cluster's own scheduler the extender goes to the
    /// control plane's node and into its network: that scheduler reaches it there on loopback.
    pub(super) fn values(&self) -> Value {
        let mut values = json!({});
        if let Some(image) = &self.image {
            values["image"] = image.values.clone();
        }
        if let Some(image) = &self.kube_scheduler_image {
            values["scheduler"]["image"] = image.values.clone();
        }
        if let Some(port) = self.default_scheduler {
            values["moreSchedulers"] = json!(["default-scheduler"]);
            let scheduler = &mut values["scheduler"];
            scheduler["hostNetwork"] = true.into();
            // Its ports are the host's, and there is one such node.
            scheduler["replicas"] = 1.into();
            scheduler["nodeSelector"] = json!({CONTROL_PLANE: ""});
            scheduler["ports"] = json!({"extender": port, "kubeScheduler": SECOND_PORT});
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_tag_or_a_digest() {
        let values = |text: &str| text.parse::<Image>().map(|image| image.values);
        assert_eq!(
            values("r.test:5000/k:v1"),
            Ok(json!({"repository": "r.test:5000/k", "tag": "v1", "digest": ""}))
        );
        // The digest counts.
        assert_eq!(
            values("k:v1@sha256:0"),
            Ok(json!({"repository": "k", "digest": "sha256:0"}))
        );
        for bad in ["", ":1", "r.test:5000/k", "@sha256:0"] {
            assert!(values(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn for_the_clusters_own_scheduler_the_extender_is_on_its_loopback() {
        let choices = Choices {
            image: Some("r.test/sublet:1".parse().unwrap()),
            default_scheduler: Some(4000),
            ..Choices::default()
        };
        assert_eq!(
            choices.values(),
            json!({
                "image": {"repository": "r.test/sublet", "tag": "1", "digest": ""},
                "moreSchedulers": ["default-scheduler"],
                "scheduler": {
                    "hostNetwork": true,
                    "replicas": 1,
                    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
                    "ports": {"extender": 4000, "kubeScheduler": 39_993},
                },
            })
        );
        assert_eq!(Choices::default().values(), json!({}));
    }
}
