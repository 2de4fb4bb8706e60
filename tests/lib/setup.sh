#!/bin/bash
# setup.sh: makes a fresh Debian 12 ready. Checks the Rust toolchain, installs missing Debian packages by name.
#   setup.sh build   what `make build` needs
#   setup.sh test    that, and what the tests, the demo and the measurements need
#   setup.sh lint    that, and cargo-deny, which is built from its source (a minute on two cores)
#   setup.sh more    what test needs, and what tests need that are no part of `make test`
#   setup.sh compare what test needs, and the switches that Butterfly is compared with
# Quiet and quick when nothing is missing. Installing needs root.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

BUILD_PACKAGES=(gcc g++ libc6-dev make libpcap-dev dpkg-dev) # g++: the zmq crate builds ZeroMQ from its source
TEST_PACKAGES=(
  qemu-system-x86 busybox-static cpio xz-utils iperf3 ethtool iputils-ping # guests; their kernel is unpacked, not installed
  dpdk dpdk-dev libdpdk-dev pkg-config                         # testpmd and the foreign driver
  iproute2 procps util-linux python3 graphviz valgrind shellcheck tshark tmux prometheus
  protobuf-compiler python3-protobuf python3-zmq python3-nacl python3-cryptography openssl # a foreign client
  man-db groff-base mandoc debootstrap e2fsprogs                # manual pages; the package
  isc-dhcp-client dhcpcd-base systemd dbus-daemon coturn        # DHCP clients; a STUN server and its client
)
MORE_PACKAGES=(
  libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libxml2-utils python3-yaml jq curl podman # how-tos; nothing is started
  systemd-container                                             # the package in a container
)

COMPARE_PACKAGES=(openvswitch-switch-dpdk nftables)             # apt may start its service; what is measured are private instances

CARGO_DENY=0.20.2 # this version or a later one

packages=("${BUILD_PACKAGES[@]}")
case ${1:-} in
  build) ;;
  test | lint) packages+=("${TEST_PACKAGES[@]}") ;;
  more) packages+=("${TEST_PACKAGES[@]}" "${MORE_PACKAGES[@]}") ;;
  compare) packages+=("${TEST_PACKAGES[@]}" "${COMPARE_PACKAGES[@]}") ;;
  *) die "say build, test, lint, more or compare" ;;
esac

# version_at_least HAVE WANT
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -1)" = "$2" ]; }

check_rust() {
  local want have
  want=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$REPO/Cargo.toml")
  command -v cargo >/dev/null || die "no cargo: install a Rust toolchain, $want or later (https://rustup.rs)"
  have=$(rustc --version | awk '{ print $2 }')
  version_at_least "$have" "$want" ||
    die "Rust $have is too old: Butterfly needs $want or later (rustup update stable)"
  [ "$1" = build ] && return
  cargo clippy --version >/dev/null 2>&1 || die "no clippy: rustup component add clippy"
  cargo fmt --version >/dev/null 2>&1 || die "no rustfmt: rustup component add rustfmt"
}

# Not optimised: it is built three times as quickly and checks in two seconds.
check_deny() {
  local have
  have=$(cargo deny --version 2>/dev/null | awk '{ print $2 }') || true
  [ -z "$have" ] || ! version_at_least "$have" "$CARGO_DENY" || return 0
  say "building cargo-deny $CARGO_DENY"
  cargo install --quiet --locked --debug --version "$CARGO_DENY" cargo-deny || die "cargo install cargo-deny failed"
}

check_packages() {
  local missing=() package
  # Without dpkg this is another distribution: the operator knows better how to get the same programs.
  command -v dpkg-query >/dev/null || {
    say "not a Debian system; make sure that these packages' equivalents are there: ${packages[*]}"
    return
  }
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing Debian packages: ${missing[*]}"
  [ "$(id -u)" = 0 ] || die "not root; run: sudo apt-get install ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local log attempt
  log=$(mktemp)
  # A machine that has just started may install packages of its own meanwhile.
  for attempt in 1 2 3; do
    if apt-get update -qq >"$log" 2>&1 </dev/null &&
      apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" >>"$log" 2>&1 </dev/null; then
      rm -f "$log"
      # A TURN server that serves this machine's networks is nothing that the tests need.
      [[ " ${missing[*]} " != *" coturn "* ]] || { systemctl disable coturn && systemctl stop coturn; } >/dev/null 2>&1 || true
      return
    fi
    [ "$attempt" = 3 ] || sleep 10
  done
  tail -20 "$log" >&2
  rm -f "$log"
  die "apt-get install ${missing[*]} failed"
}

check_rust "$1"
check_packages
[ "$1" != lint ] || check_deny
