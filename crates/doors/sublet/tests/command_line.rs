//! The executable as people and scripts meet it: exit codes, streams, names. No cluster.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SUBLET: &str = env!("CARGO_BIN_EXE_sublet");

fn example(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/plan");
    root.join(name).display().to_string()
}

fn sublet(arguments: &[&str]) -> Output {
    command(Path::new(SUBLET), arguments).output().unwrap()
}

/// No kubeconfig of this machine may leak into a test.
fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_plan_s_exit_code_says_whether_everything_is_placed() {
    let placed = sublet(&["plan", "-f", &example("three-nodes.yaml")]);
    assert_eq!(placed.status.code(), Some(0));
    assert!(text(&placed.stdout).contains("wanted  n3    main       0    8138 MiB"));
    assert_eq!(text(&placed.stderr), "");

    let refused = sublet(&["plan", "-f", &example("four-gpus.yaml"), "-o", "json"]);
    assert_eq!(refused.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(json["pods"][0]["gpus"][0]["gpu"], 1);
    let time = json["pods"][0]["annotations"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"]
        .as_str()
        .unwrap();
    assert!(time.parse::<u64>().unwrap() > 1_700_000_000_000_000_000);

    let missing = sublet(&[
        "plan",
        "-f",
        "/nonexistent/file.yaml",
        "-f",
        &example("four-gpus.yaml"),
    ]);
    assert_eq!(missing.status.code(), Some(2));
    assert_eq!(text(&missing.stdout), "");
    assert!(text(&missing.stderr).starts_with("error: /nonexistent/file.yaml: cannot be read: "));
}

#[test]
fn a_plan_reads_standard_input_and_names_its_faults() {
    let mut child = command(Path::new(SUBLET), &["plan", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let bad = b"kind: Pod\nmetadata: {name: a}\nspec: {priority: high}\n";
    child.stdin.take().unwrap().write_all(bad).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = text(&output.stderr);
    let start = "error: standard input: document 1, line 3, field `spec.priority`: ";
    assert!(errors.starts_with(start), "{errors}");
}

#[test]
fn wrong_arguments_exit_with_2_and_a_missing_cluster_with_1() {
    assert_eq!(sublet(&["plan"]).status.code(), Some(2));
    assert_eq!(sublet(&["dance"]).status.code(), Some(2));
    assert_eq!(sublet(&["inspect", "-o", "csv"]).status.code(), Some(2));
    for arguments in [
        &["inspect"][..],
        &["explain", "pod", "a"],
        &["inspect", "--kubeconfig", "/nonexistent/file"],
    ] {
        let output = sublet(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let errors = text(&output.stderr);
        assert!(
            errors.starts_with("error: ") && errors.contains("  caused by: "),
            "{errors}"
        );
    }
}

#[test]
fn an_api_server_that_is_not_there_is_an_error_with_a_hint() {
    // A port that was free a moment ago: nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'http://{free}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&file, config).unwrap();
    let output = sublet(&["inspect", "--kubeconfig", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(
        errors.starts_with("error: cannot list nodes\n  caused by: "),
        "{errors}"
    );
    assert!(errors.contains("\nhint: is the API server"), "{errors}");
}

#[test]
fn a_hint_can_be_pasted() {
    let folder = tempfile::tempdir().unwrap();
    let called = folder.path().join("my sublet");
    std::os::unix::fs::symlink(SUBLET, &called).unwrap();
    let check = |arguments: &[&str]| {
        let mut command = command(&called, arguments);
        command
            .env("SUBLET_RUNTIME_DIR", folder.path())
            .env_remove("SUBLET_FAKE_GPU");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert_eq!(text(&output.stdout), "");
        text(&output.stderr)
    };
    let limit = ["limit", "3", "--memory", "1GiB"];
    let program = called.display();
    for (fake, argument) in [
        (&[][..], ""),
        (&["--fake-gpu", "2x16GiB"], " --fake-gpu 2x16GiB"),
        (
            &["--fake-gpu", "1x1GiB,name=NVIDIA H100"],
            " --fake-gpu '1x1GiB,name=NVIDIA H100'",
        ),
    ] {
        let errors = check(&[&limit, fake].concat());
        assert!(
            errors.starts_with("error: no arbiter runs for "),
            "{errors}"
        );
        assert!(errors.contains("/admin.sock"), "{errors}");
        let hint = format!("\nhint: `'{program}' ps{argument}` shows the GPUs");
        assert!(errors.contains(&hint), "{errors}");
    }
}

#[test]
fn an_agent_is_a_node_s_or_a_machine_s() {
    let check = |arguments: &[&str]| {
        let mut command = command(Path::new(SUBLET), arguments);
        let output = command.env_remove("NODE_NAME").output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, errors) = check(&["agent"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("--node-name <NAME>"), "{errors}");
    let (code, errors) = check(&["agent", "--standalone", "--inventory", "x"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("cannot be used with"), "{errors}");
    for flag in ["--idle-exit", "--evict-unmanaged"] {
        let (code, errors) = check(&["agent", flag]);
        assert_eq!(code, Some(2), "{flag}");
        assert!(errors.contains("--standalone"), "{errors}");
    }
    // A cluster's word, which means nothing where there is none.
    let (code, errors) = check(&["agent", "--standalone", "--allow-local-jobs"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("cannot be used with"), "{errors}");
}

#[test]
fn only_a_typed_fake_machine_conflicts() {
    let folder = tempfile::tempdir().unwrap();
    let check = |set: &str, arguments: &[&str]| {
        let mut command = command(Path::new(SUBLET), arguments);
        command
            .env("SUBLET_RUNTIME_DIR", folder.path())
            .env("SUBLET_FAKE_GPU", set);
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let file = example("three-nodes.yaml");
    for (elsewhere, missing) in [
        (&["queue", "--cluster"][..], "cannot connect to the cluster"),
        (&["top", "--node", "n1"], "cannot connect to the cluster"),
        (
            &[
                "agent",
                "--node-name",
                "n1",
                "--device-plugin-dir",
                "/absent",
            ],
            "/absent",
        ),
    ] {
        for set in ["2x16GiB", "nonsense"] {
            let (code, errors) = check(set, elsewhere);
            assert_eq!(code, Some(1), "{elsewhere:?}: {errors}");
            assert!(errors.contains(missing), "{elsewhere:?}: {errors}");
        }
        let typed = [elsewhere, &["--fake-gpu", "2x16GiB"]].concat();
        assert_eq!(check("", &typed).0, Some(2), "{typed:?}");
    }
    let (code, errors) = check("2x16GiB", &["queue", "-f", &file]);
    assert_ne!(code, Some(2), "{errors}");
    // It means something to those who ask about a machine.
    let limit = ["limit", "1", "--memory", "1GiB"];
    let (code, errors) = check("7x3GiB", &limit);
    assert_eq!(code, Some(1));
    let start = "error: no arbiter runs for the fake machine 7x3GiB, so ";
    assert!(errors.starts_with(start), "{errors}");
    let (code, errors) = check("nonsense", &limit);
    assert_eq!(code, Some(2));
    assert!(errors.contains("SUBLET_FAKE_GPU"), "{errors}");
}

#[test]
fn flags_that_contradict_each_other_exit_with_2() {
    let check = |arguments: &[&str], part: &str| {
        let mut command = command(Path::new(SUBLET), arguments);
        // Variables of a node's agent and of an extender contradict nothing.
        let output = command.env("NODE_NAME", "n1").env("PORT", "1").output();
        let output = output.unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.starts_with("error: "), "{errors}");
        assert!(errors.contains(part), "{arguments:?}: {errors}");
    };
    let other = "cannot be used with";
    check(&["agent", "--standalone", "--node-name", "n1"], other);
    check(&["agent", "--standalone", "--memory-unit", "GiB"], other);
    check(&["agent", "--standalone", "--isolation", "on"], other);
    check(&["agent", "--isolation", "off", "--mps"], "'--mps");
    check(&["agent", "--isolation=off", "--exclusive-slices"], other);
    check(&["agent", "--fake-gpu", "1x1GiB"], "--standalone");
    let listen = ["scheduler", "--listen", "127.0.0.1:9"];
    check(&[&listen[..], &["--port", "8"]].concat(), "'--port <PORT>'");
    let stand_in = [
        "scheduler",
        "--stand-in-for",
        "127.0.0.1:9",
        "--peer",
        "a:1",
    ];
    check(
        &[&stand_in[..], &["--replica-listen", "127.0.0.1:8"]].concat(),
        other,
    );
    check(&["scheduler", "--peer", "a:1"], "--stand-in-for");
    check(&["install", "--manifests", "--set", "a=b"], "hint: ");
    check(
        &["install", "--extender-port", "4000"],
        "--patch-default-scheduler",
    );
    check(
        &["run", "--gpus", "2", "--allowed-gpus", "1", "true"],
        "names 1",
    );
    let compute = [
        "run",
        "--class",
        "opportunistic",
        "--compute",
        "30%",
        "true",
    ];
    check(&compute, "is promised no compute time");
    // The variable alone goes with --listen: then there is no way to the cluster.
    let mut alone = command(Path::new(SUBLET), &listen);
    let alone = alone.env("PORT", "1").output().unwrap();
    assert_eq!(alone.status.code(), Some(1), "{alone:?}");
}

#[test]
fn a_mistyped_word_has_a_suggestion() {
    for (words, similar) in [
        ("simulat", "'simulate'"),
        ("explain podd a", "'pod'"),
        ("quota pln", "'plan'"),
        ("plan -f x --polcy fgd", "'--policy'"),
        ("plan -f x --policy best_fit", "'best-fit'"),
        ("scheduler --policy spraed", "'spread'"),
        ("controller --queue --queue-score ned", "'need'"),
        ("controller --queue --queue-profile stric", "'strict'"),
        ("queue --cluster --queue-filter known_end", "'known-end'"),
        ("agent --node-name n --memory-unit GiBi", "'GiB'"),
        ("simulate --discipline backfil", "'backfill'"),
        ("ps -o jsn", "'json'"),
        ("run --class guarantied a", "'guaranteed'"),
        ("run --memory 4gigs a", "`4GiB`"),
        ("limit 1 --pinned-memory 4megs", "`4MiB`"),
    ] {
        let output = sublet(&words.split(' ').collect::<Vec<_>>());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {errors}");
        let has = errors.contains("similar") || errors.contains("did you mean");
        assert!(has && errors.contains(similar), "{words}: {errors}");
    }
}

/// Words that bash offers for the last of these words, by the generated script.
fn offered(words: &[&str]) -> Vec<String> {
    let script = "source <(\"$0\" completion bash); COMP_WORDS=(sublet \"$@\"); COMP_CWORD=$#; \
                  compopt() { :; }; \
                  _clap_complete_sublet sublet \"${COMP_WORDS[$#]}\" \"${COMP_WORDS[$#-1]}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = command(Path::new("bash"), &["--norc", "-c", script, SUBLET]);
    let output = bash.args(words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_what_there_is() {
    let has = |words: &[&str], wanted: &str| {
        let offered = offered(words);
        assert!(
            offered.iter().any(|word| word == wanted),
            "{words:?}: {offered:?}"
        );
    };
    has(&["r"], "run");
    has(&["run", "--no"], "--no-wait");
    has(&["run", "--allo"], "--allowed-gpus");
    has(&["agent", "--evict"], "--evict-unmanaged");
    has(&["agent", "--allow"], "--allow-local-jobs");
    has(&["ps", "-o", "j"], "json");
    has(&["completion", "z"], "zsh");
    for command in ["plan", "queue", "simulate", "scheduler", "controller"] {
        has(&[command, "--policy", "best"], "best-fit");
    }
    has(
        &["explain", "job", "--policy", "fgd=0.7,b"],
        "fgd=0.7,best-fit",
    );
    // bash itself splits words at `=`, and replaces what is behind it.
    has(&["plan", "--policy", "=", "best"], "best-fit");
    has(&["plan", "--policy", "fgd", "=", "0.7,b"], "0.7,best-fit");
    has(&["plan", "--filename", "=", "Carg"], "Cargo.toml");
    // What follows `run --` is a program, and then a file.
    has(&["run", "--", "bas"], "bash");
    has(&["run", "--", "cat", "Carg"], "Cargo.toml");
    has(&["plan", "-f", "Carg"], "Cargo.toml");
    // Where nothing can be known, no file of this folder is offered in its place.
    for words in [
        &["run", "--memory", ""][..],
        &["run", "--gpus", ""],
        &["run", "--name", ""],
        &["limit", "--memory", ""],
        // There is no such cluster.
        &["explain", "pod", "-n", ""],
        &["inspect", "-o", "wide", "x"],
    ] {
        assert_eq!(offered(words), [""], "{words:?}");
    }
}

#[test]
fn a_script_s_call_is_not_a_person_s() {
    let answer = |shell: &str, arguments: &[&str]| {
        let mut command = command(Path::new(SUBLET), arguments);
        let output = command.env("SUBLET_COMPLETE", shell).output().unwrap();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let silent = (Some(0), String::new(), String::new());
    assert_eq!(answer("tcsh", &["--", "sublet", "r"]), silent);
    let (code, words, _) = answer("fish", &["--", "sublet", "r"]);
    assert_eq!(code, Some(0));
    assert!(words.starts_with("run\tRun a command"), "{words}");
    // The variable alone changes nothing.
    let (code, version, _) = answer("fish", &["--version"]);
    assert_eq!((code, version.starts_with("sublet ")), (Some(0), true));
}

#[test]
fn both_plugin_names_work() {
    let folder = tempfile::tempdir().unwrap();
    let link = |name: &str| -> PathBuf {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(SUBLET, &link).unwrap();
        link
    };
    let help = command(&link("kubectl-inspect-gpushare"), &["--help"])
        .output()
        .unwrap();
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("sublet inspect -o wide"));
    let plan = command(
        &link("kubectl-sublet"),
        &["plan", "-f", &example("three-nodes.yaml")],
    );
    let plan = { plan }.output().unwrap();
    assert_eq!(plan.status.code(), Some(0));
}

#[test]
fn help_version_and_completion_are_there() {
    let version = sublet(&["--version"]);
    assert_eq!(
        text(&version.stdout),
        format!("sublet {}\n", env!("CARGO_PKG_VERSION"))
    );
    for command in [
        "run",
        "ps",
        "top",
        "limit",
        "agent",
        "inspect",
        "plan",
        "simulate",
        "explain",
        "scheduler",
        "completion",
    ] {
        let help = text(&sublet(&[command, "--help"]).stdout);
        assert!(help.contains("EXAMPLES"), "{command}: {help}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sublet(&["completion", shell]);
        assert_eq!(script.status.code(), Some(0));
        assert!(text(&script.stdout).contains(SUBLET), "{shell}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = command(Path::new(SUBLET), &["completion", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before the script, larger than a pipe's buffer or not, is written.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}
