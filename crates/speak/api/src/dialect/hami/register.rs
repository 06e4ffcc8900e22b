//! `hami.io/node-nvidia-register`: the cards of a node as HAMi's device plugin reports them. Our
//! agent writes the same form for HAMi's readers.
//!
//! HAMi replaces the whole text. Each of our entries has a mark, which HAMi's readers pass over.
//! The mark alone tells our text from HAMi's: no other annotation has to agree with it.
//!
//! A JSON list since HAMi 2.8. Older versions write `uuid,split,memory,cores,type,numa,health:` for
//! each card, and some of them `,index,mode` after that. HAMi is written in Go, and leaves zero,
//! false and empty values out of its JSON: a card without `health` is sick.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sublet_model::{Gpu, GpuIndex, GpuUuid, Health, Inventory, MiB};

/// A card, as far as placement needs it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Registered {
    id: String,
    index: u16,
    devmem: u64,
    #[serde(rename = "type")]
    model: String,
    numa: i32,
    health: bool,
}

/// A card, as our agent writes it: HAMi 2.10's fields, none left out, and the mark.
#[derive(Serialize)]
struct Written<'a> {
    id: &'a str,
    index: u16,
    count: u8,
    devmem: u64,
    devcore: u8,
    #[serde(rename = "type")]
    model: Cow<'a, str>,
    numa: i32,
    mode: &'static str,
    health: bool,
    writer: &'static str,
}

/// Value of `writer` in our texts.
const WRITER: &str = "sublet.dev";

/// The longest text: two hundred cards. The API server takes 256 KiB for all annotations of an object
/// together, and the inventory comes first.
const LENGTH_MAX: usize = 40 * 1024;

/// The text for these cards. `count` containers can share each card. `None` if no card has a UUID,
/// or if there are too many cards for an annotation.
#[must_use]
pub fn write(inventory: &Inventory, count: u8) -> Option<String> {
    let card = |gpu: &Gpu| -> Option<String> {
        // HAMi puts its prefix before names that lack it, and users ask for cards by it.
        let model = match gpu.model.starts_with("NVIDIA") {
            true => Cow::from(&*gpu.model),
            false => Cow::from(format!("NVIDIA-{}", gpu.model)),
        };
        let card = Written {
            id: gpu.uuid.as_ref()?.as_str(),
            index: gpu.index.0,
            count,
            devmem: gpu.memory.get(),
            devcore: 100,
            model,
            numa: gpu.numa.map_or(-1, i32::from),
            mode: "hami-core",
            health: gpu.health.is_healthy(),
            writer: WRITER,
        };
        Some(serde_json::to_string(&card).expect("strings and numbers are always JSON"))
    };
    let cards: Vec<String> = inventory.gpus().iter().filter_map(card).collect();
    let text = format!("[{}]", cards.join(","));
    (!cards.is_empty() && text.len() <= LENGTH_MAX).then_some(text)
}

/// Did our agent write this text?
#[must_use]
pub fn is_ours(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Mark {
        writer: String,
    }
    let marks: Result<Vec<Mark>, _> = serde_json::from_str(text);
    marks.is_ok_and(|all| !all.is_empty() && all.iter().all(|mark| mark.writer == WRITER))
}

/// Reads any of the forms.
///
/// # Errors
/// The fault, in words for people.
pub(super) fn read(text: &str) -> Result<Inventory, String> {
    let cards: Vec<Registered> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| error.to_string())?
    } else {
        let cards = text.split(':').filter(|card| !card.trim().is_empty());
        cards.map(older).collect::<Result<_, _>>()?
    };
    // The oldest form has no indices: there the cards stand in the driver's order.
    let indices: BTreeSet<u16> = cards.iter().map(|card| card.index).collect();
    let is_numbered = indices.len() == cards.len();
    let gpus = cards.iter().enumerate().map(|(at, card)| {
        let index = match is_numbered {
            true => Ok(card.index),
            false => u16::try_from(at),
        };
        gpu(card, index.map_err(|_| format!("{} cards", cards.len()))?)
    });
    let gpus: Vec<Gpu> = gpus.collect::<Result<_, String>>()?;
    Inventory::new(gpus, Vec::new(), Vec::new(), Vec::new()).map_err(|error| error.to_string())
}

fn older(card: &str) -> Result<Registered, String> {
    let fields: Vec<&str> = card.split(',').map(str::trim).collect();
    let wrong = || format!("`{card}` is not `uuid,split,memory,cores,type,numa,health`");
    let (fields, index) = match fields[..] {
        [ref fields @ .., index, _mode] if fields.len() == 7 => (fields, index),
        ref fields => (fields, "0"),
    };
    let [id, _split, memory, _cores, model, numa, health] = *fields else {
        return Err(wrong());
    };
    Ok(Registered {
        id: id.to_owned(),
        index: index.parse().map_err(|_| wrong())?,
        devmem: memory.parse().map_err(|_| wrong())?,
        model: model.to_owned(),
        numa: numa.parse().map_err(|_| wrong())?,
        health: health.parse().map_err(|_| wrong())?,
    })
}

fn gpu(card: &Registered, index: u16) -> Result<Gpu, String> {
    let uuid = GpuUuid::new(&card.id).map_err(|error| format!("`{}`: {error}", card.id))?;
    let memory =
        MiB::new(card.devmem).ok_or_else(|| format!("{} MiB are too many", card.devmem))?;
    Ok(Gpu {
        uuid: Some(uuid),
        model: Arc::from(card.model.as_str()),
        health: match card.health {
            true => Health::Healthy,
            false => Health::Sick(Arc::from("HAMi says so")),
        },
        numa: u16::try_from(card.numa).ok(),
        ..Gpu::plain(GpuIndex(index), memory)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Its cards: `index uuid memory model numa`, and `!` where it is sick.
    fn cards(text: &str) -> String {
        let inventory = read(text).unwrap();
        let card = |gpu: &Gpu| {
            let sick = if gpu.health.is_healthy() { "" } else { "!" };
            let uuid = gpu.uuid.as_ref().unwrap();
            let numa = gpu.numa.map_or("-".to_owned(), |numa| numa.to_string());
            let (index, memory, model) = (gpu.index, gpu.memory.get(), &gpu.model);
            format!("{index} {uuid} {memory} {model} {numa}{sick}")
        };
        let cards: Vec<String> = inventory.gpus().iter().map(card).collect();
        cards.join("; ")
    }

    #[test]
    fn every_form_is_read() {
        // 2.8 and later; what Go leaves out is index 0, NUMA node 0 and a sick card.
        let json = r#"[{"id":"GPU-b","index":1,"count":10,"devmem":81559,"devcore":100,"type":"NVIDIA-A100","numa":1,"mode":"hami-core","health":true},
            {"id":"GPU-a","count":10,"devmem":81559,"devcore":100,"type":"NVIDIA-A100","mode":"hami-core"}]"#;
        let found = "0 GPU-a 81559 NVIDIA-A100 0!; 1 GPU-b 81559 NVIDIA-A100 1";
        assert_eq!(cards(json), found);
        let with_index = "GPU-b,10,81559,100,NVIDIA-A100,1,true,1,hami-core:\
                          GPU-a,10,81559,100,NVIDIA-A100,0,false,0,hami-core:";
        assert_eq!(cards(with_index), found);
        let without =
            "GPU-a,10,81559,100,NVIDIA-A100,0,false:GPU-b,10,81559,100,NVIDIA-A100,1,true:";
        assert_eq!(cards(without), found);
        let far = "GPU-a,10,8,100,NVIDIA-Tesla V100-PCIE-32GB,-1,true:";
        assert_eq!(cards(far), "0 GPU-a 8 NVIDIA-Tesla V100-PCIE-32GB -");
        assert_eq!(cards("[]"), "");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, why) in [
            (
                "GPU-a,10:",
                "`GPU-a,10` is not `uuid,split,memory,cores,type,numa,health`",
            ),
            (
                "GPU-a,1,2,3,T,0,yes",
                "`GPU-a,1,2,3,T,0,yes` is not `uuid,split,memory,cores,type,numa,health`",
            ),
            (
                r#"[{"id":"GPU-a","devmem":1,"health":true},{"id":"GPU-a","devmem":1,"health":true}]"#,
                "GPU UUID GPU-a is given twice",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), why);
        }
        assert!(read("[{]").is_err());
        let many = "a,1,1,1,T,0,true:".repeat(70_000);
        assert_eq!(read(&many).unwrap_err(), "70000 cards");
    }

    #[test]
    fn ours_says_so_and_reads_as_hami_s() {
        let card = |index: u16, model: &str, numa, health| Gpu {
            uuid: GpuUuid::new(&format!("GPU-{index}")).ok(),
            model: Arc::from(model),
            numa,
            health,
            ..Gpu::plain(GpuIndex(index), MiB::from(16_276))
        };
        let sick = Health::Sick(Arc::from("xid 79"));
        let gpus = vec![
            card(0, "NVIDIA A100", Some(1), Health::Healthy),
            card(1, "Tesla V100", None, sick),
            // Lost before the agent started: HAMi's names are UUIDs.
            Gpu::plain(GpuIndex(2), MiB::from(8)),
        ];
        let inventory = Inventory::new(gpus, vec![], vec![], vec![]).unwrap();
        let text = write(&inventory, 10).unwrap();
        let expected = concat!(
            r#"[{"id":"GPU-0","index":0,"count":10,"devmem":16276,"devcore":100,"type":"NVIDIA A100","#,
            r#""numa":1,"mode":"hami-core","health":true,"writer":"sublet.dev"},"#,
            r#"{"id":"GPU-1","index":1,"count":10,"devmem":16276,"devcore":100,"type":"NVIDIA-Tesla V100","#,
            r#""numa":-1,"mode":"hami-core","health":false,"writer":"sublet.dev"}]"#
        );
        assert_eq!(text, expected);
        let read_back = "0 GPU-0 16276 NVIDIA A100 1; 1 GPU-1 16276 NVIDIA-Tesla V100 -!";
        assert_eq!(cards(&text), read_back);
        assert_eq!(write(&Inventory::default(), 10), None);
        let many = (0..4096).map(|index| card(index, "", None, Health::Healthy));
        let many = Inventory::new(many.collect(), vec![], vec![], vec![]).unwrap();
        assert_eq!(write(&many, 10), None);
    }

    #[test]
    fn what_hami_writes_is_never_ours() {
        let ours = r#"{"id":"GPU-a","writer":"sublet.dev"}"#;
        for (text, expected) in [
            (format!("[{ours}]"), true),
            (format!("[{ours},{ours}]"), true),
            (format!("[{ours},{{\"id\":\"GPU-b\"}}]"), false),
            (r#"[{"id":"GPU-a","writer":"somebody"}]"#.to_owned(), false),
            (r#"[{"id":"GPU-a","type":"sublet.dev"}]"#.to_owned(), false),
            ("GPU-a,10,8,100,NVIDIA-sublet.dev,0,true:".to_owned(), false),
            ("[]".to_owned(), false),
            ("null".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_ours(&text), expected, "{text}");
        }
    }

    proptest! {
        /// For any cards, readers of HAMi's form find them, and our own text is recognised.
        #[test]
        fn what_we_write_is_read_as_it_was(
            given in proptest::collection::vec((0..90_000_u32, proptest::option::of(0..4_u16), any::<bool>(), "NVIDIA[ -~]{0,12}"), 1..9),
            count in 1..=255_u8,
        ) {
            let gpu = |(at, (memory, numa, health, model)): (usize, &(u32, Option<u16>, bool, String))| Gpu {
                uuid: GpuUuid::new(&format!("GPU-{at}")).ok(),
                model: Arc::from(model.as_str()),
                numa: *numa,
                health: match health {
                    true => Health::Healthy,
                    false => Health::Sick(Arc::from("HAMi says so")),
                },
                ..Gpu::plain(GpuIndex(u16::try_from(at).unwrap()), MiB::from(*memory))
            };
            let gpus = given.iter().enumerate().map(gpu).collect();
            let inventory = Inventory::new(gpus, vec![], vec![], vec![]).unwrap();
            let text = write(&inventory, count).unwrap();
            prop_assert!(is_ours(&text));
            prop_assert_eq!(read(&text).unwrap(), inventory);
        }

        #[test]
        fn any_text_is_answered(text in r#"[\[\]{}":,a-zA-Z0-9 .-]{0,60}|(GPU-[a-c],[0-9]{1,3},[0-9]{1,6},100,T,-?[0-9],(true|false):){0,3}"#) {
            if let Ok(inventory) = read(&text) {
                prop_assert!(inventory.gpus().iter().all(|gpu| gpu.uuid.is_some()));
            }
        }

        /// The same cards, as each version of HAMi writes them.
        #[test]
        fn all_forms_of_the_same_cards_are_read_alike(
            given in proptest::collection::vec((0..90_000_u32, -1..4_i32, any::<bool>(), "[A-Z0-9 -]{0,12}"), 0..5),
        ) {
            let mut json = Vec::new();
            let mut text = [String::new(), String::new()];
            for (at, (memory, numa, health, model)) in given.iter().enumerate() {
                let mut card = serde_json::json!({"id": format!("GPU-{at}"), "count": 10, "devcore": 100, "mode": "hami-core"});
                let all = [("index", serde_json::json!(at)), ("devmem", serde_json::json!(memory)),
                    ("numa", serde_json::json!(numa)), ("health", serde_json::json!(health)),
                    ("type", serde_json::json!(model.trim()))];
                let zero = [serde_json::json!(0), serde_json::json!(false), serde_json::json!("")];
                for (key, value) in all.into_iter().filter(|(_, value)| !zero.contains(value)) {
                    card[key] = value;
                }
                json.push(card);
                let older = format!("GPU-{at},10,{memory},100,{},{numa},{health}", model.trim());
                text[0] += &format!("{older}:");
                text[1] += &format!("{older},{at},hami-core:");
            }
            let expected = read(&serde_json::to_string(&json).unwrap()).unwrap();
            prop_assert_eq!(expected.gpus().len(), given.len());
            prop_assert_eq!(&read(&text[0]).unwrap(), &expected);
            prop_assert_eq!(&read(&text[1]).unwrap(), &expected);
        }
    }
}
