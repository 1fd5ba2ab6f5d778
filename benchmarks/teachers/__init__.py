"""Parts of `edl bench teacher`: models, bare loops, and a probe of latencies."""
