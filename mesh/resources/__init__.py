"""`edl get|describe|logs|scale|drain|delete|apply`: the same verbs for everything in a mesh."""
