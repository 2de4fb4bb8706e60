#!/bin/bash
# deny.sh              checks licences, second versions and sources of all dependencies against deny.toml. Needs no network once these are fetched.
# deny.sh advisories   checks them against the list of known vulnerabilities; exit status 77 if that cannot be fetched.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

cd "$REPO"
case ${1:-} in
  '')
    # An entry of deny.toml that is no longer needed is an error.
    cargo deny ${CI:+--locked} check --deny unmatched-skip --deny unnecessary-skip licenses bans sources
    ;;
  advisories)
    cargo deny fetch db || { say "cannot fetch the list of known vulnerabilities"; exit 77; }
    cargo deny ${CI:+--locked} check advisories
    ;;
  *) die "say nothing or advisories" ;;
esac
