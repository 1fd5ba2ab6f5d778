"""Tests of `teacher.paddle_serving`; what needs the real server is in tests/interop."""
