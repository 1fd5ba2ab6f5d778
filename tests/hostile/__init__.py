"""Strangers and liars at every port of the mesh: refused, counted, and nobody else notices."""
