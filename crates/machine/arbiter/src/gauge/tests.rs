//! Figures that are measured, kept, told anew, and never believed blindly.

use std::os::unix::fs::PermissionsExt;

use sublet_model::{GpuIndex, GpuUuid, MiB};

use super::*;

const DRIVER: &str = "580.95.05";

fn gpu(index: u16, model: &str) -> Gpu {
    Gpu {
        uuid: GpuUuid::new(&format!("GPU-{index:08}-0000-0000-0000-000000000000")).ok(),
        model: model.into(),
        ..Gpu::plain(GpuIndex(index), MiB::from(16_384))
    }
}

fn inventory(models: &[&str]) -> Inventory {
    let gpus = (0u16..).zip(models).map(|(at, model)| gpu(at, model));
    Inventory::new(gpus.collect(), vec![], vec![], vec![]).unwrap()
}

struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        World {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn arbiters(&self) -> Folder {
        Folder::within(self.folder.path(), "gpu")
    }

    /// A program that notes each call, and says `answer`.
    fn gauge(&self, answer: &str) -> Gauge {
        let program = self.folder.path().join("measure");
        let calls = self.folder.path().join("calls");
        let text = format!("#!/bin/sh\necho \"$@\" >> {}\n{answer}\n", calls.display());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Gauge {
            program,
            arguments: vec!["measure".into()],
        }
    }

    fn figures(&self, models: &[&str], answer: &str) -> Vec<u64> {
        let gauge = self.gauge(answer);
        let figures = figures(Some(&gauge), &self.arbiters(), &inventory(models), DRIVER);
        figures.iter().filter_map(context).collect()
    }

    fn calls(&self) -> usize {
        let calls = fs::read_to_string(self.folder.path().join("calls"));
        calls.map_or(0, |calls| calls.lines().count())
    }
}

/// Memory of a context, if it is known.
fn context(figures: &Figures) -> Option<u64> {
    figures.context.map(Bytes::get)
}

const GOOD: &str = r#"echo '{"contextBytes":500,"packing":{"blockBytes":2097152,"smallBytes":1048576,"pieceBytes":2097152,"keptPieces":0,"poolBytes":33554432}}'"#;

#[test]
fn the_first_release_s_figures_are_read_and_written_alike() {
    let text = include_str!("../../../../../fixtures/0.1.0/arbiter/figures.json");
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("figures.json");
    fs::write(&file, text).unwrap();
    let stored = StoredFigures::read(&file);
    assert_eq!(stored.0.len(), 1);
    assert_eq!(serde_json::to_string(&stored).unwrap(), text);
}

#[test]
fn each_product_is_measured_once_and_kept() {
    let world = World::new();
    assert_eq!(world.figures(&["A", "A", "B"], GOOD), [500, 500, 500]);
    assert_eq!(world.calls(), 2);
    assert_eq!(world.figures(&["B"], "exit 1"), [500], "it is known");
    assert_eq!(world.calls(), 2);
    let figures = figures(None, &world.arbiters(), &inventory(&["A"]), DRIVER);
    let packing = figures[0].packing.unwrap();
    assert_eq!((packing.small, packing.piece), (1 << 20, 2 << 20));
}

#[test]
fn another_driver_or_an_old_figure_is_measured_again_and_the_last_good_one_stays() {
    let world = World::new();
    world.figures(&["A"], GOOD);
    let inventory = inventory(&["A"]);
    let gauge = world.gauge("exit 1");
    let other = figures(Some(&gauge), &world.arbiters(), &inventory, "999.1");
    assert_eq!(other, [Figures::default()], "nothing is known of it");
    // A day later.
    let file = world.arbiters().figures_file();
    let mut kept = StoredFigures::read(&file);
    for entry in kept.0.values_mut() {
        entry.measured_at -= FRESH.as_secs();
    }
    kept.write(&file).unwrap();
    assert_eq!(world.figures(&["A"], "echo nonsense"), [500]);
    let better = GOOD.replace("500", "700");
    assert_eq!(world.figures(&["A"], &better), [700]);
}

#[test]
fn what_no_driver_could_do_is_not_believed() {
    for (answer, expected, has_packing) in [
        (
            r#"echo '{"contextBytes":99999999999,"packing":null}'"#,
            None,
            false,
        ),
        (
            r#"echo '{"contextBytes":7,"packing":null}'"#,
            Some(7),
            false,
        ),
        (
            r#"echo '{"contextBytes":0,"packing":null}'"#,
            Some(0),
            false,
        ),
        (
            r#"echo '{"contextBytes":7,"packing":{"blockBytes":3,"smallBytes":1,"pieceBytes":0,"keptPieces":0,"poolBytes":9}}'"#,
            Some(7),
            false,
        ),
        ("head -c 99999999 /dev/zero", None, false),
        (GOOD, Some(500), true),
    ] {
        let world = World::new();
        let gauge = world.gauge(answer);
        let found = figures(Some(&gauge), &world.arbiters(), &inventory(&["A"]), DRIVER);
        assert_eq!(context(&found[0]), expected, "{answer}");
        assert_eq!(found[0].packing.is_some(), has_packing, "{answer}");
    }
    let world = World::new();
    for text in ["", "[]", "{\"A, 16384 MiB, driver 580.95.05\": 3}", "\u{0}"] {
        fs::write(world.arbiters().figures_file(), text).unwrap();
        assert_eq!(world.figures(&["A"], GOOD), [500], "{text:?}");
    }
}

/// The operator's shell may hold anything, and all jobs are charged by the figures.
#[test]
fn no_variable_of_cuda_reaches_the_process_that_measures() {
    for (name, goes) in [
        ("CUDA_VISIBLE_DEVICES", true),
        ("CUDA_INJECTION64_PATH", true),
        ("CUDA_SCALE_LAUNCH_QUEUES", true),
        ("CUDBG_INJECTION_PATH", true),
        ("LD_AUDIT", true),
        ("LD_PRELOAD", true),
        ("SUBLET_DIR", true),
        ("CUDA_MPS_PIPE_DIRECTORY", false),
        ("SUBLET_FAKE_GPU", false),
        ("LD_LIBRARY_PATH", false),
        ("PATH", false),
    ] {
        assert_eq!(changes_figures(OsStr::new(name)), goes, "{name}");
    }
}
