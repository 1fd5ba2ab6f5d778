"""What a training framework calls its own: its tensors, and loaders in the shape that it expects.

Importing this package imports no framework; `adapters.paddle` and `adapters.torch` do when a loader
is made.
"""
