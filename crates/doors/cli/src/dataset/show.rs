//! Tables of data sets.

use std::time::{SystemTime, UNIX_EPOCH};

use sublet_dataset::{DatasetList, DatasetRow};

use crate::align::columns;
use crate::answer::{Format, document};
use crate::jobs::duration;

/// Every set, as asked.
pub(super) fn list(list: &DatasetList, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Table if list.sets.is_empty() => Ok("no data set\n".to_owned()),
        Format::Table => Ok(table(list)),
        Format::Json => document(list, false),
        Format::Yaml => document(list, true),
    }
}

fn table(list: &DatasetList) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(0);
    let rows: Vec<Vec<String>> = list.sets.iter().map(|set| cells(set, now_ms)).collect();
    columns(
        &[
            "name",
            "state",
            "sizeBytes",
            "files",
            "jobs",
            "lastUsedMs",
            "source",
        ],
        &rows,
    )
}

fn cells(set: &DatasetRow, now_ms: u64) -> Vec<String> {
    let state = match (set.state.as_str(), set.pinned) {
        ("fetching", _) if set.needed_bytes > 0 => {
            format!("fetching {} %", set.fetched_bytes * 100 / set.needed_bytes)
        }
        (state, true) => format!("{state}, pinned"),
        (state, false) => state.to_owned(),
    };
    vec![
        set.name.clone(),
        state,
        size(set.size_bytes),
        set.files.to_string(),
        set.jobs.to_string(),
        set.last_used_ms
            .map_or("-".to_owned(), |used| duration(now_ms.saturating_sub(used))),
        set.source.clone(),
    ]
}

/// One set, a line for each thing about it.
pub(super) fn one(set: &DatasetRow) -> String {
    let mut lines = vec![
        ("name", set.name.clone()),
        ("state", set.state.clone()),
        ("source", set.source.clone()),
        (
            "size",
            format!("{} in {} files", size(set.size_bytes), set.files),
        ),
        (
            "jobs",
            format!("{} have it, {} wait", set.jobs, set.waiting),
        ),
    ];
    lines.extend(set.version.clone().map(|version| ("version", version)));
    if set.fetched_bytes > 0 {
        lines.push(("fetched", size(set.fetched_bytes)));
    }
    if set.pinned {
        lines.push(("pinned", "yes".to_owned()));
    }
    lines.extend(set.reason.clone().map(|reason| ("reason", reason)));
    let lines = lines
        .into_iter()
        .map(|(word, value)| format!("{word:<8} {value}\n"));
    lines.collect()
}

/// A note about a store that does not show sets in the best way.
pub(super) fn note(list: &DatasetList) -> Option<String> {
    let reason = list.store.view_reason.as_ref()?;
    Some(format!(
        "note: sets are shown as {}: {reason}",
        list.store.view
    ))
}

/// Outcome of a check.
pub(super) fn verified(size_bytes: u64, damaged: &[String]) -> String {
    match damaged {
        [] => format!("{}: all bytes are right\n", size(size_bytes)),
        damaged => format!(
            "{}: wrong bytes, which are replaced by the source's, in\n  {}\n",
            size(size_bytes),
            damaged.join("\n  ")
        ),
    }
}

/// An amount for people. Data sets have terabytes, where amounts of a GPU are in MiB.
pub(super) fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit < units.len() - 1 {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", units[unit])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sublet_dataset::DatasetStore;

    fn example() -> DatasetList {
        let ready = DatasetRow {
            name: "imagenet".to_owned(),
            state: "ready".to_owned(),
            source: "/mnt/nfs/imagenet".to_owned(),
            version: Some("ab".repeat(32)),
            files: 1_281_167,
            size_bytes: 130 << 30,
            jobs: 2,
            pinned: true,
            last_used_ms: Some(0),
            ..DatasetRow::default()
        };
        let coming = DatasetRow {
            name: "cats".to_owned(),
            state: "fetching".to_owned(),
            source: "/mnt/nfs/cats".to_owned(),
            fetched_bytes: 1 << 30,
            needed_bytes: 4 << 30,
            waiting: 1,
            reason: Some("no answer for 60 s".to_owned()),
            ..DatasetRow::default()
        };
        DatasetList {
            store: DatasetStore {
                path: "/var/cache/sublet/datasets".to_owned(),
                view: "files".to_owned(),
                view_reason: Some("cannot mount EROFS: operation not permitted".to_owned()),
                disk_bytes: 1 << 40,
                free_bytes: 1 << 39,
            },
            sets: vec![ready, coming],
        }
    }

    /// Table and JSON of an example.
    pub(crate) fn answers() -> Vec<[String; 2]> {
        let forms = [Format::Table, Format::Json];
        vec![forms.map(|form| list(&example(), form).unwrap())]
    }

    /// JSON of one set. Its text for people is no table.
    pub(crate) fn answers_of_one() -> Vec<[String; 2]> {
        let one = document(&example().sets[0], false).unwrap();
        vec![[String::new(), one]]
    }

    #[test]
    fn a_table_says_what_is_here_and_what_comes() {
        let table = list(&example(), Format::Table).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[0].starts_with("NAME      STATE          SIZE"),
            "{table}"
        );
        assert!(
            lines[1].starts_with("imagenet  ready, pinned  130.0 GiB  1281167  2 "),
            "{table}"
        );
        assert!(
            lines[2].starts_with("cats      fetching 25 %  0 B        0        0     -"),
            "{table}"
        );
        let note = note(&example()).unwrap();
        assert!(
            note.starts_with("note: sets are shown as files: cannot mount"),
            "{note}"
        );
        assert_eq!(
            list(&DatasetList::default(), Format::Table).unwrap(),
            "no data set\n"
        );
        let one = one(&example().sets[1]);
        assert!(one.contains("reason   no answer for 60 s\n"), "{one}");
    }

    #[test]
    fn amounts_have_the_unit_that_fits() {
        let rows = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (5 << 40, "5.0 TiB"),
        ];
        for (bytes, text) in rows {
            assert_eq!(size(bytes), text);
        }
    }
}
