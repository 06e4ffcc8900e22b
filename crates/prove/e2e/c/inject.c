/* A library that the driver loads in cuInit, because CUDA_INJECTION64_PATH names it. It takes all
 * the memory that it gets and keeps it: in the thread that is in cuInit and in one of its own, by
 * the function that a program finds by name and by the one that the driver gives out. One line:
 *
 *   injected MIB MiB, refused with CODE
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

typedef int (*alloc)(unsigned long long *, size_t);

enum { BLOCK = 2 << 20, BLOCKS_MAX = 1024 };

static alloc named, given;
static void *context;
static int (*set_current)(void *);
static int blocks, code;

static void take(alloc function) {
  unsigned long long address;
  for (int i = 0; i < BLOCKS_MAX; i++) {
    code = function(&address, BLOCK);
    if (code) return;
    blocks++;
  }
}

static void *elsewhere(void *nothing) {
  if ((code = set_current(context))) return nothing;
  take(named);
  take(given);
  return nothing;
}

static int begin(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return -1;
  int (*again)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*look_up)(const char *, void **, int, unsigned long, int *) =
      (int (*)(const char *, void **, int, unsigned long, int *))dlsym(driver, "cuGetProcAddress_v2");
  set_current = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
  named = (alloc)dlsym(driver, "cuMemAlloc_v2");
  int found;
  if ((code = again(0))) return code;
  if ((code = look_up("cuMemAlloc", (void **)&given, 13000, 0, &found))) return code;
  if ((code = retain(&context, 0))) return code;
  return set_current(context);
}

int InitializeInjection(void) {
  pthread_t thread;
  code = begin();
  if (!code) {
    take(given);
    take(named);
    if (!pthread_create(&thread, NULL, elsewhere, NULL)) pthread_join(thread, NULL);
  }
  fprintf(stderr, "injected %d MiB, refused with %d\n", blocks * 2, code);
  return 1;
}
