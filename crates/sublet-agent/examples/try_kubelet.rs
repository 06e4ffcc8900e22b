//! Temporary: kubelet on a folder; lines on stdin: `resource count`, `preferred resource count`, `list resource`.
#![allow(dead_code, unreachable_pub)]
#[path = "../tests/fake_kubelet/mod.rs"]
mod fake_kubelet;
use std::io::BufRead;
use sublet_kubelet::deviceplugin::*;
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).unwrap();
    let kubelet = fake_kubelet::FakeKubelet::start(folder.as_ref(), 0)?;
    let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel::<String>();
    std::thread::spawn(move || for l in std::io::stdin().lock().lines() { let _ = tx.send(l.unwrap()); });
    while let Some(line) = rx.recv().await {
        let w: Vec<&str> = line.split_whitespace().collect();
        match w[..] {
            ["list", r] => { let k = kubelet.knows(r); println!("{r}: registered {} healthy {} of {:?}", k.n_registered, k.n_healthy(), k.devices.map(|d| d.len())); }
            ["preferred", r, n] => {
                let ids: Vec<String> = kubelet.knows(r).devices.unwrap().iter().map(|d| d.id).collect();
                let a = kubelet.client(r)?.get_preferred_allocation(PreferredAllocationRequest { container_requests: vec![ContainerPreferredAllocationRequest { available_device_i_ds: ids, must_include_device_i_ds: vec![], allocation_size: n.parse()? }] }).await;
                match a { Ok(a) => { let i = &a.into_inner().container_responses[0].device_i_ds; println!("preferred {} first {:?} last {:?}", i.len(), i.first(), i.last()) }, Err(e) => println!("ERR {e}") }
            }
            [r, n] => {
                let ids: Vec<String> = kubelet.knows(r).devices.unwrap().iter().take(n.parse()?).map(|d| d.id).collect();
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                let t = std::time::Instant::now();
                let a = kubelet.allocate(r, &[&ids]).await;
                match a { Ok(a) => println!("{:?} {:?}", t.elapsed(), a.container_responses[0].envs), Err(e) => println!("{:?} ERR {e:#}", t.elapsed()) }
            }
            _ => println!("?"),
        }
    }
    Ok(())
}
