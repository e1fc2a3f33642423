#!/usr/bin/env bash
# Servers that tests start and that no wheel brings: Debian's, from its package sources, where they are missing.
set -euo pipefail

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v openssl >/dev/null || missing+=(openssl)
# The wheel of Mooncake Store is linked with the first of these, and loads the others.
[[ $(ldconfig -p) == *libibverbs.so.1* ]] || missing+=(libibverbs1 librdmacm1 libnuma1 liburing2)
((${#missing[@]})) || exit 0

as_root() {
  if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Without a list of packages, or with an old one, the first try fails.
as_root apt-get install --quiet --yes --no-install-recommends "${missing[@]}" && exit 0
as_root apt-get update --quiet
as_root apt-get install --quiet --yes --no-install-recommends "${missing[@]}"
