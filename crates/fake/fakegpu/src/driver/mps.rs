//! MPS, as far as a client sees it: its part of the multiprocessors, and a limit of memory for each
//! card. A process is a client if a daemon's socket is in the folder that its environment names.
//!
//! As reported of MPS v3, a limit for a card that the client does not see drops all its limits.

use std::path::PathBuf;

/// The folder with the daemon's sockets.
const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The part of the multiprocessors, in percent.
const PERCENT: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// Limits such as `0=1G,1=512M`, by the client's numbers of cards.
const LIMITS: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// The terms of a client; of a process that is none, no terms.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Client {
    percent: Option<f64>,
    /// Bytes of each visible card.
    limits: Vec<Option<u64>>,
}

impl Client {
    /// Reads this process's environment; it sees so many cards.
    pub(crate) fn of_environment(n_visible: usize) -> Client {
        let is_client =
            std::env::var_os(PIPE).is_some_and(|pipe| PathBuf::from(pipe).join("control").exists());
        if !is_client {
            return Client::default();
        }
        let [percent, limits] = [PERCENT, LIMITS].map(|name| std::env::var(name).ok());
        Client::of_texts(percent.as_deref(), limits.as_deref(), n_visible)
    }

    fn of_texts(percent: Option<&str>, limits: Option<&str>, n_visible: usize) -> Client {
        let percent = percent.and_then(|text| text.trim().parse::<f64>().ok());
        let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
        let limits = limits.and_then(|text| limits_of(text, n_visible));
        Client {
            percent,
            limits: limits.unwrap_or_default(),
        }
    }

    /// The multiprocessors that it has of a card of so many.
    pub(crate) fn multiprocessors(&self, of_card: u32) -> u32 {
        match self.percent {
            Some(percent) => ((f64::from(of_card) * percent / 100.0) as u32).max(1),
            None => of_card,
        }
    }

    /// The most bytes that it may have of a visible card.
    pub(crate) fn limit(&self, place: usize) -> Option<u64> {
        self.limits.get(place).copied().flatten()
    }
}

/// Reads the limits of all visible cards. A text that is not understood, or that names another
/// card, has none.
fn limits_of(text: &str, n_visible: usize) -> Option<Vec<Option<u64>>> {
    let mut limits = vec![None; n_visible];
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (card, amount) = part.split_once('=')?;
        let place: usize = card.trim().parse().ok()?;
        let amount = amount.trim();
        let shift = match amount.chars().next_back()? {
            'G' => 30,
            'M' => 20,
            _ => return None,
        };
        let number: u64 = amount[..amount.len() - 1].parse().ok()?;
        *limits.get_mut(place)? = Some(number.checked_mul(1 << shift)?);
    }
    Some(limits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_client_has_the_part_and_the_limits_that_its_environment_says() {
        let client = Client::of_texts(Some("30"), Some("0=1G,1=512M"), 2);
        assert_eq!(client.multiprocessors(100), 30);
        assert_eq!(
            [0, 1, 2].map(|place| client.limit(place)),
            [Some(1 << 30), Some(512 << 20), None]
        );
        for (percent, n) in [
            (None, 100),
            (Some("0"), 1),
            (Some("101"), 100),
            (Some("x"), 100),
        ] {
            assert_eq!(Client::of_texts(percent, None, 2).multiprocessors(100), n);
        }
    }

    #[test]
    fn a_limit_for_a_card_that_it_does_not_see_drops_all_limits() {
        for text in ["0=1G,2=1G", "7=1G,0=1G", "0=1G,1", "0=1", "0=G", "0=1T", ""] {
            let client = Client::of_texts(None, Some(text), 2);
            assert_eq!(client.limit(0), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), near in "([0-9]{0,20}=[0-9]{0,22}[GMK]?,?){0,3}") {
            for text in [text, near] {
                let _ = Client::of_texts(Some(&text), Some(&text), 2).limit(1);
            }
        }
    }
}
