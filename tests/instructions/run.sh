#!/bin/bash
# run.sh: instructions per packet against the figures committed for this compiler. They do not depend on what else the machine does.
#   run.sh            compare; fails on more than 3 % above
#   run.sh --update   write the figures: a commit of its own, which says why
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(rustc --version | awk '{ print $2 }')
figures=tests/instructions/rustc-$version.json
if [ ! -e "$figures" ] && [ "${1:-}" != --update ]; then
  # Another compiler makes other code: compare with the newest one we know, and say so.
  newest=$(find tests/instructions -name 'rustc-*.json' | sort -V | tail -1)
  [ -n "$newest" ] || { echo "no committed figures; make them with: tests/instructions/run.sh --update" >&2; exit 1; }
  echo "no figures for rustc $version: comparing with $newest (commit your own with: tests/instructions/run.sh --update)"
  figures=$newest
fi
cargo build --quiet --release -p butterfly-datapath --example fixed_work
exec tests/instructions/count.py "${CARGO_TARGET_DIR:-target}/release/examples/fixed_work" "$figures" "$@"
