/* For scripts/suites: a program that tests one file system is made to change the SOURCE of a mount and to look through
 * the MOUNT. warmfs is read-only, so a suite that makes its files itself could not run there at all; this way everything
 * that it looks at afterwards (attributes, names, links, listings, who may open what) is what warmfs says.
 *
 * LD_PRELOAD this with SUITE_MNT and SUITE_SRC set to two paths of the same length (suites build paths of exactly
 * PATH_MAX bytes). Calls that change something and name a path below SUITE_MNT go to the same place below SUITE_SRC; all
 * others go where they went. A call that still ends at the mount, by a symbolic link with an absolute text, is repeated
 * with the link resolved. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

/* Where a changing call goes: a directory and a path. */
struct place {
    int dir;
    const char *path;
    int opened;
    char text[PATH_MAX + 64];
};

/* The rest of a path below the mount, or NULL. While the file SUITE_READ_ONLY exists, nothing is: a test of EROFS then
 * meets the mount itself. */
static const char *below(const char *path) {
    const char *mnt = getenv("SUITE_MNT");
    size_t length = mnt ? strlen(mnt) : 0;
    if (syscall(SYS_faccessat, AT_FDCWD, getenv("SUITE_READ_ONLY"), F_OK) == 0)
        return NULL;
    if (!length || strncmp(path, mnt, length) || (path[length] && path[length] != '/'))
        return NULL;
    return path + length;
}

static void leave(struct place *p) {
    int saved = errno;
    if (p->opened)
        close(p->dir);
    errno = saved;
}

static void find(struct place *p, int dir, const char *path) {
    char base[PATH_MAX], link[64];
    const char *rest;
    p->dir = dir, p->path = path, p->opened = 0;
    /* Some tests pass no path at all, or an address that is none: for the kernel to say so. */
    if (syscall(SYS_faccessat, AT_FDCWD, path, F_OK) < 0 && errno == EFAULT)
        return;
    if (!*path)
        return;
    if (*path == '/') {
        rest = below(path);
        /* One that is too long is too long there as well. */
        if (rest && strlen(path) < sizeof p->text) {
            snprintf(p->text, sizeof p->text, "%s%s", getenv("SUITE_SRC"), rest);
            p->path = p->text;
        }
        return;
    }
    snprintf(link, sizeof link, dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dir);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length <= 0)
        return;
    base[length] = 0;
    if (!(rest = below(base)))
        return;
    snprintf(p->text, sizeof p->text, "%s%s", getenv("SUITE_SRC"), rest);
    int fd = syscall(SYS_openat, AT_FDCWD, p->text, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        p->dir = fd, p->opened = 1;
}

/* The same, with every symbolic link on the way resolved, and the last one too if the call would follow it. */
static int find_resolved(struct place *p, int dir, const char *path, int follow) {
    char joined[2 * PATH_MAX], real[PATH_MAX];
    struct place first;
    find(&first, dir, path);
    if (first.opened)
        snprintf(joined, sizeof joined, "/proc/self/fd/%d/%s", first.dir, first.path);
    else
        snprintf(joined, sizeof joined, "%s", first.path);
    char *name = follow ? NULL : strrchr(joined, '/');
    if (name)
        *name++ = 0;
    int found = realpath(joined, real) != NULL;
    leave(&first);
    if (!found)
        return -1;
    if (name && strlen(real) + strlen(name) + 2 < sizeof real)
        strcat(strcat(real, "/"), name);
    find(p, AT_FDCWD, real);
    /* What is not below the mount stays as it is, and `real` ends here. */
    if (p->path == real)
        p->path = strcpy(p->text, real);
    return 0;
}

/* Does CALL with p.dir and p.path, and once more if the file system was read-only after all. */
#define AT(dirfd, name, follow, CALL)                                                                                  \
    struct place p;                                                                                                    \
    find(&p, dirfd, name);                                                                                             \
    long result = CALL;                                                                                                \
    leave(&p);                                                                                                         \
    if (result < 0 && errno == EROFS) {                                                                                \
        if (find_resolved(&p, dirfd, name, follow) == 0) {                                                             \
            result = CALL;                                                                                             \
            leave(&p);                                                                                                 \
        } else                                                                                                         \
            errno = EROFS;                                                                                             \
    }                                                                                                                  \
    return result

static int opens(int dir, const char *path, int flags, mode_t mode) {
    int changes = flags & (O_CREAT | O_TRUNC | O_APPEND) || (flags & O_ACCMODE) != O_RDONLY ||
                  (flags & O_TMPFILE) == O_TMPFILE;
    if (!changes || flags & O_PATH)
        return syscall(SYS_openat, dir, path, flags, mode);
    AT(dir, path, !(flags & O_NOFOLLOW) && !((flags & O_CREAT) && (flags & O_EXCL)),
       syscall(SYS_openat, p.dir, p.path, flags, mode));
}

#define MODE(last)                                                                                                     \
    va_list list;                                                                                                      \
    va_start(list, last);                                                                                              \
    mode_t mode = last & (O_CREAT | O_TMPFILE) ? va_arg(list, int) : 0;                                                \
    va_end(list)

int open(const char *path, int flags, ...) { MODE(flags); return opens(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags); return opens(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags); return opens(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags); return opens(dir, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opens(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int mkdirat(int dir, const char *path, mode_t mode) {
    AT(dir, path, 0, syscall(SYS_mkdirat, p.dir, p.path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int unlinkat(int dir, const char *path, int flags) {
    AT(dir, path, 0, syscall(SYS_unlinkat, p.dir, p.path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int symlinkat(const char *text, int dir, const char *path) {
    AT(dir, path, 0, syscall(SYS_symlinkat, text, p.dir, p.path));
}
int symlink(const char *text, const char *path) { return symlinkat(text, AT_FDCWD, path); }
int mknodat(int dir, const char *path, mode_t mode, dev_t dev) {
    AT(dir, path, 0, syscall(SYS_mknodat, p.dir, p.path, mode, (unsigned)dev));
}
int mknod(const char *path, mode_t mode, dev_t dev) { return mknodat(AT_FDCWD, path, mode, dev); }
int mkfifoat(int dir, const char *path, mode_t mode) { return mknodat(dir, path, mode | S_IFIFO, 0); }
int mkfifo(const char *path, mode_t mode) { return mkfifoat(AT_FDCWD, path, mode); }
int fchmodat(int dir, const char *path, mode_t mode, int flags) {
    AT(dir, path, !(flags & AT_SYMLINK_NOFOLLOW),
       flags ? syscall(SYS_fchmodat2, p.dir, p.path, mode, flags) : syscall(SYS_fchmodat, p.dir, p.path, mode));
}
int chmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, 0); }
int lchmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW); }
int fchownat(int dir, const char *path, uid_t uid, gid_t gid, int flags) {
    AT(dir, path, !(flags & AT_SYMLINK_NOFOLLOW), syscall(SYS_fchownat, p.dir, p.path, uid, gid, flags));
}
int chown(const char *path, uid_t uid, gid_t gid) { return fchownat(AT_FDCWD, path, uid, gid, 0); }
int lchown(const char *path, uid_t uid, gid_t gid) {
    return fchownat(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW);
}
int utimensat(int dir, const char *path, const struct timespec times[2], int flags) {
    AT(dir, path, !(flags & AT_SYMLINK_NOFOLLOW), syscall(SYS_utimensat, p.dir, p.path, times, flags));
}
static int micros(const char *path, const struct timeval times[2], int flags) {
    struct timespec nanos[2];
    for (int i = 0; times && i < 2; i++)
        nanos[i].tv_sec = times[i].tv_sec, nanos[i].tv_nsec = times[i].tv_usec * 1000;
    return utimensat(AT_FDCWD, path, times ? nanos : NULL, flags);
}
int utimes(const char *path, const struct timeval times[2]) { return micros(path, times, 0); }
int lutimes(const char *path, const struct timeval times[2]) { return micros(path, times, AT_SYMLINK_NOFOLLOW); }
int truncate(const char *path, off_t length) { AT(AT_FDCWD, path, 1, syscall(SYS_truncate, p.path, length)); }
int truncate64(const char *path, off64_t length) { return truncate(path, length); }
int setxattr(const char *path, const char *name, const void *value, size_t size, int flags) {
    AT(AT_FDCWD, path, 1, syscall(SYS_setxattr, p.path, name, value, size, flags));
}
int removexattr(const char *path, const char *name) {
    AT(AT_FDCWD, path, 1, syscall(SYS_removexattr, p.path, name));
}

/* Calls with two names: each goes to the source; if a link leads one of them to the mount, both are resolved. */
#define TWO(dir1, path1, follow1, dir2, path2, CALL)                                                                   \
    struct place a, b;                                                                                                 \
    find(&a, dir1, path1);                                                                                             \
    find(&b, dir2, path2);                                                                                             \
    long result = CALL;                                                                                                \
    leave(&a), leave(&b);                                                                                              \
    if (result < 0 && (errno == EROFS || errno == EXDEV)) {                                                            \
        int first = errno;                                                                                             \
        if (find_resolved(&a, dir1, path1, follow1) == 0 && find_resolved(&b, dir2, path2, 0) == 0) {                  \
            result = CALL;                                                                                             \
            leave(&a), leave(&b);                                                                                      \
        } else                                                                                                         \
            errno = first;                                                                                             \
    }                                                                                                                  \
    return result

int renameat2(int dir1, const char *path1, int dir2, const char *path2, unsigned flags) {
    TWO(dir1, path1, 0, dir2, path2, syscall(SYS_renameat2, a.dir, a.path, b.dir, b.path, flags));
}
int renameat(int dir1, const char *path1, int dir2, const char *path2) {
    return renameat2(dir1, path1, dir2, path2, 0);
}
int rename(const char *path1, const char *path2) { return renameat2(AT_FDCWD, path1, AT_FDCWD, path2, 0); }
int linkat(int dir1, const char *path1, int dir2, const char *path2, int flags) {
    TWO(dir1, path1, flags & AT_SYMLINK_FOLLOW, dir2, path2,
        syscall(SYS_linkat, a.dir, a.path, b.dir, b.path, flags));
}
int link(const char *path1, const char *path2) { return linkat(AT_FDCWD, path1, AT_FDCWD, path2, 0); }

/* With SUITE_READS set, what is read from a file that was opened for writing is read through the mount, by an open of
 * its own: the program's handle is on the source, and one on the mount would keep the version that it opened. */
static int reader(int fd) {
    char link[64], path[PATH_MAX], mine[PATH_MAX + 64];
    const char *src = getenv("SUITE_SRC");
    if (!getenv("SUITE_READS") || !src)
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || strncmp(path, src, strlen(src)) || path[strlen(src)] != '/')
        return -1;
    path[length] = 0;
    snprintf(mine, sizeof mine, "%s%s", getenv("SUITE_MNT"), path + strlen(src));
    int opened = syscall(SYS_openat, AT_FDCWD, mine, O_RDONLY | O_CLOEXEC);
    if (opened < 0) {
        perror(mine);
        abort();
    }
    return opened;
}

#define READS(fd, CALL)                                                                                                \
    int mine = reader(fd);                                                                                             \
    int from = mine < 0 ? fd : mine;                                                                                   \
    long result = CALL;                                                                                                \
    int saved = errno;                                                                                                 \
    if (mine >= 0)                                                                                                     \
        close(mine);                                                                                                   \
    errno = saved;                                                                                                     \
    return result

ssize_t pread64(int fd, void *to, size_t length, off64_t at) {
    READS(fd, syscall(SYS_pread64, from, to, length, at));
}
ssize_t pread(int fd, void *to, size_t length, off_t at) { return pread64(fd, to, length, at); }
ssize_t sendfile64(int to, int fd, off64_t *at, size_t length) {
    READS(fd, syscall(SYS_sendfile, to, from, at, length));
}
ssize_t sendfile(int to, int fd, off_t *at, size_t length) { return sendfile64(to, fd, at, length); }
int statx(int dir, const char *path, int flags, unsigned mask, struct statx *to) {
    int by_descriptor = flags & AT_EMPTY_PATH && dir >= 0;
    if (!by_descriptor)
        return syscall(SYS_statx, dir, path, flags, mask, to);
    READS(dir, syscall(SYS_statx, from, path, flags, mask, to));
}

/* A socket's file is made by bind(2). */
int bind(int fd, const struct sockaddr *address, socklen_t length) {
    struct sockaddr_un moved;
    if (address->sa_family == AF_UNIX && length <= sizeof moved && length > offsetof(struct sockaddr_un, sun_path)) {
        memcpy(&moved, address, length);
        if (below(moved.sun_path)) {
            const char *src = getenv("SUITE_SRC");
            memcpy(moved.sun_path, src, strlen(src));
            return syscall(SYS_bind, fd, &moved, length);
        }
    }
    return syscall(SYS_bind, fd, address, length);
}
