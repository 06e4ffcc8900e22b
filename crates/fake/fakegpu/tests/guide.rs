//! The guide's page about the fake driver is made from the code by this test. It fails when
//! the page is stale, and `SUBLET_BLESS=1 cargo test -p sublet-fakegpu --test guide` writes
//! the page anew.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use sublet_driver_api::{CUDA, NVML, Table, Thread};
use sublet_fakegpu::cuda::features::{FEATURES, Feature, OLDER_FORMS};
use sublet_fakegpu::nvml;
use sublet_fakegpu::spec::TimeRule;

/// Command that writes the page anew.
const BLESS: &str = "SUBLET_BLESS=1 cargo test -p sublet-fakegpu --test guide";

#[test]
fn the_page_of_the_fake_driver_is_what_the_code_says() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guide/fake-driver.md");
    let page = page();
    if std::env::var_os("SUBLET_BLESS").is_some() {
        fs::write(&place, &page).unwrap();
    }
    let committed = fs::read_to_string(&place).unwrap_or_default();
    let (new, old): (Vec<_>, Vec<_>) = (page.lines().collect(), committed.lines().collect());
    let differs = (0..new.len().max(old.len()))
        .find(|&at| new.get(at) != old.get(at))
        .map(|at| (at + 1, new.get(at), old.get(at)));
    assert!(
        differs.is_none(),
        "{} is stale: `{BLESS}` writes it anew; the first line that differs, new and old: {differs:?}",
        place.display()
    );
}

fn page() -> String {
    let mut page = format!(
        "# What the fake driver can do\n\nMade from the code by `{BLESS}`; a test fails when it \
         is stale. How to use the fake driver: [one machine](one-machine.md#without-a-gpu).\n\n\
         It plays driver R580 with CUDA 13.0. Two kinds of functions are not there at all. What \
         is newer than CUDA 13.0: `cuGetProcAddress` does not find it. And old forms, such as \
         the first `cuMemAlloc`: a program of CUDA 13 gets a newer form of them. The symbols of \
         both answer `CUDA_ERROR_NOT_SUPPORTED`. In the table, a `*` stands for anything.\n\n\
         | feature of CUDA | on the fake driver | functions that answer | refused: \
         `CUDA_ERROR_NOT_SUPPORTED` (801) |\n|---|---|---|---|\n"
    );
    for feature in &FEATURES {
        let count = names(&CUDA, feature.answered()).len();
        let refused = refused(feature);
        let Feature {
            name, behaviour, ..
        } = feature;
        writeln!(page, "| {name} | {behaviour} | {count} | {refused} |").unwrap();
    }
    page.push_str(&time());
    let total = names(&CUDA, FEATURES.iter().flat_map(Feature::answered)).len();
    writeln!(page, "\n## The {total} functions of CUDA that answer").unwrap();
    for feature in &FEATURES {
        section(&mut page, feature.name, &names(&CUDA, feature.answered()));
    }
    page.push_str("\nOlder forms that are there beside the newest:\n\n");
    for (symbol, why) in OLDER_FORMS {
        writeln!(page, "- `{symbol}`: {why}").unwrap();
    }
    page.push_str(
        "\n## NVML\n\nFunctions that change something answer `NVML_ERROR_NO_PERMISSION` (4), \
         all others that are not named here `NVML_ERROR_NOT_SUPPORTED` (3).\n",
    );
    for (subject, symbols) in nvml::answered() {
        section(&mut page, subject, &names(&NVML, symbols));
    }
    page
}

/// Says how the time of a card is shared, and which of it was never compared with a card.
fn time() -> String {
    let TimeRule { slice, switch } = TimeRule::default();
    format!(
        "\n## Time\n\nKernels take real time. Each of these can be told otherwise by SPEC or by \
         the comments of the PTX (`// fake NAME: us=150 percent=25`).\n\n\
         | | on the fake driver | compared with a card |\n|---|---|---|\n\
         | several processes | have the card in turn, in slices of at most {} ms (`slice=2ms`), \
         which interrupt a longer kernel | no: that is the driver's default on data-centre cards \
         as its tools describe it, and cards since Pascal do interrupt |\n\
         | a switch | costs {} µs (`switch=40us`) when another process than the last one gets a \
         slice | no: [GPreempt](https://www.usenix.org/conference/atc25/presentation/fan) \
         reports preemption by a change of context within that time, part of it hidden behind \
         other work; a card may lose more |\n\
         | a switch in NVML | is busy time of the card, and of the process that gets the slice, \
         because the engine works for it | no |\n\
         | several streams of a process | a kernel fills the card unless its PTX says `percent=`; \
         those that have room beside each other run at the same time, each as fast as alone. One \
         that has no room is not overtaken | no: neither how much of a card a grid fills, nor what \
         kernels take from each other in memory bandwidth and caches |\n\
         | utilisation in NVML | the time in which any kernel of the process had the card, however \
         many ran; whole percent of the last second | no |\n\
         | a graph | its kernels run one after the other | no: a card runs branches at the same \
         time |\n",
        slice / 1_000_000,
        switch / 1_000,
    )
}

/// Lists the functions that a feature lacks, each with the reason.
fn refused(feature: &Feature) -> String {
    let reasons = feature.refused.iter().map(|refusal| {
        let names = refusal.names.iter().map(|name| format!("`{name}`"));
        let names: Vec<_> = names.collect();
        format!("{} ({})", names.join(", "), refusal.why)
    });
    let reasons: Vec<_> = reasons.collect();
    reasons.join("; ")
}

/// The names by which programs know these symbols.
fn names(
    table: &'static Table,
    symbols: impl Iterator<Item = &'static str>,
) -> BTreeSet<&'static str> {
    let row = |symbol| table.by_symbol(symbol).unwrap();
    symbols
        .map(row)
        .inspect(|row| assert_eq!(row.thread, Thread::Legacy))
        .map(|row| row.base)
        .collect()
}

fn section(page: &mut String, title: &str, names: &BTreeSet<&str>) {
    if names.is_empty() {
        return;
    }
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    writeln!(page, "\n### {title}\n{}", names.join(", ")).unwrap();
}
