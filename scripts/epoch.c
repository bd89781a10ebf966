/* epoch: reads a tree of small files as a training job does, and prints how fast that went.
 *
 *     epoch DIR THREADS [EPOCHS [SEED]]          cc -O2 -o epoch epoch.c -pthread
 *
 * The tree is walked once. Then, in each epoch, every regular file is opened, fstat'ed, read whole and closed once, in a new
 * random order, by THREADS threads that take the next file from a common list. Names that begin with a dot are left out
 * (some file systems keep endless control files at their root). One line of JSON per epoch; the `*_us` are the mean
 * times of one file in one thread. */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <fts.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

static char **files;
static size_t file_count;
static atomic_size_t next_file;

struct reader {
    pthread_t thread;
    uint64_t bytes;
    double open_s, read_s, close_s;
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* In the order of names, so that a seed means the same order on every file system. */
static int by_name(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static void walk(char *root) {
    char *roots[] = {root, NULL};
    size_t room = 0;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    if (!tree) err(1, "%s", root);
    for (FTSENT *entry; (entry = fts_read(tree));) {
        if (entry->fts_level > 0 && entry->fts_name[0] == '.') {
            fts_set(tree, entry, FTS_SKIP);
        } else if (entry->fts_info == FTS_F) {
            if (file_count == room) {
                room = room ? 2 * room : 4096;
                files = realloc(files, room * sizeof *files);
                if (!files) err(1, "memory");
            }
            files[file_count++] = strdup(entry->fts_path);
        } else if (entry->fts_errno) {
            errx(1, "%s: %s", entry->fts_path, strerror(entry->fts_errno));
        }
    }
    fts_close(tree);
}

/* splitmix64: a good generator in three lines, the same everywhere. */
static uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void shuffle(uint64_t *state) {
    for (size_t i = file_count; i > 1; i--) {
        size_t j = random_next(state) % i;
        char *swapped = files[i - 1];
        files[i - 1] = files[j];
        files[j] = swapped;
    }
}

static void *read_files(void *argument) {
    struct reader *reader = argument;
    char *buffer = malloc(BUFFER_BYTES);
    if (!buffer) err(1, "memory");
    for (size_t i; (i = atomic_fetch_add(&next_file, 1)) < file_count;) {
        struct stat info;
        double begin = seconds();
        int fd = open(files[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &info)) err(1, "%s", files[i]);
        double opened = seconds();
        off_t total = 0;
        ssize_t n;
        while ((n = read(fd, buffer, BUFFER_BYTES)) > 0) total += n;
        if (n < 0) err(1, "%s", files[i]);
        if (total != info.st_size) errx(1, "%s: read %jd of %jd bytes", files[i], (intmax_t)total, (intmax_t)info.st_size);
        double done = seconds();
        close(fd);
        reader->close_s += seconds() - done;
        reader->read_s += done - opened;
        reader->open_s += opened - begin;
        reader->bytes += total;
    }
    free(buffer);
    return NULL;
}

static void run_epoch(int epoch, int threads) {
    struct reader *readers = calloc(threads, sizeof *readers);
    struct reader sum = {0};
    if (!readers) err(1, "memory");
    atomic_store(&next_file, 0);
    double begin = seconds();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&readers[i].thread, NULL, read_files, &readers[i])) errx(1, "cannot start a thread");
    for (int i = 0; i < threads; i++) {
        pthread_join(readers[i].thread, NULL);
        sum.bytes += readers[i].bytes;
        sum.open_s += readers[i].open_s;
        sum.read_s += readers[i].read_s;
        sum.close_s += readers[i].close_s;
    }
    double time = seconds() - begin, us = 1e6 / file_count;
    printf("{\"epoch\": %d, \"threads\": %d, \"files\": %zu, \"bytes\": %ju, \"seconds\": %.6f, \"files_per_s\": %.1f, "
           "\"mb_per_s\": %.2f, \"open_us\": %.2f, \"read_us\": %.2f, \"close_us\": %.2f}\n",
           epoch, threads, file_count, (uintmax_t)sum.bytes, time, file_count / time, sum.bytes / 1e6 / time,
           sum.open_s * us, sum.read_s * us, sum.close_s * us);
    fflush(stdout);
    free(readers);
}

int main(int argc, char **argv) {
    int threads = argc > 2 ? atoi(argv[2]) : 0;
    int epochs = argc > 3 ? atoi(argv[3]) : 1;
    uint64_t random_state = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    if (argc < 3 || argc > 5 || threads < 1 || epochs < 1) {
        fprintf(stderr, "usage: epoch DIR THREADS [EPOCHS [SEED]]\n");
        return 2;
    }
    walk(argv[1]);
    if (file_count == 0) errx(1, "%s: no files to read", argv[1]);
    for (int epoch = 1; epoch <= epochs; epoch++) {
        shuffle(&random_state);
        run_epoch(epoch, threads);
    }
    return 0;
}
