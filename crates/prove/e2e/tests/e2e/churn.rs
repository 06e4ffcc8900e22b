//! Constant churn of pods in the forms of six systems on twenty nodes, watched at every revision,
//! with the extender killed and started again in the middle of it: a single one, and the leader of
//! three.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sublet_api::keys;
use sublet_e2e::{Blow, PodStream, Recorder, World, eventually, yaml};
use sublet_replicas::leader::SWIFT;
use sublet_testbed::deployed::{self, SchedulerPod};
use sublet_testbed::{PodForm, Signal};

/// Nodes of one to four cards.
const NODES: u32 = 20;
/// Pods made at least.
const PODS: u32 = 200;
/// Requests of the pods, in MiB: everything still fits when it is spread badly, since each node has
/// a card for the largest.
const SIZES: [u64; 6] = [512, 1024, 2048, 4069, 8138, 16_276];

struct Churn {
    world: Arc<World>,
    chance: fastrand::Rng,
    made: u32,
    /// Pods that should exist, and what they ask.
    alive: BTreeMap<String, u64>,
    cards: BTreeMap<u32, u16>,
}

impl Churn {
    fn start(seed: u64, world: World) -> Result<Churn> {
        println!("seed {seed}");
        let mut churn = Churn {
            world: Arc::new(world),
            chance: fastrand::Rng::with_seed(seed),
            made: 0,
            alive: BTreeMap::new(),
            cards: BTreeMap::new(),
        };
        for node in 0..NODES {
            churn.new_node(node)?;
        }
        Ok(churn)
    }

    fn new_node(&mut self, node: u32) -> Result<()> {
        let cards = self.chance.u16(2..=4);
        self.cards.insert(node, cards);
        let name = format!("n{node}");
        let (yaml, inventory) = yaml::agent_node(&name, cards, 16_276)?;
        self.world.cluster.apply(&yaml)?;
        self.world
            .annotate_node_as_agent(&name, keys::INVENTORY, &inventory)
    }

    /// Memory that pods ask, in thousandths of what the nodes have.
    fn load(&self) -> u64 {
        let asked: u64 = self.alive.values().sum();
        let cards: u16 = self.cards.values().sum();
        asked * 1000 / (u64::from(cards) * 16_276)
    }

    fn create(&mut self, count: u32) -> Result<()> {
        let mut all = String::new();
        for _ in 0..count {
            let memory = SIZES[self.chance.usize(..SIZES.len())];
            let name = format!("p{}", self.made);
            all += &yaml::pod_of_form(&name, &PodForm::part(self.made as usize, memory));
            self.made += 1;
            self.alive.insert(name, memory);
        }
        if !all.is_empty() {
            self.world.cluster.apply(&all)?;
        }
        Ok(())
    }

    fn delete(&mut self, count: usize) -> Result<()> {
        let names: Vec<String> = self.alive.keys().cloned().collect();
        let picked: Vec<String> = self.chance.choose_multiple(names, count);
        for name in &picked {
            self.alive.remove(name);
        }
        self.kubectl_pods("delete", &picked)
    }

    fn kubectl_pods(&self, verb: &str, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let mut args = vec![verb, "pod", "--ignore-not-found", "--wait=false"];
        args.extend(names.iter().map(String::as_str));
        self.world.cluster.kubectl(&args).map(drop)
    }

    /// Empties a node as `kubectl drain` does; then, half the time, replaces it by one with
    /// other cards.
    fn drain(&mut self) -> Result<()> {
        let number = self.chance.u32(..NODES);
        let node = format!("n{number}");
        let cluster = &self.world.cluster;
        cluster.kubectl(&["cordon", &node])?;
        let field = format!("spec.nodeName={node}");
        let there = || -> Result<Vec<String>> {
            let pods = self.world.get(&["pods", "--field-selector", &field])?;
            let pods = pods["items"].as_array().context("no list")?.clone();
            Ok(pods
                .iter()
                .filter_map(|p| p["metadata"]["name"].as_str().map(Into::into))
                .collect())
        };
        // A pod may still be bound to it while it is cordoned: the decision was made before.
        eventually(|| {
            let names = there()?;
            self.kubectl_pods("delete", &names)?;
            ensure!(names.is_empty(), "{node} still has {names:?}");
            Ok(())
        })?;
        let gone: Vec<String> = {
            let pods = self.world.get(&["pods"])?;
            let pods = pods["items"].as_array().context("no list")?.clone();
            let left: Vec<&str> = pods
                .iter()
                .filter_map(|p| p["metadata"]["name"].as_str())
                .collect();
            self.alive
                .keys()
                .filter(|name| !left.contains(&name.as_str()))
                .cloned()
                .collect()
        };
        for name in gone {
            self.alive.remove(&name);
        }
        if self.chance.bool() {
            self.world.cluster.kubectl(&["delete", "node", &node])?;
            self.new_node(number)?;
        } else {
            self.world.cluster.kubectl(&["uncordon", &node])?;
        }
        Ok(())
    }

    fn until_all_placed(&self) -> Result<()> {
        eventually(|| {
            let pods = self.world.get(&["pods"])?;
            let pods = pods["items"].as_array().context("no list")?.clone();
            let waiting: Vec<String> = pods
                .iter()
                .filter(|pod| pod["spec"]["nodeName"].is_null())
                .map(|pod| {
                    format!(
                        "{}: {}",
                        pod["metadata"]["name"], pod["status"]["conditions"]
                    )
                })
                .collect();
            ensure!(
                waiting.is_empty(),
                "{} pods wait: {waiting:#?}",
                waiting.len()
            );
            ensure!(
                pods.len() == self.alive.len(),
                "{} pods, not {}",
                pods.len(),
                self.alive.len()
            );
            Ok(())
        })
    }

    /// Deletes pods on cards that are gone. If a node was replaced by one with fewer cards, a
    /// Binding that was decided before the drain may have come after it.
    fn delete_strays(&mut self) -> Result<()> {
        let pods = self.world.get(&["pods"])?;
        let mut strays = Vec::new();
        for pod in pods["items"].as_array().context("no list")? {
            let name = pod["metadata"]["name"].as_str().context("no name")?;
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            let node: u32 = node.trim_start_matches('n').parse()?;
            let cards = pod["metadata"]["annotations"][keys::ALLOCATION].as_str();
            let cards: serde_json::Value = serde_json::from_str(cards.context("no cards")?)?;
            let card = cards[0]["index"].as_u64().context("no card")?;
            if card >= u64::from(self.cards[&node]) {
                self.alive.remove(name);
                strays.push(name.to_owned());
            }
        }
        println!("on cards that are gone: {strays:?}");
        self.kubectl_pods("delete", &strays)
    }

    /// Waits until the extender's count equals the pods' requests, to the MiB.
    fn until_nothing_leaks(&self) -> Result<()> {
        eventually(|| {
            let page: serde_json::Value =
                serde_json::from_str(&self.world.page("/gpushare-scheduler/inspect")?)?;
            let nodes = page["nodes"].as_array().context("no nodes")?.clone();
            let used: u64 = nodes
                .iter()
                .filter_map(|node| node["usedGPU"].as_u64())
                .sum();
            let asked: u64 = self.alive.values().sum();
            ensure!(
                used == asked,
                "the ledger has {used} MiB in use, pods ask {asked}"
            );
            Ok(())
        })
    }

    /// One step of churn: more pods, fewer pods, now and then a drain.
    fn step(&mut self) -> Result<()> {
        match self.chance.u32(..10) {
            0 => self.drain(),
            1..=3 => {
                let count = self.chance.usize(1..=8);
                self.delete(count)
            }
            _ if self.load() < 700 => {
                let count = self.chance.u32(4..=32);
                self.create(count)
            }
            _ => self.delete(10),
        }
    }
}

/// Kills the extender and starts it again at random moments, so many times. It binds nothing
/// in its first three seconds (a Binding of its predecessor may be on its way), so some lives
/// are long enough for that and some are not.
fn kill_at_random(world: &World, seed: u64, left: &AtomicU32) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed);
    while left.load(Ordering::Acquire) > 0 {
        sleep(Duration::from_millis(chance.u64(100..4_500)));
        world.cluster.kill(deployed::EXTENDER, Signal::KILL)?;
        sleep(Duration::from_millis(chance.u64(..300)));
        world.cluster.start_again(deployed::EXTENDER)?;
        left.fetch_sub(1, Ordering::AcqRel);
    }
    Ok(())
}

/// Does this to processes that many times, while pods come and go.
type Trouble = Box<dyn FnOnce(&World, &AtomicU32) -> Result<()> + Send>;

fn churn(seed: u64, kills: u32) -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    let trouble = move |world: &World, left: &AtomicU32| kill_at_random(world, seed, left);
    churn_under(seed, world, kills, Box::new(trouble))
}

fn churn_under(seed: u64, world: World, kills: u32, trouble: Trouble) -> Result<()> {
    let mut churn = Churn::start(seed, world)?;
    let recorder = Recorder::start(&churn.world.cluster.kubeconfig("admin")?)?;
    let (world, left) = (churn.world.clone(), Arc::new(AtomicU32::new(kills)));
    let shared = left.clone();
    let killer = std::thread::spawn(move || trouble(&world, &shared));
    while churn.made < PODS || (left.load(Ordering::Acquire) > 0 && !killer.is_finished()) {
        churn.step()?;
    }
    killer
        .join()
        .map_err(|_| anyhow::anyhow!("the killer panicked"))??;
    let settled = Instant::now();
    churn.until_all_placed()?;
    churn.delete_strays()?;
    churn.until_nothing_leaks()?;
    let waited = settled.elapsed();
    let left: Vec<String> = churn.alive.keys().cloned().collect();
    churn.kubectl_pods("delete", &left)?;
    churn.alive.clear();
    churn.until_nothing_leaks()?;

    let seen = recorder.stop()?;
    println!(
        "{} revisions of pods, {} bound, {} lists, {kills} kills, all placed after {waited:.1?}",
        seen.revisions,
        seen.bound.len(),
        seen.lists
    );
    assert_eq!(seen.broken, Vec::<String>::new());
    assert!(
        seen.revisions > 2 * PODS as usize,
        "only {} revisions were seen",
        seen.revisions
    );
    assert!(
        seen.bound.len() > PODS as usize / 4,
        "only {} pods were bound",
        seen.bound.len()
    );
    Ok(())
}

#[test]
fn churn_keeps_every_card_within_its_memory() -> Result<()> {
    churn(1, 0)
}

#[test]
fn churn_with_the_extender_killed_at_random_points() -> Result<()> {
    churn(2, 8)
}

/// Beside the churn pods come at this pace, so that one waits whenever another leads.
const STEADY: Duration = Duration::from_millis(100);
/// From one blow to the next.
const BETWEEN_BLOWS: Duration = Duration::from_secs(10);
/// A bound that only a broken product exceeds, on a busy machine.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// Asks filter again and again for three seconds; the longest time without a good answer.
fn longest_silence(port: u16) -> Duration {
    let body = r#"{"Pod": {"metadata": {"name": "p", "namespace": "default", "uid": "p"}},
        "NodeNames": ["n0"]}"#;
    let ask = || -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let length = body.len();
        let head = format!("POST /sublet/filter HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.contains("\"NodeNames\":[\"n0\"]"), "{answer}");
        Ok(answer)
    };
    let begun = Instant::now();
    let (mut last, mut longest) = (begun, Duration::ZERO);
    while begun.elapsed() < Duration::from_secs(3) {
        if ask().is_ok() {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        sleep(Duration::from_millis(10));
    }
    longest.max(last.elapsed())
}

/// One blow to the leader, and another extender leads.
fn strike(world: &World, pods: &[SchedulerPod], blow: Blow) -> Result<()> {
    let struck = blow.strike(world, pods)?;
    let port = struck.leader.calls;
    // Only the extender is gone: its stand-in answers.
    let asks = matches!(blow, Blow::KillExtender | Blow::EndExtender);
    let asking = asks.then(|| std::thread::spawn(move || longest_silence(port)));
    let took = struck.until_another_binds(world)?;
    println!("{blow:?}: first Binding after {took:.2?}");
    let is_end = matches!(blow, Blow::EndExtender | Blow::EndPod);
    if is_end && took >= SWIFT.lasts {
        // Where a write got no answer, the Lease is left to end by itself: it may yet be carried out.
        let said: Vec<String> = struck
            .leader
            .processes()
            .iter()
            .map(|process| world.cluster.log_tail(process))
            .collect();
        ensure!(
            said.iter().any(|said| said.contains("a write is open")),
            "{took:.1?}: the Lease was not given back\n{}",
            said.join("\n")
        );
        println!("{blow:?}: a write was open");
    }
    if let Some(asking) = asking {
        let silence = asking
            .join()
            .map_err(|_| anyhow::anyhow!("the asker panicked"))?;
        println!("{blow:?}: no answer to filter for {silence:.2?}");
        ensure!(
            silence < LONGEST_SILENCE,
            "no answer to filter for {silence:.1?}"
        );
    }
    struck.mend(world)
}

#[test]
fn churn_with_the_leader_of_three_killed_again_and_again() -> Result<()> {
    let Some((world, pods)) = World::start_replicated(3)? else {
        return Ok(());
    };
    let blows = [
        Blow::KillPod,
        Blow::KillExtender,
        Blow::FreezeExtender,
        Blow::EndPod,
        Blow::KillPod,
        Blow::EndExtender,
    ];
    let trouble = move |world: &World, left: &AtomicU32| {
        let kubeconfig = world.cluster.kubeconfig("admin")?;
        let waiting = PodStream::start(&kubeconfig, STEADY, yaml::small_pod_spec())?;
        for blow in blows {
            let next = Instant::now() + BETWEEN_BLOWS;
            strike(world, &pods, blow)?;
            left.fetch_sub(1, Ordering::AcqRel);
            sleep(next.saturating_duration_since(Instant::now()));
        }
        let made = waiting.stop()?;
        ensure!(made > blows.len() * 10, "only {made} pods came meanwhile");
        Ok(())
    };
    churn_under(3, world, blows.len() as u32, Box::new(trouble))
}
