"""Tests of batches that a teacher reads in the memory of a reader on its host."""
