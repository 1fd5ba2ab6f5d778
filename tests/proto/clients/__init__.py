"""Tests of `proto.clients`."""
