//! Groups of objects as users write them. `read` is of single objects, `any` of
//! any text, `together` of many objects, `past` of what annotations say of a group's past.

mod any;
mod past;
mod read;
mod together;

use serde_json::Value;

use super::{JobFacts, job_kind, read_job};
use crate::object::Pod;

/// A file of `fixtures/jobs`.
macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../../../../fixtures/jobs/", $name, ".yaml"))
    };
}
use fixture;

fn json(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

fn pod(yaml: &str) -> Pod {
    serde_saphyr::from_str(yaml).unwrap()
}

fn job(yaml: &str) -> JobFacts {
    read(yaml).unwrap()
}

fn read(yaml: &str) -> Result<JobFacts, String> {
    let object = json(yaml);
    let text = |field: &str| object[field].as_str().unwrap();
    let kind = job_kind(text("apiVersion"), text("kind")).unwrap();
    read_job(kind, &object).map_err(|error| error.to_string())
}
