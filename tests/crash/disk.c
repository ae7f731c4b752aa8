/* A disk that can lose power, for LD_PRELOAD.
 *
 * Before a write to one of the files of the history, what it replaces and what it writes go to a
 * journal of that file; an fsync empties the journal. So what the journal holds when the process
 * is killed is what a disk could have lost (see power.py). Nothing waits for the real disk.
 *
 * The directory DISK_DIRECTORY has the journals, and files that ask for faults while they are
 * there: `full` (a file cannot grow), `hold` (an fsync waits until it is gone), `slow` (an fsync
 * takes a second), `lie` (an fsync returns and has done nothing).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const ENDINGS[] = {"", "-wal", "-end", "-sync1", "-sync2"};
enum { FILES = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journals[FILES] = {-1, -1, -1, -1, -1};

static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static int (*real_ftruncate)(int, off64_t);

struct record {
    uint64_t when, offset, size, old_length, new_length;
};

__attribute__((constructor)) static void setup(void) {
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
}

static int asked(const char *fault) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("DISK_DIRECTORY"), fault);
    return access(path, F_OK) == 0;
}

/* Which of the files is it? -1 for any other. */
static int number_of(int fd) {
    const char *history = getenv("DISK_FILE");
    char link[64], path[4096];
    if (history == NULL)
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return -1;
    path[length] = 0;
    size_t common = strlen(history);
    if (strncmp(path, history, common) != 0)
        return -1;
    for (int number = 0; number < FILES; number++)
        if (strcmp(path + common, ENDINGS[number]) == 0)
            return number;
    return -1;
}

static int journal(int number) {
    if (journals[number] < 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/journal%s", getenv("DISK_DIRECTORY"), ENDINGS[number]);
        journals[number] = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (journals[number] < 0)
            abort();
    }
    return journals[number];
}

/* Note that `length` bytes at `offset` are replaced; without `data`, that the file is cut there. */
static void note(int number, int fd, const void *data, size_t length, off64_t offset) {
    struct stat64 now;
    if (fstat64(fd, &now) != 0)
        abort();
    size_t there = now.st_size > offset ? (size_t)(now.st_size - offset) : 0;
    size_t old = data != NULL && there > length ? length : there;
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    struct record head = {
        (uint64_t)clock.tv_sec * 1000000000 + (uint64_t)clock.tv_nsec,
        (uint64_t)offset, (uint64_t)now.st_size, old, data ? length : UINT64_MAX,
    };
    size_t total = sizeof head + old + (data ? length : 0);
    char *whole = malloc(total);
    if (whole == NULL)
        abort();
    memcpy(whole, &head, sizeof head);
    if (old > 0 && pread64(fd, whole + sizeof head, old, offset) != (ssize_t)old)
        abort();
    if (data != NULL)
        memcpy(whole + sizeof head + old, data, length);
    if (write(journal(number), whole, total) != (ssize_t)total)
        abort();
    free(whole);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    int number = number_of(fd);
    if (number < 0)
        return real_pwrite(fd, data, length, offset);
    struct stat64 now;
    if (asked("full") && fstat64(fd, &now) == 0 && offset + (off64_t)length > now.st_size) {
        errno = ENOSPC;
        return -1;
    }
    pthread_mutex_lock(&lock);
    note(number, fd, data, length, offset);
    ssize_t written = real_pwrite(fd, data, length, offset);
    pthread_mutex_unlock(&lock);
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return pwrite64(fd, data, length, offset);
}

int ftruncate64(int fd, off64_t length) {
    int number = number_of(fd);
    if (number < 0)
        return real_ftruncate(fd, length);
    pthread_mutex_lock(&lock);
    note(number, fd, NULL, 0, length);
    int result = real_ftruncate(fd, length);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

static int synced(int fd) {
    int number = number_of(fd);
    const struct timespec tick = {0, 1000000}, second = {1, 0};
    if (number < 0)
        return 0;
    while (asked("hold"))
        nanosleep(&tick, NULL);
    if (asked("slow"))
        nanosleep(&second, NULL);
    if (!asked("lie")) {
        pthread_mutex_lock(&lock);
        if (real_ftruncate(journal(number), 0) != 0)
            abort();
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

int fsync(int fd) { return synced(fd); }

int fdatasync(int fd) { return synced(fd); }
