"""`edl agent --local`: a fleet of teachers of one service on this machine."""
