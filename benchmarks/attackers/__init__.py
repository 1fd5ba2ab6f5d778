"""Attackers for `edl bench hostile`."""
