"""The teacher's side of the transport (`proto.transport`), over TCP and a Unix socket."""
