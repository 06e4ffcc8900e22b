//! Settings of the parser that knows all of YAML, the same wherever a document or a part of it is
//! read. Nothing is read here.

/// Limits against input that is made to grow without end, wide enough for the largest
/// cluster Kubernetes supports (150,000 pods) in one list.
pub(super) fn parser_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 500_000_000,
            max_nodes: 250_000_000,
            max_total_scalar_bytes: 4 << 30,
        },
        with_snippet: false,
    }
}
