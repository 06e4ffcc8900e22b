//! The list of features, beside the headers.

use std::collections::BTreeSet;

use sublet_driver_api::Thread;

use super::super::{address, target};
use super::*;

#[test]
fn the_list_is_what_the_headers_have_and_the_fake_has_not() {
    let nowhere = target(usize::MAX).0;
    for (index, function) in CUDA.iter().enumerate() {
        let symbol = function.symbol;
        let leads_nowhere = target(index).0 == nowhere;
        assert_eq!(leads_nowhere, address(symbol).is_none(), "{symbol}");
        if function.thread != Thread::Legacy {
            continue;
        }
        match absence(function) {
            None => assert!(!leads_nowhere, "{symbol} is missing, and nobody says why"),
            Some(why) => assert!(leads_nowhere, "{symbol} is there, but: {why:?}"),
        }
    }
}

#[test]
fn every_name_of_the_list_is_a_function() {
    let mut seen = BTreeSet::new();
    let refusals = FEATURES.iter().flat_map(|feature| feature.refused);
    for pattern in refusals.flat_map(|refusal| refusal.names) {
        assert!(seen.insert(pattern), "{pattern} is there twice");
        let mut functions = CUDA.iter();
        assert!(
            functions.any(|function| fits(pattern, function.symbol)),
            "{pattern}"
        );
    }
    for (symbol, _) in OLDER_FORMS {
        let row = CUDA.by_symbol(symbol).expect(symbol);
        let newest = CUDA.resolve(row.base, CUDA_VERSION as u32, false);
        assert_ne!(newest, CUDA.index_of(symbol), "{symbol} is the newest form");
    }
}

#[test]
fn a_star_stands_for_anything() {
    assert!(fits("cuGL*", "cuGLInit") && !fits("cuGL*", "cuInit"));
    assert!(fits("cuModuleGet*Ref", "cuModuleGetTexRef"));
    assert!(!fits("cuModuleGet*Ref", "cuModuleGetGlobal"));
    assert!(fits(
        "cuGraph*MemOpNode*",
        "cuGraphExecBatchMemOpNodeSetParams"
    ));
    assert!(!fits("cuLaunch", "cuLaunchKernel"));
}
