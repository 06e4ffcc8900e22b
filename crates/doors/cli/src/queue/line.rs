//! The waiting line of one machine, as its arbiter shows it.

use serde::Serialize;
use sublet_arbiter::admin::{Snapshot, TenantRow, UserRow};
use sublet_arbiter::libraries::Carried;

use crate::answer::{Answer, DONE, Format, document};
use crate::jobs::{asked, duration};
use crate::machine::Machine;
use crate::run;

/// Shows the jobs that wait on that machine, starting its arbiter if none runs.
pub(super) fn show(
    machine: &Machine,
    format: Format,
    carried: Option<&'static Carried>,
) -> anyhow::Result<Answer> {
    run::ensure_arbiter(machine, carried)?;
    let line = Line::of(&machine.snapshot()?);
    Ok(Answer {
        text: line.print(format)?,
        notes: Vec::new(),
        code: DONE,
    })
}

/// Fields are added, never renamed or taken away.
#[derive(Debug, Serialize)]
struct Line {
    /// `machine`: the source of the answer.
    of: &'static str,
    users: Vec<UserRow>,
    waiting: Vec<WaitingJob>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WaitingJob {
    position: u32,
    id: Option<u64>,
    name: String,
    user: Option<u32>,
    priority: i32,
    asked: String,
    waited_ms: u64,
    reason: String,
    starts_when: String,
}

impl Line {
    fn of(snapshot: &Snapshot) -> Line {
        let waiting = |job: &TenantRow| {
            Some(WaitingJob {
                position: job.position?,
                id: job.id,
                name: job.name.clone(),
                user: job.user,
                priority: job.priority,
                asked: asked(job),
                waited_ms: job.waited_ms.unwrap_or(0),
                reason: job.reason.clone().unwrap_or_default(),
                starts_when: job.starts_when.clone().unwrap_or_default(),
            })
        };
        let mut line: Vec<WaitingJob> = snapshot.tenants.iter().filter_map(waiting).collect();
        line.sort_by_key(|job| job.position);
        Line {
            of: "machine",
            users: snapshot.users.clone(),
            waiting: line,
        }
    }

    fn print(&self, format: Format) -> anyhow::Result<String> {
        match format {
            Format::Table => Ok(self.table()),
            Format::Json => document(self, false),
            Format::Yaml => document(self, true),
        }
    }

    fn table(&self) -> String {
        let mut text = String::new();
        if !self.users.is_empty() {
            let row = |user: &UserRow| {
                let UserRow {
                    user,
                    cards,
                    running,
                    waiting,
                } = user;
                vec![
                    user.to_string(),
                    format!("{cards:.2}"),
                    running.to_string(),
                    waiting.to_string(),
                ]
            };
            let rows: Vec<Vec<String>> = self.users.iter().map(row).collect();
            text += &crate::align::table(&["USER", "GPUS", "RUNNING", "WAITING"], &rows);
            text.push('\n');
        }
        if self.waiting.is_empty() {
            return text + "no job waits on this machine\n";
        }
        let row = |job: &WaitingJob| {
            let number = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
            let cells = [
                job.position.to_string(),
                number(job.id.map(|id| id.to_string())),
                number(job.user.map(|user| user.to_string())),
                job.priority.to_string(),
                job.name.clone(),
                job.asked.clone(),
                duration(job.waited_ms),
                job.reason.clone(),
                job.starts_when.clone(),
            ];
            let clean = |cell: String| cell.replace(['\t', '\n'], " ");
            cells.map(clean).to_vec()
        };
        let rows: Vec<Vec<String>> = self.waiting.iter().map(row).collect();
        let heading = [
            "PLACE",
            "ID",
            "USER",
            "PRIORITY",
            "NAME",
            "ASKED",
            "WAITED",
            "WHY",
            "STARTS WHEN",
        ];
        text + &crate::align::table(&heading, &rows)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn example() -> Snapshot {
        let mut snapshot = crate::jobs::tests::example();
        snapshot.users = vec![UserRow {
            user: 1000,
            cards: 0.5,
            running: 2,
            waiting: 1,
        }];
        let job = &mut snapshot.tenants[2];
        (job.user, job.priority, job.waited_ms) = (Some(1000), -1, Some(61_000));
        job.starts_when = Some("job 1 ends".to_owned());
        snapshot
    }

    #[test]
    fn who_waits_stands_in_order_with_what_would_start_it() {
        let line = Line::of(&example());
        let text = line.print(Format::Table).unwrap();
        let expected = "\
USER  GPUS  RUNNING  WAITING
1000  0.50  2        1

PLACE  ID  USER  PRIORITY  NAME   ASKED     WAITED  WHY                STARTS WHEN
1      3   1000  -1        later  4096 MiB  1 min   GPU 0 lacks 1 MiB  job 1 ends
";
        assert_eq!(text, expected);
        let nobody = Line::of(&Snapshot::default());
        let text = nobody.print(Format::Table).unwrap();
        assert_eq!(text, "no job waits on this machine\n");
    }

    /// These names are a promise: scripts read them.
    #[test]
    fn the_json_form_is_as_promised() {
        let text = Line::of(&example()).print(Format::Json).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["of"], "machine");
        let fields = |value: &Value| {
            let fields = value.as_object().unwrap().keys().cloned();
            fields.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(fields(&json["users"][0]), "cards running user waiting");
        assert_eq!(
            fields(&json["waiting"][0]),
            "asked id name position priority reason startsWhen user waitedMs"
        );
        let yaml = Line::of(&example()).print(Format::Yaml).unwrap();
        assert!(yaml.contains("startsWhen: job 1 ends"), "{yaml}");
    }
}
