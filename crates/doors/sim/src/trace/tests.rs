//! Lists as they come: Alibaba's, our own, and such as nobody should send.

use std::collections::BTreeSet;
use std::io::{self, Read};

use proptest::prelude::*;
use sublet_model::{Ask, Bytes, Count, MiB, MilliCpu};

use super::*;

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,0,0,\n";
const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";

fn nodes(text: &str) -> Result<NodeList, String> {
    let read = read_nodes(text.as_bytes(), BadLines::Stop);
    read.map(|(nodes, _)| nodes)
        .map_err(|error| error.to_string())
}

fn pods(rows: &str) -> Result<Vec<PodRow>, String> {
    let nodes = nodes(NODES).unwrap();
    let read = read_pods(format!("{PODS}{rows}").as_bytes(), &nodes, BadLines::Stop);
    read.map(|(pods, _)| pods.rows)
        .map_err(|error| error.to_string())
}

/// Pods of a whole text.
fn pods_of(text: &str, bad: BadLines) -> Result<(PodList, Vec<Bad>), String> {
    let read = read_pods(text.as_bytes(), &nodes(NODES).unwrap(), bad);
    read.map_err(|error| error.to_string())
}

#[test]
fn the_trace_s_own_forms_are_read() {
    let nodes = nodes(NODES).unwrap();
    let cards = nodes.rows[0].inventory.gpus().iter();
    assert!(cards.map(|gpu| gpu.memory).eq([MiB::from(1000); 2]));
    assert_eq!(nodes.rows[0].host.memory, Bytes::new(262_144 << 20));
    assert!(nodes.rows[1].inventory.gpus().is_empty() && nodes.rows[1].model.is_empty());
    let pods =
        pods("a,12000,16384,1,1000,\nb,6000,12288,1,460,T4|P100\nc,1,1,0,0,T4\nd,1,1,8,1000,\n")
            .unwrap();
    let asks: Vec<Ask> = pods.iter().map(|pod| pod.claim.ask().clone()).collect();
    assert_eq!(
        asks,
        [
            Ask::WholeCards(Count::new(1)),
            Ask::of_memory(MiB::from(460)),
            Ask::Nothing,
            Ask::WholeCards(Count::new(8)),
        ]
    );
    assert!(pods[1].claim.models().accept("P100") && !pods[1].claim.models().accept("G2"));
    assert!(
        pods[2].claim.models().is_any(),
        "a pod of no GPU names no model"
    );
    assert_eq!(pods[0].claim.host().cpu, MilliCpu::new(12_000));
}

#[test]
fn parts_by_memory_need_both_lists_to_say_so() {
    let by_memory = "name,cpu_milli,memory_mib,gpu,gpu_memory_mib\nn0,64000,262144,2,81559\n";
    let nodes = nodes(by_memory).unwrap();
    let read = |text: &str| read_pods(text.as_bytes(), &nodes, BadLines::Stop);
    let header =
        "name,cpu_milli,memory_mib,num_gpu,gpu_memory_mib,priority,creation_time,duration\n";
    let (pods, _) = read(&format!("{header}a,0,0,1,8138,-3,10,60\nb,0,0,2,,,,\n")).unwrap();
    assert_eq!(
        pods.rows[0].claim.ask().clone(),
        Ask::of_memory(MiB::from(8138))
    );
    assert_eq!(
        pods.rows[1].claim.ask().clone(),
        Ask::WholeCards(Count::new(2))
    );
    assert_eq!(
        (
            pods.rows[0].priority,
            pods.rows[0].comes,
            pods.rows[0].lasts
        ),
        (-3, Some(10), Some(60))
    );
    let units = "`gpu_memory_mib` must be in both lists or in neither";
    let error = read(&format!("{PODS}a,0,0,1,1000,\nb,0,0,1,460,\n"));
    assert_eq!(error.unwrap_err().to_string(), units);
    let error = pods_of(&format!("{header}a,0,0,1,8138,,,\n"), BadLines::Count);
    assert_eq!(error.unwrap_err(), units);
    // Whole cards have no unit.
    let (pods, _) = read(&format!("{PODS}a,0,0,1,1000,\n")).unwrap();
    assert_eq!(
        pods.rows[0].claim.ask().clone(),
        Ask::WholeCards(Count::new(1))
    );
}

#[test]
fn a_bad_row_is_named_by_line_and_column() {
    let check = |rows: &str, said: &str| assert_eq!(pods(rows).unwrap_err(), said);
    check(
        "a,1,1,1,500,\nb,x,1,1,500,\n",
        "line 3, column 2 (`cpu_milli`): `x` is not thousandths of a core, at most 10^9",
    );
    check(
        "a,1,1,2,500,\n",
        "line 2, column 5 (`gpu_milli`): `500` is not 1000, as it must be with several GPUs",
    );
    check(
        "a,1,1,1,0,\n",
        "line 2, column 5 (`gpu_milli`): `0` is not thousandths of each GPU, above 0 where num_gpu is",
    );
    check(
        "\"a b\",1,1,1,500,\n",
        "line 2, column 1 (`name`): `a b` is not a name of up to 200 printable ASCII characters",
    );
    check(
        "a,1,-1,1,500,\n",
        "line 2, column 3 (`memory_mib`): `-1` is not MiB of memory, at most 2^40",
    );
    check(
        "a,1,1,1,500\n",
        "line 2, column 6 (`gpu_spec`): nothing there; expected a value: the header has more columns",
    );
    check(
        "a,1,1,1,500,,x\n",
        "line 2, column 7: `x` is not the end of the line: the header has no more columns",
    );
    check(
        "a,1,1,,500,\n",
        "line 2, column 4 (`num_gpu`): nothing there; expected a number of GPUs, at most 4096",
    );
    let twice = nodes("sn,cpu_milli,memory_mib,gpu\nn0,1,1,1\nn0,1,1,1\n").unwrap_err();
    assert!(
        twice.starts_with("line 3, column 1 (`sn`): `n0` is not a name of its own"),
        "{twice}"
    );
    let missing = nodes("sn,cpu_milli,gpu\n").unwrap_err();
    assert_eq!(
        missing,
        "line 1: there is no column `memory_mib`; there are cpu_milli, gpu, sn"
    );
    let twice = nodes("sn,sn,cpu_milli,memory_mib,gpu\n").unwrap_err();
    assert_eq!(twice, "line 1: column `sn` is there twice");
    assert!(nodes("").unwrap_err().contains("no column `sn (or name)`"));
}

#[test]
fn bad_rows_can_be_counted_instead() {
    let text = format!("{PODS}a,1,1,1,500,\nb,x,1,1,500,\nc,1,1,9,9,\nd,1,1,0,0,\n");
    let (pods, bad) = read_pods(text.as_bytes(), &nodes(NODES).unwrap(), BadLines::Count).unwrap();
    let names: Vec<&str> = pods.rows.iter().map(|pod| &*pod.name).collect();
    assert_eq!(names, ["a", "d"]);
    let lines: Vec<At> = bad.iter().map(|bad| bad.at).collect();
    assert_eq!(lines, [At::Line(3), At::Line(4)]);
    // Lines that are no text, too short or too long are bad lines like others.
    let mut text = format!("{PODS}a,1,1,1,500,\n").into_bytes();
    text.extend(b"\xff,1,1,1,500,\nb,1\nc,1,1,1,500,,,\nd,1,1,1,500,\n");
    let (pods, bad) = read_pods(&text[..], &nodes(NODES).unwrap(), BadLines::Count).unwrap();
    assert_eq!((pods.rows.len(), bad.len()), (2, 3));
    assert_eq!(
        bad[0].to_string(),
        "line 3, column 1: `\u{fffd}` is not UTF-8 text"
    );
}

#[test]
fn jobs_of_philly_have_a_number_of_gpus_and_times_alone() {
    let text = "timestamp,duration,num_gpus,gpu_time,cluster\n\
                2017-10-09 07:01:55,66.5,1,66.0,11cb48\n2017-10-09 06:13:03,2951.0,8,2951.0,6214e9\n";
    let (pods, _) = pods_of(text, BadLines::Stop).unwrap();
    let row = |at: usize| {
        let pod: &PodRow = &pods.rows[at];
        (&*pod.name, pod.claim.ask().clone(), pod.lasts)
    };
    assert_eq!(row(0), ("1", Ask::WholeCards(Count::new(1)), Some(67)));
    assert_eq!(row(1), ("2", Ask::WholeCards(Count::new(8)), Some(2951)));
    let (first, second) = (pods.rows[0].comes.unwrap(), pods.rows[1].comes.unwrap());
    assert_eq!(first - second, 48 * 60 + 52);
    assert_eq!(pods.rows[0].claim.host(), Default::default());
    let error = pods_of("timestamp,duration,cpu_milli\n", BadLines::Stop);
    assert!(
        error
            .unwrap_err()
            .contains("no column `num_gpu (or num_gpus)`")
    );
    let error = pods_of("num_gpus,cpu_milli\n", BadLines::Stop).unwrap_err();
    assert!(error.contains("no column `memory_mib`"), "{error}");
}

#[test]
fn json_is_read_by_its_first_byte_that_is_no_blank() {
    let array = r#"
        [{"name": "a", "cpu_milli": 1000, "memory_mib": "64", "num_gpu": 1.0, "gpu_milli": 460,
          "gpu_spec": "T4|P100", "other": {"x": [1, {}]}, "priority": -2},
         {"num_gpus": "2", "timestamp": "1970-01-01 00:01:00", "deletion_time": 90.5,
          "name": null, "gpu_memory_mib": null}]"#;
    let (pods, bad) = pods_of(array, BadLines::Stop).unwrap();
    assert!(bad.is_empty());
    assert_eq!(
        pods.rows[0].claim.ask().clone(),
        Ask::of_memory(MiB::from(460))
    );
    assert_eq!(pods.rows[0].claim.host().memory, Bytes::new(64 << 20));
    assert_eq!((&*pods.rows[0].name, pods.rows[0].priority), ("a", -2));
    assert_eq!(
        (
            &*pods.rows[1].name,
            pods.rows[1].comes,
            pods.rows[1].lasts,
            pods.rows[1].claim.ask().clone()
        ),
        ("2", Some(60), Some(31), Ask::WholeCards(Count::new(2)))
    );
    let lines = "\u{feff}\n{\"sn\":\"n0\",\"cpu_milli\":1,\"memory_mib\":2,\"gpu\":0}\n\n\
                 {\"name\":\"n1\",\"cpu_milli\":1,\"memory_mib\":2,\"gpu\":2,\"gpu_memory_mib\":81559,\"model\":\"H100\"}";
    let nodes = nodes(lines).unwrap();
    assert!(nodes.by_memory);
    assert_eq!(&*nodes.rows[1].model, "H100");
    assert_eq!(nodes.rows[1].inventory.gpus()[1].memory, MiB::from(81559));
    assert!(pods_of("[]", BadLines::Stop).unwrap().0.rows.is_empty());
}

#[test]
fn a_bad_object_is_named_by_line_or_item_and_field() {
    let check = |text: &str, said: &str| {
        assert_eq!(pods_of(text, BadLines::Stop).unwrap_err(), said, "{text}");
    };
    let good = r#"{"name":"a","num_gpu":1}"#;
    check(
        &format!("{good}\n\n{{\"name\":\"b\",\"num_gpu\":\"x\"}}"),
        "line 3, field `num_gpu`: `x` is not a number of GPUs, at most 4096",
    );
    check(
        &format!("[{good},\n{good},\n{{\"num_gpus\":-1}}]"),
        "item 3, field `num_gpus`: `-1` is not a number of GPUs, at most 4096",
    );
    check(
        r#"[{"name":"a"}]"#,
        "item 1, field `num_gpu`: nothing there; expected a value: no such list goes without it",
    );
    check(
        r#"{"num_gpu":1,"cpu_milli":1}"#,
        "line 1, field `memory_mib`: nothing there; expected a value: no such list goes without it",
    );
    check(
        r#"{"num_gpu":1,"name":["a"]}"#,
        "line 1, field `name`: `[…]` is not a number or a string",
    );
    check(
        r#"{"num_gpu":1,"num_gpu":2}"#,
        "line 1, field `num_gpu`: `2` is not given once: it is there twice",
    );
    check(&format!("[{good},7]"), "item 2: `7` is not an object");
    check(
        &format!("{good}\n{{\"num_gpu\":1,,}}\n"),
        "line 2, column 14: `,}` is not what may stand there: one JSON object on each line",
    );
    check(
        &format!("{good} {good}"),
        "line 1, column 26: `{\"name\":\"a\",\"num_gpu\":1}` is not what may stand there: one JSON \
         object on each line",
    );
    let text = format!("{good}\n{{\"num_gpu\":\n{good}\n[]\n");
    let (pods, bad) = pods_of(&text, BadLines::Count).unwrap();
    assert_eq!((pods.rows.len(), bad.len()), (2, 2));
    let (pods, bad) = pods_of(&format!("[{good},null,{good}]"), BadLines::Count).unwrap();
    assert_eq!((pods.rows.len(), bad[0].at), (2, At::Item(2)));
    // In an array nobody knows where to read on.
    let error = pods_of(&format!("[{good},{{]"), BadLines::Count).unwrap_err();
    assert!(
        error.starts_with("not an array of objects: ") && error.contains("line 1 column 28"),
        "{error}"
    );
    for text in [format!("[{good}"), format!("[{good}] x")] {
        assert!(pods_of(&text, BadLines::Count).is_err(), "{text}");
    }
    let mixed = r#"[{"sn":"a","cpu_milli":1,"memory_mib":1,"gpu":1},
        {"sn":"b","cpu_milli":1,"memory_mib":1,"gpu":1,"gpu_memory_mib":5}]"#;
    assert_eq!(
        nodes(mixed).unwrap_err(),
        "item 2, field `gpu_memory_mib`: `5` is not absent, as from the nodes before"
    );
}

/// One byte at a time, and an error where the file breaks off.
struct Broken<'a>(&'a [u8]);

impl Read for Broken<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (first, rest) = self
            .0
            .split_first()
            .ok_or_else(|| io::Error::other("broken off"))?;
        into[0] = *first;
        self.0 = rest;
        Ok(1)
    }
}

#[test]
fn a_file_that_breaks_off_is_not_taken_for_a_short_one() {
    let csv = format!("{PODS}a,1,1,1,500,\n");
    for text in [&csv, "[{\"num_gpu\":1},", "{\"num_gpu\":1}\n", "  ", ""] {
        let read = read_pods(
            Broken(text.as_bytes()),
            &nodes(NODES).unwrap(),
            BadLines::Count,
        );
        let error = read.unwrap_err().to_string();
        assert!(error.contains("broken off"), "{text:?}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_answered(
        head in prop::sample::select(vec!["", PODS, NODES, "[{\"num_gpu\":", "{\"gpu\":1,\"sn\":"]),
        text in "(?s)[a-z0-9,|\"\n.:{}\\[\\]-]{0,200}",
        raw in any::<Vec<u8>>(),
    ) {
        let whole = format!("{head}{text}");
        let nodes = nodes(NODES).unwrap();
        for bad in [BadLines::Stop, BadLines::Count] {
            let _answered = read_nodes(whole.as_bytes(), bad);
            let _answered = read_pods(whole.as_bytes(), &nodes, bad);
            let _answered = read_nodes(&raw[..], bad);
            let _answered = read_pods(&[head.as_bytes(), &raw].concat()[..], &nodes, bad);
        }
    }

    #[test]
    fn any_list_of_quotas_names_each_tenant_once(
        lines in prop::collection::vec("[ab]?,[0-9]{0,3}|[ab\",\n-]{0,6}|1000000001", 0..12),
        raw in any::<Vec<u8>>(),
    ) {
        for text in [format!("tenant,gpus\n{}", lines.join("\n")).into_bytes(), raw] {
            for bad in [BadLines::Stop, BadLines::Count] {
                let Ok((quotas, _)) = read_quotas(&text[..], bad) else { continue };
                let names: BTreeSet<_> = quotas.iter().map(|row| &row.tenant).collect();
                prop_assert_eq!(names.len(), quotas.len());
                prop_assert!(quotas.iter().all(|row| row.gpus <= 1_000_000_000));
            }
        }
    }

    #[test]
    fn a_list_says_the_same_in_csv_and_in_json(
        rows in prop::collection::vec(
            (
                "[a-z.:#-]{1,4}[ é]?", 0..100_000u64, 0..100_000u64, 0..10u32, 0..1100u32,
                "(T4|P100)?(\\|G2)?", -9..9i32, 0..1000u64, 0..1000u64, any::<bool>(),
            ),
            0..20,
        ),
    ) {
        let names = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec",
            "priority", "creation_time", "deletion_time"];
        let mut csv = names.join(",") + "\n";
        let mut objects = Vec::new();
        for (name, cpu, memory, gpus, milli, spec, priority, comes, ends, quoted) in &rows {
            let texts = [name.clone(), cpu.to_string(), memory.to_string(), gpus.to_string(),
                milli.to_string(), spec.clone(), priority.to_string(), comes.to_string(),
                format!("{ends}.25")];
            csv += &(texts.join(",") + "\n");
            let fields = names.iter().zip(&texts).map(|(field, text)| {
                let is_text = *quoted || matches!(*field, "name" | "gpu_spec");
                let value = if is_text {
                    serde_json::Value::from(text.as_str())
                } else {
                    serde_json::from_str(text).unwrap()
                };
                ((*field).to_owned(), value)
            });
            let fields: serde_json::Map<String, serde_json::Value> = fields.collect();
            objects.push(serde_json::Value::Object(fields).to_string());
        }
        let answer = |text: &str| {
            let (pods, bad) = pods_of(text, BadLines::Count).unwrap();
            let values: Vec<_> = bad.into_iter().map(|bad| (bad.name, bad.value)).collect();
            (pods, values)
        };
        let expected = answer(&csv);
        let array = format!("[{}]", objects.join(","));
        prop_assert_eq!(&answer(&array), &expected);
        prop_assert_eq!(answer(&array).0.rows.len() + expected.1.len(), rows.len());
        if !rows.is_empty() {
            prop_assert_eq!(&answer(&objects.join("\n")), &expected);
        }
    }

    #[test]
    fn every_good_row_is_read(cpu in 0..1_000_000u64, memory in 0..1_000_000u64, milli in 1..=1000u32) {
        let pods = pods(&format!("a,{cpu},{memory},1,{milli},\n")).unwrap();
        prop_assert_eq!(pods[0].claim.host().cpu.get(), cpu);
        let asked = match milli {
            1000 => Ask::WholeCards(Count::new(1)),
            _ => Ask::of_memory(MiB::from(milli)),
        };
        prop_assert_eq!(pods[0].claim.ask().clone(), asked);
    }
}
