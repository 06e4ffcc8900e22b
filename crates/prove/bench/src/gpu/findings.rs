//! The findings, twice: Markdown for people, and JSON with everything that was measured.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::report::Report;

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) report: Report,
    values: Map<String, Value>,
}

impl Findings {
    /// Keeps something for the JSON document.
    pub(super) fn keep(&mut self, name: &str, value: Value) {
        self.values.insert(name.to_owned(), value);
    }

    /// Stores both under this name, without an ending.
    pub(super) fn write(&self, folder: &Path, name: &str) -> Result<()> {
        self.report.write(&folder.join(format!("{name}.md")))?;
        let file = folder.join(format!("{name}.json"));
        let text = format!("{:#}\n", Value::Object(self.values.clone()));
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_documents_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut findings = Findings::default();
        findings.report.say("# A card");
        findings.keep("driver", Value::from("580"));
        findings.write(folder.path(), "gpu").unwrap();
        let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("gpu.md"), "# A card\n");
        assert_eq!(read("gpu.json"), "{\n  \"driver\": \"580\"\n}\n");
    }
}
