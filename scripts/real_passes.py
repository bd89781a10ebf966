"""Runs every client of real_clients.py on the plain source, then over a warmfs mount in each state that a cache can
be in, and compares: the digest of every client with the one of the plain source, and after each pass the mount's counters
with what must have happened. Prints a table and, last, `real-data: N passed, M failed`; exits with 1 if anything failed.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from mounts import Mount
from real_clients import CLIENTS

NAMES = [client.__name__ for client in CLIENTS]


class Results:
    """What each client said in each pass, and the table of it."""

    def __init__(self):
        self.cells = {}
        self.passes = []
        self.passed = 0
        self.failures = []

    def note(self, pass_name, row, problem, seconds=None):
        if pass_name not in self.passes:
            self.passes.append(pass_name)
        if problem:
            self.failures.append(f"{pass_name}: {row}: {problem}")
        else:
            self.passed += 1
        time_taken = "" if seconds is None else f" {seconds:.1f} s"
        self.cells[pass_name, row] = ("FAILED" if problem else "ok") + time_taken

    def table(self):
        rows = [["client", *self.passes]]
        for name in [*NAMES, "counters"]:
            rows.append([name, *(self.cells.get((p, name), "") for p in self.passes)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


class Driver:
    def __init__(self, options):
        self.options = options
        self.results = Results()
        self.expected = {}
        self.mountpoint = os.path.join(options.scratch, "mnt")
        self.size = sum(p.lstat().st_size for p in Path(options.data).rglob("*") if p.is_file() and not p.is_symlink())

    def run_client(self, name, root):
        """Returns digest, problem and seconds of one client, run as a process of its own."""
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("real_clients.py")), name, root]
            + ["--scratch", self.options.scratch, "--sums", self.options.sums, "--images", self.options.images]
            + ["--sample", "25" if self.options.quick else "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        seconds = time.monotonic() - begin
        if done.returncode:
            return None, (done.stderr.strip() or f"exit code {done.returncode}")[-1000:], seconds
        return json.loads(done.stdout.splitlines()[-1])["digest"], None, seconds

    def plain(self):
        """The clients on the source itself: the digests that all later ones must equal."""
        for name in NAMES:
            self.expected[name], problem, seconds = self.run_client(name, self.options.data)
            self.results.note("plain", name, problem, seconds)

    def clients(self, pass_name, mount, evict_before_each=False):
        """All clients over the mount; returns by how much each counter grew meanwhile."""
        print(f"pass {pass_name} ...", flush=True)
        before = mount.stats()
        for name in NAMES:
            if evict_before_each:
                mount.verb("evict", mount.path)
            digest, problem, seconds = self.run_client(name, mount.path)
            if not problem and digest != self.expected[name]:
                problem = "read other bytes than on the plain source"
            self.results.note(pass_name, name, problem, seconds)
        after = mount.stats()
        grown = {key: after[key] - before[key] for key in after if type(after[key]) is int}
        return grown, after

    def counters(self, pass_name, *expectations):
        """Each expectation is a sentence and whether it came true."""
        untrue = [f"expected {sentence}" for sentence, true in expectations if not true]
        self.results.note(pass_name, "counters", "; ".join(untrue))

    def mount(self, *options, cache="cache"):
        return Mount(
            self.options.warmfs, self.options.data, self.mountpoint, os.path.join(self.options.scratch, cache), *options
        )

    def with_full_cache(self):
        with self.mount("--cache-size", str(4 * self.size)) as mount:
            grown, after = self.clients("cold", mount, evict_before_each=True)
            self.counters(
                "cold",
                ("misses > 0", grown["misses"] > 0),
                ("the source was read", grown["backing_bytes_read"] > 0),
                *nothing_wrong(after),
            )
            mount.verb("warm", mount.path, "--jobs", "4")
            self.warm_pass("warm", mount, passthrough_expected())
        with self.mount("--cache-size", str(4 * self.size)) as mount:
            self.warm_pass("restart", mount, passthrough_expected())
            mount.verb("verify", mount.path)

    def warm_pass(self, pass_name, mount, passthrough):
        """Nothing may come from the source; `passthrough` says whether the kernel should have served, or None."""
        grown, after = self.clients(pass_name, mount)
        self.counters(
            pass_name,
            ("hits > 0", grown["hits"] > 0),
            ("no miss", grown["misses"] == 0),
            ("no byte from the source", grown["backing_bytes_read"] == 0),
            ("passthrough_opens > 0", passthrough is not True or grown["passthrough_opens"] > 0),
            ("passthrough_opens = 0", passthrough is not False or grown["passthrough_opens"] == 0),
            *nothing_wrong(after),
        )

    def without_passthrough(self):
        with self.mount("--cache-size", str(4 * self.size), "--no-passthrough") as mount:
            self.warm_pass("no-pt warm", mount, False)
            grown, after = self.clients("no-pt cold", mount, evict_before_each=True)
            self.counters(
                "no-pt cold",
                ("misses > 0", grown["misses"] > 0),
                ("passthrough_opens = 0", grown["passthrough_opens"] == 0),
                *nothing_wrong(after),
            )

    def with_half_a_cache(self):
        with self.mount("--cache-size", str(self.size // 2), "--evict-policy", "lru", cache="half") as mount:
            grown, after = self.clients("half", mount)
            self.counters(
                "half",
                ("evictions > 0", grown["evictions"] > 0),
                ("cache_used_bytes <= --cache-size", after["cache_used_bytes"] <= self.size // 2),
                *nothing_wrong(after),
            )


def nothing_wrong(stats):
    return [(f"{name} = 0", stats[name] == 0) for name in ("checksum_failures", "cache_errors", "backing_errors")]


def passthrough_expected():
    """Whether this kernel and this user can have passthrough; None when only the mount itself knows."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return True if os.geteuid() == 0 and release >= (6, 9) else None


def report(results, options):
    """A figure for the scoreboard, as tests/figures.rs writes them."""
    figure = {
        "figure": "R25",
        "what": "real clients: digests beside the plain source's, and counters, in each state of the cache",
        "n": results.passed + len(results.failures),
        "bad": len(results.failures),
        "fired": {"clients": len(NAMES), "states": len(results.passes)},
        "note": "every 25th image decoded" if options.quick else "every image decoded",
    }
    if path := os.environ.get("WARMFS_FIGURES"):
        with open(path, "a") as file:
            file.write(json.dumps(figure) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warmfs", required=True, help="the binary")
    parser.add_argument("--data", required=True, help="the source tree")
    parser.add_argument("--sums", required=True, help="its SHA256SUMS")
    parser.add_argument("--images", required=True, help="its images that can be decoded")
    parser.add_argument("--scratch", required=True, help="a folder for the mount and its cache")
    parser.add_argument("--quick", action="store_true", help="decode every 25th image only")
    driver = Driver(parser.parse_args())
    print(f"source: {driver.size / 1e6:.0f} MB", flush=True)
    for part in (driver.plain, driver.with_full_cache, driver.without_passthrough, driver.with_half_a_cache):
        try:
            part()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            driver.results.failures.append(f"{part.__name__}: {error}")
    results = driver.results
    print()
    print(results.table())
    for failure in results.failures:
        print(f"FAILED {failure}")
    report(results, driver.options)
    print(f"real-data: {results.passed} passed, {len(results.failures)} failed")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
