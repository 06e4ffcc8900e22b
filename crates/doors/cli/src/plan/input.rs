//! Nodes and pods from files, as `kubectl get -o yaml` or `-o json` prints them.
//!
//! Documents are cut apart first and read one by one, so that a bad one is reported with its file,
//! number, line and field while all others are still read. Kinds that a plan does not need are
//! passed over with a note. Nothing is decided here.

mod block;
mod documents;
mod field;
mod items;
mod limits;
mod parse;

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use sublet_api::object::{Node, Pod};
use sublet_api::{ElasticQuota, ResourceQuota};

use self::documents::documents;
use self::parse::{Document, Object, Read, Wrong, makes_pods};

/// Position of an object in the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    file: String,
    document: usize,
    item: Option<usize>,
    line: usize,
    /// Number of objects that were read before it, in all files.
    at: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.file, self.document)?;
        match self.item {
            Some(item) => write!(f, ", item {item}"),
            None => write!(f, " (line {})", self.line),
        }
    }
}

/// An object and its position.
#[derive(Debug, Clone)]
pub struct Located<T> {
    /// Its position in the input.
    pub origin: Origin,
    /// The object.
    pub object: T,
}

/// An object that cannot be used, or not all of it: everything else still is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    file: String,
    document: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// Name of the object, if that much can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    problem: String,
    /// May it be a pod that waits? Then that one is not placed.
    #[serde(skip)]
    pub(crate) may_wait: bool,
}

impl Unreadable {
    /// Makes the report of a fault in a field of an object.
    pub(crate) fn of(origin: &Origin, object: String, field: &str, problem: String) -> Unreadable {
        Unreadable {
            file: origin.file.clone(),
            document: origin.document,
            item: origin.item,
            line: origin.item.is_none().then_some(origin.line),
            object: Some(object),
            field: Some(field.to_owned()),
            problem,
            may_wait: false,
        }
    }

    /// The same for an object that may be a waiting pod, or may make some.
    pub(super) fn of_waiting(self) -> Unreadable {
        Unreadable {
            may_wait: true,
            ..self
        }
    }

    fn unparsed(origin: &Origin, wrong: Wrong) -> Unreadable {
        let line = wrong.line.and_then(|line| usize::try_from(line).ok());
        Unreadable {
            file: origin.file.clone(),
            document: origin.document,
            item: origin.item,
            line: Some(origin.line + line.unwrap_or(1).saturating_sub(1)),
            object: None,
            field: wrong.field,
            problem: wrong.problem,
            may_wait: true,
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.file, self.document)?;
        if let Some(item) = self.item {
            write!(f, ", item {item}")?;
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(object) = &self.object {
            write!(f, ", {object}")?;
        }
        if let Some(field) = &self.field {
            write!(f, ", field `{field}`")?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// Everything that was read.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// Nodes, in the order of the files.
    pub nodes: Vec<Located<Node>>,
    /// Pods, in the order of the files.
    pub pods: Vec<Located<Pod>>,
    /// ElasticQuotas, in the order of the files.
    pub quotas: Vec<Located<ElasticQuota>>,
    /// ResourceQuotas, in the order of the files.
    pub limits: Vec<Located<ResourceQuota>>,
    /// Objects of kinds that only the queue reads, and jobs, in the order of the files.
    pub queued: Vec<Located<Value>>,
    /// Workloads that are no jobs, in the order of the files.
    pub workloads: Vec<Located<Value>>,
    /// A line for each object that no command has a use for.
    pub notes: Vec<String>,
    /// Objects that cannot be read while all others can.
    pub unreadable: Vec<Unreadable>,
    /// A line for each file in which there is nothing at all.
    pub errors: Vec<String>,
    /// Number of objects that were read.
    objects: usize,
}

impl Input {
    /// Reads these files; `-` is standard input.
    #[must_use]
    pub fn of_files(files: &[PathBuf]) -> Input {
        let mut input = Input::default();
        for file in files {
            let name = match file.as_os_str() == "-" {
                true => "standard input".to_owned(),
                false => file.display().to_string(),
            };
            match text_of(file) {
                Ok(text) => input.read(&name, &text),
                Err(error) => input
                    .errors
                    .push(format!("{name}: cannot be read: {error}")),
            }
        }
        input
    }

    /// Reads one file's text; `file` is its name in messages.
    pub fn read(&mut self, file: &str, text: &str) {
        let mut n_documents = 0;
        for (line, document) in documents(text) {
            n_documents += 1;
            let origin = Origin {
                file: file.to_owned(),
                document: n_documents,
                item: None,
                line,
                at: 0,
            };
            match Document::read(document) {
                Ok(Document::Single(object)) => self.add(origin, object),
                Ok(Document::List(objects)) => {
                    for (at, object) in objects.into_iter().enumerate() {
                        let item = Some(at + 1);
                        let origin = origin.clone();
                        self.add(Origin { item, ..origin }, object);
                    }
                }
                Err(wrong) => self.unreadable.push(Unreadable::unparsed(&origin, wrong)),
            }
        }
        if n_documents == 0 {
            self.errors
                .push(format!("{file}: there is no Kubernetes object in it"));
        }
    }

    /// True if nothing at all was read, so that there is nothing to plan.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        let nothing = self.nodes.is_empty()
            && self.pods.is_empty()
            && self.quotas.is_empty()
            && self.workloads.is_empty();
        !self.errors.is_empty() || (nothing && !self.unreadable.is_empty())
    }

    /// Puts pods into the order of the files.
    pub(crate) fn sort_pods(&mut self) {
        self.pods.sort_by_key(|pod| pod.origin.at);
    }

    /// Leaves out objects that only `sublet plan` reads, with a note.
    pub(crate) fn pass_over_workloads(&mut self) {
        let kind = |object: &Value| object["kind"].as_str().unwrap_or_default().to_owned();
        let workloads = self.workloads.drain(..);
        let workloads = workloads.map(|one| (one.origin, kind(&one.object)));
        let limits = self.limits.drain(..);
        let limits = limits.map(|one| (one.origin, "ResourceQuota".to_owned()));
        for (origin, kind) in workloads.chain(limits) {
            self.notes.push(format!(
                "note: {origin}: passed over, its kind is {kind}; `sublet plan -f` reads it"
            ));
        }
    }

    fn add(&mut self, mut origin: Origin, (kind, object): Read) {
        origin.at = self.objects;
        self.objects += 1;
        match object {
            Ok(Object::Node(node)) => {
                let object = *node;
                self.nodes.push(Located { origin, object });
            }
            Ok(Object::Pod(pod)) => {
                let object = *pod;
                self.pods.push(Located { origin, object });
            }
            Ok(Object::Quota(quota)) => {
                let object = *quota;
                self.quotas.push(Located { origin, object });
            }
            Ok(Object::Limits(quota)) => {
                let object = *quota;
                self.limits.push(Located { origin, object });
            }
            Ok(Object::Workload(value)) => {
                let object = *value;
                self.workloads.push(Located { origin, object });
            }
            Ok(Object::Queued(value)) => {
                let object = *value;
                self.queued.push(Located { origin, object });
            }
            Ok(Object::Other) => {
                let kind = if kind.is_empty() { "(none)" } else { &kind };
                self.notes
                    .push(format!("note: {origin}: passed over, its kind is {kind}"));
            }
            Err(wrong) => {
                let mut odd = Unreadable::unparsed(&origin, wrong);
                odd.may_wait = makes_pods(&kind);
                self.unreadable.push(odd);
            }
        }
    }
}

fn text_of(file: &Path) -> io::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text)?;
        Ok(text)
    } else {
        std::fs::read_to_string(file)
    }
}
