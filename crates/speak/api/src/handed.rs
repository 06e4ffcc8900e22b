//! `sublet.dev/handed-over`: cards that a node's agent has handed to pods which do not say it
//! themselves, as JSON on the node: `{"<pod's UID>":[{"index":0,"uuid":"GPU-…"}]}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_model::{CardRef, GpuIndex, GpuUuid, NameError, PodUid};

/// Cards by pod.
pub type Handed = BTreeMap<PodUid, Vec<CardRef>>;

/// Reason why a text does not name the cards that were handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandedTextError {
    /// Not the JSON that was expected.
    #[error("not a list of cards by pod: {0}")]
    Json(#[from] serde_json::Error),
    /// A wrong UID or UUID.
    #[error(transparent)]
    Name(#[from] NameError),
}

#[derive(Serialize, Deserialize)]
struct CardJson {
    index: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
}

/// The annotation's text.
#[must_use]
pub fn handed_to_json(handed: &Handed) -> String {
    let card = |card: &CardRef| CardJson {
        index: card.index.0,
        uuid: card.uuid.as_ref().map(GpuUuid::to_string),
    };
    let by_pod = |(uid, cards): (&PodUid, &Vec<CardRef>)| {
        let cards: Vec<CardJson> = cards.iter().map(card).collect();
        (uid.to_string(), cards)
    };
    let all: BTreeMap<String, Vec<CardJson>> = handed.iter().map(by_pod).collect();
    serde_json::to_string(&all).expect("strings and numbers are always JSON")
}

/// Reads the annotation's text.
///
/// # Errors
/// Not such JSON, or a wrong name.
pub fn handed_from_json(text: &str) -> Result<Handed, HandedTextError> {
    let all: BTreeMap<String, Vec<CardJson>> = serde_json::from_str(text)?;
    let card = |card: CardJson| -> Result<CardRef, NameError> {
        Ok(CardRef {
            index: GpuIndex(card.index),
            uuid: card.uuid.as_deref().map(GpuUuid::new).transpose()?,
        })
    };
    let by_pod = |(uid, cards): (String, Vec<CardJson>)| {
        let cards: Result<_, NameError> = cards.into_iter().map(card).collect();
        Ok((PodUid::new(&uid)?, cards?))
    };
    all.into_iter().map(by_pod).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_back_and_garbage_is_named() {
        let text = r#"{"u-1":[{"index":1,"uuid":"GPU-b"},{"index":0}],"u-2":[]}"#;
        let handed = handed_from_json(text).unwrap();
        assert_eq!(handed[&PodUid::new("u-1").unwrap()].len(), 2);
        assert_eq!(handed_to_json(&handed), text);
        let error = |text| handed_from_json(text).unwrap_err().to_string();
        assert!(error("[]").starts_with("not a list of cards by pod"));
        assert!(error(r#"{"":[]}"#).contains("must not be empty"));
        assert!(error(r#"{"u":[{"index":0,"uuid":"a,b"}]}"#).contains("must not contain ','"));
    }
}
