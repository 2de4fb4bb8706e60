#!/bin/bash
# run.sh [NAME]: metrics with a real Prometheus, Debian's: the alert rules that are packaged are quiet when all is well and fire when it is not,
# every query of the dashboard has series, promtool likes names and format, and a scrape of 1,000 nics is quick. NAME: only
# tests with that in their names.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

for program in prometheus promtool; do
  command -v "$program" >/dev/null || die "no $program: run make setup (package prometheus)"
done
cd "$REPO"
# Of the whole workspace: what other parts have built is what it needs.
test=("${CARGO:-cargo}" test ${CI:+--locked} --workspace --test metrics)
"${test[@]}" --no-run
# One after the other: the one that measures wants the machine for itself.
exec timeout -k 5 120 "${test[@]}" -- --test-threads 1 --nocapture "$@"
