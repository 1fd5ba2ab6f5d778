"""The rules of a training over many ranks: what comes when, to whom, and with which weight."""
