//! The agent's record of each container, kept on disk and read when the agent starts anew.

use sublet_agent::isolate::record::Record;

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "agent_record",
    run,
};

fn run(bytes: &[u8]) {
    let Ok(mut record) = serde_json::from_slice::<Record>(bytes) else {
        return;
    };
    let written = serde_json::to_vec(&record).unwrap();
    assert_eq!(serde_json::from_slice::<Record>(&written).unwrap(), record);
    assert_eq!(record.limits().memory.len(), record.cards.len());
    let _ = (record.promise(), record.name(), record.compute_time());
    let _ = (record.holders().count(), record.twins().len());
    let uid = record.twins().first().map(|[uid, ..]| uid.clone());
    let _ = record.is_of(&uid.unwrap_or_default());
    let _ = record.rule_out(|uid| uid.len().is_multiple_of(2));
}
