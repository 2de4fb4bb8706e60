#!/bin/bash
# ping.sh: round trips between two BENCH vnics of one daemon, as the daemon prints them for each 1,024 answers. Needs two quiet processors.
#   SECS=4   environment; arguments are options for butterflyd, as -t
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

need_programs butterflyd butterfly
room=$(mktemp -d)
"$BIN/butterflyd" -i 127.0.0.1 -s "$room" -e "ipc://$room/api" --uplink none --no-syslog -u 1 "$@" >"$room/log" 2>&1 &
daemon=$!
trap 'kill $daemon 2>/dev/null; wait $daemon 2>/dev/null || true; rm -rf "$room" /tmp/butterfly-$daemon-*' EXIT
client() { "$BIN/butterfly" "$@" -e "ipc://$room/api" >/dev/null; }
for _ in {1..50}; do
  if client nic list 2>/dev/null; then break; fi
  sleep 0.1
done
bench=(--type BENCH --vni 1 --bypass-filtering)
client nic add --id answers --mac 52:54:00:00:00:02 --ip 10.0.0.2 "${bench[@]}" --btype ICMP_RCV_LIKE
client nic add --id asks --mac 52:54:00:00:00:01 --ip 10.0.0.1 "${bench[@]}" --btype ICMP_SND_LIKE --dip 10.0.0.2 --dmac 52:54:00:00:00:02
sleep "${SECS:-4}"
grep '^ping time' "$room/log" | sort -k9,9 -n | awk '{ means[NR] = $9 } END { print NR " measurements of 1,024 pings; mean of the median one: " means[int((NR + 1) / 2)] " us" }'
