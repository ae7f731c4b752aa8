/* A disk that can fail and lose power, for LD_PRELOAD.
 *
 * Every change of a file in the directory DISK_FILES, and of the directory itself, is recorded in
 * DISK_DIRECTORY/journal, with what was synced: that determines what a loss of power can leave (see
 * power.py). Nothing waits for the real disk. The boot id of the machine is that in
 * DISK_DIRECTORY/boot_id, if that is there.
 *
 * Files in DISK_DIRECTORY ask for faults while they are there: `full` (a file cannot grow), `error`
 * (a write fails), `short` (a write writes a part), `lose` (an fsync fails, and has lost what it
 * should have written), `hold` (an fsync waits until it is gone), `slow` (an fsync takes a second),
 * `lie` (an fsync returns and has done nothing). DISK_KILL=n kills the process before its change
 * number n.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

enum { WRITE = 1, CUT, SYNC, SYNC_NAMES, CREATE, RENAME, UNLINK, LOSE };

struct record {
    uint64_t kind, file, offset, size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;
static long changes, kill_at;
static const char *files, *directory;

static int (*real_openat)(int, const char *, int, ...);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off64_t);
static int (*real_ftruncate)(int, off64_t);
static int (*real_fallocate)(int, off64_t, off64_t);
static int (*real_unlinkat)(int, const char *, int);
static int (*real_renameat)(int, const char *, int, const char *);

__attribute__((constructor)) static void setup(void) {
    if (real_openat != NULL)
        return;
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_pwritev = dlsym(RTLD_NEXT, "pwritev64");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fallocate = dlsym(RTLD_NEXT, "posix_fallocate64");
    real_unlinkat = dlsym(RTLD_NEXT, "unlinkat");
    real_renameat = dlsym(RTLD_NEXT, "renameat");
    files = getenv("DISK_FILES");
    directory = getenv("DISK_DIRECTORY");
    const char *at = getenv("DISK_KILL");
    kill_at = at == NULL ? 0 : atol(at);
    real_openat = dlsym(RTLD_NEXT, "openat64");
}

static int asked(const char *fault) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, fault);
    return access(path, F_OK) == 0;
}

/* The path of an open file. */
static int path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

/* The name in the directory of files; NULL if it is not there, or not on the disk. */
static const char *name_in(const char *path) {
    size_t common = files == NULL ? 0 : strlen(files);
    if (common == 0 || strncmp(path, files, common) != 0 || path[common] != '/')
        return NULL;
    const char *name = path + common + 1;
    const char *end = strrchr(name, '-');
    if (*name == 0 || strchr(name, '/') != NULL || strstr(name, " (deleted)") != NULL)
        return NULL;
    return end != NULL && strcmp(end, "-shm") == 0 ? NULL : name;
}

static const char *name_at(int where, const char *path, char *whole, size_t size) {
    char base[4096];
    if (path[0] == '/')
        snprintf(whole, size, "%s", path);
    else if (where != AT_FDCWD && path_of(where, base, sizeof base))
        snprintf(whole, size, "%s/%s", base, path);
    else
        return NULL;
    return name_in(whole);
}

static int is_ours(int fd) {
    char path[4096];
    return files != NULL && path_of(fd, path, sizeof path) && name_in(path) != NULL;
}

static int is_directory(int fd) {
    char path[4096];
    return files != NULL && path_of(fd, path, sizeof path) && strcmp(path, files) == 0;
}

static void count(void) {
    if (++changes == kill_at)
        kill(getpid(), SIGKILL);
}

static uint64_t number_of(int fd) {
    struct stat64 now;
    if (fstat64(fd, &now) != 0)
        abort();
    return now.st_ino;
}

/* Record a change; the lock is held. */
static void note(uint64_t kind, uint64_t file, uint64_t offset, const void *data, size_t size) {
    struct record head = {kind, file, offset, size};
    if (journal < 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/journal", directory);
        journal = real_openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, size}};
    if (writev(journal, parts, 2) != (ssize_t)(sizeof head + size))
        abort();
}

static void note_name(uint64_t kind, uint64_t file, const char *name) {
    note(kind, file, 0, name, strlen(name));
}

/* Files */

static int opened(int where, const char *path, int flags, mode_t mode) {
    char whole[4096];
    setup();
    if (directory != NULL && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) {
        snprintf(whole, sizeof whole, "%s/boot_id", directory);
        if (access(whole, F_OK) == 0)
            return real_openat(AT_FDCWD, whole, flags, mode);
    }
    const char *name = files == NULL ? NULL : name_at(where, path, whole, sizeof whole);
    if (name == NULL || !(flags & (O_CREAT | O_TRUNC)))
        return real_openat(where, path, flags, mode);
    pthread_mutex_lock(&lock);
    int there = access(whole, F_OK) == 0;
    if (!there || flags & O_TRUNC)
        count();
    int fd = real_openat(where, path, flags, mode);
    if (fd >= 0 && !there)
        note_name(CREATE, number_of(fd), name);
    else if (fd >= 0 && flags & O_TRUNC)
        note(CUT, number_of(fd), 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPEN(name, ...)                                                                            \
    int name(__VA_ARGS__, int flags, ...) {                                                        \
        va_list given;                                                                             \
        va_start(given, flags);                                                                    \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(given, mode_t) : 0;                   \
        va_end(given);                                                                             \
        return opened(where, path, flags, mode);                                                   \
    }

OPEN(openat, int where, const char *path)
OPEN(openat64, int where, const char *path)
#define where AT_FDCWD
OPEN(open, const char *path)
OPEN(open64, const char *path)
#undef where

/* Return how much of a write is done; -1 for an error. */
static ssize_t permitted(int fd, size_t length, off64_t offset) {
    struct stat64 now;
    if (asked("full") && fstat64(fd, &now) == 0 && offset + (off64_t)length > now.st_size) {
        errno = ENOSPC;
        return -1;
    }
    if (asked("error")) {
        errno = EIO;
        return -1;
    }
    return asked("short") && length > 1 ? (ssize_t)(length / 2) : (ssize_t)length;
}

static ssize_t written(int fd, const void *data, size_t length, off64_t offset) {
    ssize_t allowed = permitted(fd, length, offset);
    if (allowed < 0)
        return -1;
    pthread_mutex_lock(&lock);
    count();
    note(WRITE, number_of(fd), (uint64_t)offset, data, (size_t)allowed);
    ssize_t done = real_pwrite(fd, data, (size_t)allowed, offset);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    return is_ours(fd) ? written(fd, data, length, offset) : real_pwrite(fd, data, length, offset);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return pwrite64(fd, data, length, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int number, off64_t offset) {
    if (!is_ours(fd))
        return real_pwritev(fd, parts, number, offset);
    size_t length = 0, at = 0;
    for (int i = 0; i < number; i++)
        length += parts[i].iov_len;
    char *whole = malloc(length + 1);
    for (int i = 0; i < number; at += parts[i++].iov_len)
        memcpy(whole + at, parts[i].iov_base, parts[i].iov_len);
    ssize_t done = written(fd, whole, length, offset);
    int error = errno;
    free(whole);
    errno = error;
    return done;
}

ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t offset) {
    return pwritev64(fd, parts, number, offset);
}

/* Python writes by this one. The flag concerns only the page cache. */
ssize_t pwritev64v2(int fd, const struct iovec *parts, int number, off64_t offset, int flags) {
    if (flags != 0 && flags != RWF_DONTCACHE)
        abort();
    return pwritev64(fd, parts, number, offset);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int number, off_t offset, int flags) {
    return pwritev64v2(fd, parts, number, offset, flags);
}

int ftruncate64(int fd, off64_t length) {
    if (!is_ours(fd))
        return real_ftruncate(fd, length);
    if (asked("error")) {
        errno = EIO;
        return -1;
    }
    pthread_mutex_lock(&lock);
    count();
    note(CUT, number_of(fd), (uint64_t)length, NULL, 0);
    int result = real_ftruncate(fd, length);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    if (!is_ours(fd))
        return real_fallocate(fd, offset, length);
    if (asked("full"))
        return ENOSPC;
    return ftruncate64(fd, offset + length) == 0 ? 0 : errno;
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    return posix_fallocate64(fd, offset, length);
}

/* Names */

int unlinkat(int where, const char *path, int flags) {
    char whole[4096];
    setup();
    const char *name = files == NULL ? NULL : name_at(where, path, whole, sizeof whole);
    if (name == NULL)
        return real_unlinkat(where, path, flags);
    pthread_mutex_lock(&lock);
    if (access(whole, F_OK) == 0)
        count();
    int result = real_unlinkat(where, path, flags);
    if (result == 0)
        note_name(UNLINK, 0, name);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int renameat(int where, const char *path, int other, const char *new) {
    char whole[4096], target[4096], both[8192];
    setup();
    const char *name = files == NULL ? NULL : name_at(where, path, whole, sizeof whole);
    const char *now = files == NULL ? NULL : name_at(other, new, target, sizeof target);
    if (name == NULL || now == NULL)
        return real_renameat(where, path, other, new);
    pthread_mutex_lock(&lock);
    count();
    int result = real_renameat(where, path, other, new);
    snprintf(both, sizeof both, "%s/%s", name, now);
    if (result == 0)
        note_name(RENAME, 0, both);
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *path, const char *new) {
    return renameat(AT_FDCWD, path, AT_FDCWD, new);
}

/* Syncs */

static int synced(int fd) {
    const struct timespec tick = {0, 1000000}, second = {1, 0};
    int names = is_directory(fd);
    if (!names && !is_ours(fd))
        return 0;
    while (asked("hold"))
        nanosleep(&tick, NULL);
    if (asked("slow"))
        nanosleep(&second, NULL);
    pthread_mutex_lock(&lock);
    count();
    int fails = asked("lose");
    if (fails && !names)
        note(LOSE, number_of(fd), 0, NULL, 0);
    else if (!fails && !asked("lie"))
        note(names ? SYNC_NAMES : SYNC, names ? 0 : number_of(fd), 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = EIO;
    return fails ? -1 : 0;
}

int fsync(int fd) { return synced(fd); }

int fdatasync(int fd) { return synced(fd); }
