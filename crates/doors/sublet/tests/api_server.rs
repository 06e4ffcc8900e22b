//! The commands that ask an API server, against one that answers from a table.
//!
//! The real API server is asked in `sublet-e2e`; here are the shells around the pure
//! functions: connection, lists, selectors, the namespace of the current context.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const NODES: &str = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
  {"metadata":{"name":"n1","uid":"un1","creationTimestamp":"2026-01-01T00:00:00Z"},
   "status":{"capacity":{"aliyun.com/gpu-mem":"30","aliyun.com/gpu-count":"2"},
             "allocatable":{"cpu":"8","memory":"32Gi","pods":"110","aliyun.com/gpu-mem":"30","aliyun.com/gpu-count":"2"},
             "addresses":[{"type":"InternalIP","address":"10.0.0.4"}]}}]}"#;

const PODS: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
  {"metadata":{"name":"a","namespace":"team","uid":"ua","annotations":{"ALIYUN_COM_GPU_MEM_IDX":"0"}},
   "spec":{"nodeName":"n1","containers":[{"name":"c","resources":{"limits":{"aliyun.com/gpu-mem":"6"}}}]},
   "status":{"phase":"Running"}},
  {"metadata":{"name":"waits","namespace":"team","uid":"uw"},
   "spec":{"schedulerName":"sublet-scheduler",
           "containers":[{"name":"c","resources":{"limits":{"aliyun.com/gpu-mem":"16"}}}]},
   "status":{"phase":"Pending"}}]}"#;

const NAMESPACES: &str = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},
  "items":[{"metadata":{"name":"team"}},{"metadata":{"name":"other"}}]}"#;

const TF_JOBS: &str = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},
  "items":[{"metadata":{"name":"train"}},{"metadata":{"name":"tune"}},{"metadata":{"name":"serve"}}]}"#;

const POD_GROUPS: &str = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},
  "items":[{"metadata":{"name":"train"}},{"metadata":{"name":"trio"}}]}"#;

/// Answers requests on loopback until the test's process ends; remembers their paths.
struct ApiServer {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

fn serve() -> ApiServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, &seen);
        }
    });
    ApiServer { address, asked }
}

/// One request per connection: the next one comes over a new connection.
fn answer(mut stream: TcpStream, seen: &Mutex<Vec<String>>) {
    let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = request.next().and_then(Result::ok).unwrap_or_default();
    let _headers = request.map_while(Result::ok).find(String::is_empty);
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, body) = match path.split('?').next() {
        Some("/api/v1/nodes") if path.contains("none") => {
            ("200 OK", r#"{"metadata":{},"items":[]}"#)
        }
        Some("/api/v1/nodes") => ("200 OK", NODES),
        Some("/api/v1/pods" | "/api/v1/namespaces/team/pods") => ("200 OK", PODS),
        Some("/api/v1/namespaces") => ("200 OK", NAMESPACES),
        Some(path) if path.ends_with("/namespaces/team/tfjobs") => ("200 OK", TF_JOBS),
        Some(path) if path.ends_with("/namespaces/team/podgroups") => ("200 OK", POD_GROUPS),
        _ => (
            "403 Forbidden",
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden","code":403}"#,
        ),
    };
    seen.lock().unwrap().push(path);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
}

fn sublet(server: &ApiServer, arguments: &[&str]) -> Output {
    with_server(&server.address, arguments, &[])
}

fn with_server(address: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u, namespace: team}}}}]\n\
         users: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&file, config).unwrap();
    Command::new(env!("CARGO_BIN_EXE_sublet"))
        .args(arguments)
        .env("KUBECONFIG", &file)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// Words that a shell's script is told for the last of these, if the API server is there.
fn offered(address: &str, words: &[&str]) -> Vec<String> {
    let words: Vec<&str> = ["--", "sublet"].iter().chain(words).copied().collect();
    let output = with_server(address, &words, &[("SUBLET_COMPLETE", "fish")]);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let lines = text(&output.stdout);
    let words = lines.lines().map(|line| line.split('\t').next());
    words.flatten().map(str::to_owned).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn inspect_asks_for_nodes_and_pods() {
    let server = serve();
    let output = sublet(&server, &["inspect"]);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains("n1    10.0.0.4   6/15"),
        "{}",
        text(&output.stdout)
    );

    let one = sublet(&server, &["inspect", "n1", "-d"]);
    assert!(text(&one.stdout).contains("Allocated :  6 (20%)"));
    let asked = server.asked.lock().unwrap().join("\n");
    assert!(
        asked.contains("metadata.name%3Dn1") && asked.contains("spec.nodeName%3Dn1"),
        "{asked}"
    );
    drop(asked);

    let none = sublet(&server, &["inspect", "none"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).starts_with("error: there is no node none\nhint: "));
}

#[test]
fn explain_uses_the_namespace_of_the_context_and_lives_without_config_maps() {
    let server = serve();
    let output = sublet(
        &server,
        &["explain", "pod", "waits", "--memory-unit", "GiB"],
    );
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    assert!(
        shown.starts_with("pod team/waits: it waits in vain"),
        "{shown}"
    );
    assert!(
        shown.contains("n1  16384 MiB asked of one GPU, but the largest, GPU 0, has 15360 MiB")
    );
    assert!(text(&output.stderr).starts_with("warning: lists of unhealthy GPUs cannot be read"));

    let missing = sublet(&server, &["explain", "pod", "waiting", "-n", "other"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("error: there is no pod other/waiting"));
}

#[test]
fn names_in_the_cluster_are_completed() {
    let server = serve();
    let offered = |words: &[&str]| offered(&server.address, words);
    assert_eq!(offered(&["explain", "pod", "w"]), ["waits"]);
    assert_eq!(offered(&["explain", "pod", "-n", "t"]), ["team"]);
    assert_eq!(offered(&["explain", "job", "-n", ""]), ["team", "other"]);
    let mut jobs = offered(&["explain", "job", "t"]);
    jobs.sort();
    assert_eq!(jobs, ["train", "trio", "tune"]);
    assert_eq!(offered(&["explain", "job", "-n", "team", "s"]), ["serve"]);
    assert_eq!(offered(&["top", "--node", ""]), ["n1"]);
    assert_eq!(offered(&["inspect", "n"]), ["n1"]);
    let asked = server.asked.lock().unwrap().join("\n");
    assert!(asked.contains("limit=1000"), "{asked}");
    drop(asked);
    // The server refuses to list pods there.
    let none: [&str; 0] = [];
    assert_eq!(offered(&["explain", "pod", "-n", "none", "w"]), none);
}

#[test]
fn a_cluster_that_does_not_answer_holds_no_completion_up() {
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let begun = Instant::now();
    let none: [&str; 0] = [];
    assert_eq!(offered(&address, &["explain", "pod", "w"]), none);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}
