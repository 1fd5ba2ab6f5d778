"""Tests of `teacher.register`."""
