#!/usr/bin/python3
"""between.py PART LISTEN TO KEYFILE: stands where a daemon does, and is none.

  original  butterfly 0.13 with that key: knows the legacy form and nothing else, and one vnic, "old"
  clear     answers whatever comes in clear text, as if it had been carried out
  swap      passes requests on to TO, and every reply to the one after it
  record    passes everything on, and everything a second time: the first reply goes back
"""

import base64
import sys

import zmq

from api import Daemon, Legacy
from encryption_pb2 import Encrypted
from envelope_pb2 import Messages

part, listen, to, key = sys.argv[1:]
socket = zmq.Context.instance().socket(zmq.REP)
socket.bind(listen)
far = Daemon(to)
legacy = Legacy(base64.b64decode(open(key).read()))
done = Messages()
done.messages.add(revision=6).message_0.response.status.status = True
done.messages[0].message_0.response.nic_list.append("old")
earlier = None
while True:
    frame = socket.recv()
    if part == "original":
        request = Messages.FromString(frame)
        request.DiscardUnknownFields()
        reply = Messages()
        if not request.HasField("encrypted"):
            reply.messages.add(revision=6).error.code = 4
        elif not request.encrypted.HasField("aes256cbc_sha512"):
            reply.encrypted.error.code = Encrypted.Error.NOT_SUPPORTED
        else:
            assert Messages.FromString(legacy.open(request.encrypted.aes256cbc_sha512)).messages
            reply.encrypted.aes256cbc_sha512 = legacy.seal(done.SerializeToString())
        frame = reply.SerializeToString()
    elif part == "clear":
        frame = done.SerializeToString()
    elif part == "swap":
        reply = far.frame(frame)
        frame, earlier = earlier or reply, reply
    elif part == "record":
        reply = far.frame(frame)
        far.frame(frame)
        frame = reply
    socket.send(frame)
