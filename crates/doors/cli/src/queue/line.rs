//! The waiting line of one machine, as its arbiter shows it.

use serde::Serialize;
use sublet_arbiter::admin::{Snapshot, TenantRow, UserRow};

use crate::align::columns;
use crate::answer::{Answer, DONE, Format, document};
use crate::jobs::{duration, request};
use crate::look;
use crate::machine::Machine;

/// Shows the jobs that wait on that machine.
pub(super) fn show(machine: &Machine, format: Format) -> anyhow::Result<Answer> {
    let look = look::at(machine)?;
    Ok(Answer {
        text: Line::of(&look.snapshot).print(format)?,
        notes: look.note.into_iter().collect(),
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
    uid: Option<u32>,
    user: Option<String>,
    priority: i32,
    #[serde(rename = "requestMiB")]
    request_mib: Option<u64>,
    request_percent: Option<f64>,
    request_gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_gpus: Option<Vec<u16>>,
    waited_ms: u64,
    reason: String,
    starts_when: String,
    /// The request in words, for people.
    #[serde(skip)]
    request: String,
}

impl Line {
    fn of(snapshot: &Snapshot) -> Line {
        let waiting = |job: &TenantRow| {
            Some(WaitingJob {
                position: job.position?,
                id: job.id,
                name: job.name.clone(),
                uid: job.uid,
                user: job.user.clone(),
                priority: job.priority,
                request_mib: job.request_mib,
                request_percent: job.request_percent,
                request_gpus: job.request_gpus,
                allowed_gpus: job.allowed_gpus.clone(),
                request: request(job),
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
                    uid,
                    user,
                    cards,
                    running,
                    waiting,
                } = user;
                vec![
                    user.clone().unwrap_or_else(|| uid.to_string()),
                    format!("{cards:.2}"),
                    running.to_string(),
                    waiting.to_string(),
                ]
            };
            let rows: Vec<Vec<String>> = self.users.iter().map(row).collect();
            text += &columns(&["user", "gpus", "running", "waiting"], &rows);
            text.push('\n');
        }
        if self.waiting.is_empty() {
            return text + "no job waits on this machine\n";
        }
        let row = |job: &WaitingJob| {
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let cells = [
                job.position.to_string(),
                or_dash(job.id.map(|id| id.to_string())),
                or_dash(job.user.clone()),
                job.priority.to_string(),
                job.name.clone(),
                job.request.clone(),
                duration(job.waited_ms),
                job.reason.clone(),
                job.starts_when.clone(),
            ];
            let clean = |cell: String| cell.replace(['\t', '\n'], " ");
            cells.map(clean).to_vec()
        };
        let rows: Vec<Vec<String>> = self.waiting.iter().map(row).collect();
        let keys = [
            "position",
            "id",
            "user",
            "priority",
            "name",
            "requestMiB",
            "waitedMs",
            "reason",
            "startsWhen",
        ];
        text + &columns(&keys, &rows)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;

    fn example() -> Snapshot {
        let mut snapshot = crate::jobs::tests::example();
        snapshot.users = vec![UserRow {
            uid: 1000,
            user: Some("anne".to_owned()),
            cards: 0.5,
            running: 2,
            waiting: 1,
        }];
        let job = &mut snapshot.tenants[2];
        (job.uid, job.priority, job.waited_ms) = (Some(1000), -1, Some(61_000));
        job.user = Some("anne".to_owned());
        job.starts_when = Some("job 1 ends".to_owned());
        snapshot
    }

    /// Table and JSON of an example.
    pub(crate) fn answers() -> Vec<[String; 2]> {
        let line = Line::of(&example());
        vec![[Format::Table, Format::Json].map(|form| line.print(form).unwrap())]
    }

    #[test]
    fn who_waits_stands_in_order_with_what_would_start_it() {
        let line = Line::of(&example());
        let text = line.print(Format::Table).unwrap();
        let expected = "\
USER  GPUS  RUNNING  WAITING
anne  0.50  2        1

POSITION  ID  USER  PRIORITY  NAME   REQUEST   WAITED  REASON             STARTS WHEN
1         3   anne  -1        later  4096 MiB  1 min   GPU 0 lacks 1 MiB  job 1 ends
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
        assert_eq!(fields(&json["users"][0]), "gpus running uid user waiting");
        assert_eq!(
            fields(&json["waiting"][0]),
            "id name position priority reason requestGpus requestMiB requestPercent startsWhen uid user \
             waitedMs"
        );
        let yaml = Line::of(&example()).print(Format::Yaml).unwrap();
        assert!(yaml.contains("startsWhen: job 1 ends"), "{yaml}");
    }
}
