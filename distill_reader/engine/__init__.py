"""The reader's other process: gRPC, Redis and the ledger, away from the training (ADR-0021)."""
