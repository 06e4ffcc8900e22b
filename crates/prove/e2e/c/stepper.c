/* Kills a process at an instruction of its choice, while it takes memory and gives it back
 * through the whole interposer; then sees whether a neighbour gets all of the limit.
 *
 *   stepper LIMIT          bytes of the job that it runs in
 *
 * Each line on standard input is `count HOW` or `kill HOW N`, where HOW is `cold` (the first such
 * calls of the process) or `warm` (later ones). The answer is the number of instructions there
 * are, or how the victim ended and the microseconds until the neighbour had the limit; `not
 * allowed` where the system lets nobody lead another process, and `astray WHERE WHAT` for a victim
 * that did something else than that.
 *
 * This process itself uses no driver: victims and neighbour are its children.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOT_ALLOWED = 77, ASTRAY = 78, OUT_OF_MEMORY = 2, PATIENCE_US = 10 * 1000 * 1000 };

/* Where something went wrong, and with which code or status. */
static const char *where = "";
static int what;

static long astray(const char *place, int code) {
  where = place;
  what = code;
  return -ASTRAY;
}


static struct {
  int (*init)(unsigned);
  int (*retain)(uint64_t *, int);
  int (*set_current)(uint64_t);
  int (*alloc)(uint64_t *, size_t);
  int (*free)(uint64_t);
} cuda;

/* The driver, ready to give memory. */
static void begin(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  uint64_t context;
  int code;
  if (!driver) _exit(ASTRAY);
  *(void **)&cuda.init = dlsym(driver, "cuInit");
  *(void **)&cuda.retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&cuda.set_current = dlsym(driver, "cuCtxSetCurrent");
  *(void **)&cuda.alloc = dlsym(driver, "cuMemAlloc_v2");
  *(void **)&cuda.free = dlsym(driver, "cuMemFree_v2");
  if ((code = cuda.init(0)) || (code = cuda.retain(&context, 0)) ||
      (code = cuda.set_current(context))) {
    fprintf(stderr, "stepper: no context: %d\n", code);
    _exit(ASTRAY);
  }
}

static void take_and_give(size_t size) {
  uint64_t address;
  int code = cuda.alloc(&address, size);
  if (!code) code = cuda.free(address);
  if (code) {
    fprintf(stderr, "stepper: no memory: %d\n", code);
    _exit(ASTRAY);
  }
}

/* A trap before the calls, and another kind of trap after them. */
static void be_led(int is_warm, size_t size) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  begin();
  if (is_warm) take_and_give(size);
  if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(NOT_ALLOWED);
  __asm__ volatile("int3" ::: "memory");
  take_and_give(size);
  __asm__ volatile("ud2");
}

static int is_stopped_by(int status, int sig) {
  return WIFSTOPPED(status) && WSTOPSIG(status) == sig;
}

/* Leads a victim for at most so many instructions, and kills it; how many it made, or an error
 * below zero. */
static long lead(int is_warm, size_t size, long most, int *has_ended) {
  int status;
  long steps = 0;
  pid_t victim = fork();
  if (victim == 0) be_led(is_warm, size);
  if (victim < 0 || waitpid(victim, &status, 0) != victim) return astray("fork", 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_ALLOWED) return -NOT_ALLOWED;
  if (!is_stopped_by(status, SIGTRAP)) return astray("start", status);
  while (steps < most && !(*has_ended = is_stopped_by(status, SIGILL))) {
    if (ptrace(PTRACE_SINGLESTEP, victim, NULL, NULL)) return astray("step", (int)steps);
    if (waitpid(victim, &status, 0) != victim) return astray("wait", (int)steps);
    if (!is_stopped_by(status, SIGTRAP) && !is_stopped_by(status, SIGILL))
      return astray("stop", status);
    steps += is_stopped_by(status, SIGTRAP);
  }
  kill(victim, SIGKILL);
  int has_died = waitpid(victim, &status, 0) == victim && WIFSIGNALED(status);
  return has_died ? steps : astray("death", status);
}

static long now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Takes the whole limit, for which the victim's part must be back, and not a byte more. Says how
 * long that took, or an error below zero. */
static long regain(size_t limit) {
  uint64_t all, more;
  long start = now_us(), time = 0;
  int code;
  while ((code = cuda.alloc(&all, limit)) == OUT_OF_MEMORY && time < PATIENCE_US)
    time = now_us() - start;
  if (code) return -code;
  if (cuda.alloc(&more, 512) != OUT_OF_MEMORY) return -ASTRAY;
  return cuda.free(all) ? -ASTRAY : time;
}

static void be_neighbour(size_t limit, int asked, int told) {
  char word;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  begin();
  while (read(asked, &word, 1) == 1) {
    long time = regain(limit);
    if (write(told, &time, sizeof time) != sizeof time) break;
  }
  _exit(0);
}

static int to_neighbour[2], from_neighbour[2];

static long ask_neighbour(void) {
  long time = -ASTRAY;
  if (write(to_neighbour[1], "?", 1) != 1) return -ASTRAY;
  return read(from_neighbour[0], &time, sizeof time) == sizeof time ? time : -ASTRAY;
}

/* Whoever is led and who leads run in turn: on one processor that is several times as fast. */
static void stay_on_one_processor(void) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
}

int main(int argc, char **argv) {
  char verb[8], how[8];
  long at = 0;
  size_t limit = argc == 2 ? strtoull(argv[1], NULL, 0) : 0;
  if (!limit || pipe(to_neighbour) || pipe(from_neighbour)) return 2;
  pid_t neighbour = fork();
  if (neighbour == 0) be_neighbour(limit, to_neighbour[0], from_neighbour[1]);
  close(from_neighbour[1]);
  stay_on_one_processor();
  for (char line[64]; fgets(line, sizeof line, stdin); fflush(stdout)) {
    int has_ended = 0, n = sscanf(line, "%7s %7s %ld", verb, how, &at);
    int is_count = n == 2 && !strcmp(verb, "count");
    if (!is_count && n != 3) return 2;
    long steps = lead(!strcmp(how, "warm"), limit / 2, is_count ? 100000000 : at, &has_ended);
    if (steps == -NOT_ALLOWED) printf("not allowed\n");
    else if (steps < 0) printf("astray %s %#x\n", where, what);
    else if (is_count) printf("%ld %ld\n", steps, ask_neighbour());
    else printf("%s %ld\n", has_ended ? "ended" : "killed", ask_neighbour());
  }
  kill(neighbour, SIGKILL);
  return 0;
}
