"""Clients of service managers: calls of commands such as `edl drain`, subscriptions of students."""
