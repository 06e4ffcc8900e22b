//! `cargo xtask control-plane`: a cluster to play with, which stays until `down` ends it.
//!
//! `up` starts this program once more in the background. That process holds the cluster and
//! listens on a Unix socket in the cache folder, on which `down` asks it to end. So no file has
//! a process id that could be another process's by now, and when the background process is
//! killed, the cluster goes with it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use sublet_testbed::{Cluster, ClusterOptions, default_cache, kwok_node};

use crate::screen::heading;
use crate::setup::Components;

/// A stock Kubernetes control plane on loopback, in the background.
#[derive(Subcommand)]
#[command(after_help = "Examples:
  cargo xtask control-plane build            only build, and print where
  cargo xtask control-plane up --nodes 100   start, with a hundred nodes that KWOK plays
  cargo xtask control-plane down             stop, and remove everything")]
pub(crate) enum Action {
    /// Build the components, for a real node too, and print their folder.
    Build,
    /// Start a cluster in the background and print how to reach it.
    Up {
        /// Number of nodes that KWOK plays, each with two cards of 16,276 MiB to share.
        #[arg(long, default_value_t = 0)]
        nodes: u32,
    },
    /// Stop the cluster that `up` started.
    Down,
    /// Hold a cluster, as the background process of `up`.
    #[command(hide = true)]
    Serve {
        /// As for `up`.
        #[arg(long)]
        nodes: u32,
    },
}

/// Carries out the action.
pub(crate) fn run(action: &Action) -> Result<()> {
    match *action {
        Action::Build => {
            println!("{}", Components::with_node()?.binaries.root().display());
            Ok(())
        }
        Action::Up { nodes } => up(nodes),
        Action::Down => down(),
        Action::Serve { nodes } => serve(nodes),
    }
}

fn up(nodes: u32) -> Result<()> {
    if let Ok(mut running) = UnixStream::connect(socket()?) {
        let dir = ask(&mut running, "where")?;
        bail!("a cluster is up already, in {dir}; stop it with: cargo xtask control-plane down");
    }
    let components = Components::without_node()?;
    heading("starting etcd, kube-apiserver, kube-controller-manager and KWOK (usually 10 s)");
    let log = state()?.join("serve.log");
    let mut server = Command::new(std::env::current_exe()?)
        .args(["control-plane", "serve", "--nodes", &nodes.to_string()])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&log)?)
        .spawn()
        .context("start the background process")?;
    let mut dir = String::new();
    let stdout = server
        .stdout
        .take()
        .context("the background process has no output")?;
    BufReader::new(stdout).read_line(&mut dir)?;
    if dir.is_empty() {
        server.wait()?;
        bail!(
            "the cluster did not start:\n{}",
            fs::read_to_string(&log)?.trim()
        );
    }
    let dir = Path::new(dir.trim());
    let kubectl = components.binaries.cluster("kubectl");
    // In one write: whoever reads only the first line must not make the rest fail.
    print!(
        "directory: {}\nexport KUBECONFIG={}\nkubectl:   {}\nstop with: cargo xtask control-plane down\n",
        dir.display(),
        dir.join("admin.kubeconfig").display(),
        kubectl.display()
    );
    Ok(())
}

fn down() -> Result<()> {
    let Ok(mut running) = UnixStream::connect(socket()?) else {
        println!("no cluster is up");
        return Ok(());
    };
    ask(&mut running, "down")?;
    println!("stopped");
    Ok(())
}

/// Holds the cluster. Prints its address, once, for the process that started this.
fn serve(nodes: u32) -> Result<()> {
    let components = Components::without_node()?;
    let cluster = Cluster::start(ClusterOptions::new(components.binaries))?;
    if nodes > 0 {
        let cards = [
            ("aliyun.com/gpu-mem", "32552"),
            ("aliyun.com/gpu-count", "2"),
        ];
        let yaml: String = (1..=nodes)
            .map(|number| kwok_node(&format!("node-{number}"), &[], &cards))
            .collect();
        cluster.apply(&yaml)?;
    }
    let path = socket()?;
    // Nobody answered on it, or `up` would not have come here: a killed process left it.
    if path.exists() {
        fs::remove_file(&path)?;
    }
    let listener = UnixListener::bind(&path).with_context(|| format!("bind {}", path.display()))?;
    println!("{}", cluster.dir().display());
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut request = String::new();
        BufReader::new(&stream).read_line(&mut request)?;
        if request.trim() == "down" {
            fs::remove_file(&path)?;
            drop(cluster);
            // Whoever asked may have gone.
            let _ = writeln!(stream, "gone");
            return Ok(());
        }
        let _ = writeln!(stream, "{}", cluster.dir().display());
    }
    Ok(())
}

fn ask(running: &mut UnixStream, request: &str) -> Result<String> {
    writeln!(running, "{request}")?;
    let mut answer = String::new();
    BufReader::new(running).read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

fn socket() -> Result<PathBuf> {
    Ok(state()?.join("control-plane.sock"))
}

fn state() -> Result<PathBuf> {
    let dir = default_cache()?.join("run");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}
