"""The live page of a service manager: the mesh as a picture, its numbers and its log."""
