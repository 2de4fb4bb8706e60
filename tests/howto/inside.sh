#!/bin/bash
# inside.sh [DOCUMENT...]: what run.sh does in its namespaces.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"
# shellcheck source=../guest/lib.sh
. "$TESTS/guest/lib.sh"
# shellcheck source=lib.sh
. "$TESTS/howto/lib.sh"
private_system

documents=("$@")
[ $# -gt 0 ] || documents=(encryption tracing migration tuning containers orchestrator virtual-machines live-migration)
for document in "${documents[@]}"; do
  begun=$SECONDS
  (
    PAGE=$REPO/docs/$document.md
    trap 'failed_in "$document"' EXIT
    # shellcheck source=/dev/null
    . "$TESTS/howto/$document.sh"
    all_taken
    trap - EXIT
    ended
  )
  ok "docs/$document.md ($((SECONDS - begun)) s)"
done
