//! Records written, read, damaged, and in the way of.

use proptest::prelude::*;
use sublet_share::Pid;

use super::*;
use crate::lock::LockRecord;
use crate::machine_folder::Audience;

fn own_stamp() -> ProcessStamp {
    ProcessStamp::of(Pid(std::process::id())).unwrap()
}

fn folder() -> (tempfile::TempDir, Folder) {
    let base = tempfile::tempdir().unwrap();
    let folder = Folder::within(base.path(), "gpu");
    folder.create(Audience::Owner).unwrap();
    (base, folder)
}

fn record(id: u64) -> JobRecord {
    let text = format!(
        r#"{{"format": 1, "id": {id}, "user": 7, "root": {}, "mps": false,
            "ask": {{"name": "a", "memory": "64 MiB", "wait": true}},
            "gpus": [{{"uuid": "GPU-0", "limitMiB": 64}}]}}"#,
        serde_json::to_string(&own_stamp()).unwrap()
    );
    serde_json::from_str(&text).unwrap()
}

/// The record of a job of release 0.1.0.
#[test]
fn the_first_release_s_record_is_read_and_written_alike() {
    let text = include_str!("../../../../../fixtures/0.1.0/arbiter/job-record.json");
    let record: JobRecord = serde_json::from_str(text).unwrap();
    assert_eq!((record.id, record.user, record.mps), (1, 0, false));
    assert_eq!(record.request(), Some(parse_amount("4GiB").unwrap()));
    assert_eq!(record.gpus[0].limit(), MiB::new(5120).unwrap());
    assert_eq!(serde_json::to_string(&record).unwrap(), text);
    let text = include_str!("../../../../../fixtures/0.1.0/arbiter/arbiter.lock");
    let lock: LockRecord = serde_json::from_str(text).unwrap();
    assert_eq!((lock.epoch, lock.last_job), (1, 4));
    assert_eq!(serde_json::to_string(&lock).unwrap(), text);
}

#[test]
fn what_was_written_is_there_for_the_next_until_the_job_is_gone() {
    let (_base, folder) = folder();
    let mut records = JobRecords::read(&folder).unwrap();
    assert_eq!((records.last(), records.expect_somebody()), (0, false));
    assert!(!expects_jobs(&folder));
    for id in [3, u64::MAX, 5] {
        records.write(&record(id));
    }
    records.remove(JobId(5));
    records.remove(JobId(6));
    assert!(expects_jobs(&folder));
    let mut next = JobRecords::read(&folder).unwrap();
    assert_eq!((next.last(), next.expect_somebody()), (u64::MAX, true));
    assert_eq!(next.before(JobId(3)), Some(&record(3)));
    assert_eq!(next.before(JobId(5)), None);
    // It came back, and is one of now.
    next.write(&record(3));
    assert_eq!(next.before(JobId(3)), None);
    next.remove(JobId(3));
    let left = JobRecords::read(&folder).unwrap();
    assert_eq!(left.before(JobId(3)), None);
    left.remove_all();
    assert!(!folder.jobs().exists());
}

#[test]
fn only_whole_records_of_processes_that_live_are_believed() {
    let (_base, folder) = folder();
    let mut records = JobRecords::read(&folder).unwrap();
    let good = record(1);
    records.write(&good);
    let text = serde_json::to_string(&good).unwrap();
    let began = text.find("\"began\":").unwrap() + "\"began\":".len();
    let bad = [
        // Cut off by a crash, of a release to come, another job's, and of a number used again.
        (
            2,
            text.replace("\"id\":1", "\"id\":2")[..text.len() - 1].to_owned(),
        ),
        (
            3,
            text.replace("\"id\":1", "\"id\":3")
                .replace("\"format\":1", "\"format\":2"),
        ),
        (4, text.clone()),
        (
            9,
            format!("{}9{}", &text[..began], &text[began..]).replace("\"id\":1", "\"id\":9"),
        ),
    ];
    for (id, text) in &bad {
        fs::write(folder.jobs().join(format!("{id}.json")), text).unwrap();
    }
    fs::write(folder.jobs().join(DRAFT), "").unwrap();
    std::os::unix::fs::symlink("1.json", folder.jobs().join("8.json")).unwrap();
    let next = JobRecords::read(&folder).unwrap();
    assert_eq!(next.before(JobId(1)), Some(&good));
    assert_eq!(next.before.len(), 1);
    assert_eq!(next.last(), 9, "a dead job's number is not used again");
    assert_eq!(fs::read_dir(folder.jobs()).unwrap().count(), 1);
    // A form that is older, with fields that nobody knows any more.
    let old = text.replace("\"format\":1", "\"format\":0,\"of\":\"before\"");
    fs::write(folder.jobs().join("1.json"), old).unwrap();
    let next = JobRecords::read(&folder).unwrap();
    assert_eq!(
        next.before(JobId(1)).map(|one| one.gpus.clone()),
        Some(good.gpus)
    );
}

#[test]
fn a_folder_that_others_could_write_to_is_not_believed() {
    let (_base, folder) = folder();
    JobRecords::read(&folder).unwrap().write(&record(1));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(folder.jobs(), open).unwrap();
    let error = JobRecords::read(&folder).unwrap_err().to_string();
    assert!(error.contains("others may use it (mode 777)"), "{error}");
    assert!(!expects_jobs(&folder));
}

#[test]
fn what_cannot_be_written_is_tried_again() {
    let (_base, folder) = folder();
    let mut records = JobRecords::read(&folder).unwrap();
    // In the way of the folder, as a full disk would be.
    fs::write(folder.jobs(), "").unwrap();
    records.write(&record(1));
    records.write(&record(2));
    assert_eq!(records.behind(), [JobId(1), JobId(2)]);
    records.remove(JobId(2));
    fs::remove_file(folder.jobs()).unwrap();
    for job in records.behind() {
        records.write(&record(job.0));
    }
    assert_eq!(records.behind(), []);
    let next = JobRecords::read(&folder).unwrap();
    assert!(next.before(JobId(1)).is_some() && next.before(JobId(2)).is_none());
}

proptest! {
    #[test]
    fn no_bytes_in_a_record_s_place_end_the_arbiter(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (_base, folder) = folder();
        fs::create_dir(folder.jobs()).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(folder.jobs(), private).unwrap();
        fs::write(folder.jobs().join("1.json"), bytes).unwrap();
        let records = JobRecords::read(&folder).unwrap();
        prop_assert!(records.before(JobId(1)).is_none());
    }
}
