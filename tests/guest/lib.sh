# Sourced after common.sh: real guests and what tests do with them. VM_DIR names the guests' directory.
# shellcheck shell=bash

vm() { "$TESTS/guest/vm" "$@"; }

# ping_all FROM ADDRESS [COUNT [OPTIONS]]: does every echo request get its answer?
ping_all() {
  local said
  said=$(vm exec --timeout 30 "$1" "ping -c ${3:-3} -i 0.2 -W 2 ${4:-} $2") || return 1
  [[ $said == *" 0% packet loss"* ]]
}

# back FROM ADDRESS: an address that was gone answers every echo request again. The sender's kernel gives up an address
# three seconds after its first question, and what it queued meanwhile with it, so one answer is awaited first.
back() { wait_for 10 ping_all "$1" "$2" 1 && ping_all "$1" "$2" 5; }

# unanswered GUEST COMMAND...: a ping or arping to which nobody answers. Only their own verdict counts (status 1): a guest
# that is not there proves nothing.
unanswered() {
  local status=0
  vm exec "$@" >/dev/null 2>&1 || status=$?
  [ "$status" -eq 1 ]
}

# statistic GUEST NAME: a counter of the guest's network interface, e.g. rx_packets.
statistic() { vm exec "$1" "cat /sys/class/net/eth0/statistics/$2"; }

# Commands for guests. How many pings its kernel got, and how many answers it gave:
# shellcheck disable=SC2016 # expanded there
export ECHOES='awk "/^Icmp:/ && !n++ { split(\$0, name); next } /^Icmp:/ { for (i in name) count[name[i]] = \$i } END { print count[\"InEchos\"], count[\"OutEchoReps\"] }" /proc/net/snmp'
# The ping that runs ends; how many it sent.
# shellcheck disable=SC2016
export PING_ENDS='killall -INT ping; while pidof ping >/dev/null; do usleep 50000; done; sed -n "s/^\([0-9]*\) packets transmitted.*/\1/p" /tmp/pings'

# transfer FROM TO ADDRESS MIB: send random bytes over TCP and compare digests. Guests leave checksums of received
# frames unchecked where the switch says that they are good, so the digest is the proof.
transfer() { transfers "$1" "$2" "$4" "$3"; }
# transfers FROM TO MIB ADDRESS...: the same once to each address, one after the other, on ports 7000, 7001...
# A guest makes its random bytes once, but never sends the same twice in a row: an old buffer's contents are not right.
transfers() {
  local from=$1 to=$2 mib=$3 sent
  shift 3
  turn=$((${turn:-0} + 1))
  # The listeners' standard input never ends (a pipe that they hold open themselves): else they would hang up at once.
  vm exec "$to" "rm -f /tmp/got* /tmp/open; mkfifo /tmp/open; port=6999
    for address in $*; do port=\$((port + 1)); nc -l -p \$port <>/tmp/open >/tmp/got.\$port & done
    until [ \$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -c ':1B5[89AB] .* 0A ') -ge $# ]; do usleep 20000; done" || return 1
  sent=$(vm exec --timeout 60 "$from" "port=6999
    for address in $*; do
      port=\$((port + 1)) random=/tmp/random.$mib.\$(((port + $turn) % 2))
      [ -e \$random.sum ] || { head -c ${mib}m /dev/urandom >\$random; sha256sum <\$random >\$random.sum; }
      nc -w 20 \$address \$port <\$random || exit 1
      cat \$random.sum
    done") || return 1
  # The last bytes may still be on their way through the receiver's nc.
  wait_for 15 arrived_all "$to" "$sent"
}
# shellcheck disable=SC2016 # expanded there
arrived_all() { [ "$(vm exec "$1" 'for got in /tmp/got.*; do sha256sum <$got; done')" = "$2" ]; }

# iperf_server GUEST: once per guest. throughput FROM ADDRESS [SECONDS]: Mbit/s of TCP, as the receiver saw it.
iperf_server() { vm exec "$1" 'iperf3 -s -D >/dev/null; until grep -q :1451 /proc/net/tcp /proc/net/tcp6 2>/dev/null; do usleep 20000; done'; }
throughput() {
  local seconds=${3:-3}
  vm exec --timeout $((seconds + 20)) "$1" "iperf3 -c $2 -t $seconds -f m --connect-timeout 5000" |
    awk '$NF == "receiver" { for (i = 1; i < NF; i++) if ($i == "Mbits/sec") { print int($(i - 1)); found = 1 } }
      END { exit !found }'
}
