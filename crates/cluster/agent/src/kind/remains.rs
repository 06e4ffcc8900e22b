//! Looks for processes that a pod may leave behind on a device. Kubelet ends the containers of a
//! pod before the pod is gone, unless the pod was deleted by force; then its processes may run on
//! and hold their devices. The kernel shows everybody the control group of each process, and so its
//! pod.

use std::collections::BTreeSet;
use std::fs;

use sublet_model::PodUid;

/// The process that keeps a pod's namespaces. It goes last, and has no devices.
const SANDBOX: &str = "pause";

/// Number of processes that a reason names.
const NAMED_MAX: usize = 3;

/// Fails with the processes that are left of these pods.
///
/// # Errors
/// There are some; the text names them.
pub(super) fn none_left(pods: &BTreeSet<PodUid>) -> Result<(), String> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // It may end between two looks.
        let Ok(groups) = fs::read_to_string(entry.path().join("cgroup")) else {
            continue;
        };
        if !pods.iter().any(|uid| is_in(&groups, uid)) {
            continue;
        }
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.trim() != SANDBOX {
            left.push(format!("{pid} ({})", name.trim()));
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    let more = match left.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    left.truncate(NAMED_MAX);
    Err(format!(
        "a pod that is gone still has processes: {}{more}",
        left.join(", ")
    ))
}

/// Do these lines of `/proc/PID/cgroup` name the pod's group? `pod` and the UID stand in the name of
/// one folder; where systemd makes the groups, the UID has `_` for `-`.
fn is_in(groups: &str, uid: &PodUid) -> bool {
    let plain = format!("pod{uid}");
    let systemd = format!("pod{}.slice", uid.as_str().replace('-', "_"));
    let mut folders = groups.lines().flat_map(|line| line.split('/'));
    folders.any(|folder| {
        let ends = |name: &str| folder.strip_suffix(name).is_some_and(is_start);
        ends(&plain) || ends(&systemd)
    })
}

/// Checks the text before the pod's name: it may be nothing, or `kubepods-burstable-`.
fn is_start(text: &str) -> bool {
    text.is_empty() || text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_pods_group() {
        let uid = PodUid::new("1b2c-3d").unwrap();
        for (groups, expected) in [
            ("0::/kubepods/burstable/pod1b2c-3d/0123", true),
            (
                "0::/kubepods.slice/kubepods-pod1b2c_3d.slice/cri-containerd-01.scope",
                true,
            ),
            ("4:memory:/kubepods/pod1b2c-3d\n0::/", true),
            ("0::/../../kubepods-besteffort-pod1b2c_3d.slice/x", true),
            ("0::/kubepods/pod1b2c-3d4", false),
            ("0::/kubepods/pod1b2c", false),
            ("0::/kubepods/xpod1b2c-3d", false),
            ("0::/user.slice", false),
            ("", false),
        ] {
            assert_eq!(is_in(groups, &uid), expected, "{groups}");
        }
        let nobody = PodUid::new("nobody-has-this").unwrap();
        assert_eq!(none_left(&[nobody].into()), Ok(()));
    }
}
