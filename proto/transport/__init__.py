"""The transport between our own reader and teacher: batches and labels as frames over a socket.

A teacher offers a connection in the answer to `ModelMetadata`, to a student that asks for it and
has proved who it is (`Offer`). The reader accepts only an offer of the very endpoint that it
dialled. Both sides then prove that they know the secret of the offer, which never travels over the
connection.

A connection goes over TCP, with TLS where gRPC uses it, or over a Unix socket on the same host. It
carries frames (`frames.py`): OPEN fixes the model, the inputs and the outputs for what follows,
REQUEST has the arrays of one batch or says where they lie in shared memory, RESULT or ERROR answers
it. GOODBYE says that the teacher takes no more requests over this connection.
"""
