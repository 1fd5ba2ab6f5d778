"""A service manager: desks that hold students' streams, and leaders that decide for services."""
