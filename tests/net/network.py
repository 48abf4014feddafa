"""A home behind a slow link: two network namespaces, a shaper at each end (tbf) and packets that take their time between
(net_link; few kernels have netem)."""
import os
import pathlib
import shutil
import subprocess
import sys

HUB_ADDRESS, HOME_ADDRESS = "10.77.0.1", "10.77.0.2"
HOME = "/run/netns/home"
INSIDE = "FLOTILLA_NAMESPACE"


def enter_namespaces() -> None:
    """Starts this program again where it may make networks: in namespaces that end with it. Skips the test where that is not
    allowed."""
    if INSIDE in os.environ:
        subprocess.run("mount -t tmpfs none /run && mkdir -p /run/netns && ip link set lo up && ip netns add home && "
                       "ip -n home link set lo up", shell=True, check=True)
        return
    command = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    try_it = ("test -w /dev/net/tun && mount -t tmpfs none /run && mkdir -p /run/netns && ip netns add home && "
              "tc qdisc add dev lo root tbf rate 1mbit burst 16kb latency 1s")
    if not shutil.which("ip") or subprocess.run([*command, "sh", "-c", try_it], capture_output=True).returncode:
        print("skipped: no right to make network namespaces, or no /dev/net/tun")
        sys.exit(77)
    os.execvpe("unshare", [*command, sys.executable, *sys.argv], dict(os.environ, **{INSIDE: "1"}))


class Link:
    """From "cloud", where the caller is, to "home". Rates as `tc` has them; what waits for more than 100 ms is dropped."""

    def __init__(self, program: pathlib.Path, delay_ms: int, down: str = "80mbit", up: str = "20mbit"):
        self.process = subprocess.Popen([program, HOME, str(delay_ms)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        for name, where, address, rate in (("cloud", [], HUB_ADDRESS, down), ("home", ["-n", "home"], HOME_ADDRESS, up)):
            subprocess.run(["ip", *where, "address", "add", f"{address}/30", "dev", name], check=True)
            subprocess.run(["ip", *where, "link", "set", name, "up"], check=True)
            subprocess.run(["tc", *where, "qdisc", "add", "dev", name, "root", "tbf", "rate", rate, "burst", "32kb", "latency",
                            "100ms"], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def cut(self, milliseconds: int) -> None:
        """Nothing comes through, and nobody is told."""
        self.process.stdin.write(f"cut {milliseconds}\n")
        self.process.stdin.flush()


AT_HOME = ["nsenter", f"--net={HOME}"]
