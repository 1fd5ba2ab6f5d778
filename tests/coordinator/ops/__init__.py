"""Tests of what operators type."""
