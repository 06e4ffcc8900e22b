//! The extender's HTTP interface.
//!
//! Filter and prioritize are answered from memory under one short lock. Bodies are read
//! once, with node names borrowed from them, and answers are written with their length,
//! because the kube-scheduler keeps only two connections open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use sublet_api::extender::{
    BindArgs, BindResult, ExtenderArgs, FailedNodes, FilterResult, HostPriority, from_str,
};
use sublet_api::pod_key;
use sublet_model::{Claim, NameError, NodeName, PodKey, PodUid};
use sublet_plan::{EngineOptions, Reason, RefusedNode, Wire};
use sublet_telemetry::metrics::{ReasonLabel, VerbLabel, print};

use crate::bind::{BindOrder, NotBound};
use crate::peers::FOR_LEADER;
use crate::plans::Membership;
use crate::state::{Scheduler, State, now};
use crate::waiting::claim_of;

/// Longest time that the kube-scheduler's watch may be ahead of ours. Both are streams of one API
/// server, so it is a matter of which process is woken first: two milliseconds in a run on an idle
/// machine, and more than twenty in three runs of four with three busy loops on two cores.
const CATCH_UP: Duration = Duration::from_millis(100);

/// All routes.
pub fn router(scheduler: Arc<Scheduler>) -> Router {
    Router::new()
        .route("/sublet/filter", post(filter))
        .route("/sublet/prioritize", post(prioritize))
        .route("/sublet/bind", post(bind))
        .route("/sublet/preempt", post(crate::preempt::preempt))
        .route("/gpushare-scheduler/filter", post(filter))
        .route("/gpushare-scheduler/bind", post(crate::gpushare::bind))
        .route("/gpushare-scheduler/inspect", get(crate::gpushare::inspect))
        .route(
            "/gpushare-scheduler/inspect/{node}",
            get(crate::gpushare::inspect_node),
        )
        .route("/version", get(crate::gpushare::version))
        .merge(health_routes())
        // The listener has read the body, and holds it to its limit.
        .layer(DefaultBodyLimit::disable())
        .with_state(scheduler)
}

/// The same for other extenders, which ask somebody else while this one knows not all.
pub(crate) fn router_for_peers(scheduler: Arc<Scheduler>) -> Router {
    let ready = scheduler.clone();
    router(scheduler).layer(from_fn(move |call: Request, next: Next| {
        let is_ready = ready.is_ready();
        async move {
            if is_ready {
                next.run(call).await
            } else {
                StatusCode::SERVICE_UNAVAILABLE.into_response()
            }
        }
    }))
}

/// Health and metrics alone, for an address that others may reach.
pub(crate) fn health_router(scheduler: Arc<Scheduler>) -> Router {
    health_routes().with_state(scheduler)
}

fn health_routes() -> Router<Arc<Scheduler>> {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/presence", get(presence))
        .route("/metrics", get(metrics))
}

/// An extender that is to end still answers its calls, but its stand-in is to take its place.
async fn ready(Shared(scheduler): Shared<Arc<Scheduler>>) -> Response {
    let replicas = scheduler.replicas.as_ref();
    let why = if !scheduler.is_ready() {
        "the ledger is not complete yet"
    } else if replicas.is_some_and(|replicas| *replicas.resigned.borrow()) {
        "it is to end"
    } else {
        return "ok".into_response();
    };
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

/// Answers when this process is to end: a stand-in waits for it. If the process dies, the
/// connection breaks.
async fn presence(Shared(scheduler): Shared<Arc<Scheduler>>) -> &'static str {
    if let Some(replicas) = &scheduler.replicas {
        let mut resigned = replicas.resigned.subscribe();
        // It fails only if nobody can say it any more.
        let _told = resigned.wait_for(|resigned| *resigned).await;
    }
    "going"
}

async fn metrics(Shared(scheduler): Shared<Arc<Scheduler>>) -> Response {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    crate::gpushare::set_gauges(&scheduler);
    (
        [(header::CONTENT_TYPE, content)],
        print(&scheduler.registry),
    )
        .into_response()
}

async fn filter(Shared(scheduler): Shared<Arc<Scheduler>>, body: Bytes) -> Response {
    let started = Instant::now();
    let mut freed = scheduler.freed.subscribe();
    let mut answer = answer_filter(&scheduler, &body);
    // Whoever lets a member go has written its plan before, so that is about to come.
    while answer.awaits_plan
        && let Some(left) = CATCH_UP.checked_sub(started.elapsed())
        && tokio::time::timeout(left, freed.changed()).await.is_ok()
    {
        answer = answer_filter(&scheduler, &body);
    }
    // The kube-scheduler asks again about a pod the moment it sees room appear, and a refusal then
    // stands until something else happens in the cluster. Its watch may be a few milliseconds
    // ahead of ours. So a pod that is refused again is looked at once more with each news that our
    // watch brings within that time.
    if answer.refused_again && scheduler.may_catch_up() {
        let begun = Instant::now();
        while answer.refused_again
            && let Some(left) = CATCH_UP.checked_sub(begun.elapsed())
            && tokio::time::timeout(left, freed.changed()).await.is_ok()
        {
            answer = answer_filter(&scheduler, &body);
        }
        scheduler.caught_up(begun.elapsed());
    }
    observe(&scheduler, "filter", started);
    answer.response
}

/// An answer to a filter call, and whether it refuses a pod that was refused before and may fit
/// later.
struct Filtered {
    response: Response,
    refused_again: bool,
    /// The pod has a slot of a plan that is not known yet.
    awaits_plan: bool,
}

impl From<Response> for Filtered {
    fn from(response: Response) -> Filtered {
        Filtered {
            response,
            refused_again: false,
            awaits_plan: false,
        }
    }
}

fn answer_filter(scheduler: &Scheduler, body: &[u8]) -> Filtered {
    let error = |error: String| {
        Filtered::from(json(&FilterResult {
            error,
            ..FilterResult::default()
        }))
    };
    let args = match read::<ExtenderArgs<'_>>(body) {
        Ok(args) => args,
        Err(why) => return error(why),
    };
    let Some(names) = &args.names() else {
        return error("neither NodeNames nor Nodes: no node to choose from".to_owned());
    };
    if !scheduler.is_ready() {
        return error("the ledger of GPUs is not complete yet".to_owned());
    }
    let mut state = scheduler.state();
    let unit = state.engine.options().unit;
    let claim = match claim_of(&args.pod, unit) {
        Ok(claim) => claim,
        Err(problem) => return Filtered::from(nowhere(names, &problem.to_string())),
    };
    let uid = match PodUid::new(&args.pod.metadata.uid) {
        Ok(uid) => uid,
        Err(why) => return error(why.to_string()),
    };
    state.learn_early(&uid, &claim);
    match state.place_of_member(now(), &Membership::of(&args.pod), &uid, &claim) {
        Ok(None) => {}
        Ok(Some(node)) => return Filtered::from(only(&args, names, node)),
        Err(parked) => {
            return Filtered {
                awaits_plan: parked.may_pass(),
                ..Filtered::from(nowhere(names, &parked.to_string()))
            };
        }
    }
    if !claim.has_gpu() && !state.engine.options().policy.sees_host() {
        return Filtered::from(json(&FilterResult {
            nodes: args.whole(names),
            node_names: names.clone(),
            ..FilterResult::default()
        }));
    }
    // Costs nothing for a namespace without a quota. A Binding asks again.
    if let Ok(pod) = pod_key(&args.pod)
        && let Err(over) = state.check_quota(&pod, &uid, &claim, None)
    {
        return Filtered {
            refused_again: true,
            ..Filtered::from(nowhere(names, &over.to_string()))
        };
    }
    choose(scheduler, &mut state, &args, names, &uid, &claim)
}

/// Asks the engine which of the nodes take a pod that has neither a slot nor a quota in its way.
fn choose(
    scheduler: &Scheduler,
    state: &mut State,
    args: &ExtenderArgs<'_>,
    names: &[&str],
    uid: &PodUid,
    claim: &Claim,
) -> Filtered {
    let (mut nodes, unknown) = state.resolve(names);
    let priority = args.pod.spec.priority.unwrap_or(0);
    let promised = state.leave_promised(now(), uid, claim, priority, &mut nodes);
    let ranks: Vec<_> = state.soft_ranks(&nodes, &args.pod.spec.tolerations);
    let everywhere = args.pod.spec.has_soft_wishes();
    let again = state.engine.was_asked(uid);
    let mut answer = state
        .engine
        .filter(now(), uid, claim, &nodes, everywhere, |node| {
            ranks
                .binary_search_by_key(&node, |rank| rank.0)
                .map_or(0, |at| ranks[at].1)
        });
    if answer.passed.is_empty() {
        answer.refused.extend(promised);
    }
    state.evictions.filtered(uid, &answer.refused);
    let name = |&node| state.engine.ledger().book(node).name().as_str();
    let mut passed: Vec<&str> = answer.passed.iter().map(name).collect();
    // A pod of no GPU may also go to nodes that only the stock scheduler knows, if all of ours
    // passed.
    if !claim.has_gpu() && passed.len() == nodes.len() {
        passed.extend(&unknown);
    }
    if !passed.is_empty() {
        return Filtered::from(json(&FilterResult {
            nodes: args.whole(&passed),
            node_names: passed,
            ..FilterResult::default()
        }));
    }
    let lasting = |refused: &RefusedNode| refused.reason.is_final();
    Filtered {
        refused_again: again && !answer.refused.iter().all(lasting),
        awaits_plan: false,
        response: refuse(scheduler, state, claim, &answer.refused, &unknown),
    }
}

/// The answer that lets no node pass, for a reason that no node and no eviction can change.
fn nowhere(names: &[&str], why: &str) -> Response {
    json(&FilterResult {
        failed_and_unresolvable_nodes: FailedNodes(names.iter().map(|name| (*name, why)).collect()),
        ..FilterResult::default()
    })
}

/// The answer that lets one node pass, if the call asks about it.
fn only(args: &ExtenderArgs<'_>, names: &[&str], node: &NodeName) -> Response {
    let passed: Vec<&str> = names
        .iter()
        .filter(|name| **name == node.as_str())
        .copied()
        .collect();
    if passed.is_empty() {
        return nowhere(
            names,
            &format!("its place is on node {node}, which refuses it"),
        );
    }
    json(&FilterResult {
        nodes: args.whole(&passed),
        node_names: passed,
        ..FilterResult::default()
    })
}

/// The answer that lets no node pass: each with its reason, *not now* apart from *never*.
fn refuse(
    scheduler: &Scheduler,
    state: &State,
    claim: &Claim,
    refused: &[RefusedNode],
    unknown: &[&str],
) -> Response {
    let texts = Texts::of(claim, refused.iter().map(|refused| &refused.reason));
    let mut failed = Vec::new();
    let mut never = Vec::new();
    for RefusedNode { node, reason } in refused {
        let list = if reason.is_final() {
            &mut never
        } else {
            &mut failed
        };
        let name = state.engine.ledger().book(*node).name().as_str();
        list.push((name, texts.text(reason)));
    }
    for &Text { label, nodes, .. } in &texts.0 {
        // A label without nodes would still make a series of its own.
        if nodes > 0 {
            let why = ReasonLabel { reason: label };
            scheduler.metrics.refusals.get_or_create(&why).inc_by(nodes);
        }
    }
    let unknown = unknown
        .iter()
        .map(|name| (*name, texts.text(&Reason::Unknown)));
    failed.extend(unknown);
    json(&FilterResult {
        failed_nodes: FailedNodes(failed),
        failed_and_unresolvable_nodes: FailedNodes(never),
        ..FilterResult::default()
    })
}

/// The few texts that one claim's refusals have on the wire.
struct Texts(Vec<Text>);

struct Text {
    label: &'static str,
    text: String,
    /// Number of nodes that are refused so.
    nodes: u64,
}

impl Texts {
    fn of<'a>(claim: &Claim, reasons: impl Iterator<Item = &'a Reason>) -> Texts {
        let mut texts = Texts(Vec::new());
        texts.entry(claim, &Reason::Unknown);
        for reason in reasons {
            texts.entry(claim, reason).nodes += 1;
        }
        texts
    }

    /// A reason's text depends on the claim and, for sharing modes, on nothing else that differs
    /// within one claim: the other mode refuses the request.
    fn entry(&mut self, claim: &Claim, reason: &Reason) -> &mut Text {
        let label = reason.label();
        let known = self.0.iter().position(|text| text.label == label);
        let at = known.unwrap_or_else(|| {
            let text = Wire(reason, claim.ask()).to_string();
            let nodes = 0;
            self.0.push(Text { label, text, nodes });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    fn text(&self, reason: &Reason) -> &str {
        let found = self.0.iter().find(|text| text.label == reason.label());
        found.map_or("", |text| &text.text)
    }
}

async fn prioritize(Shared(scheduler): Shared<Arc<Scheduler>>, body: Bytes) -> Response {
    timed(&scheduler, "prioritize", || {
        let args = match read::<ExtenderArgs<'_>>(&body) {
            Ok(args) => args,
            Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
        };
        let names = args.names().unwrap_or_default();
        let mut state = scheduler.state();
        let EngineOptions { policy, unit, .. } = state.engine.options();
        let claim = claim_of(&args.pod, *unit).ok();
        let claim = claim.filter(|claim| claim.has_gpu() || policy.sees_host());
        let (Some(claim), Ok(uid)) = (claim, PodUid::new(&args.pod.metadata.uid)) else {
            let none = names.iter().map(|host| HostPriority { host, score: 0 });
            return json(&none.collect::<Vec<_>>());
        };
        if let Ok(Some(node)) =
            state.place_of_member(now(), &Membership::of(&args.pod), &uid, &claim)
        {
            let score = |host: &&str| u8::from(**host == *node.as_str()) * 10;
            let scores = names.iter().map(|host| HostPriority {
                score: score(host),
                host,
            });
            return json(&scores.collect::<Vec<_>>());
        }
        let (nodes, _) = state.resolve(&names);
        let ranks = state.soft_ranks(&nodes, &args.pod.spec.tolerations);
        let scores = state
            .engine
            .prioritize(now(), &uid, &claim, &nodes, |node| {
                ranks
                    .binary_search_by_key(&node, |rank| rank.0)
                    .map_or(0, |at| ranks[at].1)
            });
        let ledger = state.engine.ledger();
        let scores = scores.iter().map(|&(node, score)| HostPriority {
            host: ledger.book(node).name().as_str(),
            score,
        });
        json(&scores.collect::<Vec<_>>())
    })
}

async fn bind(
    Shared(scheduler): Shared<Arc<Scheduler>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let replicas = scheduler.replicas.as_ref();
    if let Some(replicas) = replicas.filter(|_| headers.contains_key(FOR_LEADER)) {
        let bound = match order(&body) {
            Ok(order) => replicas.bind_if_leading(&scheduler, order).await,
            Err(why) => Err(NotBound::Why(why)),
        };
        return match bound {
            Err(NotBound::Deposed) => StatusCode::MISDIRECTED_REQUEST.into_response(),
            Err(NotBound::Why(error)) => json(&BindResult { error }),
            Ok(()) => json(&BindResult::default()),
        };
    }
    // An error travels in the answer; with another status its text would not be read.
    json(&BindResult {
        error: bind_outcome(&scheduler, body)
            .await
            .err()
            .unwrap_or_default(),
    })
}

/// Binds as asked; also behind GPUShare's route.
pub(crate) async fn bind_outcome(scheduler: &Arc<Scheduler>, body: Bytes) -> Result<(), String> {
    let started = Instant::now();
    let outcome = crate::bind::bind(scheduler, order(&body)?, body).await;
    observe(scheduler, "bind", started);
    outcome
}

fn order(body: &[u8]) -> Result<BindOrder, String> {
    let args = read::<BindArgs>(body)?;
    let name = |error: NameError| error.to_string();
    Ok(BindOrder {
        pod: PodKey::new(&args.pod_namespace, &args.pod_name).map_err(name)?,
        uid: PodUid::new(&args.pod_uid).map_err(name)?,
        node: NodeName::new(&args.node).map_err(name)?,
    })
}

pub(crate) fn timed(
    scheduler: &Scheduler,
    verb: &'static str,
    answer: impl FnOnce() -> Response,
) -> Response {
    let started = Instant::now();
    let answer = answer();
    observe(scheduler, verb, started);
    answer
}

fn observe(scheduler: &Scheduler, verb: &'static str, started: Instant) {
    let took = started.elapsed().as_secs_f64();
    scheduler
        .metrics
        .calls
        .get_or_create(&VerbLabel { verb })
        .observe(took);
}

/// Reads a body, as Go would: UTF-8 is checked once, which makes borrowing names cheap.
pub(crate) fn read<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    let text = std::str::from_utf8(body).map_err(|error| format!("body is not UTF-8: {error}"))?;
    from_str(text).map_err(|error| format!("body cannot be read: {error}"))
}

pub(crate) fn json<T: Serialize>(answer: &T) -> Response {
    match serde_json::to_vec(answer) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
