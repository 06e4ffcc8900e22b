//! A note about a CMD that leaves the job: a container gets its own environment and files, and
//! often a daemon as its parent, so that neither our libraries nor the job's descent reach it. Knows
//! CMD by its words alone.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Programs that start containers.
const RUNTIMES: [&str; 3] = ["docker", "podman", "nerdctl"];

/// Their commands that start a program in one.
const STARTS: [&str; 6] = ["run", "create", "start", "restart", "exec", "compose"];

/// The note, if CMD starts a container.
pub(super) fn note(command: &[OsString]) -> Option<String> {
    let (program, mut words) = command.split_first()?;
    let mut runtime = name_of(program);
    if runtime == "sudo" {
        let at = words.iter().position(|word| is_runtime(name_of(word)))?;
        (runtime, words) = (name_of(&words[at]), &words[at + 1..]);
    }
    let starts = words.iter().any(|word| STARTS.iter().any(|it| word == it));
    let starts = is_runtime(runtime) && starts;
    starts.then(|| {
        format!(
            "the container that {} starts leaves the job: its programs have neither the job's \
             part nor its limits, and use the GPUs as without sublet",
            runtime.display()
        )
    })
}

fn is_runtime(name: &OsStr) -> bool {
    RUNTIMES.iter().any(|runtime| name == *runtime)
}

/// The name of a program, without its folder.
fn name_of(word: &OsStr) -> &OsStr {
    Path::new(word).file_name().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_leaves_the_job_is_told_of() {
        let check = |words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            note(&words)
        };
        for (words, name) in [
            ("docker run --gpus all image", "docker"),
            ("/usr/bin/docker -H unix:///d.sock run -it image", "docker"),
            ("podman run --device nvidia.com/gpu=all image", "podman"),
            ("nerdctl compose up", "nerdctl"),
            ("sudo -E docker exec box train", "docker"),
        ] {
            let note = check(words).unwrap_or_else(|| panic!("{words}"));
            let start = format!("the container that {name} starts leaves the job");
            assert!(note.starts_with(&start), "{words}: {note}");
        }
        for words in [
            "docker ps",
            "./docker-bench run",
            "python run docker",
            "sudo nvidia-smi",
            "srun docker run image",
            "ssh host docker run image",
        ] {
            assert_eq!(check(words), None, "{words}");
        }
        assert_eq!(note(&[]), None);
    }
}
