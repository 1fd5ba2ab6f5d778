"""A service manager: hubs that hold students' streams, and leaders that decide for services."""
