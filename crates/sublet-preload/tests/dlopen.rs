//! The wrapper in real programs: which names it changes, and that the loader still sees who
//! asked.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_preload as _;

/// The library that was built with this test.
fn preload() -> PathBuf {
    let test = env::current_exe().expect("this test");
    let folder = test.parent().expect("a folder");
    let library = folder.join("libsublet_preload.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

fn compile(source: &str, out: &Path, more: &[&str]) {
    let file = out.with_extension("c");
    fs::write(&file, source).expect("the source");
    let status = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(out)
        .arg(&file)
        .args(more)
        .args(["-ldl"])
        .status()
        .expect("a C compiler");
    assert!(status.success(), "{source}");
}

/// Opens what it is told and prints what `who()` says there.
const OPENER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *handle = dlopen(argv[i], RTLD_NOW);
        const char *(*who)(void) = handle ? (const char *(*)(void))dlsym(handle, "who") : 0;
        printf("%s: %s\n", argv[i], who ? who() : handle ? "opened" : "nothing");
    }
    printf("null: %s\n", dlopen(0, RTLD_NOW) ? "opened" : "nothing");
    return 0;
}
"#;

fn saying(text: &str) -> String {
    format!("const char *who(void) {{ return \"{text}\"; }}\n")
}

#[test]
fn only_the_drivers_names_are_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let shared = ["-shared", "-fPIC"];
    fs::create_dir(at("real")).expect("a folder");
    for (name, says) in [
        ("ours-cuda.so", "our cuda"),
        ("ours-nvml.so", "our nvml"),
        ("real/libcuda.so.1", "real cuda"),
        ("real/libcuda.so.580.65", "versioned cuda"),
        ("real/xlibcuda.so.1", "another library"),
        ("real/libnvidia-ml.so", "real nvml"),
    ] {
        compile(&saying(says), &at(name), &shared);
    }
    compile(OPENER, &at("opener"), &[]);
    let real = at("real");
    let path = |name: &str| real.join(name).display().to_string();
    let names = [
        ("libcuda.so".into(), "our cuda"),
        ("libcuda.so.1".into(), "our cuda"),
        (path("libcuda.so.1"), "our cuda"),
        (path("libcuda.so.580.65"), "versioned cuda"),
        (path("xlibcuda.so.1"), "another library"),
        ("./real/libcuda.so.1".into(), "real cuda"),
        ("libnvidia-ml.so.1".into(), "our nvml"),
        (path("libnvidia-ml.so"), "our nvml"),
        ("libm.so.6".into(), "opened"),
        ("libnothing.so".into(), "nothing"),
        (String::new(), "opened"),
    ];
    let opener = |told: bool| {
        let mut command = Command::new(at("opener"));
        command
            .args(names.iter().map(|(name, _)| name))
            .current_dir(folder.path())
            .env("LD_PRELOAD", preload())
            .env_remove("SUBLET_LIB_CUDA")
            .env_remove("SUBLET_LIB_NVML");
        if told {
            command
                .env("SUBLET_LIB_CUDA", at("ours-cuda.so"))
                .env("SUBLET_LIB_NVML", at("ours-nvml.so"));
        }
        let output = command.output().expect("the opener runs");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "",
            "nothing is printed"
        );
        String::from_utf8(output.stdout).expect("text")
    };
    let mut expected: String = names
        .iter()
        .map(|(name, says)| format!("{name}: {says}\n"))
        .collect();
    expected.push_str("null: opened\n");
    assert_eq!(opener(true), expected);

    let untold = opener(false);
    assert!(
        untold.contains(&format!("{}: real cuda\n", path("libcuda.so.1"))),
        "without the variables nothing is changed:\n{untold}"
    );
}

/// A plugin beside a library is found through the *library's* search path: the loader must see
/// the library as the caller, not our wrapper.
#[test]
fn the_loader_still_sees_who_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("lib/plugins")).expect("a folder");
    compile(
        &saying("the plugin"),
        &at("lib/plugins/libplugin.so"),
        &["-shared", "-fPIC"],
    );
    let host = r#"
#include <dlfcn.h>
const char *who(void) {
    void *handle = dlopen("libplugin.so", RTLD_NOW);
    return handle ? ((const char *(*)(void))dlsym(handle, "who"))() : "no plugin";
}
"#;
    compile(
        host,
        &at("lib/libhost.so"),
        &["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/plugins"],
    );
    compile(OPENER, &at("opener"), &[]);
    let output = Command::new(at("opener"))
        .arg(at("lib/libhost.so"))
        .env("LD_PRELOAD", preload())
        .output()
        .expect("the opener runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("libhost.so: the plugin\n"), "{text}");
}

/// Two wrappers in one process each find the other's, and the chain ends in libc.
#[test]
fn another_wrapper_is_called_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let other = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
void *dlopen(const char *name, int flags) {
    printf("other sees %s\n", name ? name : "null");
    return ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(name, flags);
}
"#;
    compile(other, &at("other.so"), &["-shared", "-fPIC"]);
    compile(&saying("ours"), &at("ours.so"), &["-shared", "-fPIC"]);
    compile(OPENER, &at("opener"), &[]);
    let run = |first: &Path, second: &Path| {
        let preloads = format!("{} {}", first.display(), second.display());
        let output = Command::new(at("opener"))
            .arg("libcuda.so.1")
            .env("LD_PRELOAD", preloads)
            .env("SUBLET_LIB_CUDA", at("ours.so"))
            .output()
            .expect("the opener runs");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    let changed = format!("other sees {}\n", at("ours.so").display());
    let first = run(&preload(), &at("other.so"));
    assert!(
        first.starts_with(&changed) && first.contains("libcuda.so.1: ours\n"),
        "{first}"
    );
    let second = run(&at("other.so"), &preload());
    assert!(second.starts_with("other sees libcuda.so.1\n"), "{second}");
    assert!(second.contains("libcuda.so.1: ours\n"), "{second}");
}
