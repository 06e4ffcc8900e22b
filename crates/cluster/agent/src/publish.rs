//! Tells the cluster what the node has: the inventory annotation on the node object, and
//! those amounts that kubelet does not write into the node's status. `offer` and `measured` decide
//! the content; this module compares it with what the node says and writes the
//! difference, so that looking often costs one GET and no write.

use std::collections::BTreeMap;

use sublet_api::object::Node;
use sublet_api::{Handed, handed_to_json, keys, whole_number};
use sublet_client::{Client, Write, WriteError};
use sublet_model::NodeName;
use tracing::info;

use crate::api_calls::send;

pub(crate) mod device;
pub mod measured;
pub mod offer;
pub mod register;

use offer::Offer;

/// Facts that the node object lacks, or has wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Annotations to set, or to remove.
    pub annotations: BTreeMap<String, Option<String>>,
    /// The node's resource version, if the annotations are only right for that very node: somebody
    /// else writes some of them too.
    pub only_for: Option<String>,
    /// Amounts to set in the status.
    pub amounts: BTreeMap<String, String>,
}

/// Compares a node with its offer, and with the cards that were handed to pods which do not say
/// so themselves.
#[must_use]
pub fn missing(node: &Node, offer: &Offer, lost: &Handed) -> Missing {
    let mut missing = Missing::default();
    if node.metadata.annotations.get(keys::INVENTORY) != Some(&offer.annotation) {
        let text = offer.annotation.clone();
        let key = keys::INVENTORY.to_owned();
        missing.annotations.insert(key, Some(text));
    }
    let (said, lost) = (
        node.metadata.annotations.get(keys::HANDED_OVER),
        handed_to_json(lost),
    );
    // Absent is as good as empty.
    if said.map_or("{}", String::as_str) != lost {
        let key = keys::HANDED_OVER.to_owned();
        missing.annotations.insert(key, Some(lost));
    }
    for (&resource, &amount) in &offer.status {
        let said = node.status.capacity.get(resource);
        // Absent is as good as zero; what cannot be read is overwritten.
        let said = said.map_or(Ok(0), |quantity| whole_number(&quantity.0));
        if said != Ok(amount) {
            let amount = amount.to_string();
            missing.amounts.insert(resource.to_owned(), amount);
        }
    }
    missing
}

/// Writes the missing parts. The annotation goes first: with amounts alone the node would
/// be taken for one without an agent.
///
/// # Errors
/// The API server's answer, or none.
pub async fn publish(
    client: &Client,
    node: &NodeName,
    missing: &Missing,
) -> Result<(), WriteError> {
    if !missing.annotations.is_empty() {
        let only_for = missing.only_for.as_deref();
        let write = Write::node_annotations(node, &missing.annotations, only_for);
        send(client, &write).await?;
        let texts = missing.annotations.values().flatten();
        let bytes: usize = texts.map(String::len).sum();
        info!(%node, bytes, "annotations published");
    }
    if !missing.amounts.is_empty() {
        send(client, &Write::node_capacity(node, &missing.amounts)).await?;
        info!(%node, amounts = ?missing.amounts, "amounts published");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sublet_api::object::Quantity;
    use sublet_model::{Advertise, PodUid};

    use super::*;

    fn said<'a>(missing: &'a Missing, key: &str) -> &'a str {
        missing.annotations[key].as_deref().unwrap()
    }

    /// The amounts written for a node whose status says `picture`.
    fn check(picture: &str) -> String {
        let mut node = Node::default();
        for word in picture.split_whitespace() {
            let (resource, amount) = word.split_once('=').unwrap();
            let amount = Quantity(amount.to_owned());
            node.status.capacity.insert(resource.to_owned(), amount);
        }
        let offer = Offer {
            advertise: Advertise::Slots,
            annotation: "report".to_owned(),
            hami_register: None,
            lists: BTreeMap::new(),
            status: [(keys::ALIYUN_GPU_COUNT, 0), (keys::ALIYUN_GPU_MEM, 8000)].into(),
        };
        let missing = missing(&node, &offer, &Handed::new());
        assert_eq!(said(&missing, keys::INVENTORY), "report");
        let amounts = missing.amounts.iter();
        let amounts: Vec<String> = amounts.map(|(k, v)| format!("{k}={v}")).collect();
        amounts.join(" ")
    }

    #[test]
    fn only_differences_are_written() {
        assert_eq!(check(""), "aliyun.com/gpu-mem=8000");
        assert_eq!(check("aliyun.com/gpu-mem=8k aliyun.com/gpu-count=0"), "");
        assert_eq!(
            check("aliyun.com/gpu-mem=0 aliyun.com/gpu-count=2"),
            "aliyun.com/gpu-count=0 aliyun.com/gpu-mem=8000"
        );
        assert_eq!(check("aliyun.com/gpu-mem=?"), "aliyun.com/gpu-mem=8000");
    }

    #[test]
    fn a_published_report_is_left_alone_and_a_new_node_gets_it() {
        let offer = Offer {
            advertise: Advertise::Units,
            annotation: "report".to_owned(),
            hami_register: None,
            lists: BTreeMap::new(),
            status: BTreeMap::new(),
        };
        let mut node = Node::default();
        assert_eq!(missing(&node, &offer, &Handed::new()).annotations.len(), 1);
        let annotation = (keys::INVENTORY.to_owned(), "report".to_owned());
        node.metadata.annotations.extend([annotation]);
        assert_eq!(missing(&node, &offer, &Handed::new()), Missing::default());
        let lost: Handed = [(PodUid::new("u").unwrap(), Vec::new())].into();
        let written = missing(&node, &offer, &lost);
        let text = said(&written, keys::HANDED_OVER).to_owned();
        assert_eq!(text, r#"{"u":[]}"#);
        let annotation = (keys::HANDED_OVER.to_owned(), text);
        node.metadata.annotations.extend([annotation]);
        assert_eq!(missing(&node, &offer, &lost), Missing::default());
        let written = missing(&node, &offer, &Handed::new());
        assert_eq!(said(&written, keys::HANDED_OVER), "{}");
    }
}
