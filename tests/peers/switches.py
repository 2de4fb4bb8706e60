"""The switches that are measured: testpmd as the upper limit, and any other by its command line. ovs.py has OVS."""
import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

from host import EAL, Failure, sh, tail, wait_for


def eal(opts, megabytes, who):
    """EAL options. virtio-user hands its memory over as files, few of them: hence single-file segments."""
    if opts.no_huge:
        memory = ["--no-huge", "--no-shconf", f"--file-prefix=peers-{who}-{os.getpid()}"]
    else:
        memory = ["--in-memory", "--single-file-segments"]
    return [*EAL, *memory, "-m", str(megabytes)]


def pinned_threads(pid, core):
    """Threads of a process and its descendants that may run on exactly this core."""
    parents = {}
    for p in os.listdir("/proc"):
        if p.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{p}/stat").read_text()
                parents.setdefault(int(stat[stat.rindex(")") + 2:].split()[1]), []).append(int(p))
    family, found = [pid], []
    for p in family:
        family += parents.get(p, [])
        with contextlib.suppress(OSError):
            for t in os.listdir(f"/proc/{p}/task"):
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{p}/task/{t}/status").read_text()
                    if re.search(rf"^Cpus_allowed_list:\s*{core}$", status, re.M):
                        found.append(int(t))
    return found


class Switch:
    """A switch under test: start(), then the generator runs against sockets, then stop()."""
    name = "?"
    vxlan = False            # second socket is an uplink that carries VXLAN
    generator_serves = False  # the switch connects to the generator's sockets, not the other way round

    def __init__(self, bench, opts):
        self.s, self.o = bench, opts
        bench.count += 1
        stem = bench.dir / f"{bench.count}"
        self.sockets = [f"{stem}a.sock", f"{stem}b.sock"]

    def start(self):
        pass

    def threads(self):
        return pinned_threads(self.pid, self.o.core)

    def mark(self):
        """The measured seconds begin: reset counters."""

    def cycles(self):
        """Busy cycles per packet since mark(), or None."""

    def notes(self):
        return {}

    def stop(self):
        pass

    def __enter__(self):
        try:
            self.start()
            return self
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc):
        self.stop()
        for p in self.sockets:
            with contextlib.suppress(OSError):
                os.unlink(p)


class Testpmd(Switch):
    """testpmd in io mode between two net_vhost ports: the upper limit, because it decides nothing."""
    name = "limit"
    proc = None

    def start(self):
        o = self.o
        if not o.no_huge:
            self.s.need_pages(512 + 256)
        self.log = self.s.logs / "testpmd.log"
        cmd = ["dpdk-testpmd", "-l", f"{o.gen_core},{o.core}", f"--main-lcore={o.gen_core}", *eal(o, 512, "pmd")]
        for i, path in enumerate(self.sockets):
            cmd += ["--vdev", f"net_vhost{i},iface={path},queues=1"]
        cmd += ["--", "-i", "--nb-cores=1", "--forward-mode=io", "--auto-start", "--total-num-mbufs=4096",
                "--mbcache=512"]
        self.proc = self.s.start(cmd, self.log, stdin=subprocess.PIPE)
        self.pid = self.proc.pid
        ready = lambda: "testpmd>" in tail(self.log, 100000) and all(map(os.path.exists, self.sockets))
        if not wait_for(lambda: self.proc.poll() is not None or ready(), 30) or self.proc.poll() is not None:
            raise Failure(f"testpmd did not start:\n{tail(self.log)}")
        self.say("set record-core-cycles on")

    def say(self, command):
        self.proc.stdin.write(command + "\n")
        self.proc.stdin.flush()

    def mark(self):
        self.say("clear fwd stats all")
        time.sleep(0.1)

    def cycles(self):
        self.stop()  # its output is buffered: the statistics that "stop" prints are there when it has ended
        found = re.findall(r"CPU cycles/packet=([\d.]+)", tail(self.log, 1 << 20))
        return float(found[-1]) if found else None

    def stop(self):
        if self.proc:
            with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
                self.say("stop")
                self.say("quit")
                self.proc.wait(8)
            self.s.end(self.proc)
            self.proc = None


class Sut(Switch):
    """Any other switch: a command to start, or one that runs already (--pid)."""
    proc = None

    def __init__(self, bench, opts):
        super().__init__(bench, opts)
        self.name, self.vxlan, self.generator_serves = opts.name, opts.vxlan, opts.switch_connects
        self.sockets = opts.sockets or self.sockets

    def expand(self, text):
        for k, v in (("{a}", self.sockets[0]), ("{b}", self.sockets[1]), ("{core}", str(self.o.core)),
                     ("{dir}", str(self.s.dir)), ("{pid}", str(self.proc.pid if self.proc else self.o.pid))):
            text = text.replace(k, v)
        return text

    def command(self, text, timeout=60):
        return sh("/bin/sh", "-c", self.expand(text), timeout=timeout)

    def set_up(self, dead):
        """The switch's control socket may not be there yet: try until it works."""
        end = time.monotonic() + self.o.ready_timeout
        while True:
            try:
                return self.command(self.o.setup_cmd)
            except Failure:
                if dead() or time.monotonic() > end:
                    raise
                time.sleep(0.3)

    def start(self):
        o = self.o
        if not o.no_huge:
            self.s.need_pages(256 + o.sut_hugepages)
        if o.cmd:
            if not self.generator_serves:
                for p in self.sockets:  # a stale socket would look like a switch that is ready
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(p)
            self.log = self.s.logs / "sut.log"
            self.proc = self.s.start([self.expand(c) for c in o.cmd], self.log, stdin=subprocess.DEVNULL)
        elif not o.pid:
            raise Failure("give a command after --, or --pid of a switch that runs")
        self.pid = o.pid or self.proc.pid
        dead = lambda: self.proc and self.proc.poll() is not None and not o.pid
        if o.setup_cmd:
            self.set_up(dead)
        ready = lambda: self.generator_serves or all(map(os.path.exists, self.sockets))
        if not wait_for(lambda: dead() or ready(), o.ready_timeout) or dead():
            raise Failure(f"no sockets {' '.join(self.sockets)} from the switch under test"
                          + (f":\n{tail(self.log)}" if self.proc else ""))
        if not wait_for(lambda: bool(self.threads()), o.ready_timeout):
            raise Failure(f"no thread of process {self.pid} is pinned to core {o.core} alone; give --core or --tid")

    def threads(self):
        return [self.o.tid] if self.o.tid else super().threads()

    def mark(self):
        if self.o.clear_cmd:
            self.command(self.o.clear_cmd)

    def cycles(self):
        if self.o.cycles_cmd:
            numbers = re.findall(r"\d+(?:\.\d+)?", self.command(self.o.cycles_cmd))
            return float(numbers[-1]) if numbers else None

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        if self.proc:
            self.s.end(self.proc, group=True)
