"""The socket side of a teacher: the only asyncio of this folder, on a thread of its own."""
