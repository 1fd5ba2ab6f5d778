"""Tests of a teacher over HTTP."""
