"""Messages of the two protocols of Paddle Serving."""
