"""A client of Butterfly's API that shares no code with it: protobuf by Google, ZeroMQ's own binding, OpenSSL and libsodium."""

import hashlib
import hmac
import os
import time

import zmq
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from nacl import bindings as sodium

from encryption_pb2 import Encrypted, Sealed
from envelope_pb2 import Message, Messages

PATIENCE = 10_000  # milliseconds
REVISION = 6


def xor(one, other):
    return bytes(a ^ b for a, b in zip(one, other))


class Legacy:
    """aes256cbc_sha512: CBC spelled out block by block, with the block cipher the wrong way round."""

    name = "legacy"

    def __init__(self, key):
        self.key = key

    def block(self, block, encrypt):
        cipher = Cipher(algorithms.AES(self.key), modes.ECB())
        context = cipher.encryptor() if encrypt else cipher.decryptor()
        return context.update(block) + context.finalize()

    def seal(self, content, iv=None):
        iv = iv or os.urandom(16)
        clear = hashlib.sha512(content).digest() + content
        padding = 16 - len(clear) % 16
        clear += bytes([padding]) * padding
        field, previous = iv, iv
        for at in range(0, len(clear), 16):
            block = clear[at : at + 16]
            field += xor(self.block(block, encrypt=False), previous)
            previous = block
        return field

    def open(self, field):
        assert len(field) >= 96 and len(field) % 16 == 0, f"{len(field)} bytes are no legacy reply"
        clear, previous = b"", field[:16]
        for at in range(16, len(field), 16):
            previous = self.block(xor(field[at : at + 16], previous), encrypt=True)
            clear += previous
        content = clear[64 : -clear[-1]]
        assert hashlib.sha512(content).digest() == clear[:64], "the digest of a legacy reply is wrong"
        return content

    def wrap(self, content):
        return Encrypted(aes256cbc_sha512=self.seal(content))

    def exchange(self, daemon, content):
        return self.open(encrypted(daemon.raw(Messages(encrypted=self.wrap(content)))).aes256cbc_sha512)


class Sound:
    """xchacha20_poly1305, as docs/encryption.md has it."""

    name = "sound"

    def __init__(self, key):
        self.keys = {way: hkdf(key, f"butterfly api {way}".encode()) for way in ("request", "reply")}
        self.epoch = None

    def seal(self, sealed, nonce=None):
        nonce = nonce or os.urandom(24)
        content = sealed.SerializeToString()
        return nonce + sodium.crypto_aead_xchacha20poly1305_ietf_encrypt(content, b"", nonce, self.keys["request"])

    def open(self, field, nonce):
        content = sodium.crypto_aead_xchacha20poly1305_ietf_decrypt(field[24:], nonce, field[:24], self.keys["reply"])
        return Sealed.FromString(content)

    def request(self, content, skew=0.0, epoch=None):
        """The field for CONTENT, made SKEW seconds from now."""
        when = int((time.time() + skew) * 1000)
        return self.seal(Sealed(time=when, epoch=self.epoch if epoch is None else epoch, messages=content))

    def send(self, daemon, field):
        """Sends a field; the reply, opened."""
        reply = encrypted(daemon.raw(Messages(encrypted=Encrypted(xchacha20_poly1305=field))))
        return self.open(reply.xchacha20_poly1305, field[:24])

    def introduce(self, daemon):
        reply = self.send(daemon, self.seal(Sealed(time=int(time.time() * 1000))))
        assert reply.refusal.code == Sealed.Refusal.EPOCH and len(reply.epoch) == 16, reply
        assert not reply.HasField("messages"), reply
        self.epoch = reply.epoch

    def wrap(self, content):
        return Encrypted(xchacha20_poly1305=self.request(content))

    def exchange(self, daemon, content):
        if self.epoch is None:
            self.introduce(daemon)
        reply = self.send(daemon, self.request(content))
        assert not reply.HasField("refusal") and reply.epoch == self.epoch, reply
        assert abs(reply.time / 1000 - time.time()) < 30, reply.time
        return reply.messages


class Clear:
    name = "clear"

    def exchange(self, daemon, content):
        return daemon.frame(content)


def hkdf(key, info):
    return hmac.digest(hmac.digest(bytes(32), key, "sha256"), info + b"\x01", "sha256")


def encrypted(reply):
    assert reply.HasField("encrypted") and not reply.messages, f"not encrypted: {reply}"
    assert not reply.encrypted.HasField("error"), reply
    return reply.encrypted


class Daemon:
    """A connection to one."""

    def __init__(self, endpoint):
        self.socket = zmq.Context.instance().socket(zmq.REQ)
        self.socket.setsockopt(zmq.RCVTIMEO, PATIENCE)
        self.socket.setsockopt(zmq.SNDTIMEO, PATIENCE)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def frame(self, content):
        self.socket.send(content)
        return self.socket.recv()

    def raw(self, envelope):
        return Messages.FromString(self.frame(envelope.SerializeToString()))


class Client:
    """Asks one daemon in one way."""

    def __init__(self, daemon, way):
        self.daemon, self.way = daemon, way

    def send(self, envelope):
        return Messages.FromString(self.way.exchange(self.daemon, envelope.SerializeToString()))

    def responses(self, *requests):
        """Asks for several in one envelope."""
        envelope = Messages()
        for number, request in enumerate(requests):
            envelope.messages.append(message(request, f"id-{number}"))
        reply = self.send(envelope)
        assert not reply.HasField("encrypted") and len(reply.messages) == len(requests), reply
        for number, each in enumerate(reply.messages):
            assert each.revision == REVISION and each.message_0.message_id == f"id-{number}", each
        return [each.message_0.response for each in reply.messages]

    def ask(self, **request):
        """One request that succeeds."""
        (response,) = self.responses(request)
        assert response.status.status, f"{request}: {response}"
        return response

    def refused(self, **request):
        """One request that fails: its description."""
        (response,) = self.responses(request)
        assert not response.status.status, f"{request}: {response}"
        return response.status.error.description


def message(request, message_id=None):
    made = Message(revision=REVISION)
    made.message_0.request.SetInParent()
    for name, value in request.items():
        field = getattr(made.message_0.request, name)
        if hasattr(field, "CopyFrom"):
            field.CopyFrom(type(field)(**value))
            field.SetInParent()
        else:
            setattr(made.message_0.request, name, value)
    if message_id is not None:
        made.message_0.message_id = message_id
    return made


def envelope(**request):
    return Messages(messages=[message(request)])
