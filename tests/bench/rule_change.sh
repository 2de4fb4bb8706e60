#!/bin/bash
# rule_change.sh: what a change of rules costs the daemon: processor time (10 ms units) and time until the answer. Vnics that each have two groups:
# one that all have, and one of their own. Needs root, and nothing else.
#   VNICS=300 RULES=10000   environment: vnics, and rules of the group that all have
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"

VNICS=${VNICS:-300} RULES=${RULES:-10000}
dir=$(mktemp -d /tmp/bfly-rules-XXXXXX)
trap 'daemon_stop; rm -rf "$dir"' EXIT

requests() { # requests WHAT: in text format
  python3 -I -S - "$1" "$VNICS" "$RULES" <<'PYTHON'
import sys

what, vnics, rules = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def rule(n):
    cidr = f'address: "10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" mask_size: 32'
    port = n % 60000 + 1
    return f"rule {{ direction: INBOUND protocol: 6 port_start: {port} port_end: {port} cidr {{ {cidr} }} }}"


def nic(n):
    mac, ip = f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}", f"10.1.{n >> 8}.{n & 255}"
    return f'nic_add {{ id: "n{n}" mac: "{mac}" vni: 1 ip: "{ip}" security_group: "all" security_group: "own{n}" }}'


requests = {
    "groups": ['sg_add { id: "all" %s }' % " ".join(map(rule, range(rules)))]
    + ['sg_add { id: "own%d" %s }' % (n, rule(n)) for n in range(vnics)],
    "nics": [nic(n) for n in range(vnics)],
    "all": ['sg_rule_add { sg_id: "all" %s }' % rule(2 * rules)],
    "own": ['sg_rule_add { sg_id: "own0" %s }' % rule(2 * rules)],
}
for request in requests[what]:
    print("messages { revision: 0 message_0 { request { %s } } }" % request)
PYTHON
}
ticks() { # processor time of the daemon
  local fields
  read -ra fields <"/proc/$DAEMON_PID/stat"
  echo $((fields[13] + fields[14]))
}
measure() { # measure WHAT TEXT
  local before begun
  requests "$1" >"$dir/$1"
  before=$(ticks) begun=${EPOCHREALTIME/./}
  "$BIN/butterfly" request "$dir/$1" -e "ipc://$dir/api" -t 60000 >"$dir/$1.out" || die "refused: $(tail -3 "$dir/$1.out")"
  printf '%-44s %6d ms, %4d x 10 ms of processor time\n' "$2" $(((${EPOCHREALTIME/./} - begun) / 1000)) $(($(ticks) - before))
}

daemon_start "$dir" --sessions 1000
measure groups "a group of $RULES rules, $VNICS of one"
measure nics "$VNICS vnics, each with the first and one other"
measure all "a rule more in the group that all have"
measure own "a rule more in the group of one"
