//! Pages in made-up repositories, and the output of `--stale` for each.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

const BENCH: Bench = Bench {
    page: "speed",
    command: "speed --fast",
    crates: &["a", "b"],
};

/// Seconds of a commit, and a day.
const FIRST: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3_600;

/// A repository with two crates that are measured and one that is not.
struct Made {
    folder: TempDir,
    commits: u64,
}

impl Made {
    fn new() -> Made {
        let made = Made {
            folder: tempfile::tempdir().unwrap(),
            commits: 0,
        };
        made.run(&["init", "--quiet"]);
        for name in ["a", "b", "c"] {
            made.write(&format!("crates/{name}/src/lib.rs"), "1\n2\n3\n");
        }
        made
    }

    fn root(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    fn run(&self, words: &[&str]) -> String {
        let set = ["-c", "user.name=a", "-c", "user.email=a@b"];
        git(&self.root(), &[&set[..], words].concat()).unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Commits all that is there, a day after the last; returns the commit's name.
    fn commit(&mut self) -> String {
        let date = format!("{} +0000", FIRST + DAY * self.commits);
        self.commits += 1;
        self.run(&["add", "--all"]);
        let set = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let mut command = Command::new("git");
        command.arg("-C").arg(self.root()).args(set);
        command.args(["commit", "--quiet", "--no-verify", "-m", "more"]);
        command.args(["--no-gpg-sign"]);
        command.env("GIT_COMMITTER_DATE", date);
        command.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE");
        assert!(command.status().unwrap().success());
        self.run(&["rev-parse", "--short", "HEAD"])
    }

    /// Stores figures that name these commits, each in a section of its own.
    fn store(&self, commits: &[&str]) {
        let versions = commits
            .iter()
            .map(|commit| format!("- Versions: Sublet 0.1.0 ({commit}, dist build), etcd 3\n"));
        let text = format!("# Speed\n\n{}", versions.collect::<String>());
        self.write("docs/benchmarks/speed.md", &text);
    }

    /// Ten days after the first commit.
    fn stale(&self) -> Result<Vec<Page>, String> {
        let now = UNIX_EPOCH + Duration::from_secs(FIRST + 10 * DAY);
        stale(&self.root(), &[&BENCH], now)
    }

    /// The only page, as people see it.
    fn line(&self) -> String {
        let pages = self.stale().unwrap();
        assert_eq!(pages.len(), 1, "{pages:?}");
        pages[0].to_string()
    }
}

#[test]
fn a_page_is_stale_when_a_crate_of_its_changed_since_the_build() {
    let mut made = Made::new();
    assert_eq!(made.stale().unwrap(), [], "nothing is stored");
    let built = made.commit();
    made.store(&[&built]);
    made.commit();
    assert_eq!(made.stale().unwrap(), [], "nothing changed");

    made.write("crates/c/src/lib.rs", "another\n");
    made.write("crates/a/src/tests.rs", "a test\n");
    made.write("crates/a/src/fit/tests/more.rs", "a test\n");
    made.write("crates/a/tests/e2e.rs", "a test\n");
    made.run(&["add", "--all"]);
    made.run(&["mv", "crates/b/src/lib.rs", "crates/b/src/moved.rs"]);
    fs::create_dir(made.root().join("crates/decide")).unwrap();
    made.run(&["mv", "crates/b", "crates/decide/b"]);
    made.commit();
    assert_eq!(
        made.stale().unwrap(),
        [],
        "another crate, tests, a file that moved and a crate that did"
    );

    made.write("crates/a/src/lib.rs", "1\ntwo\n3\n");
    made.write("crates/decide/b/src/moved.rs", "1\n2\n3\n4\n");
    made.commit();
    let expected = format!(
        "  speed: 3 lines since {built}, 10 days old; cargo xtask bench speed --fast --write\n    a 2, b 1"
    );
    assert_eq!(made.line(), expected);

    made.write("crates/a/src/lib.rs", "1\n2\n3\nnot committed\n");
    let expected = expected.replace("3 lines", "2 lines").replace("a 2", "a 1");
    assert_eq!(made.line(), expected);
}

/// The commit that stores a page comes after its build, and may bring more than the page. A
/// corrected word in the page makes no figure new.
#[test]
fn the_commit_of_the_build_counts_and_not_that_of_the_page() {
    let mut made = Made::new();
    let built = made.commit();
    made.store(&[&format!("{built}-dirty")]);
    made.write("crates/a/src/lib.rs", "1\n2\n3\n4\n");
    made.commit();
    assert!(
        made.line()
            .contains(&format!("1 line since {built}, 10 days"))
    );
}

#[test]
fn a_page_of_two_runs_counts_from_the_older_one() {
    let mut made = Made::new();
    let older = made.commit();
    made.write("crates/a/src/lib.rs", "1\n2\n3\n4\n");
    let newer = made.commit();
    made.store(&[&newer, &older]);
    made.commit();
    assert!(
        made.line()
            .contains(&format!("1 line since {older}, 10 days"))
    );
}

#[test]
fn a_page_that_names_no_commit_of_here_counts_from_the_last_that_wrote_it() {
    for names in [&["0123abc"][..], &["unknown"], &[]] {
        let mut made = Made::new();
        made.commit();
        made.store(names);
        assert_eq!(made.stale().unwrap(), [], "not even committed");
        let wrote = made.commit();
        made.write("crates/b/src/lib.rs", "1\n2\n");
        made.commit();
        let expected = format!("speed: 1 line since {wrote}, which last wrote it");
        assert!(made.line().contains(&expected), "{}", made.line());
    }
}

#[test]
fn a_checkout_without_history_says_so() {
    let mut made = Made::new();
    let built = made.commit();
    made.store(&[&built]);
    made.write("crates/a/src/lib.rs", "changed\n");
    made.commit();
    assert_eq!(made.stale().unwrap().len(), 1);

    let elsewhere = tempfile::tempdir().unwrap();
    let clone = elsewhere.path().join("clone");
    let from = format!("file://{}", made.root().display());
    let words = ["clone", "--quiet", "--depth", "1", &from];
    git(
        elsewhere.path(),
        &[&words[..], &[clone.to_str().unwrap()]].concat(),
    )
    .unwrap();
    let now = SystemTime::now();
    let said = stale(&clone, &[&BENCH], now).unwrap_err();
    assert!(said.contains("shallow"), "{said}");

    fs::remove_dir_all(clone.join(".git")).unwrap();
    let said = stale(&clone, &[&BENCH], now).unwrap_err();
    assert!(said.contains("not a git repository"), "{said}");

    git(elsewhere.path(), &["init", "--quiet"]).unwrap();
    let said = stale(&clone, &[&BENCH], now).unwrap_err();
    assert!(said.contains("has no history"), "{said}");
}

#[test]
fn an_age_is_said_in_days_and_on_the_first_in_hours() {
    let said = |hours: u64| age(Duration::from_secs(3_600 * hours + 59));
    assert_eq!(
        [0, 1, 23, 24, 47, 48].map(said),
        ["0 hours", "1 hour", "23 hours", "1 day", "1 day", "2 days"]
    );
}
