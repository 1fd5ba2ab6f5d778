"""The engine: the reader's second process, with gRPC, Redis and the ledger (ADR-0021)."""
