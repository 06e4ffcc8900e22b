//! Wishes in scripts.

use std::sync::Arc;

use sublet_model::{CardWishes, GpuUuid};

/// Reads `a100,GPU-b,!v100,numa` and tags: `aff=a,anti=b,only=c,as=d`.
pub(super) fn read(text: &str) -> CardWishes {
    let mut wishes = CardWishes::default();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        if let Some((kind, tag)) = word.split_once('=') {
            let tags = &mut wishes.tags;
            let slot = match kind {
                "aff" => &mut tags.affinity,
                "anti" => &mut tags.anti_affinity,
                "as" => &mut tags.virtual_gpu,
                _ => &mut tags.exclusion,
            };
            *slot = Some(Arc::from(tag));
            continue;
        }
        let (wanted, name) = word
            .strip_prefix('!')
            .map_or((true, word), |no| (false, no));
        let uuid = GpuUuid::new(name).ok().filter(|_| name.starts_with("GPU-"));
        match (wanted, uuid) {
            (true, Some(uuid)) => wishes.uuids.insert(uuid),
            (false, Some(uuid)) => wishes.not_uuids.insert(uuid),
            (true, None) if name == "numa" => !std::mem::replace(&mut wishes.one_numa, true),
            (true, None) => wishes.models.insert(Arc::from(name)),
            (false, None) => wishes.not_models.insert(Arc::from(name)),
        };
    }
    wishes
}
