#!/usr/bin/env python3
"""Accounts for every packet of a run between two vnics, and verifies that none was damaged.

  account.py VUGEN.json BEFORE-A.json BEFORE-B.json AFTER-A.json AFTER-B.json [DEATHS [QUEUES]]

The first is what the generator saw, the others are `butterfly nic show --json` of its two vnics. What the generator
sent, the switch must have received; what the switch delivered, the generator must have received; what the switch
received and did not deliver must be in a drop counter. To the packet. Exit status 1 if anything is not. If the daemon
died meanwhile, it loses the counts of its last second, and nothing else: no frame comes twice, late or damaged.
"""
import json
import sys


def drops(nic):
    return {d["reason"]: d["count"] for d in nic["drops"]}


def main():
    run, *nics = [json.load(open(name)) for name in sys.argv[1:6]]
    before, after = nics[:2], nics[2:]
    ports = run["ports"]
    moved = [{k: a[k] - b[k] for k in ("in_packets", "out_packets")} for b, a in zip(before, after)]
    lost = {}
    for b, a in zip(before, after):
        earlier = drops(b)
        for reason, count in drops(a).items():
            if count != earlier.get(reason, 0):
                lost[reason] = lost.get(reason, 0) + count - earlier.get(reason, 0)

    wrong = []
    deaths, queues = (int(sys.argv[at]) if len(sys.argv) > at else least for at, least in ((6, 0), (7, 1)))

    def same(what, x, y):
        if x != y and not deaths:
            wrong.append(f"{what}: {x} and {y} differ by {x - y}")
    for i, name in enumerate("AB"):
        arrived = ports[i]["rx"] + ports[i]["bad"] + ports[i]["corrupt"]
        same(f"sent by {name}, received from {name} by the switch", ports[i]["tx"], moved[i]["in_packets"])
        same(f"delivered to {name} by the switch, received by {name}", moved[i]["out_packets"], arrived)
        # Queues have no order among them.
        for fault in ("bad", "corrupt") + (("reordered",) if queues == 1 else ()):
            if ports[i][fault]:
                wrong.append(f"{ports[i][fault]} {fault} frames at {name}")
    received, delivered = (sum(m[k] for m in moved) for k in ("in_packets", "out_packets"))
    same("received by the switch, delivered or in a drop counter", received, delivered + sum(lost.values()))
    # Between two vnics that both take what they get there is one legitimate reason: the receiver's ring was full.
    for reason in lost:
        if reason != "ring-full":
            wrong.append(f"{lost[reason]} frames dropped as {reason}, which nothing here asks for")
    if not delivered:
        wrong.append("nothing was delivered")

    share = 100 * sum(lost.values()) / received if received else 0
    print(f"    {received} sent, {delivered} received, {sum(lost.values())} dropped ({share:.1f} %"
          + "".join(f", {k} {v}" for k, v in sorted(lost.items())) + ")")
    for text in wrong:
        print(f"    WRONG: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
