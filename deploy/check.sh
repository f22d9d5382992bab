#!/bin/bash
# check.sh - the units make sense to systemd, and shut the daemon in tightly
#
#   deploy/check.sh
#
# Installs into a folder of its own, with a stand-in for the binaries, and asks
# systemd-analyze there: any remark of `verify`, and an exposure above 2.0, fails.
set -euo pipefail
deploy=$(cd "$(dirname "$0")" && pwd)

if ! command -v systemd-analyze >/dev/null; then
  echo 'skipped: units: no systemd-analyze' >&2
  exit 0
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir "$root/binaries"
install -m 0755 /bin/true "$root/binaries/hugepoold"
install -m 0755 /bin/true "$root/binaries/hugepoolctl"
DESTDIR=$root "$deploy/install.sh" "$root/binaries"
# What the units refer to and every system has.
install -D -m 0755 /bin/true "$root/bin/kill"
for unit in sysinit basic sockets multi-user shutdown; do
  printf '[Unit]\nDescription=stand-in\n' >"$root/usr/lib/systemd/system/$unit.target"
done

units=(hugepoold.service hugepoold.socket hugepoold-attach.socket hugepoold-admin.socket)
remarks=$(systemd-analyze verify --man=no --root="$root" "${units[@]}" 2>&1) || remarks+=$'\n(refused)'
if [ -n "$remarks" ]; then
  printf '%s\n' "$remarks"
  exit 1
fi
systemd-analyze security --no-pager --offline=yes --threshold=20 --root="$root" hugepoold.service >"$root/score" ||
  { cat "$root/score"; exit 1; }
tail -n 1 "$root/score"
