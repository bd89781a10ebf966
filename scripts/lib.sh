# Shared by the scripts beside it; read with `. scripts/lib.sh`, never run. It defines where the repository is ($ROOT)
# and how to get packages, cargo, the release build and a scratch folder that leaves no mount and no process behind.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }

# What a person has to put right before the script can run: one line, exit code 2.
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}

# need_packages NAME[:COMMAND]...: installs the Debian packages that are missing. One with a COMMAND is there when the
# command is, so on another distribution it is enough to have the tools; one without is asked of dpkg.
need_packages() {
    local entry missing=()
    for entry in "$@"; do
        if [[ $entry == *:* ]]; then
            command -v "${entry#*:}" >/dev/null || missing+=("${entry%%:*}")
        else
            [[ $(dpkg-query -W -f='${db:Status-Status}' "$entry" 2>/dev/null) == installed ]] || missing+=("$entry")
        fi
    done
    ((${#missing[@]})) || return 0
    command -v apt-get >/dev/null || die "install what these Debian packages bring, then run this again: ${missing[*]}"
    ((EUID == 0)) || die "needs more packages; run: sudo apt-get install ${missing[*]}"
    say "installing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null ||
        die "apt-get could not install: ${missing[*]}"
}

# What the tests call and build with.
need_test_packages() {
    need_packages fuse3:fusermount3 attr:getfattr acl:setfacl util-linux:findmnt e2fsprogs:mkfs.ext4 \
        btrfs-progs:mkfs.btrfs python3:python3 g++:c++ libacl1-dev
}

# Rust is the one thing that is not installed for you: everybody has their own way to it.
need_cargo() {
    command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    command -v cargo >/dev/null || die "cargo is missing: install Rust 1.88 or later, then run this again"
    command -v cc >/dev/null || need_packages gcc libc6-dev
}

# Builds the release once (cargo knows when nothing has changed) and sets $WARMFS to the binary.
build_release() {
    need_cargo
    (cd "$ROOT" && cargo build --release --locked)
    # shellcheck disable=SC2034  # the scripts that read this file use it
    WARMFS=$(cd "$ROOT" && realpath "${CARGO_TARGET_DIR:-target}")/release/warmfs
}

# warmfs COMMAND...: the release build, without the variables that are words to the tests: it takes every WARMFS_ variable
# for a key of its own.
warmfs() { env -u WARMFS_TIER -u WARMFS_FIGURES -u WARMFS_TEST_SEED "$WARMFS" "$@"; }

# scratch_in DIR: makes a folder in DIR, sets $SCRATCH to it, and removes it when the script ends, whatever ends it:
# first the mounts below it, the newest first, then the files.
scratch_in() {
    mkdir -p "$1"
    SCRATCH=$(mktemp -d "$1/run.XXXXXX")
    trap drop_scratch EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

drop_scratch() {
    local target
    while read -r _ target _; do
        target=$(printf '%b' "$target")
        [[ $target != "$SCRATCH"/* ]] || umount -l "$target" 2>/dev/null || fusermount3 -uz "$target"
    done < <(tac /proc/self/mounts)
    # A daemon that was cut off writes down what it knows before it ends.
    local try
    for try in 1 2 3 4 5; do
        rm -rf --one-file-system "$SCRATCH" 2>/dev/null && return
        sleep "$try"
    done
    rm -rf --one-file-system "$SCRATCH"
}

# figure JSON: a result for the scoreboard, as tests/figures.rs writes them.
figure() {
    say "figure $1"
    [[ -z ${WARMFS_FIGURES:-} ]] || printf '%s\n' "$1" >>"$WARMFS_FIGURES"
}
