//! Names that somebody may have meant who typed one that is not there. Pure.

/// Least similarity of a name that is suggested, as clap has it for commands, flags and values.
const LEAST: f64 = 0.7;

/// The most names that are suggested.
const MOST: usize = 5;

/// The names that are most like a mistyped one, the most similar first. Each known name comes with
/// the text by which it is told.
pub(crate) fn similar<'a>(
    mistyped: &str,
    known: impl Iterator<Item = (&'a str, String)>,
) -> Vec<String> {
    let rated = known.map(|(name, told)| (strsim::jaro(mistyped, name), told));
    let mut found: Vec<(f64, String)> = rated.filter(|(likeness, _)| *likeness > LEAST).collect();
    found.sort_by(|(one, a), (other, b)| other.total_cmp(one).then_with(|| a.cmp(b)));
    found.dedup();
    found.truncate(MOST);
    found.into_iter().map(|(_, told)| told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_names_come_first_and_strangers_not_at_all() {
        let check = |mistyped: &str, known: &[&str]| {
            similar(
                mistyped,
                known.iter().map(|name| (*name, format!("/{name}"))),
            )
        };
        let jobs = ["serve", "train-2", "train", "train", "eval"];
        assert_eq!(check("trian", &jobs), ["/train", "/train-2"]);
        assert_eq!(check("serv", &jobs), ["/serve"]);
        assert_eq!(check("notebook", &jobs), [""; 0]);
        assert_eq!(check("", &jobs), [""; 0]);
        let many = ["a1", "a2", "a3", "a4", "a5", "a6", "a"];
        assert_eq!(check("a", &many).len(), MOST);
    }
}
