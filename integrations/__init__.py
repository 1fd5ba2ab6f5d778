"""Soft labels in the trainers that people use; a module named after a library needs the library."""
