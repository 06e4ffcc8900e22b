//! Lists of jobs and of nodes that are made from traces which are no lists of jobs of tenants.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fastrand::Rng;
use flate2::read::GzDecoder;

/// The moment of openb's list from which on pods come densely: nine of ten come in the last 30 of
/// its 149 days.
const OPENB_BEGIN: u64 = 119 * 86_400;

/// Tenants that openb's jobs are given to.
const TENANTS: u64 = 8;

/// Most jobs in a row that one tenant is given: people come with many jobs at once.
const MOST_IN_A_ROW: u64 = 100;

/// A packed file, unpacked.
pub(super) fn unpacked(file: &Path) -> Result<GzDecoder<File>> {
    let opened = File::open(file).with_context(|| format!("open {}", file.display()))?;
    Ok(GzDecoder::new(opened))
}

/// Writes a list of equal nodes.
pub(super) fn nodes(folder: &Path, (count, gpus): (u32, u32)) -> Result<PathBuf> {
    let path = folder.join(format!("nodes-{count}x{gpus}.csv"));
    let mut list = csv::Writer::from_path(&path)?;
    list.write_record(["name", "cpu_milli", "memory_mib", "gpu"])?;
    for number in 0..count {
        list.serialize((format!("n{number}"), 1, 1, gpus))?;
    }
    list.flush()?;
    Ok(path)
}

/// A column of a list.
fn column(headers: &csv::StringRecord, name: &str) -> Result<usize> {
    let found = headers.iter().position(|header| header == name);
    found.with_context(|| format!("there is no column `{name}`"))
}

/// Writes openb's jobs of GPUs with tenants by a seed, because its list names none: some jobs in a
/// row to one of a few tenants, of which the second has half as many as the first, the third a third
/// of them, and so on.
pub(super) fn openb(pods: impl Read, seed: u64, path: &Path) -> Result<()> {
    let mut rows = csv::Reader::from_reader(pods);
    let headers = rows.headers()?.clone();
    let names = ["num_gpu", "gpu_milli", "creation_time", "deletion_time"];
    let columns: Result<Vec<usize>> = names.iter().map(|name| column(&headers, name)).collect();
    let columns = columns?;
    let mut jobs = Vec::new();
    for row in rows.records() {
        let row = row?;
        let [gpus, milli, begin, end] = [0, 1, 2, 3].map(|at| &row[columns[at]]);
        let (begin, end): (u64, u64) = (begin.parse()?, end.parse()?);
        if gpus != "0" && begin >= OPENB_BEGIN {
            let milli = if milli == "1000" { "" } else { milli };
            jobs.push((begin, end - begin, gpus.to_owned(), milli.to_owned()));
        }
    }
    jobs.sort_by_key(|job| job.0);
    let mut rng = Rng::with_seed(seed);
    let (mut tenant, mut left) = (1, 0);
    let mut list = csv::Writer::from_path(path)?;
    list.write_record(["timestamp", "duration", "num_gpu", "gpu_milli", "tenant"])?;
    for (begin, lasts, gpus, milli) in jobs {
        if left == 0 {
            tenant = draw(&mut rng);
            left = rng.u64(1..=MOST_IN_A_ROW);
        }
        left -= 1;
        list.serialize((begin, lasts, gpus, milli, format!("t{tenant}")))?;
    }
    Ok(list.flush()?)
}

/// A tenant, each with its weight: 840, which all their numbers divide, by its number.
fn draw(rng: &mut Rng) -> u64 {
    let weight = |tenant: u64| 840 / tenant;
    let all: u64 = (1..=TENANTS).map(weight).sum();
    let mut drawn = rng.u64(0..all);
    for tenant in 1..TENANTS {
        match drawn.checked_sub(weight(tenant)) {
            Some(rest) => drawn = rest,
            None => return tenant,
        }
    }
    TENANTS
}

/// Writes the instances of one GPU of which the begin and the end are known, with their service as
/// their tenant.
pub(super) fn dlrm(instances: impl Read, path: &Path) -> Result<()> {
    let mut rows = csv::Reader::from_reader(instances);
    let headers = rows.headers()?.clone();
    let names = ["role", "app_name", "creation_time", "deletion_time"];
    let columns: Result<Vec<usize>> = names.iter().map(|name| column(&headers, name)).collect();
    let columns = columns?;
    let mut list = csv::Writer::from_path(path)?;
    list.write_record(["timestamp", "duration", "num_gpu", "tenant"])?;
    for row in rows.records() {
        let row = row?;
        let [role, app, begin, end] = [0, 1, 2, 3].map(|at| &row[columns[at]]);
        if role == "HN" && !begin.is_empty() && !end.is_empty() {
            let (begin, end): (f64, f64) = (begin.parse()?, end.parse()?);
            let lasts = (end - begin).max(0.0) as u64;
            list.serialize((begin as u64, lasts, 1, app))?;
        }
    }
    Ok(list.flush()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn written(write: impl FnOnce(&Path) -> Result<()>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.csv");
        write(&path).unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn lists_have_the_jobs_and_the_tenants_of_the_traces() {
        let dlrm_text = "instance_sn,role,app_name,creation_time,deletion_time\n\
            a,HN,app_1,10.0,25.0\nb,CN,app_1,10,25\nc,HN,app_2,,25\nd,HN,app_2,10,\n";
        let list = written(|path| dlrm(dlrm_text.as_bytes(), path));
        assert_eq!(list, "timestamp,duration,num_gpu,tenant\n10,15,1,app_1\n");
        let folder = tempfile::tempdir().unwrap();
        let nodes = nodes(folder.path(), (2, 4)).unwrap();
        let text = std::fs::read_to_string(nodes).unwrap();
        assert_eq!(text, "name,cpu_milli,memory_mib,gpu\nn0,1,1,4\nn1,1,1,4\n");
        assert!(dlrm("role\nHN\n".as_bytes(), &folder.path().join("x")).is_err());
    }

    #[test]
    fn openb_s_jobs_get_tenants_by_the_seed_alone() {
        let mut text = "num_gpu,gpu_milli,creation_time,deletion_time\n".to_owned();
        text += "1,1000,0,9\n0,0,10300000,10300009\n";
        for at in 0..4000 {
            let begin = OPENB_BEGIN + at;
            text += &format!(
                "{},{begin},{}\n",
                ["1,300", "2,1000"][at as usize % 2],
                begin + 7
            );
        }
        let list = |seed| written(|path| openb(text.as_bytes(), seed, path));
        let one = list(1);
        assert_eq!(one, list(1));
        assert_ne!(one, list(2));
        let lines: Vec<&str> = one.lines().skip(1).collect();
        assert_eq!(
            lines.len(),
            4000,
            "the early one and the one without GPU are left out"
        );
        assert!(lines[0].starts_with("10281600,7,1,300,t"), "{}", lines[0]);
        assert!(lines[1].starts_with("10281601,7,2,,t"), "{}", lines[1]);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for line in lines {
            *counts.entry(line.rsplit(',').next().unwrap()).or_default() += 1;
        }
        let rng = &mut Rng::with_seed(7);
        let drawn: Vec<u64> = (0..80_000).map(|_| draw(rng)).collect();
        let of = |tenant| drawn.iter().filter(|drawn| **drawn == tenant).count() as f64;
        assert!((of(1) / of(2) - 2.0).abs() < 0.1 && (of(1) / of(8) - 8.0).abs() < 0.8);
        assert!(counts.len() > 3, "{counts:?}");
    }
}
