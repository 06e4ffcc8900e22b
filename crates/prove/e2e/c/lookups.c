/* A program that finds functions in the ways in which programs have failed when somebody stood
 * between them and the loader. One line for each thing it saw.
 *
 *   lookups next COUNT                asks for its parent through the preloaded neighbours
 *   lookups handle DRIVER             functions by handle: a driver's own, and those of its name
 *   lookups names LIBRARY OTHER       `cudnnCreate` of one library, which asks for another's
 *   lookups threads COUNT LIBRARY     threads that load, look up, start the driver and unload
 *   lookups constructor LIBRARY       waits for `init` and `load` on standard input: a thread
 *                                     starts the driver, this one loads a library that does
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int (*function)(unsigned);

static void tell(const char *what, int how) {
  printf("%s %d\n", what, how);
  fflush(stdout);
}

static const char *file_of(void *address) {
  Dl_info about;
  return address && dladdr(address, &about) && about.dli_fname ? about.dli_fname : "nowhere";
}

static void next(int count) {
  int wrong = 0, *passed;
  long parent = syscall(SYS_getppid);
  for (int i = 0; i < count; i++) wrong += getppid() != parent;
  tell("wrong", wrong);
  const char *counters[] = {"passed_by_a", "passed_by_b"};
  for (int i = 0; i < 2; i++)
    tell(counters[i], (passed = dlsym(RTLD_DEFAULT, counters[i])) ? *passed : -1);
  function tool = (function)dlsym(RTLD_DEFAULT, "ompt_start_tool");
  tell("tools", tool ? tool(1) : -1);
}

static void handle(const char *file) {
  void *driver = dlopen(file, RTLD_NOW | RTLD_LOCAL), *ours = dlopen("libcuda.so.1", RTLD_NOW);
  int own = 0, stable = 0;
  for (int i = 0; i < 100; i++) {
    own += driver && !strcmp(file_of(dlsym(driver, "cuInit")), file);
    void *first = ours ? dlsym(ours, "cuInit") : NULL;
    stable += first && first == dlsym(ours, "cuInit") && first == dlsym(RTLD_DEFAULT, "cuInit");
  }
  tell("own", own);
  tell("stable", stable);
  printf("named %s\n", file_of(ours ? dlsym(ours, "cuInit") : NULL));
  tell("absent", ours && !dlsym(ours, "cuNothing") && !dlsym(RTLD_DEFAULT, "cudnnCreate"));
}

static void names(const char *file, const char *other) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  int (*create)(const char *) = NULL;
  if (library) *(void **)&create = dlsym(library, "cudnnCreate");
  tell("created", create ? create(other) : -1);
}

static const char *constructor_library;

static void *load_and_start(void *number) {
  long failures = 0;
  for (int round = 0; round < 20; round++) {
    int in_constructor = ((long)number + round) % 3 == 0;
    void *library = dlopen(in_constructor ? constructor_library : "libcuda.so.1", RTLD_NOW);
    if (!library) {
      failures++;
      continue;
    }
    int *started = in_constructor ? dlsym(library, "started") : NULL;
    function init = in_constructor ? NULL : (function)dlsym(library, "cuInit");
    failures += in_constructor ? !started || *started : !init || init(0);
    failures += !dlsym(RTLD_DEFAULT, "malloc");
    dlclose(library);
  }
  return (void *)failures;
}

static void threads(int count) {
  pthread_t all[64];
  long failures = 0;
  void *of_one;
  for (long i = 0; i < count && i < 64; i++)
    pthread_create(&all[i], NULL, load_and_start, (void *)i);
  for (int i = 0; i < count && i < 64; i++) {
    pthread_join(all[i], &of_one);
    failures += (long)of_one;
  }
  tell("failures", (int)failures);
}

static void wait_for(const char *word) {
  char line[64];
  if (!fgets(line, sizeof line, stdin) || strncmp(line, word, strlen(word))) exit(3);
}

static void *start(void *driver) {
  function init = (function)dlsym(driver, "cuInit");
  tell("initialised", init ? init(0) : -1);
  return NULL;
}

static void constructor(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  pthread_t thread;
  tell("ready", driver ? 0 : -1);
  wait_for("init");
  pthread_create(&thread, NULL, start, driver);
  wait_for("load");
  void *library = dlopen(constructor_library, RTLD_NOW);
  int *started = library ? dlsym(library, "started") : NULL;
  tell("loaded", started ? *started : -1);
  pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
  const char *verb = argc > 2 ? argv[1] : "";
  if (argc > 2) constructor_library = argv[argc - 1];
  if (!strcmp(verb, "next")) next(atoi(argv[2]));
  else if (!strcmp(verb, "handle")) handle(argv[2]);
  else if (!strcmp(verb, "names") && argc == 4) names(argv[2], argv[3]);
  else if (!strcmp(verb, "threads") && argc == 4) threads(atoi(argv[2]));
  else if (!strcmp(verb, "constructor")) constructor();
  else return 2;
  return 0;
}
