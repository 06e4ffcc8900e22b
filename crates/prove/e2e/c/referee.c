/* What a library of the driver says when it is asked: NVIDIA's own, or ours in front of it. One
 * line for each thing, so that two libraries can be compared line by line.
 *
 *   referee LIBRARY NAMES symbols             which of the names `dlsym` finds
 *   referee LIBRARY NAMES look-ups VERSION... each name by cuGetProcAddress, old and new, for each
 *                                             version and flag: a line where the answer changes
 *   referee LIBRARY NAMES calls [INIT]        each function called three times, by a process of
 *                                             its own: with nulls, and with a place of zeros and
 *                                             of ones for all arguments. After INIT not of ones:
 *                                             they are no handles, and some functions look
 *   referee LIBRARY NAMES texts               the texts of all error codes
 *   referee LIBRARY NAMES again TIMES         loaded, the first name called if there is one, and
 *                                             unloaded: what the process has early and at last
 *
 * NAMES is a file with a name a line. A called function gets sixteen equal words, which is enough
 * for any: what follows in registers and on the stack it does not read.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
typedef u64 (*function)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
                        u64);
typedef int (*look_up)(const char *, void **, int, u64);
typedef int (*look_up_v2)(const char *, void **, int, u64, int *);

enum { MOST_NAMES = 4096, PLACE = 1 << 16, CODES = 1100 };

static char names[MOST_NAMES][128];
static int n_names;
static void *library;

static void read_names(const char *file) {
  FILE *in = fopen(file, "r");
  if (!in) exit(2);
  while (n_names < MOST_NAMES && fgets(names[n_names], sizeof *names, in)) {
    names[n_names][strcspn(names[n_names], "\n")] = 0;
    n_names++;
  }
  fclose(in);
}

static function symbol(const char *name) { return (function)dlsym(library, name); }

static u64 call(function f, u64 x) { return f(x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x); }

static u64 call_two(function f, u64 x, const void *y) {
  return f(x, (u64)y, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

/* The symbol of an address, whichever library has it. */
static const char *symbol_at(void *address) {
  Dl_info at;
  if (!address) return "null";
  if (address == (void *)names) return "untouched";
  return dladdr(address, &at) && at.dli_saddr == address ? at.dli_sname : "unnamed";
}

static void look_ups(int n_versions, char **versions) {
  look_up old = (look_up)dlsym(library, "cuGetProcAddress");
  look_up_v2 new = (look_up_v2)dlsym(library, "cuGetProcAddress_v2");
  char last[1024], now[1024];
  if (!old || !new) exit(3);
  for (int n = 0; n < n_names; n++)
    for (u64 flags = 0; flags < 5; flags++) {
      *last = 0;
      for (int v = 0; v < n_versions; v++) {
        void *a = names, *b = names, *c = names;
        int status = -1, version = (int)strtol(versions[v], NULL, 0);
        int code = old(names[n], &a, version, flags);
        int code_v2 = new(names[n], &b, version, flags, &status);
        int without_status = new(names[n], &c, version, flags, NULL);
        int length = snprintf(now, sizeof now, "%d %s, %d %d %s, ", code, symbol_at(a), code_v2,
                              status, symbol_at(b));
        snprintf(now + length, sizeof now - length, "%d %s", without_status, symbol_at(c));
        if (strcmp(now, last)) printf("%s %d %d: %s\n", names[n], (int)flags, version, now);
        strcpy(last, now);
      }
    }
}

/* What was written at the place: where, and what. Addresses differ from process to process. */
static u64 written(const u64 *place, u64 before) {
  u64 digest = 0;
  for (u64 i = 0; i < PLACE / sizeof *place; i++) {
    if (place[i] == before) continue;
    digest = digest * 1099511628211u + i + 1;
    digest = digest * 1099511628211u + (place[i] >> 32 ? 0 : place[i] + 1);
  }
  return digest;
}

static void call_one(const char *name, int how) {
  const struct rlimit none = {0, 0};
  u64 before = how == 2 ? 0x0101010101010101 : 0;
  u64 *place = mmap((void *)0x10000000, PLACE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  function f = symbol(name);
  setrlimit(RLIMIT_CORE, &none);
  alarm(10);
  if (!freopen("/dev/null", "w", stderr) || place == MAP_FAILED) exit(4);
  if (!f) {
    printf("%s %d: absent\n", name, how);
    return;
  }
  for (int i = 0; i < PLACE / (int)sizeof *place; i++) place[i] = before;
  u64 answer = call(f, how ? (u64)(place + PLACE / 16) : 0);
  if (!strcmp(name, "nvmlErrorString")) printf("%s %d: %s\n", name, how, (char *)answer);
  else printf("%s %d: %d %llx\n", name, how, (int)answer, (unsigned long long)written(place, before));
}

static void calls(const char *init) {
  if (init) printf("init: %d\n", (int)call(symbol(init), 0));
  for (int n = 0; n < n_names; n++)
    for (int how = 0; how < (init ? 2 : 3); how++) {
      int status;
      fflush(stdout);
      pid_t child = fork();
      if (!child) {
        call_one(names[n], how);
        fflush(stdout);
        _exit(0);
      }
      waitpid(child, &status, 0);
      if (WIFSIGNALED(status)) printf("%s %d: signal %d\n", names[n], how, WTERMSIG(status));
      else if (WEXITSTATUS(status)) printf("%s %d: exit %d\n", names[n], how, WEXITSTATUS(status));
    }
}

static void texts(void) {
  static const char *const of_cuda[] = {"cuGetErrorString", "cuGetErrorName"};
  function of_nvml = symbol("nvmlErrorString");
  for (u64 code = 0; code < CODES; code++) {
    if (of_nvml) printf("%d: %s\n", (int)code, (char *)call(of_nvml, code));
    for (int i = 0; !of_nvml && i < 2; i++) {
      const char *text = "untouched";
      int answer = (int)call_two(symbol(of_cuda[i]), code, &text);
      printf("%d %s: %d %s\n", (int)code, of_cuda[i], answer, text ? text : "null");
    }
  }
}

/* Mappings, descriptors and threads of this process. */
static void count(int *mappings, int *descriptors, int *threads) {
  FILE *maps = fopen("/proc/self/maps", "r");
  *mappings = *descriptors = *threads = 0;
  for (int c; maps && (c = getc(maps)) != EOF;) *mappings += c == '\n';
  if (maps) fclose(maps);
  DIR *all = opendir("/proc/self/fd");
  while (all && readdir(all)) ++*descriptors;
  if (all) closedir(all);
  all = opendir("/proc/self/task");
  while (all && readdir(all)) ++*threads;
  if (all) closedir(all);
}

static void again(const char *file, int times) {
  static u64 place[PLACE / 8];
  int first[3], last[3];
  for (int i = 0; i < times; i++) {
    library = dlopen(file, RTLD_NOW);
    function f = library && n_names ? symbol(names[0]) : NULL;
    if (!library || (n_names && !f)) exit(5);
    if (f) call(f, (u64)place);
    dlclose(library);
    if (i == 1) count(&first[0], &first[1], &first[2]);
  }
  count(&last[0], &last[1], &last[2]);
  printf("mappings: %d %d\ndescriptors: %d %d\nthreads: %d %d\n", first[0], last[0], first[1], last[1],
         first[2], last[2]);
}

int main(int argc, char **argv) {
  const char *verb = argc > 3 ? argv[3] : "";
  if (argc > 3) read_names(argv[2]);
  if (!strcmp(verb, "again") && argc == 5) {
    again(argv[1], atoi(argv[4]));
    return 0;
  }
  library = argc > 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!library) {
    fprintf(stderr, "referee: %s\n", argc > 3 ? dlerror() : "LIBRARY NAMES VERB");
    return 2;
  }
  if (!strcmp(verb, "symbols"))
    for (int n = 0; n < n_names; n++) printf("%s: %s\n", names[n], symbol(names[n]) ? "found" : "absent");
  else if (!strcmp(verb, "look-ups")) look_ups(argc - 4, argv + 4);
  else if (!strcmp(verb, "calls")) calls(argc > 4 ? argv[4] : NULL);
  else if (!strcmp(verb, "texts")) texts();
  else return 2;
  return 0;
}
