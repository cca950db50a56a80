/* The clock of one process, ahead of the machine's or behind it; its monotonic clock stays. Loaded by LD_PRELOAD.
 *
 * libfaketime allocates memory while it looks at the time, and jemalloc, which Redis uses, looks at the time while it
 * allocates: Redis does not start with it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Microseconds, in the file that REPOT_CLOCK names. */
static volatile long long *ahead_us;

__attribute__((constructor)) static void look_at_the_file(void) {
  const char *name = getenv("REPOT_CLOCK");
  int file = name ? open(name, O_RDONLY) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof *ahead_us, PROT_READ, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (found != MAP_FAILED) ahead_us = found;
}

static long long now_us(void) {
  struct timespec at;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &at);
  return at.tv_sec * 1000000LL + at.tv_nsec / 1000 + (ahead_us ? *ahead_us : 0);
}

int clock_gettime(clockid_t which, struct timespec *at) {
  if (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, which, at);
  long long us = now_us();
  at->tv_sec = us / 1000000;
  at->tv_nsec = us % 1000000 * 1000;
  return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  (void)zone;
  long long us = now_us();
  at->tv_sec = us / 1000000;
  at->tv_usec = us % 1000000;
  return 0;
}

time_t time(time_t *at) {
  time_t seconds = now_us() / 1000000;
  if (at) *at = seconds;
  return seconds;
}
