#!/bin/sh
# deb.sh - hugepool as a Debian package
#
#   [SYSTEMD_VERSION=N] deploy/deb.sh FOLDER_OF_BINARIES OUT.deb
#
# The files that install.sh installs, and what makes users, folders and units known.
# Installing starts nothing; removing stops it; purging takes the configuration too.
# SYSTEMD_VERSION says which systemd the package is for (default: that of Debian 12).
set -eu

[ $# -eq 2 ] || { sed -n '2,/^set -eu/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
binaries=$1 out=$2 deploy=$(dirname "$0")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"

DESTDIR=$root SYSTEMD_VERSION=${SYSTEMD_VERSION-252} "$deploy/install.sh" "$binaries"
install -d -m 0755 "$root/DEBIAN" "$root/usr/share/man/man1"
"$binaries/hugepoold" man "$root/usr/share/man/man1"
"$binaries/hugepoolctl" generate man "$root/usr/share/man/man1"

cat >"$root/DEBIAN/control" <<CONTROL
Package: hugepool
Version: $("$binaries/hugepoold" --version | awk '{ print $2 }')
Architecture: $(dpkg --print-architecture)
Maintainer: the hugepool authors <hugepool@localhost>
Section: admin
Priority: optional
Depends: libc6, systemd (>= 247)
Description: page allocator for several processes
 A daemon that owns shared memory on huge pages and lends it to the processes
 that link its library; what a process that dies has held comes home.
CONTROL
echo /etc/hugepool/hugepoold.toml >"$root/DEBIAN/conffiles"

units='hugepoold.service hugepoold.socket hugepoold-attach.socket hugepoold-admin.socket'
cat >"$root/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
systemd-sysusers hugepool.conf
systemd-tmpfiles --create hugepool.conf
[ ! -d /run/systemd/system ] || systemctl daemon-reload
POSTINST
# An upgrade leaves the daemon running: `systemctl restart` takes the new one up, clients stay.
cat >"$root/DEBIAN/prerm" <<PRERM
#!/bin/sh
set -e
[ "\$1" = remove ] || exit 0
[ ! -d /run/systemd/system ] || systemctl disable --now --quiet $units
PRERM
cat >"$root/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
# Its users and groups stay: an id that was used is better not given to another.
[ "$1" != purge ] || rm -rf /run/hugepool /etc/hugepool
POSTRM
chmod 0755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm" "$root/DEBIAN/postrm"

dpkg-deb --root-owner-group -Zgzip --build "$root" "$out" >/dev/null
