"""Clients that mean ill, for `edl bench hostile`."""
