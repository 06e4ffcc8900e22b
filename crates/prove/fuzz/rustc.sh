#!/bin/sh
# Has our crates count the branches they take, for libFuzzer: Cargo calls this in place of rustc for the
# crates of the workspace (RUSTC_WORKSPACE_WRAPPER, set by `cargo xtask fuzz`). The options are those of
# cargo-fuzz. None of them needs a nightly compiler; with a sanitizer of memory one would.
rustc=$1
shift
case " $* " in
*" --crate-name build_script_"* | *" --crate-type proc-macro "*) exec "$rustc" "$@" ;;
esac
exec "$rustc" "$@" \
    -Copt-level=1 -Cdebug-assertions=on -Coverflow-checks=on \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
