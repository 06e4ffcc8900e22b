/* A program that loads libraries and finds functions in several threads, in the ways in which
 * programs have failed when somebody stood between them and the loader. One line for each thing
 * it saw.
 *
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

typedef int (*function)(unsigned);

static void tell(const char *what, int how) {
  printf("%s %d\n", what, how);
  fflush(stdout);
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
  if (!strcmp(verb, "threads") && argc == 4) threads(atoi(argv[2]));
  else if (!strcmp(verb, "constructor")) constructor();
  else return 2;
  return 0;
}
