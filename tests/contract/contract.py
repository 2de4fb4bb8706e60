#!/usr/bin/python3
"""contract.py DIRECTORY: every request and every situation of encryption, against the daemons in DIRECTORY/{clear,locked,strict}.

run.sh starts them, and makes the modules of the protocol. Prints a line per check; exit status 1 after the first that fails.
"""

import base64
import os
import sys
import time
import traceback

from api import Clear, Client, Daemon, Legacy, Sound, encrypted, envelope, message
from encryption_pb2 import Encrypted, Sealed
from envelope_pb2 import Error, Message, Messages
from payload_pb2 import Nic, Request, Rule

HOME = sys.argv[1]
KEY = base64.b64decode(open(f"{HOME}/key").read())
CHECKS = []
INBOUND, OUTBOUND = Rule.INBOUND, Rule.OUTBOUND


def check(function):
    CHECKS.append(function)
    return function


def daemon(name):
    return Daemon(f"ipc://{HOME}/{name}/api")


def clients():
    """Every way to ask: three daemons' worth."""
    yield Client(daemon("clear"), Clear())
    yield Client(daemon("locked"), Legacy(KEY))
    yield Client(daemon("locked"), Sound(KEY))
    yield Client(daemon("strict"), Sound(KEY))


def same(got, expected, what=""):
    assert got == expected, f"{what}: {got!r} is not {expected!r}"


def nic(**fields):
    return {"id": "a", "mac": "52:54:00:00:00:0A", "vni": 42, **fields}


# ---- Every request


@check
def every_request_in_every_way():
    for client in clients():
        asked = set()
        for drive in (nics, groups, application):
            drive(client, asked)
        asked.add("app_quit")  # at the very end
        table = {field.name for field in Request.DESCRIPTOR.fields if field.number <= 20}
        # Ours come along where they belong to one of the original's.
        ours = {field.name for field in Request.DESCRIPTOR.fields if field.number > 20}
        same(asked - ours, table, "requests that were driven")


def recorder(client, asked):
    def ask(**request):
        asked.update(request)
        return client.ask(**request)

    def refused(**request):
        asked.update(request)
        return client.refused(**request)

    return ask, refused


def nics(client, asked):
    ask, refused = recorder(client, asked)
    path = ask(nic_add=nic(ip=["10.0.0.1", "2001:DB8:0::1", "10.0.0.1"], security_group=["web", "web", "none"])).nic_add.path
    assert path.endswith("/qemu-vhost-a") and os.path.exists(path), path
    same(ask(nic_add=nic(ip=["10.0.0.1", "2001:db8::1"], security_group=["web", "none"])).nic_add.path, path, "again")
    ask(nic_add=nic(id="B", mac="52:54:00:00:00:0b", ip_anti_spoof=True, bypass_filtering=True))
    same(list(ask(nic_list=True).nic_list), ["B", "a"], "bytewise")
    same(list(ask(nic_list=False).nic_list), ["B", "a"], "presence counts")
    (told,) = ask(nic_details="a").nic_details
    same((told.id, told.mac, told.vni), ("a", "52:54:00:00:00:0A", 42), "as it was given")
    same(list(told.ip), ["10.0.0.1", "2001:db8::1"], "canonical, once")
    same(list(told.security_group), ["web", "none"])
    same((told.type, told.path, told.ip_anti_spoof, told.bypass_filtering), (Nic.VHOST_USER_SERVER, path, False, False))
    same([each.id for each in ask(nic_details="").nic_details], ["B", "a"])
    same(refused(nic_details="x"), "NIC: x not found")
    stats = ask(nic_stats="a").nic_stats
    same((getattr(stats, "in"), stats.out), (0, 0))
    same(refused(nic_stats="x"), "NIC does not exist with id x")
    # The original answers no data; ours is for nic_import.
    data = ask(nic_export="a").nic_export.fw_data.data
    same(data[:26], b'{"kind":"butterfly-vnic","')
    taken = ask(nic_import={"data": data}).nic_import
    same((taken.id, taken.taken, list(taken.refused)), ("a", 0, []))
    same(refused(nic_export_to={"id": "a", "to": "x"}), '"x" is no IP address of a tunnel endpoint')
    same(refused(nic_import={"data": b"x"})[:24], "the export is refused: i")
    same(refused(nic_export="x"), "NIC does not exist with id x")

    ask(nic_update={"id": "a", "ip_anti_spoof": True, "ip": ["10.0.0.7"], "security_group": [""]})
    (told,) = ask(nic_details="a").nic_details
    same((list(told.ip), list(told.security_group), told.ip_anti_spoof), (["10.0.0.7"], [], True))
    ask(nic_update={"id": "a"})
    (told,) = ask(nic_details="a").nic_details
    same(list(told.ip), ["10.0.0.7"], "nothing said, nothing changed")
    same(refused(nic_update={"id": "x"}), "NIC does not exist with id x")
    for ips in (["10.0.0"], ["10.0.0.1", ""]):
        same(refused(nic_update={"id": "a", "ip": ips}), "Bad Nic update format", ips)
    same(refused(nic_update={"id": "a", "security_group": ["web", ""]}), "Bad Nic update format")
    for bad in ({"mac": "52:54:00:00:00"}, {"mac": "52-54-00-00-00-0a"}, {"vni": 1 << 24}, {"ip": ["10.0.0.256"]}):
        same(refused(nic_add=nic(**{"id": "c", **bad})), "Bad NIC format", bad)
    for bad in ({"type": Nic.BENCH}, {"type": Nic.BENCH, "btype": "X"}, {"type": Nic.BENCH, "btype": "ICMP_SND_LIKE"}):
        same(refused(nic_add=nic(id="c", **bad)), "Internal error", bad)
    sender = {"id": "c", "type": Nic.BENCH, "btype": "ICMP_SND_LIKE", "ip": ["10.0.0.3"], "dip": "10.0.0.4", "dmac": "52:54:00:00:00:0d"}
    for lacking in ("dip", "dmac"):
        bad = {name: value for name, value in sender.items() if name != lacking}
        same(refused(nic_add=nic(**bad)), "Internal error", lacking)
    same(refused(nic_add=nic(**{**sender, "dip": "10.0.0"})), 'can\'t convert "10.0.0" to IP')
    same(list(ask(nic_list=True).nic_list), ["B", "a"], "what failed is not there")
    ask(nic_del="a")
    ask(nic_del="a")
    ask(nic_del="B")
    same(list(ask(nic_list=True).nic_list), [])
    assert not os.path.exists(path), path


def rule(direction, protocol, start=None, end=None, cidr=None, group=None):
    made = {"direction": direction, "protocol": protocol}
    if start is not None:
        made.update(port_start=start, port_end=end)
    if cidr:
        made["cidr"] = {"address": cidr[0], "mask_size": cidr[1]}
    if group:
        made["security_group"] = group
    return made


def groups(client, asked):
    ask, refused = recorder(client, asked)
    # In the order of the hashes that the contract lists, which is neither that of the alphabet nor that of coming.
    last = rule(INBOUND, 6, 1000, 65535, group="some-sg")
    third = rule(INBOUND, 17, 0, 65535, cidr=("1.2.3.0", 24))
    second = rule(INBOUND, -1, 0, 1024, cidr=("2001:db8:0:85a3::ac1f:8001", 8))
    first = rule(INBOUND, 6, 0, 65535, group="sg-42")
    for each in (last, third, first, second):
        ask(sg_rule_add={"sg_id": "web", "rule": each})
        ask(sg_rule_add={"sg_id": "web", "rule": each})
    listed = ask(sg_rule_list="web").sg_rule_list
    same([(each.protocol, each.port_start) for each in listed], [(6, 0), (-1, 0), (17, 0), (6, 1000)])
    assert not listed[1].HasField("port_start"), "ports of other protocols are not told"
    for bad in (
        rule(INBOUND, -2, cidr=("::", 0)),
        rule(INBOUND, 256, cidr=("::", 0)),
        rule(INBOUND, 6, cidr=("::", 0)),
        rule(INBOUND, 17, 2, 1, cidr=("::", 0)),
        rule(INBOUND, 6, 1, 65536, cidr=("::", 0)),
        rule(INBOUND, 6, 1, 1, cidr=("10.0.0.0", 33)),
        rule(INBOUND, 6, 1, 1, cidr=("10.0.0", 8)),
        rule(INBOUND, 6, 1, 1, cidr=("::", 0), group="g"),
    ):
        for request in ("sg_rule_add", "sg_rule_del"):
            same(refused(**{request: {"sg_id": "bad", "rule": bad}}), "Bad Security Group rule format", bad)
        same(refused(sg_add={"id": "bad", "rule": [bad]}), "Bad Security Group format", bad)
    for request in ("sg_rule_add", "sg_rule_del"):
        same(refused(**{request: {"sg_id": "bad", "rule": rule(INBOUND, 1)}}), "Internal error", request)
    same(list(ask(sg_list=True).sg_list), ["web"], "what was refused made no group")
    for each in (third, third):
        ask(sg_rule_del={"sg_id": "web", "rule": each})
    ask(sg_rule_del={"sg_id": "unknown", "rule": third})
    same(len(ask(sg_rule_list="web").sg_rule_list), 3)
    same(refused(sg_rule_list="unknown"), "Security Group not found")

    for ip in ("10.0.0.9", "2001:DB8:0::1", "10.0.0.1", "10.0.0.9"):
        ask(sg_member_add={"sg_id": "members", "member": ip})
    same(list(ask(sg_member_list="members").sg_member_list), ["10.0.0.9", "2001:db8::1", "10.0.0.1"], "as they came")
    for request in ("sg_member_add", "sg_member_del"):
        same(refused(**{request: {"sg_id": "members", "member": "10.0.0"}}), "Bad IP format", request)
    ask(sg_member_del={"sg_id": "members", "member": "10.0.0.9"})
    ask(sg_member_del={"sg_id": "members", "member": "10.0.0.9"})
    ask(sg_member_del={"sg_id": "unknown", "member": "10.0.0.9"})
    same(list(ask(sg_member_list="members").sg_member_list), ["2001:db8::1", "10.0.0.1"])
    same(refused(sg_member_list="unknown"), "Security Group not found")

    ask(sg_add={"id": "web", "member": ["::1"], "rule": [rule(OUTBOUND, 1, cidr=("0.0.0.0", 0))]})
    (told,) = ask(sg_details="web").sg_details
    same((list(told.member), [each.direction for each in told.rule]), (["::1"], [OUTBOUND]), "replaced")
    same([each.id for each in ask(sg_details="").sg_details], ["members", "web"])
    same(refused(sg_details="unknown"), "Sg not found")
    (failure,) = client.responses({"sg_details": "unknown"})
    filled = {field.name for field, _ in failure.status.error.ListFields()}
    assert filled <= {"description", "help"}, f"nothing else was ever filled: {filled}"
    same(refused(sg_add={"id": "bad", "member": ["::x"]}), "Bad Security Group format")
    same(list(ask(sg_list=True).sg_list), ["members", "web"])
    for group in ("members", "web", "unknown"):
        ask(sg_del=group)
    same(list(ask(sg_list=True).sg_list), [])


@check
def networks_are_joined_by_routers():
    for client in clients():
        four = {"cidr": {"address": "10.0.0.0", "mask_size": 24}, "gateway": "10.0.0.1"}
        client.ask(network_add={"vni": 42, "subnet": [four], "mtu": 1400})
        (network,) = client.ask(network_list=True).network_list
        same((network.vni, network.mtu, network.subnet[0].gateway), (42, 1400, "10.0.0.1"), "as it was said")
        client.ask(router_add={"id": "r"})
        client.ask(router_attach={"router": "r", "vni": 42})
        (router,) = client.ask(router_list=True).router_list
        same((router.id, [each.vni for each in router.attachment]), ("r", [42]))
        taken = '10.0.0.1 of network 42 belongs to router "r": choose another address'
        same(client.refused(nic_add=nic(vni=42, ip=["10.0.0.1"])), taken)
        attached = 'router "r" is attached to network 42: detach it first, `butterfly router detach`'
        same(client.refused(network_del=42), attached)
        block = {"address": "192.0.2.0", "mask_size": 24}
        client.ask(route_add={"router": "r", "cidr": block, "via": ["10.0.0.9", "10.0.0.8"]})
        (router,) = client.ask(router_list=True).router_list
        (route,) = router.route
        same((route.cidr.address, list(route.via)), ("192.0.2.0", ["10.0.0.9", "10.0.0.8"]), "as it was said")
        lost = client.refused(router_detach={"router": "r", "vni": 42})
        same(lost.startswith('10.0.0.9, by which router "r" leads to 192.0.2.0/24, is in no subnet'), True, lost)
        for _ in range(2):
            client.ask(route_del={"router": "r", "cidr": block})
        client.ask(router_detach={"router": "r", "vni": 42})
        for _ in range(2):
            client.ask(network_del=42)
            client.ask(router_del="r")
        told = {"lease": 600, "route": [{"cidr": {"address": "10.9.0.0", "mask_size": 16}, "via": "10.0.0.7"}]}
        client.ask(network_add={"vni": 42, "subnet": [four], "dns": ["9.9.9.9"], "dhcp": told})
        (network,) = client.ask(network_list=True).network_list
        same((list(network.dns), network.dhcp.lease, network.dhcp.route[0].via), (["9.9.9.9"], 600, "10.0.0.7"), "as it was said")
        why = "DHCP of network 42 needs an IPv4 subnet with a gateway, from whose address it answers, or an IPv6 subnet: declare one (--subnet, --gateway)"
        same(client.refused(network_add={"vni": 42, "dhcp": {}}), why)
        client.ask(network_del=42)
        same(len(client.ask(network_list=True).network_list) + len(client.ask(router_list=True).router_list), 0)


@check
def neighbours_are_declared():
    for client in clients():
        there = {"vni": 42, "address": "10.0.0.9", "mac": "52:54:00:00:00:09", "host": "192.0.2.2"}
        for host in ("192.0.2.7", "192.0.2.2"):
            client.ask(neighbour_add={**there, "host": host})
        client.ask(neighbour_add={**there, "vni": 7})
        (neighbour,) = client.ask(neighbour_list={"vni": 42}).neighbour_list
        same({name: getattr(neighbour, name) for name in there}, there, "as it was said last")
        listed = client.ask(neighbour_list={}).neighbour_list
        same([each.vni for each in listed], [7, 42])
        behind = client.ask(neighbour_list={"after": {"vni": 7, "address": "10.0.0.9"}})
        same([each.vni for each in behind.neighbour_list], [42])
        for vni in (7, 42, 42):
            client.ask(neighbour_del={"vni": vni, "address": "10.0.0.9"})
        same(len(client.ask(neighbour_list={}).neighbour_list), 0)


@check
def a_state_is_applied_or_refused():
    for client in clients():
        state = {"nic": [nic(ip=["10.0.0.1"])], "security_group": [{"id": "web", "member": ["::1"]}]}
        made = client.ask(apply={**state, "dry_run": True})
        same([(each.name, each.what) for each in made.apply.change], [("a", 0), ("web", 0)], "would be added")
        same(list(client.ask(nic_list=True).nic_list), [], "a dry run")
        same(len(client.ask(apply=state).apply.change), 2, "added")
        same(len(client.ask(apply={**state, "prune": True}).apply.change), 0, "the same again")
        same(client.ask(nic_details="a").nic_details[0].mac, "52:54:00:00:00:0A", "as it was said")
        bad = {"nic": [nic(ip=["10.0.0.2"]), nic(id="b", vni=1 << 24)]}
        same(client.refused(apply=bad), 'nic "b": Bad NIC format', "refused whole")
        same(list(client.ask(nic_details="a").nic_details[0].ip), ["10.0.0.1"], "nothing was changed")
        same(client.refused(apply={"prune": True}), "the state is empty")
        gone = client.ask(apply={"nic": [nic(id="b")], "prune": True}).apply.change
        same([(each.name, each.what) for each in gone], [("a", 3), ("b", 0), ("web", 3)], "pruned")
        client.ask(nic_del="b")


def application(client, asked):
    ask, refused = recorder(client, asked)
    status = ask(app_status=True).app_status
    assert abs(status.current_date - time.time()) < 30 and 0 < status.start_date <= status.current_date, status
    assert status.graph_dot.startswith("strict graph G {\n") and status.graph_dot.endswith("}\n"), status.graph_dot
    counted = 1 if client.way.name == "clear" else 2
    same(ask(app_status=True).app_status.request_counter, status.request_counter + counted, "an encrypted request counts twice")
    for level in ("none", "error", "warning", "debug", "info"):
        ask(app_config={"log_level": level})
    same(refused(app_config={"log_level": "loud"}), "Application configuration failed: log level: failed ")


# ---- The envelope


@check
def envelopes_in_every_way():
    for client in clients():
        for what, content, code in (
            ("nothing at all", b"", Error.REJECTED),
            ("no payload", Messages(messages=[Message(revision=6)]).SerializeToString(), Error.VERSION_NOT_MANAGED),
        ):
            (answer,) = Messages.FromString(client.way.exchange(client.daemon, content)).messages
            same((answer.revision, answer.error.code, answer.HasField("message_0")), (6, code, False), what)
        reply = client.way.exchange(client.daemon, b"\xff\xff")
        same(reply.hex(), "080612020800", "undecodable")
        # One that fails does not stop the others; the lowest field of several is carried out.
        first, second, third = client.responses({"nic_stats": "x"}, {"sg_list": True, "nic_list": True}, {})
        same((first.status.status, second.status.status, third.status.status), (False, True, False))
        same(third.status.error.description, "no request found")


# ---- Encryption


def code(reply, expected, what):
    same(len(reply.messages), 0, what)
    same(set(each.name for each, _ in reply.encrypted.ListFields()), {"error"}, what)
    same(reply.encrypted.error.code, expected, what)


LIST = envelope(nic_list=True)


@check
def vector_of_the_contract():
    field = Legacy(bytes(range(32))).seal(b"hello", bytes(16))
    same(
        field.hex(),
        "00000000000000000000000000000000"
        "53617fbc4dee10da6b1eb1c1853011ea2ec2107e10fb45232445e379a96ceda8"
        "a6bbecd9e7caaef5340bf85144bdcd94a895408a27e4fbe3376304402c7d0ce1"
        "0c8e6a42fffb030f280541d32cf41912",
    )


@check
def clear_to_a_daemon_with_a_key():
    for name in ("locked", "strict"):
        for content in (LIST, Messages()):
            (answer,) = daemon(name).raw(content).messages
            same((answer.revision, answer.error.code), (6, Error.REJECTED))


@check
def encrypted_to_a_daemon_without_a_key():
    clear = daemon("clear")
    sound = Sound(KEY)
    sound.epoch = bytes(16)
    for way in (Legacy(KEY), sound):
        (answer,) = clear.raw(Messages(encrypted=way.wrap(LIST.SerializeToString()))).messages
        same((answer.revision, answer.error.code), (6, Error.REJECTED), way.name)
        both = Messages(encrypted=way.wrap(LIST.SerializeToString()), messages=LIST.messages)
        (answer,) = clear.raw(both).messages
        assert answer.message_0.response.status.status, "the clear part counts"


@check
def encrypted_without_content():
    locked = daemon("locked")
    empty = Messages()
    empty.encrypted.SetInParent()
    code(locked.raw(empty), Encrypted.Error.NOT_SUPPORTED, "empty")
    empty.messages.extend(LIST.messages)
    code(locked.raw(empty), Encrypted.Error.NOT_SUPPORTED, "empty, and a clear part")
    error = Messages(encrypted=Encrypted(error=Encrypted.Error(code=Encrypted.Error.REJECTED)))
    code(locked.raw(error), Encrypted.Error.NOT_SUPPORTED, "an error as request")


@check
def encrypted_and_clear_filled():
    for way in (Legacy(KEY), Sound(KEY)):
        locked = daemon("locked")
        client = Client(locked, way)
        client.ask(nic_list=True)  # makes it known
        both = Messages(encrypted=way.wrap(envelope(sg_add={"id": "in"}).SerializeToString()))
        both.messages.extend(envelope(sg_add={"id": "out"}).messages)
        encrypted(locked.raw(both))
        same(list(client.ask(sg_list=True).sg_list), ["in"], f"{way.name}: the clear part is ignored")
        client.ask(sg_del="in")


@check
def encrypted_inside_encrypted():
    for way in (Legacy(KEY), Sound(KEY)):
        locked = daemon("locked")
        Client(locked, way).ask(nic_list=True)
        inner = Messages(encrypted=way.wrap(LIST.SerializeToString())).SerializeToString()
        (answer,) = Messages.FromString(way.exchange(locked, inner)).messages
        same((answer.revision, answer.error.code), (6, Error.REJECTED), way.name)


@check
def what_the_key_does_not_open():
    locked = daemon("locked")
    content = LIST.SerializeToString()
    sound, foreign = Sound(KEY), Sound(bytes(32))
    sound.introduce(locked)
    foreign.epoch = sound.epoch
    reply = sound.seal(Sealed(time=int(time.time() * 1000), epoch=sound.epoch, messages=content))
    for name, good, wrong in (
        ("aes256cbc_sha512", Legacy(KEY).seal(content), Legacy(bytes(32)).seal(content)),
        ("xchacha20_poly1305", reply, foreign.request(content)),
    ):
        damaged = [wrong, b"", b"\0" * 96, os.urandom(len(good)), os.urandom(2000), good + b"\0", good + bytes(16)]
        damaged += [good[:length] for length in range(0, len(good), 7)] + [good[:-16], good[16:], good[:-1]]
        for byte in range(0, len(good) - (16 if name.startswith("aes") else 0), 3):
            damaged.append(good[:byte] + bytes([good[byte] ^ 1 << byte % 8]) + good[byte + 1 :])
        for field in damaged:
            code(locked.raw(Messages(encrypted=Encrypted(**{name: field}))), Encrypted.Error.REJECTED, f"{name} {field.hex()}")
        assert encrypted(locked.raw(Messages(encrypted=Encrypted(**{name: good})))), "the good one"
    # The other form does not help a damaged sound one.
    both = Encrypted(xchacha20_poly1305=bytes(99), aes256cbc_sha512=Legacy(KEY).seal(content))
    code(locked.raw(Messages(encrypted=both)), Encrypted.Error.REJECTED, "both")


@check
def legacy_is_lax_as_the_original():
    way = Legacy(KEY)
    locked = daemon("locked")
    client = Client(locked, way)
    # Anybody may send it again, and it counts again.
    again = Messages(encrypted=way.wrap(envelope(app_status=True).SerializeToString()))
    fields = [encrypted(locked.raw(again)).aes256cbc_sha512 for _ in range(2)]
    assert fields[0][:16] != fields[1][:16], "each reply has an initialization vector of its own"
    first, second = (Messages.FromString(way.open(field)) for field in fields)
    counters = [each.messages[0].message_0.response.app_status.request_counter for each in (first, second)]
    same(counters[1] - counters[0], 2)
    client.ask(nic_list=True)


@check
def legacy_switched_off():
    strict = daemon("strict")
    code(strict.raw(Messages(encrypted=Legacy(KEY).wrap(LIST.SerializeToString()))), Encrypted.Error.NOT_SUPPORTED, "strict")


@check
def repeated():
    locked = daemon("locked")
    sound = Sound(KEY)
    sound.introduce(locked)
    client = Client(locked, sound)
    field = sound.request(envelope(sg_add={"id": "once"}).SerializeToString())
    assert sound.send(locked, field).messages
    client.ask(sg_del="once")
    for connection in (locked, daemon("locked")):
        code(connection.raw(Messages(encrypted=Encrypted(xchacha20_poly1305=field))), Encrypted.Error.REJECTED, "again")
    same(list(client.ask(sg_list=True).sg_list), [], "it was not carried out again")


def refusal(sound, connection, field, expected):
    reply = sound.send(connection, field)
    assert not reply.HasField("messages"), reply
    same(reply.refusal.code, expected)
    return reply


@check
def too_old_and_too_new():
    locked = daemon("locked")
    sound = Sound(KEY)
    sound.introduce(locked)
    content = envelope(sg_add={"id": "late"}).SerializeToString()
    for skew, words in ((-70, "behind the daemon's clock"), (70, "ahead of the daemon's clock"), (-1e8, "behind"), (1e8, "ahead")):
        reply = refusal(sound, locked, sound.request(content, skew), Sealed.Refusal.CLOCK)
        assert words in reply.refusal.help and "date" in reply.refusal.help, reply
        assert abs(reply.time / 1000 - time.time()) < 30, reply
        # What is refused for being early is not to become good: there is a new epoch.
        same(reply.epoch != sound.epoch, skew > 0)
        sound.epoch = reply.epoch
    for skew in (-50, 50):
        assert sound.send(locked, sound.request(LIST.SerializeToString(), skew)).messages
    same(list(Client(locked, sound).ask(sg_list=True).sg_list), [], "nothing was carried out")


@check
def for_another_daemon():
    locked, strict = daemon("locked"), daemon("strict")
    one, other = Sound(KEY), Sound(KEY)
    one.introduce(locked)
    other.introduce(strict)
    assert one.epoch != other.epoch
    field = one.request(envelope(sg_add={"id": "astray"}).SerializeToString())
    reply = refusal(one, strict, field, Sealed.Refusal.EPOCH)
    same(reply.epoch, other.epoch)
    same(list(Client(strict, other).ask(sg_list=True).sg_list), [])
    refusal(one, locked, one.request(LIST.SerializeToString(), epoch=b"\1" * 16), Sealed.Refusal.EPOCH)


@check
def replies_are_bound():
    locked = daemon("locked")
    sound = Sound(KEY)
    sound.introduce(locked)
    one, other = (sound.request(LIST.SerializeToString()) for _ in range(2))
    replies = [encrypted(locked.raw(Messages(encrypted=Encrypted(xchacha20_poly1305=field)))) for field in (one, other)]
    assert sound.open(replies[0].xchacha20_poly1305, one[:24]).messages
    for nonce in (other[:24], b"", bytes(24)):
        try:
            sound.open(replies[0].xchacha20_poly1305, nonce)
        except Exception as error:  # libsodium's, of its own kind
            assert "decrypt" in str(error).lower(), error
        else:
            raise AssertionError("a reply opens for another request")
    code(
        locked.raw(Messages(encrypted=Encrypted(xchacha20_poly1305=replies[0].xchacha20_poly1305))),
        Encrypted.Error.REJECTED,
        "a reply as request",
    )


@check
def many_at_once():
    # Larger than a block, a datagram, a page; as many requests as there is patience for.
    for client in clients():
        names = [f"group-{number:03}" for number in range(200)]
        made = client.responses(*({"sg_add": {"id": name}} for name in names))
        assert all(each.status.status for each in made)
        same(list(client.ask(sg_list=True).sg_list), names, client.way.name)
        assert all(each.status.status for each in client.responses(*({"sg_del": name} for name in names)))


@check
def app_quit():
    for name, way in (("clear", Clear()), ("locked", Legacy(KEY)), ("strict", Sound(KEY))):
        assert Client(daemon(name), way).ask(app_quit=True).status.status


def main():
    wanted = sys.argv[2:]
    for each in CHECKS:
        if wanted and each.__name__ not in wanted:
            continue
        begun = time.monotonic()
        try:
            each()
        except Exception:
            traceback.print_exc()
            print(f"contract: {each.__name__} FAILED; repeat with: tests/contract/run.sh {each.__name__}")
            return 1
        print(f"ok {each.__name__} ({time.monotonic() - begun:.2f} s)", flush=True)
    return 0


sys.exit(main())
