//! The wrapper in real programs: the names that it changes, and that the loader still sees the
//! caller.

use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
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
    let arguments = [&["-O1"][..], more, &["-ldl"]].concat();
    sublet_script::cc_text(source, out, &arguments).expect("a C compiler");
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

/// A library under another name than its file's.
fn named(file: &Path, says: &str, soname: &str) -> PathBuf {
    let soname = format!("-Wl,-soname,{soname}");
    compile(&saying(says), file, &["-shared", "-fPIC", &soname]);
    file.to_owned()
}

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
        ("real/libcuda.so.1", "real cuda"),
        ("real/libcuda.so.580.65", "versioned cuda"),
        ("real/xlibcuda.so.1", "another library"),
        ("real/libnvidia-ml.so", "real nvml"),
    ] {
        compile(&saying(says), &at(name), &shared);
    }
    let [cuda, nvml] =
        [("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")].map(|(name, soname)| {
            named(
                &at(&format!("ours-{name}.so")),
                &format!("our {name}"),
                soname,
            )
        });
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
        // The program itself, with what is preloaded.
        (String::new(), "our cuda"),
    ];
    let opener = |preloads: &[&Path]| {
        let preloads = preloads.iter().map(|file| file.display().to_string());
        let output = Command::new(at("opener"))
            .args(names.iter().map(|(name, _)| name))
            .current_dir(folder.path())
            .env("LD_PRELOAD", preloads.collect::<Vec<_>>().join(" "))
            .env("SUBLET_LIB_CUDA", at("real/xlibcuda.so.1"))
            .env("SUBLET_LIB_NVML", at("real/xlibcuda.so.1"))
            .output()
            .expect("the opener runs");
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
    assert_eq!(opener(&[&cuda, &nvml, &preload()]), expected);

    let alone = opener(&[&preload()]);
    assert!(
        alone.contains(&format!("{}: versioned cuda\n", path("libcuda.so.580.65")))
            && !alone.contains("our"),
        "without ours it leads nowhere:\n{alone}"
    );
}

/// A setuid program has this library too, by the loader's own file of preloads: it is led to ours,
/// and to nothing that its caller names.
#[test]
fn a_setuid_program_loads_nothing_of_its_caller_s() {
    if fs::metadata("/proc/self").map_or(1, |own| own.uid()) != 0 {
        println!("skipped: only root can make a program root's");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let open = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own file");
    };
    open(folder.path(), 0o755);
    let ours = named(&at("libcuda.so.1"), "ours", "libcuda.so.1");
    let own = at("preload.so");
    fs::copy(preload(), &own).expect("a copy");
    compile(
        &saying("the caller's"),
        &at("evil.so"),
        &["-shared", "-fPIC"],
    );
    // Linked in place of preloaded: that file is the machine's.
    let linked = [own, ours].map(|file| file.display().to_string());
    let linked: Vec<&str> = ["-Wl,--no-as-needed"]
        .into_iter()
        .chain(linked.iter().map(|file| &**file))
        .collect();
    let rpath = format!("-Wl,-rpath,{}", folder.path().display());
    compile(OPENER, &at("opener"), &[&linked[..], &[&rpath]].concat());
    open(&at("opener"), 0o4755);
    let output = Command::new(at("opener"))
        .args(["libcuda.so", "/x/libcuda.so.1"])
        .env("SUBLET_LIB_CUDA", at("evil.so"))
        .uid(65_534)
        .gid(65_534)
        .output()
        .expect("the opener runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        text, "libcuda.so: ours\n/x/libcuda.so.1: ours\nnull: opened\n",
        "{errors}"
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
    let ours = named(&at("ours.so"), "ours", "libcuda.so.1");
    compile(OPENER, &at("opener"), &[]);
    let run = |first: &Path, second: &Path| {
        let preloads = [&ours, first, second].map(|file| file.display().to_string());
        let output = Command::new(at("opener"))
            .arg("libcuda.so")
            .env("LD_PRELOAD", preloads.join(" "))
            .output()
            .expect("the opener runs");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    let changed = "other sees libcuda.so.1\n";
    let first = run(&preload(), &at("other.so"));
    assert!(
        first.starts_with(changed) && first.contains("libcuda.so: ours\n"),
        "{first}"
    );
    let second = run(&at("other.so"), &preload());
    assert!(second.starts_with("other sees libcuda.so\n"), "{second}");
    assert!(second.contains("libcuda.so: ours\n"), "{second}");
}
