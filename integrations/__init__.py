"""Soft labels in the trainers that people use; a module of a library's name needs that library."""
