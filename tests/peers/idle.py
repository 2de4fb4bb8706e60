#!/usr/bin/env python3
"""Attaches guests that do nothing to vhost-user sockets: what a switch pays for vnics without traffic.

  idle.py SOCKET...      prints READY when all are attached and stays until SIGTERM or the end of standard input

Each is a front end of its own (memory, two rings of 256 descriptors with receive buffers posted, all descriptors for
notification), as a virtual machine that has booted and waits. Standard library only. Exit status 1 with a message
when a back end refuses something or hangs up.
"""
import ctypes
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys

GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE = 8, 9, 10
SET_VRING_KICK, SET_VRING_CALL = 12, 13
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, SET_VRING_ENABLE = 15, 16, 18

MRG_RXBUF, PROTOCOL_FEATURES, VERSION_1 = 1 << 15, 1 << 30, 1 << 32
RING = 256        # descriptors per ring
BUFFERS = 64      # receive buffers posted
BUFFER = 2048     # bytes of each
USER = 1 << 32    # where the memory pretends to be in the front end; guest addresses start at 0
RING_ROOM = 8192  # descriptors, available and used ring of one queue
MEMORY = 2 * RING_ROOM + BUFFERS * BUFFER


class Refused(Exception):
    pass


class Guest:
    def __init__(self, path):
        self.path = path
        self.line = socket.socket(socket.AF_UNIX)
        self.line.settimeout(10)
        self.line.connect(path)
        self.memory = os.memfd_create("idle-guest")
        os.ftruncate(self.memory, MEMORY)
        self.descriptors = []
        self.post_buffers()
        self.attach()

    def post_buffers(self):
        """The receive ring: one writable descriptor per buffer, all of them available."""
        with mmap.mmap(self.memory, MEMORY) as memory:
            for i in range(BUFFERS):
                struct.pack_into("<QIHH", memory, 16 * i, 2 * RING_ROOM + i * BUFFER, BUFFER, 2, 0)
                struct.pack_into("<H", memory, 16 * RING + 4 + 2 * i, i)
            struct.pack_into("<H", memory, 16 * RING + 2, BUFFERS)

    def send(self, request, payload=b"", fds=()):
        message = struct.pack("<III", request, 1, len(payload)) + payload
        if fds:
            socket.send_fds(self.line, [message], list(fds))
        else:
            self.line.sendall(message)

    def ask(self, request):
        self.send(request)
        answer = b""
        while len(answer) < 20:
            some = self.line.recv(20 - len(answer))
            if not some:
                raise Refused(f"{self.path}: the back end hung up on request {request}")
            answer += some
        number, flags, size, value = struct.unpack("<IIIQ", answer)
        if number != request or not flags & 4 or size != 8:
            raise Refused(f"{self.path}: a strange answer to request {request}: {answer.hex()}")
        return value

    def attach(self):
        offered = self.ask(GET_FEATURES)
        wanted = MRG_RXBUF | PROTOCOL_FEATURES | VERSION_1
        if offered & wanted != wanted:
            raise Refused(f"{self.path}: features {offered:#x} lack some of {wanted:#x}")
        self.ask(GET_PROTOCOL_FEATURES)
        self.send(SET_PROTOCOL_FEATURES, struct.pack("<Q", 0))
        self.send(SET_OWNER)
        self.send(SET_FEATURES, struct.pack("<Q", wanted))
        self.send(SET_MEM_TABLE, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY, USER, 0), [self.memory])
        for queue in (0, 1):
            base = USER + queue * RING_ROOM
            call, kick = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
            self.descriptors += [call, kick]
            self.send(SET_VRING_NUM, struct.pack("<II", queue, RING))
            self.send(SET_VRING_BASE, struct.pack("<II", queue, 0))
            # Descriptors, then the available ring behind them, then the used ring on a page of its own.
            self.send(SET_VRING_ADDR, struct.pack("<IIQQQQ", queue, 0, base, base + 5120, base + 16 * RING, 0))
            self.send(SET_VRING_CALL, struct.pack("<Q", queue), [call])
            self.send(SET_VRING_KICK, struct.pack("<Q", queue), [kick])
            self.send(SET_VRING_ENABLE, struct.pack("<II", queue, 1))
        # The answer to one more question: everything before it has been taken.
        self.ask(GET_FEATURES)


def main():
    paths = sys.argv[1:]
    if not paths or paths[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if paths else 2
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the script that started it
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        guests = [Guest(path) for path in paths]
    except (OSError, Refused) as e:
        print(f"idle.py: {e}", file=sys.stderr)
        return 1
    print(f"READY {len(guests)}", flush=True)
    by_line = {guest.line: guest for guest in guests}
    poll = select.poll()
    for line in by_line:
        poll.register(line, select.POLLIN)
    poll.register(0, select.POLLIN)
    names = {line.fileno(): guest.path for line, guest in by_line.items()}
    while True:
        for number, _ in poll.poll():
            if number == 0:
                if not os.read(0, 4096):
                    return 0
            else:
                print(f"idle.py: {names[number]}: the back end hung up", file=sys.stderr)
                return 1


if __name__ == "__main__":
    sys.exit(main())
