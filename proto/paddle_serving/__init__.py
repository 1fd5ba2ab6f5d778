"""The two protocols of Paddle Serving: their messages, and arrays in them."""
