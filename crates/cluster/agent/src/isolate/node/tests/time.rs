//! Ways in which containers share the time of a card, as the operator wants it.

use sublet_arbiter::ExclusiveSlices;

use super::*;

/// A control program that serves every caller at once. Another process writes it: while this one
/// has it open, a child of another test may have it open too, and then it cannot be run.
fn serves(file: &Path) {
    let script =
        "printf '#!/bin/sh\\n[ $# = 0 ] || exec sleep 600\\n' > \"$1\" && chmod 755 \"$1\"";
    let mut writer = std::process::Command::new("sh");
    let written = writer.args(["-c", script, "sh"]).arg(file).status();
    assert!(written.unwrap().success());
}

#[test]
fn under_mps_a_container_gets_the_way_to_the_daemon_and_is_known_as_its_client() {
    let node = Node::new();
    serves(&node.path("control"));
    let wanted = |program: &str| Wanted {
        time: TimeSharing {
            mps: Some(node.path(program)),
            ..TimeSharing::default()
        },
        ..node.wanted()
    };
    let start = |program| Isolation::start(&wanted(program), &Cards::Simulated(&inventory()));
    let isolation = start("control").unwrap();
    let a = handed("a", "main", Role::Main, 1, 300);
    let injection = isolation.admit(&a).unwrap();
    let limits = &injection.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"];
    assert_eq!(limits, "0=300M");
    for mount in &injection.mounts {
        assert!(Path::new(&mount.host_path).exists(), "{mount:?}");
    }
    let row = isolation.snapshot().tenants.remove(0);
    assert_eq!(row.mps.as_deref(), Some("serving"));
    isolation.stop();
    // Without the daemon nothing is done as if it had not been asked for.
    let error = start("absent").err().unwrap();
    assert_eq!(error.kind(), FailureKind::Transient, "{error}");
}

#[test]
fn turns_do_not_overlap_where_the_operator_says_so() {
    let node = Node::new();
    let start = |exclusive_slices| {
        let wanted = Wanted {
            time: TimeSharing {
                exclusive_slices,
                ..TimeSharing::default()
            },
            ..node.wanted()
        };
        Isolation::start(&wanted, &Cards::Simulated(&inventory()))
    };
    let isolation = start(ExclusiveSlices::Of([1].into())).unwrap();
    let gpus = isolation.snapshot().gpus;
    let slices: Vec<&str> = gpus.iter().map(|gpu| gpu.slices.as_str()).collect();
    assert_eq!(slices, ["overlapping", "exclusive"]);
    isolation.stop();
    // What cannot be had is not done without.
    let error = start(ExclusiveSlices::Of([7].into())).err().unwrap();
    assert_eq!(error.kind(), FailureKind::Setting, "{error}");
}
