//! `sublet.dev/preempting`: the node and the victims by which room is made for a pod that waits, as
//! JSON on that pod:
//! `{"node":"n1","at":1764000000,"victims":[{"namespace":"a","name":"p","uid":"u"}]}`.
//!
//! It is written before the first eviction and never again, so a controller that takes over goes on
//! with the same victims, and no pod makes room for itself twice.

use serde::{Deserialize, Serialize};
use sublet_model::{NameError, NodeName, PodKey, PodUid, Time, Victim};

/// Room that is made for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preempting {
    /// Node where room is made.
    pub node: NodeName,
    /// When it was decided, in whole seconds.
    pub at: Time,
    /// Pods to evict; at least one.
    pub victims: Vec<Victim>,
}

/// Reason why a text does not describe a preemption.
#[derive(Debug, thiserror::Error)]
pub enum PreemptingTextError {
    /// Not the JSON that was expected.
    #[error("not a node, a time and victims: {0}")]
    Json(#[from] serde_json::Error),
    /// A wrong name or UID.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It names no victim.
    #[error("`victims` is empty")]
    NoVictim,
}

#[derive(Serialize, Deserialize)]
struct PreemptingJson {
    node: String,
    at: u64,
    victims: Vec<VictimJson>,
}

#[derive(Serialize, Deserialize)]
struct VictimJson {
    namespace: String,
    name: String,
    uid: String,
}

/// The annotation's text.
#[must_use]
pub fn preempting_to_json(preempting: &Preempting) -> String {
    let victim = |victim: &Victim| VictimJson {
        namespace: victim.pod.namespace().to_owned(),
        name: victim.pod.name().to_owned(),
        uid: victim.uid.to_string(),
    };
    let json = PreemptingJson {
        node: preempting.node.to_string(),
        at: preempting.at.ms() / 1_000,
        victims: preempting.victims.iter().map(victim).collect(),
    };
    serde_json::to_string(&json).expect("strings and numbers are always JSON")
}

/// Reads the annotation's text.
///
/// # Errors
/// Not such JSON, a wrong name, or no victim.
pub fn preempting_from_json(text: &str) -> Result<Preempting, PreemptingTextError> {
    let json: PreemptingJson = serde_json::from_str(text)?;
    let victim = |victim: VictimJson| -> Result<Victim, NameError> {
        Ok(Victim {
            pod: PodKey::new(&victim.namespace, &victim.name)?,
            uid: PodUid::new(&victim.uid)?,
        })
    };
    let victims: Result<Vec<Victim>, NameError> = json.victims.into_iter().map(victim).collect();
    let victims = victims?;
    if victims.is_empty() {
        return Err(PreemptingTextError::NoVictim);
    }
    Ok(Preempting {
        node: NodeName::new(&json.node)?,
        at: Time::from_ms(json.at.saturating_mul(1_000)),
        victims,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str =
        r#"{"node":"n1","at":1764000000,"victims":[{"namespace":"a","name":"p","uid":"u"}]}"#;

    #[test]
    fn the_text_is_read_back() {
        let read = preempting_from_json(TEXT).unwrap();
        assert_eq!(read.at, Time::from_ms(1_764_000_000_000));
        assert_eq!(read.victims[0].uid.as_str(), "u");
        assert_eq!(preempting_to_json(&read), TEXT);
        let nobody = preempting_from_json(r#"{"node":"n1","at":0,"victims":[]}"#);
        assert!(
            matches!(nobody, Err(PreemptingTextError::NoVictim)),
            "{nobody:?}"
        );
    }

    proptest! {
        #[test]
        fn any_text_says_something_or_nothing(at in 0..TEXT.len(), byte in any::<u8>()) {
            prop_assert!(preempting_from_json(&TEXT[..at]).is_err());
            let mut damaged = TEXT.as_bytes().to_vec();
            damaged[at] = byte;
            if let Ok(read) = preempting_from_json(&String::from_utf8_lossy(&damaged)) {
                prop_assert_eq!(preempting_from_json(&preempting_to_json(&read)).unwrap(), read);
            }
        }
    }
}
