//! Tests as text: a small script of nodes, pods and questions, with the answers after `->`.
//!
//! ```text
//! n1 size: 4069/16276 0/16276!w@GPU-b     used/capacity; ! sick; w held whole; @ UUID
//! n2: 0/16276@GPU-c@A100@1                @ UUID @ model @ NUMA node
//! ask p 4069                              which node would take the pod, and on which card
//! -> n1/0
//! ```
//! `show` writes `?4` for a card if pods that do not say their card may have 4 MiB of it.
//!
//! - After a node's name come words: `memory` or `whole` (sharing), `size` or `checkpoint` (identity), `gib`
//!   (unit), `slots`.
//! - A claim is a number of MiB or of whole cards (`2x`) for each container, joined by `+`. `i` and
//!   `s` mark init containers and sidecars: `i8138+s100+4069`. `:slot` at the end asks for the
//!   slot, and `:low` before that sets the class to opportunistic.
//! - `own:3000+5000` are containers that choose their cards each for itself.
//! - `50%` asks for half of a card's memory. `:on=a100,GPU-b,!v100,numa` at the end of a claim says
//!   which cards the pod accepts: UUIDs start with `GPU-`, `!` marks an unwanted one.
//! - `8138@300` also asks for 300 thousandths of compute time, `8138*2` for parts of two cards;
//!   `show` writes `8138@300/16276`.
//! - `options policy=NAME …` starts a new engine with a policy.
//! - `ask` and `filter POD CLAIM` say where a pod fits (`filter … everywhere` on every node, not
//!   only on the best few). `wire` gives the refusals as the kube-scheduler gets them.
//! - `prioritize` scores nodes. `reserve POD NODE CLAIM` places the pod on the node, and `observe
//!   POD NODE CLAIM CARDS` enters a pod that is bound already.
//! - `measured NODE 40/2 -` is what the agent says of each card: the first is 40 % busy with two
//!   pods, and of the second it says nothing.
//!
//! [`check`] replays the commands and compares all answers. Only tests use it.

mod wishes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{
    Advertise, Allocation, Ask, CardRef, Carrier, Claim, Class, ContainerCards, ContainerClaim,
    ContainerName, Count, Demand, Entry, Gpu, GpuIndex, GpuUuid, Grant, Health, Host, Identity,
    Inventory, MeasuredUse, MiB, Milli, MilliCpu, Models, NodeFacts, NodeIdx, NodeName, Part,
    PodKey, PodUid, Portion, Role, Sharing, Standing, Time, Unit,
};

use crate::{Engine, EngineOptions, Evictable, FilterAnswer, Policy, Ties, Wire};

/// Replays a script; fails if an answer differs.
#[track_caller]
pub(crate) fn check(script: &str) {
    let mut world = World {
        engine: Engine::new(EngineOptions::of(Policy::binpack())),
        now: Time::from_ms(0),
    };
    let mut transcript = String::new();
    let lines: Vec<&str> = script.lines().map(str::trim).collect();
    for line in lines.iter().filter(|line| !line.starts_with("->")) {
        transcript += &format!("{line}\n");
        for answer in world.perform(line) {
            transcript += &format!("{}\n", format!("-> {answer}").trim_end());
        }
        assert!(world.engine.ledger().is_conserved(), "after `{line}`");
    }
    assert_eq!(transcript.trim(), lines.join("\n").trim());
}

/// Number of policies, for [`numbered`].
pub(crate) fn policies() -> usize {
    Policy::names().count()
}

/// The policy of this number, for tests that draw one.
pub(crate) fn numbered(policy: usize) -> Policy {
    Policy::names().nth(policy).unwrap().parse().unwrap()
}

pub(crate) fn uid(name: &str) -> PodUid {
    PodUid::new(name).unwrap()
}

/// Reads `i8138+s100+2x:low:slot`, or `:cards` for a pod that kubelet counts by cards, with parts as [`part`] reads them. The containers are called
/// `c0`, `c1` and so on.
pub(crate) fn claim(text: &str) -> Arc<Claim> {
    let (text, wishes) = text.split_once(":on=").unwrap_or((text, ""));
    let (text, cards) = match text.strip_prefix("own:") {
        Some(rest) => (rest, ContainerCards::Own),
        None => (text, ContainerCards::Shared),
    };
    let (text, by_cards) = match text.strip_suffix(":cards") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (text, has_slot) = match text.strip_suffix(":slot") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (text, class) = match text.strip_suffix(":low") {
        Some(rest) => (rest, Class::Opportunistic),
        None => (text, Class::Guaranteed),
    };
    let containers = text.split('+').enumerate().map(|(position, word)| {
        let (role, amount) = match word.split_at(1) {
            ("i", rest) => (Role::Init, rest),
            ("s", rest) => (Role::Sidecar, rest),
            _ => (Role::Main, word),
        };
        let demand = if let Some(cards) = amount.strip_suffix('x') {
            Demand::of_cards(Count::new(cards.parse().unwrap()))
        } else {
            part(amount)
        };
        ContainerClaim {
            name: ContainerName::new(&format!("c{position}")).unwrap(),
            position,
            role,
            demand,
        }
    });
    let containers = containers.collect();
    let claim = Claim::on(cards, None, containers, has_slot).unwrap();
    let claim = claim.with_class(class).unwrap();
    let claim = match by_cards {
        true => claim.with_carrier(Carrier::Cards),
        false => claim,
    };
    Arc::new(claim.with_wishes(wishes::read(wishes)))
}

/// Reads `8138`, `50%`, `8138@300` (with 300 thousandths of compute time) or `8138*2` (on each of two
/// cards).
fn part(amount: &str) -> Demand {
    let (amount, gpus) = amount.split_once('*').unwrap_or((amount, "1"));
    let (memory, compute) = amount.split_once('@').unwrap_or((amount, "0"));
    let memory = match memory.strip_suffix('%') {
        Some(percent) => Part {
            memory_share: Milli::new(10 * percent.parse::<u16>().unwrap()).unwrap(),
            ..Part::ZERO
        },
        None => Part::of_memory(MiB::from(memory.parse::<u32>().unwrap())),
    };
    Demand {
        gpus: Count::new(gpus.parse().unwrap()),
        portion: Portion::Part(Part {
            compute: Milli::new(compute.parse().unwrap()).unwrap(),
            ..memory
        }),
        ..Demand::of_memory(MiB::ZERO)
    }
}

/// A claim to so many thousandths of a core, and to so many cards of 1000 MiB, with these
/// thousandths of each (1000: whole cards), on these models.
pub(crate) fn on_host(cpu: u64, cards: u32, milli: u32, models: &[&str]) -> Arc<Claim> {
    let host = Host {
        cpu: MilliCpu::new(cpu),
        ..Host::ZERO
    };
    let gpu = match (cards, milli) {
        (0, _) => return Arc::new(Claim::host_only(host)),
        (_, 1000) => claim(&format!("{cards}x")),
        _ => claim(&milli.to_string()),
    };
    let models = Models::new(models.iter().map(|model| Arc::from(*model)));
    Arc::new(Claim::clone(&gpu).with_host(host).with_models(models))
}

/// Reads a node line: the node's facts, and the pods that use its cards already.
pub(crate) fn node(head: &str, cards: &str) -> (NodeFacts, Vec<Entry>) {
    let mut words = head.split_whitespace();
    let name = words.next().unwrap();
    let mut facts = NodeFacts {
        sharing: Sharing::Both,
        ..NodeFacts::plain(NodeName::new(name).unwrap(), Arc::default())
    };
    for word in words {
        match word {
            "memory" => facts.sharing = Sharing::Memory,
            "whole" => facts.sharing = Sharing::Whole,
            "size" => facts.identity = Identity::SizeAndOrder,
            "checkpoint" => facts.identity = Identity::Checkpoint,
            "gib" => facts.unit = Unit::GiB,
            "slots" => facts.advertise = Advertise::Slots,
            splits if splits.starts_with("splits=") => {
                facts.splits = Some(splits["splits=".len()..].parse().unwrap());
            }
            other => panic!("`{other}` is not a word for a node"),
        }
    }
    let mut gpus = Vec::new();
    let mut entries = Vec::new();
    for (index, card) in (0..).zip(cards.split_whitespace()) {
        let mut words = card.split('@');
        let card = words.next().unwrap();
        let uuid = words.next().map(|uuid| GpuUuid::new(uuid).unwrap());
        let (amounts, marks) = card.split_at(card.trim_end_matches(['!', 'w']).len());
        let (used, capacity) = amounts.split_once('/').unwrap();
        let mut gpu = Gpu::plain(GpuIndex(index), MiB::from(capacity.parse::<u32>().unwrap()));
        gpu.uuid = uuid;
        gpu.model = Arc::from(words.next().unwrap_or(""));
        gpu.numa = words.next().map(|numa| numa.parse().unwrap());
        if marks.contains('!') {
            gpu.health = Health::Sick(Arc::from("xid 79"));
        }
        gpus.push(gpu);
        let tenant = if marks.contains('w') { "1x" } else { used };
        if tenant != "0" {
            let pod = format!("{name}-{index}");
            let mut entry = entry(&pod, name, &claim(tenant));
            let memory = MiB::from(used.parse::<u32>().unwrap());
            entry.allocation = Some(placed(&entry.claim, &index.to_string(), memory));
            entries.push(entry);
        }
    }
    facts.inventory = Arc::new(Inventory::new(gpus, vec![], vec![], vec![]).unwrap());
    (facts, entries)
}

/// Reads a node's measurements of its cards: `40/2` or `-` for each.
pub(crate) fn measured(cards: &[&str]) -> BTreeMap<GpuIndex, MeasuredUse> {
    let card = |(index, text): (u16, &&str)| {
        let (percent, pods) = text.split_once('/')?;
        let measured = MeasuredUse {
            busy: Milli::new(10 * percent.parse::<u16>().unwrap()).unwrap(),
            pods: pods.parse().unwrap(),
        };
        Some((GpuIndex(index), measured))
    };
    (0..).zip(cards).filter_map(card).collect()
}

/// A bound pod without an allocation. Its devices were handed over.
pub(crate) fn entry(pod: &str, node: &str, claim: &Arc<Claim>) -> Entry {
    Entry {
        pod: PodKey::new("default", pod).unwrap(),
        uid: uid(pod),
        node: NodeName::new(node).unwrap(),
        claim: Arc::clone(claim),
        allocation: None,
        standing: Standing::Bound,
        assigned: true,
        priority: 0,
    }
}

/// An allocation for the claim on these cards (`0,1` or `0@GPU-a`), container by container.
pub(crate) fn placed(claim: &Claim, cards: &str, whole: MiB) -> Allocation {
    let cards: Vec<CardRef> = cards
        .split(',')
        .map(|card| {
            let (index, uuid) = card.split_once('@').unwrap_or((card, ""));
            CardRef {
                index: GpuIndex(index.parse().unwrap()),
                uuid: GpuUuid::new(uuid).ok(),
            }
        })
        .collect();
    let own = matches!(claim.ask(), Ask::Parts(parts) if parts.own().is_some());
    let mut next = 0;
    let mut grants = Vec::new();
    for container in claim.containers() {
        for at in 0..container.demand.gpus.get() as usize {
            let (card, memory) = match container.demand.portion {
                Portion::Part(part) if own => (&cards[next % cards.len()], part.on(whole).memory),
                Portion::Part(part) => (&cards[at], part.on(whole).memory),
                Portion::Whole => (&cards[next], whole),
            };
            next += 1;
            grants.push(Grant {
                container: container.name.clone(),
                card: card.clone(),
                memory,
            });
        }
    }
    Allocation { grants }
}

struct World {
    engine: Engine,
    now: Time,
}

impl World {
    fn perform(&mut self, line: &str) -> Vec<String> {
        if let Some((head, cards)) = line
            .split_once(": ")
            .or(line.strip_suffix(':').map(|h| (h, "")))
        {
            let (facts, entries) = node(head, cards);
            self.engine.set_node(facts);
            entries
                .into_iter()
                .for_each(|entry| self.engine.observe(entry));
            return vec![];
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["options", ref options @ ..] => self.set_options(options),
            ["at", ms] => self.now = Time::from_ms(ms.parse().unwrap()),
            ["remove", name] => self.engine.remove_node(&NodeName::new(name).unwrap()),
            ["release", pod] => self.engine.release(&uid(pod)),
            ["forget", pod] => self.engine.forget(&uid(pod)),
            ["assign", pod] => {
                let mut entry = self.engine.ledger().entry(&uid(pod)).unwrap().clone();
                entry.standing = Standing::Bound;
                entry.assigned = true;
                self.engine.observe(entry);
            }
            ["measured", name, ref cards @ ..] => {
                let node = self.engine.ledger().find(name).unwrap();
                let facts = self.engine.ledger().book(node).facts().unwrap().clone();
                self.engine.set_node(NodeFacts {
                    measured: Arc::new(measured(cards)),
                    ..facts
                });
            }
            ["observe", pod, node, asked, cards] => self.observe(pod, node, asked, cards),
            ["ask", pod, asked] => return self.ask(pod, asked),
            ["filter", pod, asked, ref how @ ..] => {
                let answer = self.filter(pod, asked, how);
                return vec![self.names(&answer.passed)];
            }
            ["wire", pod, asked] => return self.wire(pod, asked),
            ["prioritize", pod, asked] => {
                let claim = claim(asked);
                let nodes = self.nodes();
                let now = self.now;
                let scores = self
                    .engine
                    .prioritize(now, &uid(pod), &claim, &nodes, |_| 0);
                let score = |&(node, score)| format!("{}={score}", self.name(node));
                return vec![scores.iter().map(score).collect::<Vec<_>>().join(" ")];
            }
            ["reserve", pod, node, asked] => return vec![self.reserve(pod, node, asked)],
            ["evict", pod, asked, node, ref who @ ..] => {
                return vec![self.evict(pod, asked, node, who)];
            }
            ["show"] => return self.show(),
            [] => {}
            _ => panic!("`{line}` is not a command"),
        }
        vec![]
    }

    fn set_options(&mut self, words: &[&str]) {
        let mut options = EngineOptions::of(Policy::binpack());
        for word in words {
            match word.split_once('=').unwrap() {
                ("policy", name) => options.policy = name.parse().unwrap(),
                ("ties", "scattered") => options.ties = Ties::Scattered,
                ("few", few) => options.few = few.parse().unwrap(),
                _ => panic!("`{word}` is not an option"),
            }
        }
        self.engine = Engine::new(options);
    }

    fn observe(&mut self, pod: &str, node: &str, asked: &str, cards: &str) {
        let mut entry = entry(pod, node, &claim(asked));
        if cards != "?" {
            entry.allocation = Some(placed(&entry.claim, cards, MiB::from(1)));
        }
        self.engine.observe(entry);
    }

    /// `who` lists pods that may go, the most important first. `!` marks a pod if its eviction
    /// breaks a budget, `*` a pod that the stock scheduler would evict.
    fn evict(&self, pod: &str, asked: &str, node: &str, who: &[&str]) -> String {
        let node = self.engine.ledger().find(node).unwrap();
        let name = |word: &&str| uid(word.trim_end_matches(['!', '*']));
        let row: Vec<Evictable> = who
            .iter()
            .map(|word| Evictable {
                uid: name(word),
                breaks: word.contains('!'),
            })
            .collect();
        let theirs = who.iter().filter(|word| word.contains('*')).map(name);
        let victims = self
            .engine
            .victims(&uid(pod), &claim(asked), node, &row, &theirs.collect());
        let Some(victims) = victims else {
            return "no".to_owned();
        };
        let names: Vec<&str> = victims.iter().map(|victim| victim.uid.as_str()).collect();
        names.join(" ")
    }

    fn nodes(&self) -> Vec<NodeIdx> {
        self.engine.ledger().books().map(|(idx, _)| idx).collect()
    }

    fn name(&self, node: NodeIdx) -> &str {
        self.engine.ledger().book(node).name().as_str()
    }

    fn names(&self, nodes: &[NodeIdx]) -> String {
        let names: Vec<&str> = nodes.iter().map(|&node| self.name(node)).collect();
        names.join(" ")
    }

    /// `how` may contain `everywhere`, and nodes with a taint that the pod does not tolerate.
    fn filter(&mut self, pod: &str, asked: &str, how: &[&str]) -> FilterAnswer {
        let nodes = self.nodes();
        let tainted: BTreeSet<NodeIdx> = how
            .iter()
            .filter_map(|word| self.engine.ledger().find(word))
            .collect();
        let taints = |node| u32::from(tainted.contains(&node));
        let everywhere = how.contains(&"everywhere");
        let claim = claim(asked);
        self.engine
            .filter(self.now, &uid(pod), &claim, &nodes, everywhere, taints)
    }

    fn ask(&mut self, pod: &str, asked: &str) -> Vec<String> {
        let before = self.engine.clone(); // the answer leaves a hold of its own
        let answer = self.filter(pod, asked, &[]);
        let Some(&best) = answer.passed.first() else {
            let no = |no: &crate::RefusedNode| {
                let mark = if no.reason.is_final() { " (never)" } else { "" };
                format!("{}: {}{mark}", self.name(no.node), no.reason)
            };
            return answer.refused.iter().map(no).collect();
        };
        assert_eq!(answer.refused, [], "refusals only if nothing passes");
        let candidate = before.fit(&uid(pod), &claim(asked), best).unwrap();
        vec![format!("{}/{}", self.name(best), candidate.position)]
    }

    fn wire(&mut self, pod: &str, asked: &str) -> Vec<String> {
        let answer = self.filter(pod, asked, &[]);
        let claim = claim(asked);
        let text = |no: &crate::RefusedNode| Wire(&no.reason, claim.ask()).to_string();
        let texts: BTreeSet<String> = answer.refused.iter().map(text).collect();
        texts.into_iter().collect()
    }

    fn reserve(&mut self, pod: &str, node: &str, asked: &str) -> String {
        let claim = claim(asked);
        match self.engine.reserve(self.now, entry(pod, node, &claim)) {
            Err(reason) => format!("no: {reason}"),
            Ok(allocation) => {
                let of = |container: &ContainerClaim| {
                    let grants = allocation.of(&container.name);
                    let cards: Vec<_> = grants.map(|g| g.card.index.to_string()).collect();
                    cards.join(",")
                };
                let cards: Vec<String> = claim.containers().iter().map(of).collect();
                format!("{node}/{}", cards.join("+"))
            }
        }
    }

    fn show(&self) -> Vec<String> {
        let book = |(_, book): (NodeIdx, &sublet_model::Book)| {
            let card = |card: &sublet_model::Card| {
                let held = if card.holds > 0 { "~" } else { "" };
                let whole = if card.whole > 0 { "w" } else { "" };
                let sick = if card.healthy { "" } else { "!" };
                let amount = |part: Part| match part.compute.get() {
                    0 => part.memory.get().to_string(),
                    _ if card.whole > 0 || part == card.capacity => part.memory.get().to_string(),
                    milli => format!("{}@{milli}", part.memory.get()),
                };
                let (used, capacity) = (amount(card.used), card.capacity.memory.get());
                let unsure = match card.unsure {
                    Part::ZERO => String::new(),
                    unsure => format!("?{}", amount(unsure)),
                };
                format!(" {used}/{capacity}{sick}{whole}{held}{unsure}")
            };
            let cards: String = book.cards().iter().map(card).collect();
            let unplaced = match book.unplaced().get() {
                0 => String::new(),
                n => format!(" and {n} somewhere"),
            };
            format!("{}:{cards}{unplaced}", book.name())
        };
        self.engine.ledger().books().map(book).collect()
    }
}
