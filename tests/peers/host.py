"""What a measurement holds on the machine: processes, namespaces, huge pages; and whether the machine is quiet.

Everything started here is ended here, by process id, whatever happens: so are network namespaces, sockets, the run's
directory and the huge pages reserved for it.
"""
import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Logs and the built generator stay here; sockets live in a short private directory of each run.
WORK = Path(os.environ.get("PEERS_DIR") or Path(os.environ.get("BUILD") or HERE.parents[1] / "build") / "peers")
RUNS = Path(tempfile.gettempdir())
EAL = ["--no-pci", "--no-telemetry"]
HUGEPAGES = Path("/proc/sys/vm/nr_hugepages")


class Failure(Exception):
    """Something the user should read without a traceback."""


class Interrupted(Exception):
    pass


# ---- Processes -------------------------------------------------------------------------------------------------------

libc = ctypes.CDLL(None, use_errno=True)


def child_setup(favoured):
    """Between fork and exec: die with this program, and outrank everything else if it is a measured process.

    With autogroup scheduling a nice value counts only inside a setsid() group, so the group needs one too.
    """
    def setup():
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if favoured:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, -20)
            with contextlib.suppress(OSError):
                with open("/proc/self/autogroup", "w") as f:
                    f.write("-20")
    return setup


def sh(*cmd, env=None, check=True, timeout=30):
    """Run a short command, return its output."""
    cmd = [str(c) for c in cmd]
    try:
        r = subprocess.run(cmd, text=True, capture_output=True, env=env, timeout=timeout, start_new_session=True)
    except FileNotFoundError:
        raise Failure(f"{cmd[0]} is not installed (README.md names the packages)") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"{shlex.join(cmd)}: no end after {timeout} s") from None
    if check and r.returncode:
        raise Failure(f"{shlex.join(cmd)}: {(r.stderr or r.stdout).strip()[-600:]}")
    return r.stdout


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def wait_for(condition, seconds, step=0.05):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True


def tail(path, chars=800):
    try:
        return Path(path).read_text(errors="replace")[-chars:]
    except OSError:
        return ""


class Bench:
    """What one invocation holds on the machine. Leaving it gives everything back."""

    def __init__(self, opts):
        self.opts = opts
        self.procs = []
        self.namespaces = []
        self.added_pages = 0
        self.count = 0

    def __enter__(self):
        # One benchmark at a time on a machine: an abstract socket is a lock that cannot be left behind.
        self.lock = socket.socket(socket.AF_UNIX)
        try:
            self.lock.bind("\0peers-benchmark")
        except OSError:
            raise Failure("another benchmark of this kit is running on this machine") from None
        self.logs = WORK / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.sweep()
        self.dir = RUNS / f"bfly-peers-{os.getpid()}"
        if len(str(self.dir)) > 80:
            raise Failure(f"{RUNS}: too long a path for Unix sockets; set TMPDIR")
        self.dir.mkdir(mode=0o700)
        return self

    def __exit__(self, *exc):
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, signal.SIG_IGN)
        for p in reversed(self.procs):
            self.end(p)
        for ns in self.namespaces:
            sh("ip", "netns", "del", ns, check=False)
        self.release_pages()
        shutil.rmtree(self.dir, ignore_errors=True)
        self.lock.close()

    def sweep(self):
        """Give back what an invocation that was killed (SIGKILL) could not."""
        for d in RUNS.glob("bfly-peers-*"):
            pid = d.name.removeprefix("bfly-peers-")
            if not pid.isdigit() or alive(int(pid)):
                continue
            sh("ip", "netns", "del", f"peers-ovs-{pid}", check=False)
            with contextlib.suppress(OSError, ValueError):
                added = int((d / "hugepages").read_text())
                HUGEPAGES.write_text(str(max(0, int(HUGEPAGES.read_text()) - added)))
            shutil.rmtree(d, ignore_errors=True)

    def start(self, cmd, log=None, favoured=True, **kw):
        cmd = [str(c) for c in cmd]
        kw["env"] = dict(kw.get("env") or os.environ, RUNTIME_DIRECTORY=str(self.dir))  # where DPDK leaves its files
        out = open(log, "w") if log else None
        try:
            p = subprocess.Popen(cmd, preexec_fn=child_setup(favoured), start_new_session=True, text=True,
                                 **({"stdout": out, "stderr": out} if out else {}), **kw)
        except FileNotFoundError:
            raise Failure(f"{cmd[0]} is not installed (README.md names the packages)") from None
        finally:
            if out:
                out.close()
        self.procs.append(p)
        return p

    def end(self, p, group=False, seconds=8):
        """Ask a process (or the process group it leads) to end, then make it."""
        send = (lambda s: os.killpg(p.pid, s)) if group else p.send_signal
        for s in (signal.SIGTERM, signal.SIGKILL):
            if p.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    send(s)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    p.wait(seconds)
        if group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
        for pipe in (p.stdin, p.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        if p in self.procs:
            self.procs.remove(p)

    def need_pages(self, megabytes):
        """Make sure that so many MB of 2 MB huge pages are free."""
        info = dict(re.findall(r"^(\w+):\s+(\d+)", Path("/proc/meminfo").read_text(), re.M))
        free = int(info["HugePages_Free"]) - int(info["HugePages_Rsvd"])
        short = megabytes * 1024 // int(info["Hugepagesize"]) - free
        if short <= 0:
            return
        total = int(HUGEPAGES.read_text())
        try:
            HUGEPAGES.write_text(str(total + short))
        except PermissionError:
            raise Failure(f"{short} more huge pages are needed; be root, or try --no-huge") from None
        got = int(HUGEPAGES.read_text()) - total
        self.added_pages += got
        (self.dir / "hugepages").write_text(str(self.added_pages))
        if got < short:
            raise Failure(f"only {got} of {short} more huge pages could be reserved")

    def release_pages(self):
        if self.added_pages:
            HUGEPAGES.write_text(str(max(0, int(HUGEPAGES.read_text()) - self.added_pages)))
            self.added_pages = 0


# ---- Is the machine quiet? -------------------------------------------------------------------------------------------

def cpu_ticks():
    """User-space processes: pid -> (name, CPU ticks)."""
    ticks = {}
    for p in os.listdir("/proc"):
        if p.isdigit():
            with contextlib.suppress(OSError, ValueError):
                stat = Path(f"/proc/{p}/stat").read_text()
                name, rest = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
                if rest[1] != "2":  # not a kernel thread
                    ticks[int(p)] = (name, int(rest[11]) + int(rest[12]))
    return ticks


def busy_processes(seconds=0.7, share=0.05):
    before = cpu_ticks()
    time.sleep(seconds)
    limit = seconds * os.sysconf("SC_CLK_TCK") * share
    return sorted({name for pid, (name, t) in cpu_ticks().items()
                   if pid != os.getpid() and t - before.get(pid, (name, t))[1] > limit})


def await_quiet(seconds):
    """Wait until nothing else computes, at most so long. The validity checks decide in the end."""
    end = time.monotonic() + seconds
    calm = 0
    while calm < 2:
        busy = busy_processes()
        calm = 0 if busy else calm + 1
        if busy and time.monotonic() > end:
            print(f"  (not quiet: {', '.join(busy)})", file=sys.stderr)
            return False
    return True
