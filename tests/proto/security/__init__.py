"""Tests of credentials: TLS, tokens, roles, instances."""
