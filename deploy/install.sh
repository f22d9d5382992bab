#!/bin/sh
# install.sh - put hugepool's files where a system expects them
#
#   [DESTDIR=DIR] [SYSTEMD_VERSION=N] deploy/install.sh FOLDER_OF_BINARIES
#
# Copies files and nothing else: no user is made, nothing is started or enabled
# (README.md has the commands for that). A configuration that is there already is
# kept. The drop-in for newer versions of systemd is installed if the version,
# SYSTEMD_VERSION or that of this machine, is 254 or later.
set -eu

[ $# -eq 1 ] || { sed -n '2,/^set -eu/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
binaries=$1 deploy=$(dirname "$0") root=${DESTDIR-}
units=$root/usr/lib/systemd/system

install -D -m 0755 -t "$root/usr/bin" "$binaries/hugepoold" "$binaries/hugepoolctl"
install -D -m 0644 -t "$units" "$deploy"/hugepoold.service "$deploy"/hugepoold*.socket
install -D -m 0644 "$deploy/sysusers.conf" "$root/usr/lib/sysusers.d/hugepool.conf"
install -D -m 0644 "$deploy/tmpfiles.conf" "$root/usr/lib/tmpfiles.d/hugepool.conf"
install -D -m 0644 "$deploy/hugepages.conf" "$root/usr/lib/sysctl.d/60-hugepool.conf"
install -D -m 0644 "$deploy/README.md" "$root/usr/share/doc/hugepool/README.md"

config=$root/etc/hugepool/hugepoold.toml
[ -e "$config" ] || install -D -m 0644 "$deploy/hugepoold.toml" "$config"

version=${SYSTEMD_VERSION-$(systemctl --version 2>/dev/null | awk 'NR == 1 { print $2 }')}
if [ "${version:-0}" -ge 254 ]; then
  install -D -m 0644 "$deploy/systemd-254.conf" "$units/hugepoold.service.d/10-systemd-254.conf"
fi
