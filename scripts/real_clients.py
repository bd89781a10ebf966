"""Real readers of training data, one function each. `real_clients.py CLIENT ROOT` runs one of them in a process of its
own, as a job would, and prints one line of JSON with a digest of everything that it read. The same client on two copies of a
tree must print the same digest: that is how scripts/real-data compares a warmfs mount with its source.

Every function takes the tree's root and the options of the command line. A function that reads in random order adds up
the digests of its items, so that the order does not matter.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import warmfs


class Sum:
    """An order-free digest of a bag of items."""

    def __init__(self):
        self.total = 0

    def add(self, *parts):
        item = hashlib.sha256()
        for part in parts:
            item.update(part if isinstance(part, (bytes, bytearray, memoryview)) else repr(part).encode())
            item.update(b"\0")
        self.total += int.from_bytes(item.digest(), "big")

    def hexdigest(self):
        return f"{self.total % (1 << 256):064x}"


def images(options):
    """The images to decode: paths below the root, one a line."""
    return Path(options.images).read_text().splitlines()


def imagefolder(root, options):
    """torchvision's ImageFolder through a DataLoader with two workers and a new shuffle per epoch; the order of the second
    is published by python/warmfs.py, if there is a mount to hear of it."""
    import torch
    from torchvision import datasets, transforms

    small = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    wanted = {os.path.join(root, path) for path in images(options)}
    folder = datasets.ImageFolder(os.path.join(root, "clipart"), small, is_valid_file=wanted.__contains__)
    every_nth = torch.utils.data.Subset(folder, range(0, len(folder), options.sample))
    sampler = torch.utils.data.RandomSampler(every_nth)
    if is_mount(root):
        sampler = warmfs.HintedSampler(sampler, lambda i: folder.samples[every_nth.indices[i]][0], root)
    epochs = []
    for order in [{"shuffle": True}, {"sampler": sampler}]:
        loader = torch.utils.data.DataLoader(every_nth, batch_size=32, num_workers=2, **order)
        digest = Sum()
        for tensors, labels in loader:
            for tensor, label in zip(tensors, labels):
                digest.add(int(label), tensor.numpy().tobytes())
        epochs.append(digest.hexdigest())
    if epochs[0] != epochs[1]:
        raise ValueError("the two epochs read different images")
    if is_mount(root):
        followed(warmfs.hint(root, [], "rank0", clear=False)["jobs"], len(every_nth))
    return epochs[0]


def is_mount(root):
    try:
        return bool(os.getxattr(root, "user.warmfs.control"))
    except OSError:
        return False


def followed(jobs, count):
    """The mount has heard of that many images, and some were read where the order said: links and the few hundred images
    of a quick run, which two workers read a batch out of step, leave no more to ask for."""
    (job,) = [job for job in jobs if job["job"] == "rank0"]
    if job["lines"] != count or not job["right"]:
        raise ValueError(f"an order of {count} images was not heard of: {job}")


def pillow(root, options):
    from PIL import Image

    digest = Sum()
    for path in images(options)[:: options.sample]:
        with Image.open(os.path.join(root, path)) as image:
            digest.add(path, image.size, image.mode, image.tobytes())
    return digest.hexdigest()


def safetensors_numpy(root, options):
    return tensors_of(root, "numpy", lambda tensor: tensor.tobytes())


def safetensors_torch(root, options):
    return tensors_of(root, "pt", lambda tensor: tensor.numpy().tobytes())


def tensors_of(root, framework, to_bytes):
    from safetensors import safe_open

    digest = Sum()
    with safe_open(os.path.join(root, "model/model.safetensors"), framework=framework) as model:
        for name in model.keys():
            tensor = model.get_tensor(name)
            digest.add(name, tuple(tensor.shape), to_bytes(tensor))
    return digest.hexdigest()


def h5py(root, options):
    """Every dataset and attribute of every netCDF-4 file, with HDF5's own file locking left on."""
    import h5py as hdf5

    digest = Sum()

    def visit(name, item):
        for key, value in sorted(item.attrs.items()):
            digest.add(name, key, value)
        if isinstance(item, hdf5.Dataset):
            digest.add(name, item.shape, str(item.dtype), item[()].tobytes())

    for path in sorted(Path(root, "gshhg").glob("*.nc")):
        with hdf5.File(path, "r") as file:
            file.visititems(visit)
    return digest.hexdigest()


def memmap(root, options):
    """numpy's maps: whole .npy arrays, and a large file touched page by page in random order."""
    import numpy

    digest = Sum()
    for path in sorted(Path(root).rglob("*.npy")):
        array = numpy.load(path, mmap_mode="r")
        digest.add(str(path.relative_to(root)), array.shape, str(array.dtype), array.tobytes())
    raw = numpy.memmap(os.path.join(root, "model/model.safetensors"), dtype=numpy.uint8, mode="r")
    for page in numpy.random.default_rng().permutation(-(-len(raw) // 4096)):
        digest.add(int(page), raw[page * 4096 : (page + 1) * 4096].tobytes())
    return digest.hexdigest()


def lmdb(root, options):
    import lmdb as database

    folder = os.path.join(root, "lmdb")
    # On a read-only file system LMDB does without its lock file, which is to be seen working; on a writable one it
    # would make that file in the source.
    digest = Sum()
    with database.open(folder, readonly=True, lock=not os.access(folder, os.W_OK)) as environment:
        with environment.begin() as transaction:
            for key, value in transaction.cursor():
                digest.add(key, value)
    return digest.hexdigest()


def webdataset(root, options):
    import webdataset as shards

    digest = Sum()
    paths = [str(path) for path in sorted(Path(root, "shards").glob("*.tar"))]
    for sample in shards.WebDataset(paths, shardshuffle=False):
        digest.add(sample["__key__"], sample["png"])
    return digest.hexdigest()


def find(root, options):
    """Names, types, sizes, times, modes, owners, link counts and link targets of the whole tree."""
    listing = output_of(["find", root, "-printf", r"%P %y %s %T@ %m %U %G %n %l\0"])
    return hashlib.sha256(b"\0".join(sorted(listing.split(b"\0")))).hexdigest()


def tar(root, options):
    digest = hashlib.sha256()
    with subprocess.Popen(["tar", "--sort=name", "-C", root, "-cf", "-", "."], stdout=subprocess.PIPE) as process:
        for block in iter(lambda: process.stdout.read(1 << 20), b""):
            digest.update(block)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return digest.hexdigest()


def rsync(root, options):
    """Copies the tree, has rsync find no difference, and reads the copy."""
    copy = os.path.join(options.scratch, "rsync")
    subprocess.run(["rsync", "-aH", "--checksum", "--delete", f"{root}/", f"{copy}/"], check=True)
    differences = output_of(["rsync", "-aHn", "--checksum", "--delete", "--itemize-changes", f"{root}/", f"{copy}/"])
    if differences:
        raise ValueError(f"rsync still finds differences: {differences[:200]!r}")
    digest = Sum()
    for path in sorted(Path(copy).rglob("*")):
        if path.is_symlink():
            digest.add(str(path.relative_to(copy)), os.readlink(path))
        elif path.is_file():
            digest.add(str(path.relative_to(copy)), path.stat().st_mtime_ns, path.read_bytes())
    return digest.hexdigest()


def sha256sum(root, options):
    """Every regular file against the list that was made of the source before anything was mounted."""
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", os.path.abspath(options.sums)], cwd=root, check=True)
    return hashlib.sha256(Path(options.sums).read_bytes()).hexdigest()


def fio(root, engine):
    """Random reads of a file that fio wrote with a checksum in every block; fio stops at the first wrong one."""
    report = output_of(
        ["fio", "--name=verify", f"--filename={root}/fio/verified.bin", "--rw=randread", "--bs=64k", "--readonly"]
        + [
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--invalidate=0",
            "--output-format=json",
            *engine,
        ]
    )
    job = json.loads(report)["jobs"][0]
    if job["error"]:
        raise ValueError(f"fio stopped with errno {job['error']}")
    return str(job["read"]["io_bytes"])


def fio_psync(root, options):
    return fio(root, ["--ioengine=psync"])


def fio_mmap(root, options):
    return fio(root, ["--ioengine=mmap"])


def fio_io_uring(root, options):
    return fio(root, ["--ioengine=io_uring", "--iodepth=16"])


def fio_direct(root, options):
    return fio(root, ["--ioengine=psync", "--direct=1"])


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


CLIENTS = [
    imagefolder,
    pillow,
    safetensors_numpy,
    safetensors_torch,
    h5py,
    memmap,
    lmdb,
    webdataset,
    find,
    tar,
    rsync,
    sha256sum,
    fio_psync,
    fio_mmap,
    fio_io_uring,
    fio_direct,
]


def main():
    by_name = {client.__name__: client for client in CLIENTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=by_name)
    parser.add_argument("root", help="the tree to read: the source, a copy or a mount")
    parser.add_argument("--images", metavar="FILE", help="the images to decode")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="decode every Nth of them (default: all)")
    parser.add_argument("--scratch", default=".", metavar="DIR", help="where a client may write")
    parser.add_argument("--sums", metavar="FILE", help="what sha256sum checks against")
    options = parser.parse_args()
    print(json.dumps({"client": options.client, "digest": by_name[options.client](options.root, options)}))


if __name__ == "__main__":
    sys.exit(main())
