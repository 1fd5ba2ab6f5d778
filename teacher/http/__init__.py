"""The Open Inference Protocol over HTTP/REST: the same answers as over gRPC, in the same loop."""
