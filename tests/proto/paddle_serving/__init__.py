"""Tests of `proto.paddle_serving` and of its clients."""
