#!/bin/bash
# run.sh [SECONDS] [--seed NUMBER]: hostile guests, front ends and API clients against a real butterflyd, in which other guests
# exchange frames that are checked byte for byte. First every attack with a known outcome, then attacks at random from a seed,
# which is printed. SECONDS is 60 unless given; an hour: run.sh 3600.
# run.sh --cost: what an attack costs the others, in cycles per packet; wants a quiet machine.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

need_programs butterflyd butterfly
export BIN
# Measured with what is delivered; else quick to build.
profile=dev
[ "${1:-}" != --cost ] || profile=release
cd "$REPO"
# Of the whole workspace, so that what the tests have built is what it needs.
exec cargo run --quiet --profile "$profile" --bin butterfly-attack ${CI:+--locked} -- "$@"
