#!/bin/bash
# named_tests.sh: every test that docs/security.md names is there. A test that is renamed takes its promise along.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"
cd "$REPO"
missing=0 found=0
while IFS=: read -r path _ name; do
  if grep -qw -- "$name" "$path" 2>/dev/null; then
    found=$((found + 1))
  else
    say "docs/security.md names $path::$name, which is not there"
    missing=$((missing + 1))
  fi
done < <(grep -oE '[A-Za-z0-9_/.-]+[.]rs::[A-Za-z0-9_]+' docs/security.md)
[ "$found" -gt 0 ] || die "docs/security.md names no test"
say "docs/security.md: $found tests named, $missing of them missing"
[ "$missing" -eq 0 ]
