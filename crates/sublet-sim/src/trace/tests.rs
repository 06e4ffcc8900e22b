//! Lists as they come: Alibaba's, our own, and such as nobody should send.

use proptest::prelude::*;

use super::*;

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,0,0,\n";
const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";

fn nodes(text: &str) -> Result<Nodes, String> {
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

#[test]
fn the_trace_s_own_forms_are_read() {
    let nodes = nodes(NODES).unwrap();
    assert_eq!(nodes.rows[0].gpus, 2);
    assert_eq!(nodes.rows[0].gpu_memory, MiB::from(1000));
    assert_eq!(nodes.rows[0].host.memory, Bytes::new(262_144 << 20));
    assert_eq!((nodes.rows[1].gpus, &*nodes.rows[1].model), (0, ""));
    let pods =
        pods("a,12000,16384,1,1000,\nb,6000,12288,1,460,T4|P100\nc,1,1,0,0,T4\nd,1,1,8,1000,\n")
            .unwrap();
    let asks: Vec<Ask> = pods.iter().map(|pod| pod.claim.ask()).collect();
    assert_eq!(
        asks,
        [
            Ask::WholeCards(Count::new(1)),
            Ask::OneCard(MiB::from(460)),
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
    assert_eq!(pods.rows[0].claim.ask(), Ask::OneCard(MiB::from(8138)));
    assert_eq!(pods.rows[1].claim.ask(), Ask::WholeCards(Count::new(2)));
    assert_eq!(
        (
            pods.rows[0].priority,
            pods.rows[0].comes,
            pods.rows[0].lasts
        ),
        (-3, Some(10), Some(60))
    );
    let error = read(PODS).unwrap_err().to_string();
    assert_eq!(
        error,
        "column `gpu_memory_mib` must be in both lists or in neither"
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
    assert!(
        pods("a,1,1,1\n").unwrap_err().contains("line: 2"),
        "a short row"
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
    let lines: Vec<u64> = bad.iter().map(|bad| bad.line).collect();
    assert_eq!(lines, [3, 4]);
}

proptest! {
    #[test]
    fn any_text_is_answered(head in 0..3usize, text in "(?s)[a-z0-9,|\"\n.-]{0,200}", raw in any::<Vec<u8>>()) {
        let head = ["", PODS, NODES][head];
        let whole = format!("{head}{text}");
        let nodes = nodes(NODES).unwrap();
        for bad in [BadLines::Stop, BadLines::Count] {
            let _answered = read_nodes(whole.as_bytes(), bad);
            let _answered = read_pods(whole.as_bytes(), &nodes, bad);
            let _answered = read_nodes(&raw[..], bad);
        }
    }

    #[test]
    fn every_good_row_is_read(cpu in 0..1_000_000u64, memory in 0..1_000_000u64, milli in 1..=1000u32) {
        let pods = pods(&format!("a,{cpu},{memory},1,{milli},\n")).unwrap();
        prop_assert_eq!(pods[0].claim.host().cpu.get(), cpu);
        let asked = match milli {
            1000 => Ask::WholeCards(Count::new(1)),
            _ => Ask::OneCard(MiB::from(milli)),
        };
        prop_assert_eq!(pods[0].claim.ask(), asked);
    }
}
