//! Commands for people. For a cluster: `sublet inspect`, `sublet plan`, `sublet explain`. For one
//! machine: `sublet run`, `sublet ps`, `sublet top`, `sublet limit`.
//!
//! Each command is a pure function from objects to text, and a shell of a few lines that fetches
//! the objects. Commands for a cluster decide with the scheduler's own engine and change nothing.
//! Commands for a machine leave all decisions to its arbiter, and only `run` starts one.
//!
//! # Modules
//! Each command is a function from objects to an `Answer` (text, notes, exit code), and a few
//! lines that fetch the objects. `answer` prints it, and prints errors with their causes and
//! hints. `paste` writes commands in hints so that they can be pasted, `similar` finds the names in
//! them.
//!
//! One machine:
//! - `machine`: the machine that is meant (this one, or a fake one), its arbiter, and the errors
//!   about it.
//! - `run/`: `mod` has the steps in their order: `program` (which file), `setup` (libraries,
//!   driver, mounts), `request` with `visible_cards` (what is asked), `arbiter` (started if none
//!   runs), `wait`, `start`, `supervise`. The parts are pure where they can be: `request`
//!   (arguments to message), `visible_cards` (what `CUDA_VISIBLE_DEVICES` leaves), `environment`,
//!   `driver` (where the real one is), `mounts`, `signals`, `containers` (a note about a CMD that
//!   leaves the job), `memory_hint` (the last line after out of memory). `notices` hears of programs
//!   that the fake driver cannot run. `job_connection` keeps the job through restarts of the arbiter.
//! - `queue/`: the waiting jobs, their order, and the events that would start them: `line` on
//!   this machine; of a cluster, `live` reads its objects, `forecast` makes groups and asks the
//!   queue's engine once, `print` shows it. `explain job` and `plan --queue` are the same answer.
//!   Groups and quotas are made as in the controller: by `queued_groups` and `QuotaTotals` of
//!   `sublet-api`.
//! - `ps`, `top/`, `limit`: `jobs` makes the cells of all their tables, `users` finds users' names.
//!   `look` asks the arbiter for what they show, or the driver where none runs. In `top/`, `keys`,
//!   `columns` and `screen` are pure, and `live` owns the terminal; `node` asks the agent of a
//!   cluster's node.
//! - `standalone`: the arbiter as a program of its own. `background` starts it, and the process that
//!   serves data sets, where a command needs one and none runs.
//! - `dataset/`: `get` asks for a data set and shows how far it is, `show` prints them, `start` finds
//!   the process that serves the store, `serve` has its arguments.
//! - `demo`: shows all of it on a fake machine, by starting this program; `workload` becomes the
//!   programs that it runs.
//!
//! Both: `completion` answers a shell that completes a command line.
//!
//! A cluster, on paper or live:
//! - `compute`: compute time as tables and JSON show it, where any pod or job asks for it.
//! - `verdict`: nodes and bound pods entered into the engine, with the stock scheduler's rules
//!   beside it. `plan`, `explain` and snapshots ask it, so they cannot disagree.
//! - `quota/`: `report` enters quotas, pods and nodes from files into trees; `print` shows what
//!   each is entitled to.
//! - `plan/`: `input` reads what kubectl prints, object by object, so that a bad one costs only
//!   itself; `coming` makes the pods of workloads; `schedule` places the waiting pods; `print`
//!   has the table and the JSON form.
//! - `explain/`: `state` decides what is the matter with one pod; `print` says it.
//! - `inspect/`: `view` collects; `table` prints exactly as `kubectl inspect gpushare` always
//!   did; `json` is for programs.
//! - `simulate/`: reads lists or a snapshot (`input`, `snapshot`, `what_if`), runs `sublet-sim`
//!   for each policy and seed, or each discipline, on all cores (`runs`, with their `progress`;
//!   `inflation`, `timed`, `queue`, `defrag`), prints (`print`) and plots.
//!
//! - `install/`: the chart, which it carries, onto a kubeadm cluster and off it by helm. `manifests`,
//!   `values`, `preflight`, `readiness` and `static_pod` (the scheduler's manifest, text to text) are
//!   pure; `helm` runs it; `facts`, `wait`, `host` and `uninstall` read and write.

mod align;
mod answer;
mod background;
pub mod completion;
mod compute;
pub mod dataset;
pub mod demo;
pub mod explain;
pub mod inspect;
pub mod install;
mod jobs;
pub mod limit;
mod look;
pub mod machine;
mod paste;
pub mod plan;
pub mod ps;
pub mod queue;
pub mod quota;
mod refusals;
pub mod run;
mod similar;
pub mod simulate;
pub mod standalone;
pub mod top;
mod users;
mod verdict;
#[cfg(test)]
mod vocabulary;
pub mod workload;

pub use answer::{Answer, BAD_INPUT, DONE, Format, NOT_DONE, error_text, exit_code, print_error};
