//! The operators that there are: what each is built from, and what it is told.

/// An operator. Texts have `{health}`, `{calls}` and `{folder}` where the ports of its health and of
/// its webhooks go, and its folder.
#[derive(Debug)]
pub struct Operator {
    /// Name of its process.
    pub name: &'static str,
    /// The folder of its list of modules, below `tools/operators`.
    pub(super) list: &'static str,
    /// Its module as the list has it, and its program there.
    pub(super) module: &'static str,
    pub(super) program: &'static str,
    /// Files of its module: the definitions of its kinds, and what the API server is to ask it.
    pub(super) definitions: &'static [&'static str],
    pub(super) calls: Option<&'static str>,
    /// Files of its program that are built in another form; all of the program, if there is one.
    pub(super) changed: &'static [Changed],
    /// Its configuration, if it reads one from a file.
    pub(super) configuration: Option<&'static str>,
    pub(super) arguments: &'static [&'static str],
    /// Path on which it answers when it is ready.
    pub(super) ready: &'static str,
}

/// A file of an operator's program with lines that are others.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) file: &'static str,
    /// Path of the file in the program that is built.
    pub(super) to: &'static str,
    /// Each line of the original, and its replacement.
    pub(super) lines: &'static [(&'static str, &'static str)],
}

/// The list with the control plane's libraries.
pub(super) const CHEAP: &str = "control-plane";

/// JobSet.
pub const JOB_SET: Operator = Operator {
    name: "jobset",
    list: CHEAP,
    module: "sigs.k8s.io/jobset",
    program: "",
    definitions: &["config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"],
    calls: Some("config/components/webhook/manifests.yaml"),
    changed: &[],
    configuration: Some(
        "apiVersion: config.jobset.x-k8s.io/v1alpha1\nkind: Configuration\n\
         webhook: {port: {calls}, host: 127.0.0.1, certDir: '{folder}/k8s-webhook-server/serving-certs'}\n\
         metrics: {bindAddress: '0'}\nhealth: {healthProbeBindAddress: '127.0.0.1:{health}'}\n\
         leaderElection: {leaderElect: false}\ninternalCertManagement: {enable: false}\n",
    ),
    arguments: &["--config={folder}/configuration.yaml"],
    ready: "/readyz",
};

/// LeaderWorkerSet.
pub const LEADER_WORKER_SET: Operator = Operator {
    name: "lws",
    list: CHEAP,
    module: "sigs.k8s.io/lws",
    program: "cmd",
    definitions: &[
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
        // It does not start without it.
        "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml",
    ],
    calls: Some("config/webhook/manifests.yaml"),
    changed: &[],
    configuration: Some(
        "apiVersion: config.lws.x-k8s.io/v1alpha1\nkind: Configuration\n\
         webhook: {port: {calls}, host: 127.0.0.1, certDir: '{folder}/k8s-webhook-server/serving-certs'}\n\
         metrics: {bindAddress: '0'}\nhealth: {healthProbeBindAddress: '127.0.0.1:{health}'}\n\
         leaderElection: {leaderElect: false}\ninternalCertManagement: {enable: false}\n",
    ),
    arguments: &["--config={folder}/configuration.yaml"],
    ready: "/readyz",
};

/// Kubeflow's MPI operator.
pub const MPI_OPERATOR: Operator = Operator {
    name: "mpi-operator",
    list: ".",
    module: "github.com/kubeflow/mpi-operator",
    program: "cmd/mpi-operator",
    definitions: &["manifests/base/kubeflow.org_mpijobs.yaml"],
    calls: None,
    changed: &[
        Changed {
            file: "cmd/mpi-operator/main.go",
            to: "main.go",
            lines: &[(
                "github.com/kubeflow/mpi-operator/cmd/mpi-operator/app\"",
                "sublet.test/tools/operators/mpi-operator/app\"",
            )],
        },
        Changed {
            file: "cmd/mpi-operator/app/server.go",
            to: "app/server.go",
            lines: &[(
                "fmt.Sprintf(\":%d\", healthCheckPort)",
                "\"127.0.0.1:\" + os.Getenv(\"HEALTH_PORT\")",
            )],
        },
    ],
    configuration: None,
    arguments: &[
        "--lock-namespace=default",
        "--kube-api-qps=100",
        "--kube-api-burst=200",
    ],
    ready: "/healthz",
};

/// Kubeflow's training operator, for PyTorchJobs and TFJobs.
pub const TRAINING_OPERATOR: Operator = Operator {
    name: "training-operator",
    list: ".",
    module: "github.com/kubeflow/training-operator",
    program: "cmd/training-operator.v1",
    definitions: &[
        "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
        "manifests/base/crds/kubeflow.org_tfjobs.yaml",
    ],
    calls: Some("manifests/base/webhook/manifests.yaml"),
    changed: &[Changed {
        file: "cmd/training-operator.v1/main.go",
        to: "main.go",
        lines: &[
            (
                "Port: webhookServerPort,",
                "Port: webhookServerPort, Host: \"127.0.0.1\",",
            ),
            // Its certificates are the cluster's, as those of all are here.
            (
                "if err = cert.ManageCerts(mgr, certGenerationConfig, certsReady); err != nil {",
                "if _ = certGenerationConfig; err != nil {",
            ),
            ("defer close(certsReady)", "close(certsReady)"),
        ],
    }],
    configuration: None,
    arguments: &[
        "--enable-scheme=pytorchjob",
        "--enable-scheme=tfjob",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=127.0.0.1:{health}",
        "--webhook-server-port={calls}",
    ],
    ready: "/readyz",
};

/// Kubeflow's Trainer, which needs JobSet.
pub const TRAINER: Operator = Operator {
    name: "trainer",
    list: ".",
    module: "github.com/kubeflow/trainer/v2",
    program: "cmd/trainer-controller-manager",
    definitions: &[
        "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
        "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
        "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
    ],
    calls: Some("manifests/base/webhook/manifests.yaml"),
    changed: &[],
    configuration: Some(
        "apiVersion: config.trainer.kubeflow.org/v1alpha1\nkind: Configuration\n\
         webhook: {port: {calls}, host: 127.0.0.1}\nmetrics: {bindAddress: '0'}\n\
         health: {healthProbeBindAddress: '127.0.0.1:{health}', readinessEndpointName: readyz, \
         livenessEndpointName: healthz}\n\
         leaderElection: {leaderElect: false}\ncertManagement: {enable: false}\n",
    ),
    arguments: &["--config={folder}/configuration.yaml"],
    ready: "/readyz",
};

/// KubeDL, without its own queue.
pub const KUBEDL: Operator = Operator {
    name: "kubedl",
    list: "kubedl",
    module: "github.com/alibaba/kubedl",
    program: "",
    definitions: &[
        "config/crd/bases/training.kubedl.io_pytorchjobs.yaml",
        "config/crd/bases/training.kubedl.io_tfjobs.yaml",
    ],
    calls: None,
    changed: &[Changed {
        file: "main.go",
        to: "main.go",
        lines: &[
            // It would listen on all addresses.
            ("metrics.StartMonitoringForDefaultRegistry(metricsAddr)", ""),
            ("\t\"github.com/alibaba/kubedl/pkg/metrics\"\n", ""),
        ],
    }],
    configuration: None,
    arguments: &[
        "--enable-leader-election=false",
        "--feature-gates=JobCoordinator=false",
        "--controller-metrics-addr=127.0.0.1:{health}",
    ],
    ready: "/metrics",
};

/// Kueue as it is shipped, which a benchmark runs beside Sublet. Its own webhooks are not asked: they
/// would cost the API server more. `{limit}` and `{burst}` are its client's, in requests a second; the
/// rest is the shipped configuration, but for what nobody uses there.
pub(crate) const KUEUE: Operator = Operator {
    name: "kueue",
    list: ".",
    module: "sigs.k8s.io/kueue",
    program: "cmd/kueue",
    definitions: &[
        "config/components/crd/bases/kueue.x-k8s.io_admissionchecks.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_clusterqueues.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_cohorts.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_localqueues.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_multikueueclusters.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_multikueueconfigs.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_provisioningrequestconfigs.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_resourceflavors.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_topologies.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_workloadpriorityclasses.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_workloads.yaml",
    ],
    calls: None,
    changed: &[Changed {
        file: "cmd/kueue/main.go",
        to: "main.go",
        // It reads a certificate for its figures, also where it serves none.
        lines: &[(
            "metricsCertPath := \"/etc/kueue/metrics/certs\"",
            "metricsCertPath := filepath.Join(os.TempDir(), \"k8s-webhook-server/serving-certs\")",
        )],
    }],
    configuration: Some(
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n\
         webhook: {port: {calls}, host: 127.0.0.1, certDir: '{folder}/k8s-webhook-server/serving-certs'}\n\
         metrics: {bindAddress: '0'}\nhealth: {healthProbeBindAddress: '127.0.0.1:{health}'}\n\
         leaderElection: {leaderElect: false}\ninternalCertManagement: {enable: false}\n\
         controller: {groupKindConcurrency: {Job.batch: 5, Workload.kueue.x-k8s.io: 5, \
         LocalQueue.kueue.x-k8s.io: 1, Cohort.kueue.x-k8s.io: 1, ClusterQueue.kueue.x-k8s.io: 1, \
         ResourceFlavor.kueue.x-k8s.io: 1}}\n\
         clientConnection: {qps: {limit}, burst: {burst}}\n\
         integrations: {frameworks: [batch/job]}\nfeatureGates: {VisibilityOnDemand: false}\n",
    ),
    arguments: &["--config={folder}/configuration.yaml"],
    ready: "/readyz",
};
