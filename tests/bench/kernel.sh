#!/bin/bash
# kernel.sh: networks whose other end is a Linux host: its kernel takes frames of VNI 42 out of their tunnel, and sends them back in VNI 43,
# through a bridge. The near host is Butterfly (AF_XDP on a veth, two unfiltered vnics, simulated guests), or another kernel with two VXLAN
# devices and a packet socket in place of machines. Prints what comes back, in Mpps, and their ratio. A veth's receiver works on its
# sender's processor: there the far host's work is done, too. Needs root and two cores.
#   ROUNDS=3 FLOWS=1000 SIZES="64 1400" SECS=3    environment
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"
# shellcheck source=../lib/hosts.sh
. "$TESTS/lib/hosts.sh"

ROUNDS=${ROUNDS:-3} FLOWS=${FLOWS:-1000} SIZES=${SIZES:-64 1400} SECS=${SECS:-3}
need_programs butterflyd butterfly butterfly-bench
OUT=$BUILD/bench-kernel
mkdir -p "$OUT"
gcc -O2 -o "$OUT/frames" "$TESTS/bench/frames.c"
trap 'hosts_end || true' EXIT
trap 'exit 1' HUP INT TERM

# vxlan HOST VNI REMOTE
vxlan() {
  ip -n "$(net "$1")" link add "vx$2" up mtu 1450 type vxlan id "$2" dstport 4789 dev eth0 remote "$(underlay ipv4 "$3")"
}
# two HOST: the near one and the far kernel, joined
two() {
  local vni
  hosts_begin "$OUT/hosts"
  host_add near
  host_add far
  join near far
  ip -n "$(net near)" link set eth0 mtu 1600
  ip -n "$(net far)" link set eth0 mtu 1600
  address near eth0 1
  address far eth0 2
  ip -n "$(net far)" link add back up type bridge stp_state 0 forward_delay 0 mcast_snooping 0
  for vni in 42 43; do
    vxlan far "$vni" 1
    ip -n "$(net far)" link set "vx$vni" master back
  done
}

kernel() { # kernel SIZE
  two
  vxlan near 42 2
  vxlan near 43 2
  inside near taskset -c 1 "$OUT/frames" vx42 vx43 02:00:00:00:00:01 02:00:00:00:00:02 "$1" "$FLOWS" "$SECS"
  hosts_end
}

butterfly() { # butterfly SIZE
  two
  host_daemon near --uplink eth0 -i "$(underlay ipv4 1)" --peer "$(underlay ipv4 2)" -u 1 --poll -m 1600
  on near bf nic add --id a --mac 02:00:00:00:00:01 --vni 42 --bypass-filtering >/dev/null
  on near bf nic add --id b --mac 02:00:00:00:00:02 --vni 43 --bypass-filtering >/dev/null
  "$BIN/butterfly-bench" --a "$HOSTS/near/qemu-vhost-a" --b "$HOSTS/near/qemu-vhost-b" --size "$1" --flows "$FLOWS" --secs "$SECS" --pin 0 \
    --json "$OUT/bench.json" >"$OUT/bench.log" 2>&1 || die "the bench failed: $(tail -3 "$OUT/bench.log") $(tail -3 "$HOSTS/near/butterflyd.log")"
  # Of all seconds: both hosts share two processors here, and none is one host's alone.
  python3 -I -c 'import json, statistics, sys
print("%.3f" % statistics.median(second["rx_mpps"] for second in json.load(open(sys.argv[1]))["seconds"]))' "$OUT/bench.json"
  hosts_end
}

median() { sort -n | awk '{ n[NR] = $1 } END { print NR % 2 ? n[(NR + 1) / 2] : (n[NR / 2] + n[NR / 2 + 1]) / 2 }'; }

for size in $SIZES; do
  rm -f "$OUT"/{kernel,butterfly}
  for ((round = 1; round <= ROUNDS; round++)); do
    kernel "$size" >>"$OUT/kernel"
    butterfly "$size" >>"$OUT/butterfly"
  done
  k=$(median <"$OUT/kernel") b=$(median <"$OUT/butterfly")
  say "$size bytes, there and back: kernel $k Mpps, Butterfly $b Mpps, ratio $(awk "BEGIN { printf \"%.2f\", $b / $k }")"
done
