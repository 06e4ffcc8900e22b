//! `sublet.dev/measured-use`: the load of a node's cards, as its agent measured it, as JSON on the
//! node: `{"<card's index>":{"percent":40,"pods":2}}`. A card that is not in it was not measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_model::{GpuIndex, MeasuredUse, Milli};

use crate::keys;
use crate::object::Node;

/// Load by card; the content of [`keys::MEASURED_USE`].
pub type NodeUse = BTreeMap<GpuIndex, MeasuredUse>;

/// The longest text that is read: a thousand cards. It comes again with every node, every minute.
const MAX_BYTES: usize = 1 << 16;

/// Reason why a text does not give the load of the cards.
#[derive(Debug, thiserror::Error)]
pub enum UseTextError {
    /// More than an agent writes.
    #[error("{0} bytes, and at most {MAX_BYTES} are read")]
    TooLong(usize),
    /// Not the JSON that was expected.
    #[error("not the use of cards by their index: {0}")]
    Json(#[from] serde_json::Error),
    /// More than all of a card's time.
    #[error("GPU {gpu} is busy for {percent} % of its time; 100 is the most")]
    Percent {
        /// The card.
        gpu: GpuIndex,
        /// As written.
        percent: u32,
    },
}

#[derive(Serialize, Deserialize)]
struct UseJson {
    percent: u32,
    pods: u32,
}

/// The annotation's text; percent are rounded to whole ones.
#[must_use]
pub fn use_to_json(measured: &NodeUse) -> String {
    let card = |(gpu, card): (&GpuIndex, &MeasuredUse)| {
        let percent = (u32::from(card.busy.get()) + 5) / 10;
        let pods = card.pods;
        (gpu.0, UseJson { percent, pods })
    };
    let all: BTreeMap<u16, UseJson> = measured.iter().map(card).collect();
    serde_json::to_string(&all).expect("numbers are always JSON")
}

/// Reads the annotation's text.
///
/// # Errors
/// Too long, not such JSON, or more than 100 percent.
pub fn use_from_json(text: &str) -> Result<NodeUse, UseTextError> {
    if text.len() > MAX_BYTES {
        return Err(UseTextError::TooLong(text.len()));
    }
    let all: BTreeMap<u16, UseJson> = serde_json::from_str(text)?;
    let card = |(index, UseJson { percent, pods })| {
        let gpu = GpuIndex(index);
        let milli = u16::try_from(percent.saturating_mul(10)).ok();
        let busy = milli.and_then(Milli::new);
        let busy = busy.ok_or(UseTextError::Percent { gpu, percent })?;
        Ok((gpu, MeasuredUse { busy, pods }))
    };
    all.into_iter().map(card).collect()
}

/// Load measured by a node's agent; empty if the agent reports none.
///
/// # Errors
/// The annotation cannot be read. The node then counts like a node without it.
pub fn measured_use(node: &Node) -> Result<NodeUse, UseTextError> {
    let text = node.metadata.annotations.get(keys::MEASURED_USE);
    text.map_or_else(|| Ok(NodeUse::new()), |text| use_from_json(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_is_read_back_and_garbage_is_named() {
        let text = r#"{"0":{"percent":40,"pods":2},"11":{"percent":100,"pods":0}}"#;
        assert_eq!(use_to_json(&use_from_json(text).unwrap()), text);
        assert_eq!(use_to_json(&NodeUse::new()), "{}");
        let error = |text: &str| use_from_json(text).unwrap_err().to_string();
        for (text, wanted) in [
            ("", "not the use of cards by their index: EOF"),
            ("[]", "not the use of cards by their index: invalid type"),
            (r#"{"a":{"percent":1,"pods":1}}"#, "not the use of cards"),
            (r#"{"-1":{"percent":1,"pods":1}}"#, "not the use of cards"),
            (
                r#"{"65536":{"percent":1,"pods":1}}"#,
                "not the use of cards",
            ),
            (r#"{"0":{"percent":-1,"pods":1}}"#, "not the use of cards"),
            (r#"{"0":{"percent":1}}"#, "not the use of cards"),
            (
                r#"{"3":{"percent":101,"pods":1}}"#,
                "GPU 3 is busy for 101 % of its time; 100 is the most",
            ),
            (
                r#"{"0":{"percent":4294967295,"pods":1}}"#,
                "GPU 0 is busy for 4294967295 %",
            ),
        ] {
            assert!(error(text).starts_with(wanted), "{text}: {}", error(text));
        }
        let long = " ".repeat(MAX_BYTES + 1);
        assert_eq!(error(&long), "65537 bytes, and at most 65536 are read");
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in r#"[{}":,0-9a-z -]{0,60}|\{"[0-9]{0,6}":\{"percent":[0-9]{1,11},"pods":[0-9]{1,11}\}\}"#) {
            if let Ok(read) = use_from_json(&text) {
                prop_assert_eq!(use_from_json(&use_to_json(&read)).unwrap(), read);
            }
        }

        #[test]
        fn what_is_written_is_read_to_a_percent(
            cards in prop::collection::btree_map(0..4096_u16, (0..=1000_u16, any::<u32>()), 0..20),
        ) {
            let measured: NodeUse = cards
                .iter()
                .map(|(&index, &(busy, pods))| {
                    let busy = Milli::new(busy).unwrap();
                    (GpuIndex(index), MeasuredUse { busy, pods })
                })
                .collect();
            let read = use_from_json(&use_to_json(&measured)).unwrap();
            prop_assert!(read.keys().eq(measured.keys()));
            for (card, said) in read.values().zip(measured.values()) {
                prop_assert_eq!(card.pods, said.pods);
                prop_assert!(card.busy.get().abs_diff(said.busy.get()) <= 5);
            }
        }
    }
}
