/* The C loops that the store is measured against: windows of equal size, copied into a batch of rows.
 *
 * Window w is the `bytes` bytes at offsets[w] of file files[w]. Threads take a batch of windows at a time, each into rows
 * of its own, so that none waits for another before the last batch. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 32, MAX_THREADS = 64 };

struct job {
    int mapped;             /* copy from memory, or read positionally */
    const int64_t *sources; /* by file: the address at which it is mapped, or its descriptor */
    const int32_t *files;
    const int64_t *offsets;
    int64_t windows;
    int64_t bytes;
    int64_t next; /* the first window that no thread has taken */
    int failed;
};

struct worker {
    struct job *job;
    char *rows;
};

static void *copy_windows(void *argument) {
    const struct worker *worker = argument;
    struct job *job = worker->job;
    for (;;) {
        int64_t first = __atomic_fetch_add(&job->next, ROWS, __ATOMIC_RELAXED);
        if (first >= job->windows) return NULL;
        int64_t stop = first + ROWS < job->windows ? first + ROWS : job->windows;
        for (int64_t w = first; w < stop; w++) {
            char *row = worker->rows + (w - first) * job->bytes;
            int64_t source = job->sources[job->files[w]];
            if (job->mapped) {
                memcpy(row, (const char *)source + job->offsets[w], job->bytes);
            } else if (pread((int)source, row, job->bytes, job->offsets[w]) != job->bytes) {
                job->failed = 1;
                return NULL;
            }
        }
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

/* Seconds taken, or -1 when a read failed. `rows` has room for ROWS windows for each thread. */
double run_loop(int mapped, const int64_t *sources, const int32_t *files, const int64_t *offsets, int64_t windows,
                int64_t bytes, int threads, char *rows) {
    struct job job = {mapped, sources, files, offsets, windows, bytes, 0, 0};
    struct worker workers[MAX_THREADS];
    pthread_t running[MAX_THREADS];
    if (threads > MAX_THREADS) return -1;
    double begin = now();
    for (int t = 0; t < threads; t++) {
        workers[t] = (struct worker){&job, rows + t * ROWS * bytes};
        if (pthread_create(&running[t], NULL, copy_windows, &workers[t]) != 0) return -1;
    }
    for (int t = 0; t < threads; t++) pthread_join(running[t], NULL);
    return job.failed ? -1 : now() - begin;
}
