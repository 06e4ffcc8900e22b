//! Looks how long jobs ran that have completed, for guesses about others of their name.

use sublet_queue::RunHistory;

use crate::group::job::{JobFacts, JobName};

/// Kind, namespace and name of a job, without what tells it from others of a row.
pub(super) type Alike<'a> = (&'static str, &'a str, &'a str);

/// Run times of these jobs.
pub(super) fn history<'a>(jobs: &[&'a JobFacts]) -> RunHistory<Alike<'a>> {
    let ran = |job: &&'a JobFacts| {
        let (began, completed) = job.shape.started.zip(job.shape.completed)?;
        Some((completed, &job.job, completed.ms().checked_sub(began.ms())?))
    };
    let mut completed: Vec<_> = jobs.iter().filter_map(ran).collect();
    completed.sort_unstable();
    let mut history = RunHistory::default();
    for (_, job, runs_ms) in completed {
        history.ended(alike(job), runs_ms);
    }
    history
}

/// Key of a job and of all that are like it.
pub(super) fn alike(job: &JobName) -> Alike<'_> {
    (job.word, &job.namespace, stem(&job.name))
}

/// Letters of the suffixes that the API server makes for `generateName`, which are of five.
/// Source: `k8s.io/apimachinery` v0.36.3, `pkg/util/rand`.
const DRAWN: &str = "bcdfghjklmnpqrstvwxz2456789";

/// A name without a drawn suffix, and without numbers at its end, such as a CronJob's.
fn stem(name: &str) -> &str {
    let is_drawn = |tail: &str| tail.len() == 5 && tail.chars().all(|c| DRAWN.contains(c));
    let drawn = name.rsplit_once('-').filter(|(_, tail)| is_drawn(tail));
    let head = drawn.map_or(name, |(head, _)| head);
    let is_number = |c: char| c.is_ascii_digit() || c == '-' || c == '.';
    match head.trim_end_matches(is_number) {
        "" => head,
        stem => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_a_row_have_one_stem() {
        for (name, expected) in [
            ("train", "train"),
            ("train-7", "train"),
            ("train7", "train"),
            ("train-x7k2q", "train"),
            ("nightly-29384756", "nightly"),
            ("eval-2026-11-29-zz9wq", "eval"),
            ("eval.1.2", "eval"),
            // A vowel, and one letter more than are drawn.
            ("train-large", "train-large"),
            ("train-xbcdfg", "train-xbcdfg"),
            ("2026", "2026"),
            ("-", "-"),
            ("", ""),
        ] {
            assert_eq!(stem(name), expected, "{name}");
        }
    }
}
