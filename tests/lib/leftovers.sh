#!/bin/bash
# leftovers.sh: did something stay behind? Compares the machine before and after: processes, network namespaces and
# devices, mounts, Unix sockets, huge pages, files of ours in /tmp and /dev/shm.
#   leftovers.sh take FILE      write down what is there now
#   leftovers.sh compare FILE   print what is there now and was not then; exit status 1 if anything is
#   leftovers.sh kill NAME=VALUE   kill every process whose environment has this
# Only what this project starts counts: other people's processes come and go.
set -euo pipefail

# Processes by the program they run: what the build and the tests start. The start time tells a later process of the
# same id. Zombies count: somebody did not reap them.
REPO=$(cd "$(dirname "$0")/../.." && pwd)
PROGRAMS='^(butterflyd|butterfly|butterfly-bench|butterfly-.*|qemu-system-.*|dpdk-testpmd|vugen|ovs.*|iperf3|valgrind.*|callgrind.*|afl.*|timeout|tcpdump|tshark|dumpcap|prometheus|promtool|turnserver|turnutils_.*)$'

# Builtins only: this runs after every part of the tests.
processes() {
  local dir stat name argv0 fields
  for dir in /proc/[0-9]*; do
    { read -r stat <"$dir/stat"; } 2>/dev/null || continue
    name=${stat#*\(}
    name=${name%\)*}
    argv0=''
    { IFS= read -r -d '' argv0 <"$dir/cmdline"; } 2>/dev/null || true
    # The kernel cuts names at 15 characters and threads may rename themselves: look at the command line too.
    [[ $name =~ $PROGRAMS || ${argv0##*/} =~ $PROGRAMS || $argv0 == "$REPO"/target/* ]] || continue
    read -ra fields <<<"${stat##*) }"
    printf 'process %s (%s, started at tick %s)\n' "${dir#/proc/}" "${argv0:-$name}" "${fields[19]}"
  done
}

take() {
  {
    processes
    ip netns list 2>/dev/null | awk '{ print "network namespace " $1 }'
    ip -o link show 2>/dev/null | awk -F': ' '{ sub(/@.*/, "", $2); print "network device " $2 }'
    # ip makes the folder of network namespaces a mount when it makes the first one, for good.
    awk '$2 != "/run/netns" { print "mount " $2 " (" $3 ")" }' /proc/mounts
    awk 'NR > 1 && $8 ~ /(qemu-vhost-|bfly-|butterfly|\.sock$|\.agent$|\.console$|^@peers)/ { print "socket " $8 }' /proc/net/unix
    find /tmp /run /dev/shm -maxdepth 1 \( -name 'bfly-*' -o -name 'butterfly*' -o -name 'qemu-vhost-*' \
      -o -name 'peers-*' \) -printf 'file %p\n' 2>/dev/null || true
    find /dev/hugepages /mnt/huge -type f -printf 'huge page file %p\n' 2>/dev/null || true
    awk '/^HugePages_Total/ { print "huge pages reserved: " $2 }' /proc/meminfo
  } | sort -u
}

case ${1:-} in
  take)
    take >"$2"
    ;;
  compare)
    # What was there at first and is not any more is none of our business. Give processes that are ending a moment.
    end=$((SECONDS + 5))
    while :; do
      extra=$(take | comm -13 "$2" -)
      [ -n "$extra" ] || exit 0
      [ "$SECONDS" -lt "$end" ] || break
      sleep 0.1
    done
    echo "left behind:" >&2
    printf '  %s\n' "${extra//$'\n'/$'\n'  }" >&2
    exit 1
    ;;
  kill)
    for dir in /proc/[0-9]*; do
      # In the environment it began with, which is not that of a shell that exported it later.
      if grep -qzFx -- "$2" "$dir/environ" 2>/dev/null; then kill -KILL "${dir#/proc/}" 2>/dev/null || true; fi
    done
    ;;
  *)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
