#!/bin/sh
# A certificate authority for one mesh, and the certificates of its members; needs openssl 3.
#
#   certificates.sh ca      FOLDER                    the authority: ca.pem for all, ca.key is secret
#   certificates.sh teacher FOLDER NAME HOST...       for a server; a client cannot present it
#   certificates.sh manager FOLDER NAME HOST...       for a server that is also a client of teachers
#   certificates.sh client  FOLDER NAME ROLE[:WHO]    for a student, a viewer or an admin
#
# HOST: every name and address by which others reach the server. The results are NAME.pem and
# NAME.key. The variable DAYS: validity of a member's certificate in days; default: 90.
set -eu
umask 077

usage() { sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

quiet_openssl() {  # command and options; its output is shown only if it fails
    if ! output=$(openssl "$@" 2>&1); then
        printf '%s\n' "$output" "$0: 'openssl $1' failed" >&2
        exit 1
    fi
}

sign() {  # folder, file name, CN, extensions
    [ -f "$1/ca.key" ] || { echo "$1/ca.key is missing: copy it back, or run '$0 ca $1'" >&2; exit 1; }
    quiet_openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$3" \
        -keyout "$1/$2.key.new" -out "$1/$2.csr"
    printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature "$4" \
        >"$1/$2.ext"
    quiet_openssl x509 -req -sha256 -in "$1/$2.csr" -CA "$1/ca.pem" -CAkey "$1/ca.key" \
        -days "${DAYS:-90}" -extfile "$1/$2.ext" -out "$1/$2.pem.new"
    chmod 644 "$1/$2.pem.new"
    mv "$1/$2.key.new" "$1/$2.key"
    mv "$1/$2.pem.new" "$1/$2.pem"
    rm "$1/$2.csr" "$1/$2.ext"
    echo "$1/$2.pem $1/$2.key"
}

names() {  # hosts -> subjectAltName
    list=
    for host; do
        case $host in
            *:*) kind=IP ;;
            *[!0-9.]*) kind=DNS ;;
            *) kind=IP ;;
        esac
        list="$list,$kind:$host"
    done
    echo "subjectAltName=${list#,}"
}

[ $# -ge 2 ] || usage
what=$1 folder=$2
shift 2
case $what in
    ca)
        mkdir -p "$folder"
        for file in "$folder/ca.key" "$folder/ca.pem"; do # the key may be kept elsewhere
            [ ! -f "$file" ] || { echo "$file exists already" >&2; exit 1; }
        done
        quiet_openssl req -x509 -sha256 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
            -subj "/CN=edl mesh authority" -keyout "$folder/ca.key.new" -out "$folder/ca.pem.new" \
            -addext keyUsage=critical,keyCertSign,cRLSign
        chmod 644 "$folder/ca.pem.new"
        mv "$folder/ca.key.new" "$folder/ca.key"
        mv "$folder/ca.pem.new" "$folder/ca.pem" # last: where it exists, the authority is complete
        echo "$folder/ca.pem $folder/ca.key"
        ;;
    teacher | manager)
        [ $# -ge 2 ] || usage
        name=$1
        shift
        uses=extendedKeyUsage=serverAuth
        cn=$name
        [ "$what" = teacher ] || { uses=$uses,clientAuth; cn="viewer:$name"; }
        sign "$folder" "$name" "$cn" "$uses
$(names "$@")"
        ;;
    client)
        [ $# -eq 2 ] || usage
        sign "$folder" "$1" "$2" extendedKeyUsage=clientAuth
        ;;
    *) usage ;;
esac
