#!/usr/bin/env bash
# Runs a command with a PostgreSQL server of its own, whose address is in OPFORGE_TEST_POSTGRES, and ends the server with it.
#
#   scripts/with-postgres.sh make test
#
# The server listens on loopback alone, on a free port, with a password made for this run, as a user without privileges, on a
# folder that is removed. Where there is no PostgreSQL, it is installed with apt-get as root; elsewhere that is said, and the
# command runs without it (the tests that need it are skipped, with the reason).
set -euo pipefail

newest() { ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1; }

find_server() {
  if command -v initdb >/dev/null && command -v pg_ctl >/dev/null; then dirname "$(readlink -f "$(command -v pg_ctl)")"; else newest; fi
}

bin=$(find_server)
if [ -z "$bin" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "with-postgres: installing PostgreSQL" >&2
  # Debian's package would start a server of its own otherwise
  mkdir -p /etc/postgresql-common
  [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql; } >&2 || true
  bin=$(find_server)
fi
if [ -z "$bin" ]; then
  echo "with-postgres: no PostgreSQL here (initdb, pg_ctl); its tests will be skipped. Install it with: apt-get install postgresql" >&2
  exec "$@"
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/opforge-postgres-XXXXXX")
as=()
if [ "$(id -u)" = 0 ]; then
  # PostgreSQL refuses to run as root
  user=$(id -nu postgres 2>/dev/null || echo nobody)
  chown "$user" "$folder"
  as=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --clear-groups env -u XDG_RUNTIME_DIR "HOME=$folder")
fi
serve() { (cd "$folder" && "${as[@]}" "$bin/$1" "${@:2}" >>"$folder/commands.log" 2>&1); }
finish() {
  serve pg_ctl stop --pgdata "$folder/data" --mode immediate || true
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

touch "$folder/commands.log" "$folder/password"
chmod 666 "$folder/commands.log"
python3 -c 'import secrets; print(secrets.token_hex(16))' >"$folder/password"
[ "$(id -u)" != 0 ] || chown "$user" "$folder/password"
chmod 600 "$folder/password"
password=$(cat "$folder/password")
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

serve initdb --pgdata "$folder/data" --username opforge --auth-local reject --auth-host scram-sha-256 --pwfile "$folder/password" --encoding UTF8 --no-sync &&
  serve pg_ctl start --pgdata "$folder/data" --wait --log "$folder/server.log" --options "-c listen_addresses=127.0.0.1 -c port=$port -c unix_socket_directories=''" || {
  echo "with-postgres: the server did not start:" >&2
  tail -20 "$folder"/*.log >&2
  exit 3
}
export OPFORGE_TEST_POSTGRES="postgresql://opforge:$password@127.0.0.1:$port/postgres"
"$@"
