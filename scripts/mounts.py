"""A warmfs mount as a context manager, for the scripts that drive one."""

import json
import os
import subprocess
import time


# Words to the tests: the program takes every WARMFS_ variable for a key of its own.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("WARMFS_TIER", "WARMFS_FIGURES", "WARMFS_TEST_SEED")
}


class Mount:
    """Mounts `source` for the length of a `with` block; without a mountpoint, in place.

    `foreground` keeps the daemon a child of ours, whose process id is then known as `pid`.
    """

    def __init__(self, warmfs, source, mountpoint, cache_dir, *options, foreground=False):
        self.warmfs = warmfs
        self.path = mountpoint or source
        self.foreground = foreground
        self.command = [
            warmfs,
            "mount",
            source,
            *([mountpoint] if mountpoint else []),
            "--cache-dir",
            cache_dir,
            *options,
        ]
        self.daemon = None
        os.makedirs(cache_dir, exist_ok=True)
        os.makedirs(self.path, exist_ok=True)

    def __enter__(self):
        if self.foreground:
            self.daemon = subprocess.Popen([*self.command, "--foreground"], env=ENVIRONMENT)
            wait_until_mounted(self.path, self.daemon)
        else:
            subprocess.run(self.command, check=True, env=ENVIRONMENT)
        return self

    def __exit__(self, *_):
        self.verb("umount", self.path)
        if self.daemon:
            self.daemon.wait(timeout=30)

    @property
    def pid(self):
        return self.daemon.pid

    def verb(self, name, *arguments):
        """Runs `warmfs NAME ...` and returns what it printed; a failure is an exception that shows its words."""
        done = subprocess.run(
            [self.warmfs, name, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        if done.returncode:
            raise RuntimeError(f"warmfs {name} exited with {done.returncode}: {done.stdout.strip()}")
        return done.stdout

    def stats(self):
        return json.loads(self.verb("stats", self.path, "--json"))


def wait_until_mounted(path, process, seconds=30):
    """Waits until something is mounted on `path`, and fails at once if `process` ends before."""
    deadline = time.monotonic() + seconds
    while not os.path.ismount(path):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[0]} ended with {process.returncode} before {path} was mounted")
        if time.monotonic() > deadline:
            process.terminate()
            raise RuntimeError(f"{path} was not mounted within {seconds} s")
        time.sleep(0.02)
