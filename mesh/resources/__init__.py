"""`edl get|describe|logs|scale|drain|delete|apply`: the same verbs for all kinds of resources."""
