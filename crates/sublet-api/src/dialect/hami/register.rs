//! `hami.io/node-nvidia-register`: the cards of a node as HAMi's device plugin reports them.
//!
//! A JSON list, or in older versions `uuid,split,memory,cores,type,numa,health:` for each card.

use std::sync::Arc;

use serde::Deserialize;
use sublet_model::{Gpu, GpuIndex, GpuUuid, Health, Inventory, MiB};

/// A card, as far as placement needs it.
#[derive(Debug, Deserialize)]
struct Registered {
    id: String,
    #[serde(default)]
    index: Option<u16>,
    devmem: u64,
    #[serde(default, rename = "type")]
    model: String,
    #[serde(default)]
    numa: i32,
    health: bool,
}

/// Reads either form.
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
    let gpus = cards.iter().zip(0..).map(|(card, at)| gpu(card, at));
    let gpus: Vec<Gpu> = gpus.collect::<Result<_, String>>()?;
    Inventory::new(gpus, Vec::new(), Vec::new(), Vec::new()).map_err(|error| error.to_string())
}

fn older(card: &str) -> Result<Registered, String> {
    let fields: Vec<&str> = card.split(',').map(str::trim).collect();
    let wrong = || format!("`{card}` is not `uuid,split,memory,cores,type,numa,health`");
    let [id, _split, memory, _cores, model, numa, health] = fields[..] else {
        return Err(wrong());
    };
    Ok(Registered {
        id: id.to_owned(),
        index: None,
        devmem: memory.parse().map_err(|_| wrong())?,
        model: model.to_owned(),
        numa: numa.parse().map_err(|_| wrong())?,
        health: health.parse().map_err(|_| wrong())?,
    })
}

fn gpu(card: &Registered, at: u16) -> Result<Gpu, String> {
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
        ..Gpu::plain(GpuIndex(card.index.unwrap_or(at)), memory)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_are_read() {
        let json = r#"[{"id":"GPU-a","index":0,"count":10,"devmem":81559,"devcore":100,"type":"NVIDIA-A100","numa":1,"mode":"hami-core","health":true},
            {"id":"GPU-b","index":1,"count":10,"devmem":81559,"devcore":100,"type":"NVIDIA-A100","numa":0,"health":false}]"#;
        let older = "GPU-a,10,81559,100,NVIDIA-A100,1,true:GPU-b,10,81559,100,NVIDIA-A100,0,false:";
        let inventory = read(json).unwrap();
        assert_eq!(inventory, read(older).unwrap());
        let [a, b] = inventory.gpus() else {
            panic!("{inventory:?}");
        };
        assert_eq!(
            (a.numa, a.memory.get(), &*a.model),
            (Some(1), 81_559, "NVIDIA-A100")
        );
        assert!(a.health.is_healthy() && !b.health.is_healthy());
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
        assert!(read("[{]").is_err() && read("[]").unwrap().gpus().is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in r#"[\[\]{}":,a-zA-Z0-9 .-]{0,60}|(GPU-[a-c],[0-9]{1,3},[0-9]{1,6},100,T,-?[0-9],(true|false):){0,3}"#) {
            if let Ok(inventory) = read(&text) {
                prop_assert!(inventory.gpus().iter().all(|gpu| gpu.uuid.is_some()));
            }
        }
    }
}
