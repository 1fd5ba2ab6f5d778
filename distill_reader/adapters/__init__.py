"""Adapters to training frameworks: tensors, and loaders with the interface that each expects.

Importing this package imports no framework; the loaders in `adapters.paddle` and `adapters.torch`
import their framework when they are used.
"""
