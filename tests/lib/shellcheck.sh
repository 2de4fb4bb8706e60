#!/bin/bash
# Runs the shell checker on every shell script of the project and parses every Python program.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"
cd "$REPO"

shell=() python=()
while IFS= read -r file; do
  [ -f "$file" ] || continue
  case $(head -c 64 "$file" | tr -d '\0' | head -1) in
    '#!'*python*) python+=("$file") ;;
    '#!'*sh) shell+=("$file") ;;
    *) [[ $file == *.sh ]] && shell+=("$file") ;;
  esac
done < <(git ls-files --cached --others --exclude-standard -- tests .ci packaging fuzz)
[ ${#shell[@]} -gt 0 ] || die "found no shell script"

shellcheck -x -P SCRIPTDIR "${shell[@]}"
for file in "${python[@]}"; do
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file"
done
say "${#shell[@]} shell scripts and ${#python[@]} Python programs are clean"
