//! In which order pods come, and which of two equal nodes comes first.
//!
//! Both are drawn from a seed, by the protocol of FGD's paper (Weng et al., USENIX ATC 2023):
//! shuffle the list, then draw pods again until arrivals reach a share of the cluster. A
//! sequence can also be given as a file of two lines, `nodes r0 r1 …` and `pods i0 i1 …`:
//! the rank of each row of the node list, and rows of the pod list in order of arrival.

use crate::trace::{NodeList, PodList};
use crate::world::{Gauge, milli_of, running_milli_of};

/// Order of arrival, and ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequence {
    /// By row of the node list: of two nodes that cost the same the lower rank goes first.
    pub ranks: Vec<u32>,
    /// Rows of the pod list, in order of arrival.
    pub arrivals: Vec<u32>,
}

/// Reason why a text is not a sequence for these lists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// A line is missing or begins otherwise.
    #[error("line {line}: it must begin with `{wanted}`")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The word it must begin with.
        wanted: &'static str,
    },
    /// Something that is no number.
    #[error("line {line}, word {word}: `{text}` is not a whole number below {below}")]
    Number {
        /// The line, from 1.
        line: usize,
        /// The word, from 1.
        word: usize,
        /// The word as it stands.
        text: String,
        /// Bound that it must be below.
        below: usize,
    },
    /// The ranks are not one for each node.
    #[error("line 1: {found} ranks for {nodes} nodes")]
    Ranks {
        /// Ranks given.
        found: usize,
        /// Nodes of the list.
        nodes: usize,
    },
    /// Two nodes of one rank.
    #[error("line 1: rank {0} is given twice")]
    Twice(u32),
}

impl Sequence {
    /// Draws a sequence: `share` thousandths of the cluster's GPUs arrive, including the pods that
    /// run there from the start.
    #[must_use]
    pub fn draw(seed: u64, nodes: &NodeList, pods: &PodList, share: u32) -> Sequence {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut arrivals: Vec<u32> = (0..pods.rows.len() as u32).collect();
        arrivals.sort_by(|a, b| {
            let name = |at: &u32| &pods.rows[*at as usize].name;
            name(a).cmp(name(b))
        });
        let by_name = arrivals.clone();
        random.shuffle(&mut arrivals);
        let target = milli_of(nodes) * u64::from(share) / 1000;
        let target = target.saturating_sub(running_milli_of(nodes));
        let gauge = Gauge::of(nodes);
        let asked: Vec<u64> = pods
            .rows
            .iter()
            .map(|pod| gauge.milli(&pod.claim))
            .collect();
        let asked = |at: u32| asked[at as usize];
        let mut sum: u64 = arrivals.iter().map(|&at| asked(at)).sum();
        if sum > target {
            while sum > target {
                let gone = arrivals.remove(random.usize(..arrivals.len()));
                sum -= asked(gone);
            }
        } else if sum > 0 {
            // The last draw goes beyond the target by at most one pod's other cards.
            while sum < target {
                let next = by_name[random.usize(..by_name.len())];
                if sum + asked(next).min(1000) > target {
                    break;
                }
                arrivals.push(next);
                sum += asked(next);
            }
        }
        let mut ranks: Vec<u32> = (0..nodes.rows.len() as u32).collect();
        random.shuffle(&mut ranks);
        Sequence { ranks, arrivals }
    }

    /// Reads a sequence for these lists.
    ///
    /// # Errors
    /// Not such a text, or not for these lists.
    pub fn read(text: &str, nodes: &NodeList, pods: &PodList) -> Result<Sequence, SequenceError> {
        let mut lines = text.lines();
        let ranks = numbers(lines.next(), 1, "nodes", nodes.rows.len())?;
        let arrivals = numbers(lines.next(), 2, "pods", pods.rows.len())?;
        if ranks.len() != nodes.rows.len() {
            return Err(SequenceError::Ranks {
                found: ranks.len(),
                nodes: nodes.rows.len(),
            });
        }
        let mut seen = vec![false; ranks.len()];
        for &rank in &ranks {
            if std::mem::replace(&mut seen[rank as usize], true) {
                return Err(SequenceError::Twice(rank));
            }
        }
        Ok(Sequence { ranks, arrivals })
    }
}

fn numbers(
    text: Option<&str>,
    line: usize,
    wanted: &'static str,
    below: usize,
) -> Result<Vec<u32>, SequenceError> {
    let mut words = text.unwrap_or("").split_ascii_whitespace();
    if words.next() != Some(wanted) {
        return Err(SequenceError::Line { line, wanted });
    }
    let number = |(word, text): (usize, &str)| {
        let number = text.parse::<u32>().ok();
        number
            .filter(|number| (*number as usize) < below)
            .ok_or_else(|| SequenceError::Number {
                line,
                word,
                text: text.chars().take(40).collect(),
                below,
            })
    };
    (2..).zip(words).map(number).collect()
}

#[cfg(test)]
mod tests;
