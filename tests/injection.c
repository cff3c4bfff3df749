/* Preloaded before the C library (LD_PRELOAD): calls that touch a watched folder can be counted, logged and made to fail.

   What `inject_arm` asks for happens at the calls numbered [first, last], counted from 0 among those of the kinds in a
   mask whose path, or whose descriptor's path, begins as `inject_watch` says:

     KILL    the process is killed in place of the call, as by kill -9
     ERROR   the call is not made, and fails with this errno; a close is made, and fails
     SHORT   a read or write is really made, of half the bytes (a byte at least)
     DELAY   the call is made so many microseconds later

   INJECT_CLOCK in the environment makes the wall clock jump so many seconds forwards and backwards, at every look. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define KINDS(X) \
    X(open) X(read) X(pread) X(preadv2) X(write) X(pwrite) X(fsync) X(fdatasync) X(rename) X(link) X(mkdir) X(unlink) \
    X(rmdir) X(ftruncate) X(close) X(lseek) X(stat) X(opendir) X(readdir) X(flock)
#define ENUM(name) KIND_##name,
#define NAME(name) #name,
enum { KINDS(ENUM) NUM_KINDS };
static const char *const names[] = {KINDS(NAME)};
enum { KILL, ERROR, SHORT, DELAY };
enum { PROCEED, FAIL, CUT };

static char watched[PATH_MAX];
static int armed, action, value, log_fd = -1;
static unsigned long kinds;
static long first, last, seen;
static char hits[1 << 16];
static pthread_mutex_t hitting = PTHREAD_MUTEX_INITIALIZER;
static long jump;

#define REAL(name) \
    ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

int inject_kind(const char *name) {
    for (int kind = 0; kind < NUM_KINDS; kind++)
        if (!strcmp(names[kind], name)) return kind;
    return -1;
}
void inject_watch(const char *prefix) { snprintf(watched, sizeof watched, "%s", prefix); }
void inject_log(int fd) { log_fd = fd; }
void inject_arm(unsigned long mask, long from, long to, int what, int how) {
    kinds = mask, first = from, last = to, action = what, value = how, seen = 0, hits[0] = 0;
    __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}
void inject_disarm(void) { __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST); }
const char *inject_hits(void) { return hits; }

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("INJECT_CLOCK");
    jump = given ? atol(given) : 0;
}

/* The path that a call is about: of a descriptor where `path` is NULL. */
static void resolve(int fd, const char *path, char *full) {
    char link[64], folder[PATH_MAX] = "";
    if (path && path[0] == '/') { snprintf(full, PATH_MAX, "%s", path); return; }
    if (fd == AT_FDCWD) { if (!getcwd(folder, sizeof folder)) folder[0] = 0; }
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, folder, sizeof folder - 1);
        folder[length < 0 ? 0 : length] = 0;
    }
    if (path && path[0]) snprintf(full, PATH_MAX, "%.2000s/%.2000s", folder, path);
    else snprintf(full, PATH_MAX, "%s", folder);
}

/* Keep what met the fault, a line each, as far as there is room. */
static void note(int kind, const char *path) {
    pthread_mutex_lock(&hitting);
    size_t length = strlen(hits);
    if (length + PATH_MAX + 32 < sizeof hits) snprintf(hits + length, PATH_MAX + 32, "%s %s\n", names[kind], path);
    pthread_mutex_unlock(&hitting);
}

static int strike(int kind, int fd, const char *path) {
    if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST) || !(kinds >> kind & 1)) return PROCEED;
    int kept = errno;
    char full[PATH_MAX];
    resolve(fd, path, full);
    if (strncmp(full, watched, strlen(watched))) { errno = kept; return PROCEED; }
    long number = __atomic_fetch_add(&seen, 1, __ATOMIC_SEQ_CST);
    if (log_fd >= 0) dprintf(log_fd, "%s %s\n", names[kind], full);
    errno = kept;
    if (number < first || number > last) return PROCEED;
    note(kind, full);
    switch (action) {
    case KILL: kill(getpid(), SIGKILL); for (;;) pause();
    case ERROR: errno = value; return FAIL;
    case DELAY: usleep(value); errno = kept; return PROCEED;
    default: return CUT;
    }
}

#define HALF(size) ((size) > 1 ? (size) / 2 : (size))
#define CALL(kind, fd, path, failure, ...) return strike(KIND_##kind, fd, path) == FAIL ? failure : (__VA_ARGS__)
#define SIZED(kind, fd, size) \
    int answer = strike(KIND_##kind, fd, NULL); \
    if (answer == FAIL) return -1; \
    if (answer == CUT) size = HALF(size)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        CALL(open, AT_FDCWD, path, -1, REAL(name)(path, flags, mode)); }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        CALL(open, folder, path, -1, REAL(name)(folder, path, flags, mode)); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

ssize_t read(int fd, void *data, size_t size) { SIZED(read, fd, size); return REAL(read)(fd, data, size); }
ssize_t write(int fd, const void *data, size_t size) { SIZED(write, fd, size); return REAL(write)(fd, data, size); }
#define AT(kind, name, qualified) \
    ssize_t name(int fd, qualified void *data, size_t size, off_t at) { \
        SIZED(kind, fd, size); return REAL(name)(fd, data, size, at); }
AT(pread, pread, ) AT(pread, pread64, ) AT(pwrite, pwrite, const) AT(pwrite, pwrite64, const)
ssize_t preadv2(int fd, const struct iovec *vector, int count, off_t at, int flags) {
    struct iovec one = vector[0];
    if (count != 1) return REAL(preadv2)(fd, vector, count, at, flags);
    SIZED(preadv2, fd, one.iov_len);
    return REAL(preadv2)(fd, &one, 1, at, flags);
}

int fsync(int fd) { CALL(fsync, fd, NULL, -1, REAL(fsync)(fd)); }
int fdatasync(int fd) { CALL(fdatasync, fd, NULL, -1, REAL(fdatasync)(fd)); }
int ftruncate(int fd, off_t size) { CALL(ftruncate, fd, NULL, -1, REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off_t size) { CALL(ftruncate, fd, NULL, -1, REAL(ftruncate64)(fd, size)); }
off_t lseek(int fd, off_t at, int how) { CALL(lseek, fd, NULL, -1, REAL(lseek)(fd, at, how)); }
off_t lseek64(int fd, off_t at, int how) { CALL(lseek, fd, NULL, -1, REAL(lseek64)(fd, at, how)); }
int flock(int fd, int how) { CALL(flock, fd, NULL, -1, REAL(flock)(fd, how)); }
int close(int fd) {
    int answer = strike(KIND_close, fd, NULL), error = errno, done = REAL(close)(fd);
    if (answer != FAIL) return done;
    errno = error;
    return -1;
}

int rename(const char *from, const char *to) { CALL(rename, AT_FDCWD, to, -1, REAL(rename)(from, to)); }
int renameat(int a, const char *from, int b, const char *to) { CALL(rename, b, to, -1, REAL(renameat)(a, from, b, to)); }
int link(const char *from, const char *to) { CALL(link, AT_FDCWD, to, -1, REAL(link)(from, to)); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    CALL(link, b, to, -1, REAL(linkat)(a, from, b, to, flags));
}
int mkdir(const char *path, mode_t mode) { CALL(mkdir, AT_FDCWD, path, -1, REAL(mkdir)(path, mode)); }
int mkdirat(int fd, const char *path, mode_t mode) { CALL(mkdir, fd, path, -1, REAL(mkdirat)(fd, path, mode)); }
int unlink(const char *path) { CALL(unlink, AT_FDCWD, path, -1, REAL(unlink)(path)); }
int unlinkat(int fd, const char *path, int flags) { CALL(unlink, fd, path, -1, REAL(unlinkat)(fd, path, flags)); }
int rmdir(const char *path) { CALL(rmdir, AT_FDCWD, path, -1, REAL(rmdir)(path)); }

#define STAT(name, type) \
    int name(const char *path, struct type *out) { CALL(stat, AT_FDCWD, path, -1, REAL(name)(path, out)); }
STAT(stat, stat) STAT(stat64, stat64) STAT(lstat, stat) STAT(lstat64, stat64)
int fstat(int fd, struct stat *out) { CALL(stat, fd, NULL, -1, REAL(fstat)(fd, out)); }
int fstat64(int fd, struct stat64 *out) { CALL(stat, fd, NULL, -1, REAL(fstat64)(fd, out)); }
int fstatat(int fd, const char *path, struct stat *out, int flags) {
    CALL(stat, fd, path, -1, REAL(fstatat)(fd, path, out, flags));
}
int fstatat64(int fd, const char *path, struct stat64 *out, int flags) {
    CALL(stat, fd, path, -1, REAL(fstatat64)(fd, path, out, flags));
}

DIR *opendir(const char *path) { CALL(opendir, AT_FDCWD, path, NULL, REAL(opendir)(path)); }
DIR *fdopendir(int fd) { CALL(opendir, fd, NULL, NULL, REAL(fdopendir)(fd)); }
struct dirent *readdir(DIR *folder) { CALL(readdir, dirfd(folder), NULL, NULL, REAL(readdir)(folder)); }
struct dirent64 *readdir64(DIR *folder) { CALL(readdir, dirfd(folder), NULL, NULL, REAL(readdir64)(folder)); }

static long leap(void) {
    static long looks;
    return __atomic_fetch_add(&looks, 1, __ATOMIC_SEQ_CST) % 2 ? jump : -jump;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = REAL(clock_gettime)(clock, now);
    if (!done && jump && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += leap();
    return done;
}
int gettimeofday(struct timeval *now, void *zone) {
    int done = REAL(gettimeofday)(now, zone);
    if (!done && jump) now->tv_sec += leap();
    return done;
}
time_t time(time_t *out) {
    time_t now = REAL(time)(NULL) + (jump ? leap() : 0);
    if (out) *out = now;
    return now;
}
