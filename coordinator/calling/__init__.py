"""Clients of service managers: calls of operators, subscriptions of students."""
