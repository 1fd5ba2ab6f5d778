# Sourced by redis.sh and sentinel.sh: addresses and paths, and which server is the master.
# REDIS_NODES and SENTINEL_NODES: host:port of each; by default those of the StatefulSets.
: "${REDIS_NODES:=edl-redis-0.edl-redis:6379 edl-redis-1.edl-redis:6379 edl-redis-2.edl-redis:6379}"
: "${SENTINEL_NODES:=edl-sentinel-0.edl-sentinel:26379 edl-sentinel-1.edl-sentinel:26379 edl-sentinel-2.edl-sentinel:26379}"
: "${SECRETS:=/etc/edl/secret}"
: "${TLS_FILES:=/etc/edl/tls}"
: "${DATA:=/data}"
: "${SERVER:=valkey-server}"
: "${CLI:=valkey-cli}"

ask() { # host:port, command: print the reply of a Redis server or sentinel; give up after 2 s
    host=${1%:*} port=${1##*:}
    shift
    tls=
    [ "$REDIS_TLS" = yes ] && tls="--tls --cacert $TLS_FILES/ca.crt"
    # shellcheck disable=SC2086 # several words, or none
    timeout 2 "$CLI" $tls -h "$host" -p "$port" "$@" 2>/dev/null
}

# Print the master that a sentinel names; nothing if no sentinel answers.
sentinel_master() {
    for node in $SENTINEL_NODES; do
        found=$(ask "$node" sentinel get-master-addr-by-name mesh | tr '\n' ':')
        found=${found%:}
        case " $REDIS_NODES " in *" ${found:-none} "*) echo "$found" && return ;; esac
    done
}

# Print the master: the server that a sentinel names, else one that reports this role, else the first.
find_master() {
    found=$(sentinel_master)
    [ -n "$found" ] && echo "$found" && return
    for node in $REDIS_NODES; do
        role=$(
            REDISCLI_AUTH=$(cat "$SECRETS/sentinel-password")
            export REDISCLI_AUTH
            ask "$node" --user sentinel role | head -n 1
        )
        [ "$role" = master ] && echo "$node" && return
    done
    echo "${REDIS_NODES%% *}"
}

tls_lines() { # port
    if [ "$REDIS_TLS" = yes ]; then
        printf '%s\n' "port 0" "tls-port $1" "tls-cert-file $TLS_FILES/tls.crt" \
            "tls-key-file $TLS_FILES/tls.key" "tls-ca-cert-file $TLS_FILES/ca.crt" \
            "tls-auth-clients no" "tls-replication yes"
    else
        echo "port $1"
    fi
}
