//! Traces that `sublet simulate` reads: lists of nodes, pods and quotas in CSV and JSON, and orders
//! of arrival.

use sublet_sim::{BadLines, Sequence, read_nodes, read_pods, read_quotas};

use crate::{Target, text};

pub(super) const TARGET: Target = Target { name: "trace", run };

/// Nodes, pods, quotas and a sequence, with a line of `---` between them.
fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut parts = text.split("---\n");
    let mut part = || parts.next().unwrap_or_default();
    let (nodes, pods, quotas, sequence) = (part(), part(), part(), part());
    let _ = read_quotas(quotas.as_bytes(), BadLines::Count);
    let _ = read_nodes(nodes.as_bytes(), BadLines::Stop);
    let Ok((nodes, _)) = read_nodes(nodes.as_bytes(), BadLines::Count) else {
        return;
    };
    let _ = read_pods(pods.as_bytes(), &nodes, BadLines::Stop);
    let Ok((pods, _)) = read_pods(pods.as_bytes(), &nodes, BadLines::Count) else {
        return;
    };
    let _ = Sequence::read(sequence, &nodes, &pods);
}
