//! The image that is made of the one file that is handed out, on a real node.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;
use sublet_e2e::{GpuNode, eventually};

/// Containerd takes the image that is made of it without Docker, and a container of it runs: it has
/// a C library, and the program finds it.
#[test]
fn its_image_runs_on_a_node() -> Result<()> {
    let Some(file) = std::env::var_os("SUBLET_ONE_FILE") else {
        println!("skipped: SUBLET_ONE_FILE is not set; run `cargo xtask test`");
        return Ok(());
    };
    let Some(node) = GpuNode::start(&[])? else {
        return Ok(());
    };
    let version = env!("CARGO_PKG_VERSION");
    let archive = format!("sublet-{version}-x86_64.oci.tar");
    node.import_image(&Path::new(&file).with_file_name(archive))?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "version"},
        "spec": {
            "schedulerName": "sublet-scheduler",
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c0",
                "image": format!("sublet.dev/sublet:{version}"),
                "imagePullPolicy": "Never",
                "args": ["--version"],
                "securityContext": {"runAsUser": 65534, "readOnlyRootFilesystem": true},
            }],
        },
    });
    let cluster = &node.world.cluster;
    cluster.apply(&pod.to_string())?;
    eventually(|| {
        let object = node.world.get(&["pod", "version"])?;
        ensure!(
            object["status"]["phase"] == "Succeeded",
            "{}",
            object["status"]
        );
        Ok(())
    })?;
    assert_eq!(
        cluster.kubectl(&["logs", "version"])?.trim(),
        format!("sublet {version}")
    );
    Ok(())
}
