#!/bin/sh
# Prints the Secrets that the manifests mount: a password for each Redis user, and the list of users.
#
#   ./secrets.sh SERVICE... | kubectl create --namespace edl-dist -f -
#
# Run it once for a mesh: each run generates other passwords. The passwords are on disk only during the
# run, in a temporary folder. Needs openssl, and edl. The variable EDL: command to use as `edl`.
set -eu
umask 077
[ $# -ge 1 ] || { sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
trap 'exit 1' HUP INT TERM # otherwise the shell ends without the line above

password() { # user of Redis
    openssl rand -hex 32 | tee "$work/$1.password" | tr -d '\n' | openssl dgst -sha256 -r | cut -d ' ' -f 1
}

secret() { # name, then pairs of a key and a file
    printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n' "$1"
    printf '  labels: {app.kubernetes.io/part-of: edl-dist}\ntype: Opaque\ndata:\n'
    shift
    while [ $# -gt 0 ]; do
        printf '  %s: %s\n' "$1" "$(openssl base64 -A <"$2")"
        shift 2
    done
}

for user in reader student agent fleet manager; do password "$user" >/dev/null; done
{
    echo "user default off"
    # Replicas log in to their master as `replica`, sentinels to all servers as `sentinel`.
    echo "user replica on #$(password replica) resetchannels +psync +replconf +ping"
    echo "user sentinel on #$(password sentinel) allchannels +multi +slaveof +replicaof +ping +exec" \
        "+subscribe +publish +config|rewrite +role +info +client|setname +client|kill +script|kill"
    for service; do
        password "teacher-$service" >/dev/null
        ${EDL:-edl} coordinator acl --service "$service" \
            --password-file teacher="$work/teacher-$service.password" \
            --password-file reader="$work/reader.password" \
            --password-file student="$work/student.password" \
            --password-file agent="$work/agent.password" \
            --password-file fleet="$work/fleet.password" \
            --password-file manager="$work/manager.password" >"$work/lines"
        [ "$service" = "$1" ] && cat "$work/lines" || head -n 1 "$work/lines"
    done
} >"$work/users.acl"
secret edl-redis-server users.acl "$work/users.acl" \
    replica-password "$work/replica.password" sentinel-password "$work/sentinel.password"
for user in manager student reader agent fleet; do
    secret "edl-redis-$user" password "$work/$user.password"
done
for service; do secret "edl-redis-teacher-$service" password "$work/teacher-$service.password"; done
