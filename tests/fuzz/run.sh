#!/bin/bash
# run.sh replay: runs every file of fuzz/corpus through its target. Needs no AFL; builds into the workspace's own directory.
# run.sh [TARGET...]: coverage-guided fuzzing with AFL++, one target after the other, FUZZ_SECONDS each (900 unless set), at the lowest
# priority. What is new is added to the corpus, minimised. Fails if anything crashed or hung, and says where the input is.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

FUZZ=$REPO/fuzz
SECONDS_EACH=${FUZZ_SECONDS:-900}
locked=${CI:+--locked}

if [ "${1:-}" = replay ]; then
  cd "$FUZZ"
  # shellcheck disable=SC2086 # one word or none
  exec env CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$REPO/target}" \
    cargo run --quiet $locked --bin butterfly-fuzz-replay -- corpus
fi

targets=("$@")
[ $# -gt 0 ] || targets=(rings control frames api zmtp sessions checkpoint holder store moved dhcp)

command -v cargo-afl >/dev/null || cargo install --locked cargo-afl
# Instrumented builds share nothing with others.
export CARGO_TARGET_DIR=${FUZZ_TARGET_DIR:-$BUILD/fuzz/target}
OUT=${FUZZ_OUT:-$BUILD/fuzz/out}
mkdir -p "$OUT"
cd "$FUZZ"
# shellcheck disable=SC2086
nice -n 19 cargo afl build $locked --features afl --bin butterfly-fuzz
program=$CARGO_TARGET_DIR/debug/butterfly-fuzz

# A machine's core pattern and frequency governor are not ours to change.
export AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_SKIP_CPUFREQ=1 AFL_NO_UI=1 AFL_NO_AFFINITY=1 AFL_AUTORESUME=0
export AFL_SKIP_CRASHES=1

failed=0
for target in "${targets[@]}"; do
  seeds=$FUZZ/corpus/$target found=$OUT/$target
  [ -d "$seeds" ] || die "no corpus for $target: $seeds"
  rm -rf "$found"
  say "$target: $SECONDS_EACH s"
  nice -n 19 cargo afl fuzz -t 2000 -V "$SECONDS_EACH" -i "$seeds" -o "$found" -- "$program" "$target" >"$found.log" 2>&1 </dev/null ||
    { tail -20 "$found.log"; die "$target: AFL did not run; all it said is in $found.log"; }
  awk -F ' *: *' '/^(run_time|execs_done|execs_per_sec|corpus_count|saved_crashes|saved_hangs|edges_found|total_edges)/ { printf "  %s %s\n", $1, $2 }' \
    "$found/default/fuzzer_stats"
  for kind in crashes hangs; do
    for file in "$found/default/$kind"/id*; do
      [ -e "$file" ] || continue
      failed=1
      say "$kind: repeat with tests/fuzz/run.sh replay of, or: $program $target <$file"
    done
  done
  # Small files that reach everything that was reached.
  rm -rf "$found.min"
  mkdir "$found.min"
  nice -n 19 cargo afl cmin -t 2000 -i "$found/default/queue" -o "$found.min" -- "$program" "$target" >>"$found.log" 2>&1 </dev/null ||
    { tail -20 "$found.log"; die "$target: the corpus could not be minimised"; }
  rm -f "$seeds"/*
  for file in "$found.min"/*; do
    [ "$(stat -c %s "$file")" -le 8192 ] || continue
    sum=$(sha256sum "$file")
    cp "$file" "$seeds/${sum:0:16}"
  done
  say "  $(find "$seeds" -type f | wc -l) files in the corpus, $(du -sh --apparent-size "$seeds" | cut -f1)"
done
[ "$failed" -eq 0 ]
