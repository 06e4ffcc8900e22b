//! The protocol step by step, as a table: each answer with its time, and the step that follows.

use sublet_model::Time;

use super::{ApiAnswer, Binding, BindingStep, PodState};

/// Each line is `ms answer -> step`, for a Binding that starts at 0 and is settled after 6,000 ms.
#[track_caller]
fn check(table: &str) {
    let (mut binding, first) = Binding::start(Time::from_ms(0), 6_000);
    assert_eq!(first, BindingStep::Post);
    for line in table.lines() {
        let (seen, expected) = line.split_once("->").unwrap();
        let words: Vec<&str> = seen.split_whitespace().collect();
        let now = Time::from_ms(words[0].parse().unwrap());
        let step = binding.apply(now, seen_as(words[1]));
        let told = match step {
            BindingStep::Post => "post".to_owned(),
            BindingStep::Read(at) => format!("read at {}", at.ms()),
            BindingStep::Bound => "bound".to_owned(),
            BindingStep::Failed(why) => format!("failed: {why}"),
        };
        assert_eq!(told, expected.trim(), "{line}");
    }
}

fn seen_as(word: &str) -> ApiAnswer {
    match word {
        "accepted" => ApiAnswer::Accepted,
        "unanswered" => ApiAnswer::Unanswered("timed out".to_owned()),
        "unreadable" => ApiAnswer::Unreadable("connection refused".to_owned()),
        "as-asked" => ApiAnswer::Pod(PodState::AsAsked),
        "unbound" => ApiAnswer::Pod(PodState::Unbound),
        "gone" => ApiAnswer::Pod(PodState::Gone),
        "elsewhere" => ApiAnswer::Pod(PodState::Elsewhere("bound to node b".to_owned())),
        code => ApiAnswer::Refused {
            code: code.parse().unwrap(),
            message: "no".to_owned(),
        },
    }
}

#[test]
fn a_plain_answer_ends_it() {
    check("7 accepted -> bound");
    check("7 404 -> failed: no (404)");
    check("7 403 -> failed: no (403)");
    check("7 429 -> failed: no (429)");
}

#[test]
fn a_conflict_is_looked_into_once() {
    check(
        "7 409 -> read at 7
         8 as-asked -> bound",
    );
    check(
        "7 409 -> read at 7
         8 elsewhere -> failed: bound to node b",
    );
    check(
        "7 409 -> read at 7
         8 unreadable -> read at 108
         108 unbound -> failed: no",
    );
}

#[test]
fn a_lost_answer_is_waited_out() {
    check(
        "10 unanswered -> read at 10
         10 unbound -> read at 110
         110 unreadable -> read at 310
         310 unbound -> read at 710
         710 unbound -> read at 1510
         1510 unbound -> read at 2510
         2510 unreadable -> read at 3510
         5999 unbound -> read at 6999
         6000 unbound -> failed: timed out",
    );
    check(
        "10 unanswered -> read at 10
         5000 unbound -> read at 5100
         5100 as-asked -> bound",
    );
    check(
        "10 unanswered -> read at 10
         11 gone -> failed: the pod is gone",
    );
}

#[test]
fn a_server_error_or_a_proxys_time_out_is_no_refusal() {
    for code in [408, 500, 502, 504] {
        check(&format!(
            "10 {code} -> read at 10
             10 unbound -> read at 110
             6000 unbound -> failed: no ({code})"
        ));
    }
}
