//! Each tenant alone, on a partition of its own: what it would have if it did not join the cluster.
//!
//! A partition has as many whole nodes as the tenant's `min` needs. On it jobs start by backfill. A
//! tenant without `min` has no partition, and a job that is larger than its partition never starts.

use super::backfill::BackfillLine;
use crate::replay::jobs::Jobs;
use crate::replay::rule::{Discipline, JobLine};

pub(in crate::replay) struct Partitions;

impl Discipline for Partitions {
    fn name(&self) -> &'static str {
        "partitions"
    }

    fn about(&self) -> &'static str {
        "each tenant alone on nodes of its own, as many as its min needs; there by backfill"
    }

    fn is_apart(&self) -> bool {
        true
    }

    fn line<'a>(&self, jobs: &'a Jobs) -> Box<dyn JobLine + 'a> {
        Box::new(BackfillLine::of_each_tenant(jobs))
    }
}
