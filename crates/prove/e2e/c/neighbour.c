/* A library that somebody else preloads or loads, beside ours. Which one, a macro says:
 *
 *   WITH_DLSYM         has a `dlsym` of its own, as profilers and other interposers do; what it
 *                      finds for others it finds in its own name
 *   WITH_NEXT=name     stands before functions, and asks the loader for the next at each call
 *   WITH_CONSTRUCTOR   starts the driver while it is loaded
 *   WITH_NAME=value    exports `cudnnCreate`, which calls that of the library that it is told of
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

typedef int (*function)(unsigned);

#ifdef WITH_DLSYM
int looked_up;

void *dlsym(void *handle, const char *name) {
  static void *(*next)(void *, const char *);
  if (!next) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (!next) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void *found = next(handle, name);
  __atomic_add_fetch(&looked_up, 1, __ATOMIC_RELAXED); /* so that it is no tail call */
  return found;
}
#endif

#ifdef WITH_NEXT
#define JOINED(a, b) a##b
#define COUNTER(name) JOINED(passed_by_, name)
int COUNTER(WITH_NEXT);

pid_t getppid(void) {
  pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "getppid");
  if (!next || next == getppid) return -1;
  COUNTER(WITH_NEXT)++;
  return next();
}

/* As OpenMP libraries do it: the next one if there is one, and there is one less each time. */
int ompt_start_tool(unsigned depth) {
  function next = (function)dlsym(RTLD_NEXT, "ompt_start_tool");
  if (next == ompt_start_tool) return -1;
  return next ? next(depth + 1) : (int)depth;
}
#endif

#ifdef WITH_CONSTRUCTOR
int started = -1;

__attribute__((constructor)) static void start(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  function init = driver ? (function)dlsym(driver, "cuInit") : NULL;
  started = init ? init(0) : -2;
}
#endif

#ifdef WITH_NAME
int cudnnCreate(const char *other) {
  if (!other) return WITH_NAME;
  void *library = dlopen(other, RTLD_NOW | RTLD_LOCAL);
  int (*its)(const char *) = library ? (int (*)(const char *))dlsym(library, "cudnnCreate") : NULL;
  if (!its || its == cudnnCreate) return -1;
  return 10 * its(NULL) + WITH_NAME;
}
#endif
