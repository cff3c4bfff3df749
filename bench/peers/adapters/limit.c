/* The limit: shuffled windows of a mapped uint16 file, widened to int64. Batches are dealt out to threads. */

#include <pthread.h>
#include <stdint.h>

enum { MAX_THREADS = 16 };

struct part {
    const uint16_t *tokens;
    const int64_t *starts;
    int64_t rows, width, first, stop;
    int64_t *out;
};

static void *widen(void *argument) {
    const struct part *part = argument;
    for (int64_t row = part->first; row < part->stop; row++) {
        const uint16_t *from = part->tokens + part->starts[row];
        int64_t *to = part->out + row * part->width;
        for (int64_t i = 0; i < part->width; i++) to[i] = from[i];
    }
    return 0;
}

/* Rows [0, rows) of `out`, from the places `starts`. Returns 0, or 1 if a thread could not be started. */
int fill(const uint16_t *tokens, const int64_t *starts, int64_t rows, int64_t width, int threads, int64_t *out) {
    struct part parts[MAX_THREADS];
    pthread_t running[MAX_THREADS];
    if (threads < 1 || threads > MAX_THREADS) return 1;
    for (int t = 0; t < threads; t++)
        parts[t] = (struct part){tokens, starts, rows, width, rows * t / threads, rows * (t + 1) / threads, out};
    for (int t = 1; t < threads; t++)
        if (pthread_create(&running[t], 0, widen, &parts[t])) return 1;
    widen(&parts[0]);
    for (int t = 1; t < threads; t++) pthread_join(running[t], 0);
    return 0;
}
