#!/bin/sh
# Runs every fuzz target for SECONDS. Needs no nightly compiler: what is fuzzed has no unsafe code, so it does without the
# sanitizers. New inputs go to target/fuzz/corpus, not into the repository; a crash is in fuzz/artifacts.
set -eu
cd "$(dirname "$0")/.."
seconds=${SECONDS:-60}
# cargo-fuzz passes flags that only a nightly compiler takes, or a stable one that is told to.
export RUSTC_BOOTSTRAP=1
# What does not build is told, not passed over.
cargo fuzz build --sanitizer none
for target in $(cd fuzz && ls fuzz_targets | sed 's/\.rs$//'); do
    new="target/fuzz/corpus/$target"
    mkdir -p "$new"
    echo "fuzz: $target for $seconds s"
    cargo fuzz run --sanitizer none "$target" "$new" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 2>&1 |
        grep -E '^(stat::|Done|==|SUMMARY|thread|.*panicked|Test unit)' || true
    if [ -d "fuzz/artifacts/$target" ] && [ -n "$(ls -A "fuzz/artifacts/$target")" ]; then
        echo "fuzz: $target fails: $(ls "fuzz/artifacts/$target")" >&2
        exit 1
    fi
done
echo "fuzz: clean"
