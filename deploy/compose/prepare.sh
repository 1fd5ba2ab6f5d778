#!/bin/sh
# Creates the files that compose.yaml mounts (certificates, passwords, Redis users), and .env with the
# user of the containers. Needs openssl 3, and edl or a container engine with the image edl-dist.
#
#   ./prepare.sh          run once; existing files are kept
#   rm -r secrets         run this before it to get new passwords, and new certificates of the same
#                         authority
#
# Variables. EDL: command to use as `edl`; default: the one on PATH, else the one in the image.
# ENGINE: docker (default) or podman. DAYS: validity of certificates; default: 90. HOSTS: further
# names and addresses of the servers, if their ports are published.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets
secrets=$PWD/secrets
certificates=../tls/certificates.sh

# Mounted files keep their owner, so the containers run as that user, but never as root.
owner=$(id -u):$(id -g)
[ "$(id -u)" != 0 ] || owner=65532:65532
[ -f .env ] || echo "EDL_USER=$owner" >.env
version=$(sed -n 's/^EDL_VERSION=//p' .env)

if [ -z "${EDL:-}" ]; then
    EDL=edl
    command -v edl >/dev/null || EDL="${ENGINE:-docker} run --rm --network none --read-only \
        --user $(id -u):$(id -g) --volume $secrets:$secrets:ro edl-dist:${version:-0.1.0}"
fi

password() { [ -s "$secrets/$1.password" ] || openssl rand -hex 32 >"$secrets/$1.password"; }
# shellcheck disable=SC2086  # HOSTS are several words
certificate() { [ -s "$secrets/$2.pem" ] || "$certificates" "$1" pki "$2" "$3" $4; }

[ -f pki/ca.pem ] || "$certificates" ca pki
cp pki/ca.pem "$secrets/ca.pem"
for member in redis teacher-1 teacher-2; do
    certificate teacher "$member" "$member" "${HOSTS:-}"
done
certificate manager coordinator coordinator "${HOSTS:-}"
certificate client ctr student:ctr ""
certificate client admin admin:compose ""
for member in redis teacher-1 teacher-2 coordinator ctr admin; do
    [ ! -f "pki/$member.key" ] || mv "pki/$member.pem" "pki/$member.key" "$secrets/"
done

for user in manager teacher reader student agent fleet; do
    password "$user"
done
if [ ! -s "$secrets/users.acl" ]; then
    echo "user default off" >"$secrets/users.acl.new"
    # shellcheck disable=SC2086  # EDL is a command with its arguments
    $EDL coordinator acl --service ctr \
        --password-file manager="$secrets/manager.password" \
        --password-file teacher="$secrets/teacher.password" \
        --password-file reader="$secrets/reader.password" \
        --password-file student="$secrets/student.password" \
        --password-file agent="$secrets/agent.password" \
        --password-file fleet="$secrets/fleet.password" >>"$secrets/users.acl.new"
    mv "$secrets/users.acl.new" "$secrets/users.acl"
fi
[ "$(id -u)" != 0 ] || chown -R "$owner" secrets
echo "secrets are in $secrets; move the authority's key, $PWD/pki/ca.key, off this machine"
