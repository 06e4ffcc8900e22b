//! Entitlements as a table, JSON or YAML.
//!
//! The JSON form is a promise to programs: fields are added, never renamed or taken away.

use serde::Serialize;
use sublet_queue::quantity;

use super::report::{Report, Row};
use crate::align::columns;
use crate::answer::{Answer, BAD_INPUT, DONE, Format, NOT_DONE, document};
use crate::plan::Unreadable;

#[derive(Serialize)]
struct ReportJson<'a> {
    quotas: Vec<RowJson<'a>>,
    unreadable: &'a [Unreadable],
}

/// Amounts are whole numbers: CPU in thousandths of a core, all else in its base unit.
#[derive(Serialize)]
struct RowJson<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    tree: &'a str,
    name: &'a str,
    /// Null for one at the top.
    parent: Option<&'a str>,
    resource: &'a str,
    min: u64,
    /// Null if nothing limits it.
    max: Option<u64>,
    request: u64,
    entitlement: u64,
    used: u64,
}

/// Answer with the quotas' figures and faults.
///
/// # Errors
/// None that can be made by files.
pub(super) fn answer(report: &Report, format: Format) -> anyhow::Result<Answer> {
    let json = || ReportJson {
        quotas: report.rows.iter().map(row_json).collect(),
        unreadable: &report.unreadable,
    };
    let code = match () {
        () if report.rows.is_empty() => BAD_INPUT,
        () if report.unreadable.is_empty() && report.errors.is_empty() => DONE,
        () => NOT_DONE,
    };
    let text = match format {
        _ if code == BAD_INPUT => String::new(),
        Format::Table => as_table(&report.rows),
        Format::Json => document(&json(), false)?,
        Format::Yaml => document(&json(), true)?,
    };
    let odd = report
        .unreadable
        .iter()
        .map(|odd| format!("warning: {odd}"));
    let errors = report.errors.iter().map(|error| format!("error: {error}"));
    Ok(Answer {
        text,
        notes: report
            .notes
            .iter()
            .cloned()
            .chain(odd)
            .chain(errors)
            .collect(),
        code,
    })
}

fn row_json(row: &Row) -> RowJson<'_> {
    RowJson {
        tree: &row.tree,
        name: &row.name,
        parent: row.parent.as_deref(),
        resource: &row.resource,
        min: row.min,
        max: row.max,
        request: row.request,
        entitlement: row.entitlement,
        used: row.used,
    }
}

fn as_table(rows: &[Row]) -> String {
    let keys = [
        "name",
        "resource",
        "min",
        "max",
        "request",
        "entitlement",
        "used",
    ];
    let mut cells = Vec::new();
    let mut before: Option<&Row> = None;
    for row in rows {
        let is_same =
            before.is_some_and(|before| (&before.tree, &before.name) == (&row.tree, &row.name));
        let amount = |amount: u64| quantity(&row.resource, amount);
        cells.push(vec![
            if is_same { String::new() } else { row.title() },
            row.resource.to_string(),
            amount(row.min),
            row.max.map_or("-".to_owned(), amount),
            amount(row.request),
            amount(row.entitlement),
            amount(row.used),
        ]);
        before = Some(row);
    }
    columns(&keys, &cells)
}
