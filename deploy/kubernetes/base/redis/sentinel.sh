# Starts one sentinel of the mesh, once there is a master to watch.
# SELF: its own host:port among SENTINEL_NODES; by default that of its pod.
set -eu
. "$(dirname "$0")/servers.sh"
: "${SELF:=$HOSTNAME.edl-sentinel:26379}"
umask 077

known_replicas() {
    for node in $REDIS_NODES; do
        [ "$node" = "$master" ] || echo "sentinel known-replica mesh ${node%:*} ${node##*:}"
    done
}

until master=$(find_master) && ask "$master" ping >/dev/null; do sleep 1; done
{
    tls_lines "${SELF##*:}"
    cat <<END
protected-mode no
dir $DATA
# Keep the id after a restart: otherwise the other sentinels would count this one twice.
sentinel myid $(printf %s "$SELF" | sha1sum | cut -d ' ' -f 1)
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip ${SELF%:*}
sentinel announce-port ${SELF##*:}
sentinel monitor mesh ${master%:*} ${master##*:} 2
# Detect and replace a dead master within the TTL of a lease, 6 s.
sentinel down-after-milliseconds mesh 1000
sentinel failover-timeout mesh 5000
sentinel parallel-syncs mesh 1
sentinel auth-user mesh sentinel
sentinel auth-pass mesh $(cat "$SECRETS/sentinel-password")
# Name the replicas: a sentinel learns them from the master only after ten seconds, too late if the
# master dies before.
$(known_replicas)
# Everybody may ask a sentinel for the master; nobody may order a failover or change settings.
user default on nopass resetkeys resetchannels -@all +ping +info +hello +auth +client|setname +sentinel|get-master-addr-by-name +sentinel|master +sentinel|masters +sentinel|replicas +sentinel|slaves +sentinel|sentinels +sentinel|is-master-down-by-addr +sentinel|myid
END
} >"$DATA/sentinel.conf"
exec "$SERVER" "$DATA/sentinel.conf" --sentinel
