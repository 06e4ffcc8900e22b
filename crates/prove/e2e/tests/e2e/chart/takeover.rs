//! Helm takes over what kubectl has put there, by the commands of the guide or by `sublet install`,
//! and owns it then: a later upgrade changes and removes what it likes.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_testbed::deployed;

use super::repository;
use super::site::Site;

/// Values of a user with images at another place than the manifests'.
const IMAGES: &str =
    "image.repository=r.test/sublet,scheduler.image.repository=r.test/kube-scheduler";

const FLAVOR: &str = "{apiVersion: sublet.dev/v1alpha1, kind: GpuFlavor, metadata: {name: half}, \
                      spec: {memoryPercent: 50}}";

/// A definition of SharePods as KubeShare has it: another than ours.
const KUBESHARES: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sharepods.kubeshare.nthu}
spec:
  group: kubeshare.nthu
  scope: Namespaced
  names: {kind: SharePod, plural: sharepods, singular: sharepod, listKind: SharePodList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
";

impl Site {
    fn image_of(&self, deployment: &str) -> Result<String> {
        let found = self.get(&["deployment", deployment, "--namespace=sublet-system"])?;
        let image = &found["spec"]["template"]["spec"]["containers"][0]["image"];
        Ok(image.as_str().unwrap_or_default().to_owned())
    }

    /// A change and a removal, as any release has them: nobody else holds on to a field.
    fn check_that_helm_owns_it(&self) -> Result<()> {
        self.upgrade(
            &self.chart,
            "image.tag=next,networkPolicy.enabled=false,queue.enabled=true",
        )?;
        assert_eq!(self.image_of("sublet-scheduler")?, "r.test/sublet:next");
        let policies = self.get(&["networkpolicies", "--namespace=sublet-system"])?;
        assert_eq!(policies["items"], serde_json::json!([]));
        self.upgrade(&self.chart, "queue.enabled=false,sharePods.enabled=false")?;
        self.until_trusted()
    }

    fn sublet(&self, args: &[&str]) -> Result<String> {
        let mut sublet = Command::new(&self.sublet);
        self.helm.put_on_path(&mut sublet);
        let kubeconfig = self.cluster.kubeconfig("admin")?;
        let output = sublet.args(args).env("KUBECONFIG", kubeconfig).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (text, notes) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "sublet {args:?}: {text}{notes}");
        Ok(text)
    }
}

/// The guide has these words.
fn stands_in_the_guide(command: &str) -> Result<()> {
    let page = std::fs::read_to_string(repository().join("docs/guide/install.md"))?;
    ensure!(
        page.contains(command),
        "docs/guide/install.md has no `{command}`"
    );
    Ok(())
}

#[test]
fn helm_takes_over_what_kubectl_has_installed() -> Result<()> {
    let Some(site) = Site::start()? else {
        return Ok(());
    };
    let folder = repository().join("deploy/kubernetes").display().to_string();
    let namespace = repository().join("deploy/kubernetes/00-namespace.yaml");
    let namespace = namespace.display().to_string();
    site.cluster.kubectl(&["apply", "--filename", &namespace])?;
    site.cluster.kubectl(&["apply", "--filename", &folder])?;
    site.start_controller()?;
    site.until_trusted()?;
    // Alone it leaves half a release: kubectl owns what helm has others values for.
    let take = [
        "install",
        "sublet",
        &site.chart,
        "--take-ownership",
        "--set",
        IMAGES,
    ];
    let half = site.helm(&take).err().context("no conflict")?.to_string();
    ensure!(
        half.contains("conflict with \"kubectl-client-side-apply\""),
        "{half}"
    );

    let apply = "kubectl apply --server-side --force-conflicts --field-manager=helm --filename";
    stands_in_the_guide(&format!("{apply} deploy/kubernetes/"))?;
    let apply: Vec<&str> = apply.split(' ').skip(1).collect();
    site.cluster.kubectl(&[&apply[..], &[&folder]].concat())?;
    stands_in_the_guide("helm upgrade --install sublet deploy/chart/sublet --take-ownership")?;
    let take = [
        "upgrade",
        "--install",
        "sublet",
        &site.chart,
        "--take-ownership",
    ];
    site.helm(&[&take[..], &["--set", IMAGES]].concat())?;
    assert_eq!(site.image_of("sublet-scheduler")?, "r.test/sublet:0.1.0");
    site.check_that_helm_owns_it()?;

    site.helm(&["uninstall", "sublet"])?;
    site.cluster.stop(deployed::CONTROLLER);
    let every = ["delete", "crd", "--selector=app.kubernetes.io/name=sublet"];
    site.cluster.kubectl(&every)?;
    site.cluster.apply(KUBESHARES)?;
    let force = "--take-ownership --force-conflicts";
    stands_in_the_guide(&format!("helm install … {force}"))?;
    site.sublet(&["install", "--timeout=0", "--set", IMAGES])?;
    let flavors = "crd/gpuflavors.sublet.dev";
    site.cluster.until_defined(&[flavors])?;
    site.cluster.apply(FLAVOR)?;
    let shared = site.get(&["crd", "sharepods.kubeshare.nthu"])?;
    let status = &shared["spec"]["versions"][0]["subresources"]["status"];
    ensure!(status.is_object(), "it is KubeShare's still: {shared}");
    site.cluster.start_again(deployed::CONTROLLER)?;
    site.check_that_helm_owns_it()?;
    site.get(&["gpuflavor", "half"])?;
    Ok(())
}
