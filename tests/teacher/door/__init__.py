"""Tests of the door for callers on the teacher's host."""
