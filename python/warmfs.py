"""Tells a warmfs mount in which order a PyTorch job will open its files.

    from warmfs import HintedSampler

    sampler = DistributedSampler(dataset)                        # or any other; batch samplers too
    sampler = HintedSampler(sampler, dataset.paths, "/data/imagenet")
    loader = DataLoader(dataset, sampler=sampler, num_workers=8)

Each epoch's order is published when the epoch begins, before its first sample is loaded. Pure Python, no dependency, and
torch is not imported: a sampler is anything that can be iterated. A mount that cannot be told costs a warning and no more.
"""

import json
import os
import socket
import warnings

_REQUEST_BYTES_MAX = 900_000
_TIMEOUT_S = 30


def hint(mount, paths, job="default", clear=True):
    """Publishes the coming order of `job`: paths relative to `mount`, or absolute below it.

    Without `clear` they come after those that were published before. Returns what the mount says (the last answer, with
    `accepted` and `refused` summed up); raises OSError if it cannot be told.
    """
    address = os.getxattr(mount, "user.warmfs.control")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_S)
        _connect(connection, address)
        with connection.makefile("rwb") as stream:
            accepted = refused = 0
            for batch in _batches(paths):
                answer = _call(stream, {"v": 1, "verb": "hint", "job": job, "clear": clear, "paths": batch})
                accepted, refused, clear = accepted + answer["accepted"], refused + answer["refused"], False
            answer["accepted"], answer["refused"] = accepted, refused
            return answer


class HintedSampler:
    """Iterates as `sampler` does, and publishes the order first.

    `paths` gives the path of a sample by its index: a list, or a function. A sample of several files may be a list of
    paths. Jobs that read in orders of their own need names of their own; by default each rank of a distributed job has one.
    """

    def __init__(self, sampler, paths, mount, job=None):
        self.sampler = sampler
        self.mount = mount
        self.job = job or "rank" + os.environ.get("RANK", "0")
        self._path_of = paths if callable(paths) else paths.__getitem__

    def __iter__(self):
        samples = list(self.sampler)
        try:
            hint(self.mount, self._paths(samples), self.job)
        except OSError as error:
            warnings.warn(f"the order was not published to {self.mount}: {error}", stacklevel=2)
        return iter(samples)

    def __len__(self):
        return len(self.sampler)

    def __getattr__(self, name):
        if name == "sampler":  # While it is unpickled.
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def _paths(self, samples):
        for sample in samples:
            # A batch sampler gives lists.
            for index in sample if isinstance(sample, (list, tuple)) else (sample,):
                paths = self._path_of(index)
                yield from paths if isinstance(paths, (list, tuple)) else (paths,)


def _connect(connection, address):
    """By the directory's descriptor: an address holds 108 bytes, a path may be longer."""
    directory, name = os.path.split(address)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        connection.connect(b"/proc/self/fd/%d/%s" % (fd, name))
    finally:
        os.close(fd)


def _call(stream, request):
    stream.write(json.dumps(request).encode() + b"\n")
    stream.flush()
    line = stream.readline()
    if not line:
        raise OSError("the daemon closed the connection")
    reply = json.loads(line)
    if "error" in reply:
        raise OSError(reply["error"]["message"])
    return reply["ok"]


def _batches(paths):
    """Escaped paths in lists that fit into a request; at least one list, which may be empty."""
    batch, used = [], 0
    for path in paths:
        text = _escaped(path)
        # JSON writes a character as six bytes, or as twelve, at most.
        size = 12 * len(text) + 4
        if used + size > _REQUEST_BYTES_MAX and batch:
            yield batch
            batch, used = [], 0
        batch.append(text)
        used += size
    yield batch


def _escaped(path):
    """As the control protocol writes paths: what is no printable UTF-8 as \\xNN, a backslash doubled."""
    text = os.fsencode(path).decode("utf-8", "surrogateescape").replace("\\", "\\\\")
    if text.isprintable():
        return text
    return "".join(c if not _is_odd(c) else "".join(f"\\x{b:02x}" for b in os.fsencode(c)) for c in text)


def _is_odd(c):
    code = ord(c)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xDC80 <= code <= 0xDCFF
