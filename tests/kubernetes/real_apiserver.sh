#!/usr/bin/env bash
# The tests of the operator against a real kube-apiserver and etcd, instead of the emulator.
#
#   tests/kubernetes/real_apiserver.sh [further arguments of pytest]
#
# Both programs are taken from PATH, or from KUBE_APISERVER and ETCD; PYTHON is the one of the
# project's environment. Nothing but the loopback is used, and nothing is left behind. What a
# cluster has besides, its controllers, scheduler and kubelets, is played by the tests.
#
# Debian's source of Kubernetes 1.20 gives a kube-apiserver (openapi-gen first, then `go build
# ./cmd/kube-apiserver`). Built by Go 1.18 or newer it crashes at the first resource of ours, unless
# mapiterinit of its vendor/github.com/modern-go/reflect2 is made that of reflect2 1.0.2.
#
# Ends with pytest's code; with 77 where a program is missing, so that nobody takes it for a pass.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
etcd=${ETCD:-etcd}
apiserver=${KUBE_APISERVER:-kube-apiserver}

missing=()
command -v "$etcd" >/dev/null || missing+=("etcd (ETCD=$etcd)")
command -v "$apiserver" >/dev/null || missing+=("kube-apiserver (KUBE_APISERVER=$apiserver)")
for program in openssl curl "$python"; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if ((${#missing[@]})); then
  printf 'NOT RUN against a real API server; missing: %s\n' "${missing[@]}" >&2
  exit 77
fi

work=$(mktemp -d)
pids=()
clean() {
  local code=$?
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
  done
  for pid in "${pids[@]}"; do
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
  exit "$code"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Ports that were free a moment ago.
read -r client peer secure < <("$python" - <<'PORTS'
import socket

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in sockets))
PORTS
)

# wait_for WHAT PID LOG COMMAND...: until the command succeeds, at most a minute.
wait_for() {
  local what=$1 pid=$2 log=$3
  shift 3
  for _ in $(seq 600); do
    if "$@" >/dev/null 2>&1; then
      return
    fi
    if ! kill -0 "$pid" 2>/dev/null; then
      echo "$what has ended:" >&2
      tail -n 20 "$log" >&2
      exit 1
    fi
    sleep 0.1
  done
  echo "$what is not ready after a minute:" >&2
  tail -n 20 "$log" >&2
  exit 1
}

"$etcd" --data-dir "$work/etcd" \
  --listen-client-urls "http://127.0.0.1:$client" \
  --advertise-client-urls "http://127.0.0.1:$client" \
  --listen-peer-urls "http://127.0.0.1:$peer" \
  --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
  --initial-cluster "default=http://127.0.0.1:$peer" >"$work/etcd.log" 2>&1 &
pids+=($!)
wait_for etcd $! "$work/etcd.log" curl -fsS "http://127.0.0.1:$client/health"

# An authority, a certificate of the server, a key for tokens of accounts, and one user.
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=edl-test-ca" \
  -keyout "$work/ca.key" -out "$work/ca.crt" 2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj "/CN=kube-apiserver" \
  -keyout "$work/server.key" -out "$work/server.csr" 2>/dev/null
printf 'subjectAltName=IP:127.0.0.1\n' >"$work/names"
openssl x509 -req -in "$work/server.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial \
  -days 2 -extfile "$work/names" -out "$work/server.crt" 2>/dev/null
openssl genrsa -out "$work/accounts.key" 2048 2>/dev/null
token=$(openssl rand -hex 16)
printf '%s,edl-test,edl-test,system:masters\n' "$token" >"$work/tokens.csv"

"$apiserver" --etcd-servers "http://127.0.0.1:$client" \
  --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --secure-port "$secure" \
  --cert-dir "$work/certificates" \
  --tls-cert-file "$work/server.crt" --tls-private-key-file "$work/server.key" \
  --token-auth-file "$work/tokens.csv" --authorization-mode RBAC \
  --service-account-issuer https://kubernetes.default.svc \
  --service-account-key-file "$work/accounts.key" \
  --service-account-signing-key-file "$work/accounts.key" \
  --service-cluster-ip-range 10.0.0.0/24 \
  --disable-admission-plugins ServiceAccount,TaintNodesByCondition >"$work/apiserver.log" 2>&1 &
pids+=($!)
wait_for kube-apiserver $! "$work/apiserver.log" \
  curl -fsS --cacert "$work/ca.crt" -H "Authorization: Bearer $token" \
  "https://127.0.0.1:$secure/readyz"

cat >"$work/kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
current-context: test
clusters:
  - name: test
    cluster: {server: "https://127.0.0.1:$secure", certificate-authority: "$work/ca.crt"}
users:
  - name: test
    user: {token: "$token"}
contexts:
  - name: test
    context: {cluster: test, user: test}
CONFIG

echo "against $("$apiserver" --version 2>/dev/null || echo "$apiserver") on port $secure"
cd "$root"
EDL_TEST_KUBECONFIG="$work/kubeconfig" "$python" -P -m pytest tests/deploy/operator -q "$@"
