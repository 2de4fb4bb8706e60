#!/usr/bin/env -S python3 -I -S
"""A machine that talks with a VM while that moves. Standard library only.

  station.py talk OWN VM FILE            pings VM each 5 ms, hears its pings, and serves its connections until SIGTERM; writes to FILE
                                         what went when; prints "ready" at its start
  station.py tell FILE FIELD=NUMBER...   prints as JSON what became of all that. The VM's kernel knows how many pings it got (got=)
                                         and how many it sent (asked=)
  station.py digest                      of what port 7000 serves

Pings are numbered, and so it is known which were lost. Whoever connects to port 7000 gets 12 MiB, as fast as 64 KiB each 50 ms;
what comes to port 7001 is counted.
"""
import hashlib
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time

INTERVAL = 0.005
SIZE = 12 << 20
CHUNK = 64 << 10
REQUEST, REPLY = 8, 0
SO_RCVBUFFORCE = 33


def stream():
    """Return what port 7000 serves: the same in each run."""
    return random.Random(1337).randbytes(SIZE)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff


def request(ident, number):
    content = struct.pack("!HH24x", ident, number)
    return struct.pack("!BBH", REQUEST, 0, checksum(struct.pack("!BBH", REQUEST, 0, 0) + content)) + content


class Station:
    def __init__(self, own, vm):
        self.own, self.vm, self.ident = own, vm, os.getpid() & 0xffff
        self.sent, self.answered, self.asked, self.grown = [], [], [], []
        self.stop = False
        self.line = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self.line.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
        self.line.bind((own, 0))

    def send(self):
        due = time.time()
        while not self.stop and len(self.sent) < 0x10000:
            now = time.time()
            self.line.sendto(request(self.ident, len(self.sent)), (self.vm, 0))
            self.sent.append(now)
            # What is late is not made up for by a burst.
            due = max(due + INTERVAL, now)
            time.sleep(max(0, due - time.time()))

    def hear(self):
        while True:
            packet = self.line.recv(2048)
            now = time.time()
            kind, _, _, ident, number = struct.unpack_from("!BBHHH", packet, (packet[0] & 15) * 4)
            if kind == REQUEST:
                self.asked.append((number, now))
            elif kind == REPLY and ident == self.ident:
                self.answered.append((number, now))

    def serve(self, listener):
        line = listener.accept()[0]
        content = stream()
        for at in range(0, SIZE, CHUNK):
            line.sendall(content[at:at + CHUNK])
            time.sleep(0.05)
        line.shutdown(socket.SHUT_WR)
        line.recv(1)

    def count(self, listener):
        line = listener.accept()[0]
        while line.recv(1 << 16):
            self.grown.append(time.time())

    def talk(self, path):
        def end(*_):
            self.stop = True
        signal.signal(signal.SIGTERM, end)
        serving, counting = (socket.create_server((self.own, port)) for port in (7000, 7001))
        for work, *arguments in ((self.send,), (self.hear,), (self.serve, serving), (self.count, counting)):
            threading.Thread(target=work, args=arguments, daemon=True).start()
        print("ready", flush=True)
        while not self.stop:
            time.sleep(0.05)
        time.sleep(1)  # for answers that are under way
        with open(path, "w") as file:
            json.dump({k: list(getattr(self, k)) for k in ("sent", "answered", "asked", "grown")}, file)


def longest(times):
    """Return the longest time between two of them, in milliseconds."""
    return round(max((b - a for a, b in zip(times, times[1:])), default=0) * 1000)


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def tell(path, got, replied, asked, stop=None):
    with open(path) as file:
        talked = json.load(file)
    sent = talked["sent"]
    answered = {}
    for n, at in talked["answered"]:
        answered.setdefault(n, at)
    lost = sorted(set(range(len(sent))) - set(answered))
    heard = {n for n, _ in talked["asked"]}
    # A ping stands for the time until the next one. Those that a slow VM got and did not answer were not lost on their way.
    ends = sent[1:] + sent[-1:]
    lost_ms = sum(ends[n] - sent[n] for n in lost) * (len(sent) - got) / max(1, len(lost)) * 1000
    told = {
        "pings": len(sent),
        "lost": len(sent) - got,
        "lost_ms": round(lost_ms),
        "answers": replied,
        "answers_lost": replied - len(answered),
        "own_pings": asked,
        "own_lost": asked - len(heard),
        "repeated": len(talked["answered"]) - len(answered) + len(talked["asked"]) - len(heard),
        # Half of all, and half of the last 20 before the first one that was lost.
        "trip_ms": [round(median([at - sent[n] for n, at in some]) * 1000)
                    for some in (talked["answered"], [a for a in talked["answered"] if not lost or a[0] < lost[0]][-20:])],
        "silent_ms": longest(sorted(t for _, t in talked["answered"] + talked["asked"])),
    }
    if talked["grown"]:
        told["stream_ms"] = longest(talked["grown"])
    if stop:
        # When the first one that was lost was sent, and until when the last one stood, from the VM's stop.
        told["from_to_ms"] = [round((at - stop) * 1000) for at in (sent[lost[0]], ends[lost[-1]])]
    return told


if __name__ == "__main__":
    if sys.argv[1] == "talk":
        Station(*sys.argv[2:4]).talk(sys.argv[4])
    elif sys.argv[1] == "tell":
        fields = dict(word.split("=") for word in sys.argv[3:])
        print(json.dumps(tell(sys.argv[2], **{k: float(v) if "." in v else int(v) for k, v in fields.items()})))
    else:
        print(hashlib.sha256(stream()).hexdigest())
