"""Makes, from the real data that scripts/real-data has unpacked, the forms that nobody packages: an LMDB, WebDataset
shards, .npy arrays, and a file whose every block carries fio's checksum. `real_prepare.py ROOT IMAGES` writes them beside
the data, and to the file IMAGES the list of images that a decoder has memory for."""

import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import lmdb
import numpy
from safetensors import safe_open


def make_lmdb(root, images):
    folder = root / "lmdb"
    with lmdb.open(str(folder), map_size=1 << 30) as environment:
        with environment.begin(write=True) as transaction:
            for image in images:
                transaction.put(str(image.relative_to(root)).encode(), image.read_bytes())
    (folder / "lock.mdb").unlink()


def make_shards(root, images, per_shard=500):
    (root / "shards").mkdir()
    for first in range(0, len(images), per_shard):
        with tarfile.open(root / "shards" / f"{first // per_shard:04}.tar", "w") as shard:
            for image in images[first : first + per_shard]:
                # WebDataset takes what follows the first dot of the last part for the field's name.
                key = str(image.relative_to(root).with_suffix("")).replace(".", "_")
                shard.add(image.resolve(), f"{key}.png")


def make_arrays(root, at_least=1 << 20):
    (root / "arrays").mkdir(exist_ok=True)
    with safe_open(str(root / "model/model.safetensors"), framework="numpy") as model:
        for name in model.keys():
            tensor = model.get_tensor(name)
            if tensor.nbytes >= at_least:
                numpy.save(root / "arrays" / f"{name}.npy", tensor)


def make_verified(root):
    (root / "fio").mkdir()
    subprocess.run(
        ["fio", "--name=verify", f"--filename={root}/fio/verified.bin", "--size=64m", "--rw=write", "--bs=64k"]
        + ["--verify=crc32c", "--do_verify=0", "--verify_state_save=0", "--output=/dev/null"],
        check=True,
    )


def pixels(png):
    with png.open("rb") as file:
        width, height = struct.unpack(">II", file.read(24)[16:])
    return width * height


def main(root, list_of_images):
    # A few of the drawings have 600 million pixels; they are compared byte by byte, but not decoded.
    decodable = [str(png.relative_to(root)) for png in sorted((root / "clipart").rglob("*.png")) if pixels(png) < 16e6]
    list_of_images.write_text("\n".join(decodable) + "\n")
    images = sorted((root / "clipart").rglob("*.png"))[::4]
    make_lmdb(root, images)
    make_shards(root, images)
    make_arrays(root)
    make_verified(root)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
