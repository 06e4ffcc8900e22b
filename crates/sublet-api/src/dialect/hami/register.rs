//! `hami.io/node-nvidia-register`: the cards of a node as HAMi's device plugin reports them.
//!
//! A JSON list since HAMi 2.8. Older versions write `uuid,split,memory,cores,type,numa,health:` for
//! each card, and some of them `,index,mode` after that. HAMi is written in Go, and leaves out of
//! its JSON what is zero, false or empty: a card without `health` is sick.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
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

/// Reads any of the forms.
///
/// # Errors
/// What is wrong, for people.
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

    proptest! {
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
