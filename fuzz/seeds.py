"""Seeds of a fuzz target: inputs of the right form, from which the fuzzer goes on. `seeds.py TARGET FOLDER` writes them."""

import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).parent.parent


def config():
    default = (ROOT / "config/default.toml").read_bytes()
    yield b"\0" + default[:4000]
    values = [line for line in default.split(b"\n") if b" = " in line and not line.startswith(b"#")]
    yield b"\0" + b"[cache]\n" + values[0]
    for key, value in ((b"CACHE_SIZE", b"80%"), (b"LOG_LEVEL", b"warmfs::cache=debug"), (b"METADATA_TTL", b"forever")):
        yield b"\1" + key + b"=" + value
    for text in (b"200GB", b"64MiB", b"1.5 TiB", b"2ms", b"12h", b"forever", b"auto", b"0%"):
        yield b"\3" + text
        for key in range(30):
            yield b"\2" + bytes([key]) + text


def control():
    for line in (
        b'{"v":1,"verb":"stats"}',
        b'{"v":1,"verb":"warm","paths":["train/a\\\\xffb",""],"jobs":8}',
        b'{"v":1,"verb":"warm","globs":[{"base":"train","pattern":"**/*.jpg"}],"list":1,"rate":1,"background":true,"check":true}',
        b'{"v":1,"verb":"warm_list","list":1,"paths":["train/a"]}',
        b'{"v":1,"verb":"evict","paths":["a//./b/"]}',
        b'{"v":2,"verb":"stop"}',
    ):
        yield b"\0" + line
        yield b"\1\x20\x09" + line + b"\nab\n\n" + line
    for line in (b'{"progress":{"files":10}}', b'{"error":{"kind":"busy","message":"later"}}', b'{"ok":[1.5,null]}'):
        yield b"\2" + line
    yield b"\3train/../x"
    yield b"\3" + b"n" * 256


def names():
    yield b"\0a\xff\\\n\x7f\xc2\x80"

    def step(op, at, name=b""):
        return bytes([op, at, len(name)]) + name

    down = step(0, 0, b"d") + step(0, 1, b"f") + step(3, 2) + step(4, 1) + step(5, 2, b"cache_path")
    links = step(0, 0, b"l") + step(0, 1, b"secret") + step(6, 1) + step(0, 0, b"s") + step(3, 2)
    climb = step(0, 0, b"..") + step(0, 0, b"d") + step(0, 1, b"..") + step(0, 2, b"..") + step(0, 0, b"/etc/passwd")
    odd = step(4, 0) + step(0, 0, b"\xff\\\n") + step(0, 0, b"n" * 150) + step(0, 0, b"a\0b") + step(0, 0, b".warmfs")
    for kind in (b"\1", b"\2"):
        for steps in (down, links, climb, odd, down + step(7, 0, b"d") + step(0, 0, b"d") + step(5, 1, b"state")):
            yield kind + steps


def records():
    path, hashes = b"dir/file", b"h" * 64
    for size, count, bits in ((1 << 20, 1, 1), ((2 << 20) + 5, 3, 5), (0, 0, None)):
        fixed = struct.pack("<QQqIqIQII", 7, size, 1, 2, 3, 4, 5, len(path), count)
        bitmap = bytes([bits]) if count else b""
        yield b"\3" + fixed + path + bitmap + hashes[: 32 * bin(bits or 0).count("1")]
    yield b"\4\x05" + b"\x10\0\1" + b"\xff\0\7"


def store():
    for at in (0, 9, 16, 64, 200, 4096, 4100, 5000, 8192, 70000):
        yield b"\0" + struct.pack("<I", at)[:3] + bytes([1 if at > 8191 else 0, 0x10])
    yield b"\0" + struct.pack("<I", 5000)[:3] + bytes([255, 0])
    for kinds in (b"\2\0\0\0\0", b"\6\0\0\0\0", b"\0\6\0\0\0", b"\0\0\5\0\0", b"\0\0\0\4\0", b"\0\0\0\6\0", b"\0\0\0\0\5", b"\4\4\0\0\0"):
        yield b"\1" + kinds + b"warmfs 1\n"


def tables():
    yield from records()
    yield b"\0train/a.jpg\nop=read,getattr path=train/* after=2 count=5 errno=EIO delay=2ms\nshort=4KiB\n# no\nflip\nhang"
    yield b"\0a\npath=*a*b?c\\\\x20 flip"
    yield b"\1" + b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n" * 2
    yield b"\2/a b\0/mnt/\\#\n\xff\0dev"


target, folder = sys.argv[1], pathlib.Path(sys.argv[2])
for number, seed in enumerate(globals()[target]()):
    (folder / f"seed-{number}").write_bytes(seed)
