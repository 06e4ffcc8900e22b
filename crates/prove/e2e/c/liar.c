/* A job that lies about its turns.
 *
 *   liar PROGRAM ARGUMENT...    runs PROGRAM, and until it ends overwrites what every process of
 *                               the job says in its slot: that nothing of it runs, and that each
 *                               closing of the gate was answered at once
 *   liar --silent PROGRAM ...   the same, and no process says anything: not that it obeys its gate,
 *                               nor that a thread stands there
 *
 * Without --silent the job is given turns, as its threads are seen at the gate: it pays for none of
 * them, whatever it launches in them. Its status is PROGRAM's.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The layout of the pages (`sublet-abi`). */
enum { GATE_WORD = 40, SLOTS = 1344, SLOT_BYTES = 576, STATE = 8, ANSWER = 24, FLAGS = 28 };
enum { CLOSED = 3, AT_WORK = 2, ALL_FLAGS = 7 };

struct page {
  unsigned char *at;
  size_t bytes;
};

static struct page find(const char *name) {
  char line[512];
  struct page found = {0, 0};
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (strstr(line, name) && sscanf(line, "%lx-%lx", &from, &to) == 2)
      found = (struct page){(unsigned char *)from, to - from};
  }
  if (maps) fclose(maps);
  return found;
}

static uint32_t *word(unsigned char *at) { return (uint32_t *)at; }

static void lie(struct page control, struct page ledger, uint32_t cleared) {
  uint32_t gate = __atomic_load_n(word(control.at + GATE_WORD), __ATOMIC_ACQUIRE);
  for (size_t at = SLOTS; at + SLOT_BYTES <= ledger.bytes; at += SLOT_BYTES) {
    unsigned char *slot = ledger.at + at;
    if (__atomic_load_n(word(slot + STATE), __ATOMIC_ACQUIRE) != 1) {
      if (at > SLOTS) return; /* slots are handed out from the first; the arbiter has number 0 */
      continue;
    }
    __atomic_fetch_and(word(slot + FLAGS), ~cleared, __ATOMIC_ACQ_REL);
    if ((gate & 3) == CLOSED) __atomic_store_n(word(slot + ANSWER), gate >> 2, __ATOMIC_RELEASE);
  }
}

int main(int argc, char **argv) {
  int is_silent = argc > 1 && !strcmp(argv[1], "--silent");
  argv += is_silent;
  if (argc < 2 + is_silent) return 2;
  pid_t program = fork();
  if (program == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(argv[1], argv + 1);
    _exit(127);
  }
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (program < 0 || !driver) return 3;
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  if (init(0)) return 4;
  struct page control = find("sublet-control"), ledger = find("sublet-ledger");
  if (!control.at || !ledger.at) return 5;
  int status;
  while (waitpid(program, &status, WNOHANG) == 0) {
    lie(control, ledger, is_silent ? ALL_FLAGS : AT_WORK);
    usleep(50);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
