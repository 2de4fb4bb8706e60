#!/bin/bash
# build.sh [VERSION]: builds the Debian package in build/deb (OUT=dir: there) from the programs that make build left (BIN=dir: from others).
# Without VERSION it is the one of Cargo.toml. Needs no more than dpkg's own tools.
set -euo pipefail
# shellcheck source=../../tests/lib/common.sh
. "$(dirname "$0")/../../tests/lib/common.sh"

HERE=$REPO/packaging/deb
OUT=${OUT:-$BUILD/deb}
version=${1:-$(sed -n 's/^version = "\(.*\)"/\1/p' "$REPO/Cargo.toml" | head -1)}
maintainer=$(sed -n 's/^authors = \["\(.*\)"\]/\1/p' "$REPO/Cargo.toml")
homepage=$(sed -n 's/^repository = "\(.*\)"/\1/p' "$REPO/Cargo.toml")
[[ -n $maintainer && -n $homepage ]] || die "Cargo.toml names no authors or no repository"
architecture=$(dpkg --print-architecture)
need_programs butterflyd butterfly butterfly-bench
command -v dpkg-shlibdeps >/dev/null || die "dpkg-shlibdeps is missing: apt-get install dpkg-dev"

tree=$OUT/tree
rm -rf "$tree" "$OUT/debian"
umask 022
mkdir -p "$tree/DEBIAN" "$OUT/debian"

make -s --no-print-directory -C "$REPO" install-files BIN="$BIN" DESTDIR="$tree" PREFIX=/usr SYSCONFDIR=/etc \
  UNITDIR=/lib/systemd/system ZSHDIR=zsh/vendor-completions
for program in "$tree"/usr/bin/*; do
  strip --remove-section=.comment --remove-section=.note "$program"
done
gzip -9n "$tree"/usr/share/man/man*/*

doc=$tree/usr/share/doc/butterfly
install -d "$doc" "$tree/usr/share/butterfly"
install -m 644 "$REPO/README.md" "$REPO"/docs/*.md "$REPO"/docs/*.svg "$doc/"
# In the package the pages lie beside README.
sed -i -e "s|(docs/|(|g" -e "s|=\"docs/|=\"|g" "$doc/README.md"
gzip -9nc "$REPO/CHANGELOG.md" >"$doc/changelog.gz"
sed -e "s/@year@/$(date +%Y)/" -e "s|@maintainer@|$maintainer|" -e "s|@homepage@|$homepage|" "$HERE/copyright.in" >"$doc/copyright"
cp -r "$REPO/packaging/prometheus" "$REPO/packaging/grafana" "$tree/usr/share/butterfly/"
install -d "$tree/usr/share/butterfly/proto"
install -m 644 "$REPO"/crates/api/proto/*.proto "$tree/usr/share/butterfly/proto/"
find "$tree/usr/share" -type f -exec chmod 644 {} + -o -type d -exec chmod 755 {} +

# What the programs are linked with, as packages.
printf 'Source: butterfly\n\nPackage: butterfly\nArchitecture: any\n' >"$OUT/debian/control"
depends=$(cd "$OUT" && dpkg-shlibdeps -O "$tree"/usr/bin/* 2>debian/shlibdeps.log | sed -n 's/^shlibs:Depends=//p') ||
  die "dpkg-shlibdeps failed: $(cat "$OUT/debian/shlibdeps.log")"
[ -n "$depends" ] || die "dpkg-shlibdeps found nothing that the programs need"

sed -e "s|@version@|$version|" -e "s|@maintainer@|$maintainer|" -e "s|@homepage@|$homepage|" -e "s|@architecture@|$architecture|" -e "s|@depends@|$depends|" \
  -e "s|@size@|$(du -k -s --exclude=DEBIAN "$tree" | cut -f1)|" "$HERE/control.in" >"$tree/DEBIAN/control"
printf '%s\n' /etc/butterfly/butterflyd.ini /etc/needrestart/conf.d/butterfly.conf >"$tree/DEBIAN/conffiles"
install -m 755 "$HERE/postinst" "$HERE/prerm" "$HERE/postrm" "$tree/DEBIAN/"
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"

package=$OUT/butterfly_${version}_$architecture.deb
dpkg-deb --root-owner-group -Z"${COMPRESSION:-xz}" --build "$tree" "$package" >/dev/null
say "$package: $(($(stat -c %s "$package") / 1024)) KiB, needs $depends"
