# Starts one Redis server of the mesh, as the master or as a replica of the master.
# SELF: its own host:port among REDIS_NODES; by default that of its pod.
set -eu
. "$(dirname "$0")/servers.sh"
: "${SELF:=$HOSTNAME.edl-redis:6379}"
umask 077

# A restarted server is empty. If the sentinels still name it as the master, they have not noticed the
# restart yet: wait up to 10 s until they promote a replica, which has the data.
tries=0
while [ "$(sentinel_master)" = "$SELF" ] && [ $tries -lt 10 ]; do
    tries=$((tries + 1))
    sleep 1
done
master=$(find_master)
{
    tls_lines "${SELF##*:}"
    cat <<END
protected-mode no
dir $DATA
save ""
appendonly no
maxmemory ${REDIS_MAXMEMORY:-0}
# Leases must not be evicted when memory is short.
maxmemory-policy noeviction
aclfile $SECRETS/users.acl
masteruser replica
masterauth $(cat "$SECRETS/replica-password")
# Send the data at once: there is little, and without it a replica cannot become the master.
repl-diskless-sync-delay 0
# Names of pods outlive their addresses, and certificates contain names.
replica-announce-ip ${SELF%:*}
replica-announce-port ${SELF##*:}
END
    [ "$master" = "$SELF" ] || echo "replicaof ${master%:*} ${master##*:}"
} >"$DATA/redis.conf"
exec "$SERVER" "$DATA/redis.conf"
