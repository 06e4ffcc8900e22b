/* A program that was compiled with nvcc, as far as memory goes: it has its own libcudart, from the
 * package that people install, and takes memory until there is no more. One JSON line.
 *
 * Linked with a static libcudart it is compiled with -DLINKED; else it opens the file it is given. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

#ifdef LINKED
extern int cudaMalloc(void **, size_t);
extern int cudaMemGetInfo(size_t *, size_t *);
#else
static int (*cudaMalloc)(void **, size_t);
static int (*cudaMemGetInfo)(size_t *, size_t *);
#endif

int main(int argc, char **argv) {
#ifdef LINKED
  (void)argc, (void)argv;
#else
  if (argc != 2) return 2;
  void *libcudart = dlopen(argv[1], RTLD_NOW);
  if (!libcudart) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  *(void **)&cudaMalloc = dlsym(libcudart, "cudaMalloc");
  *(void **)&cudaMemGetInfo = dlsym(libcudart, "cudaMemGetInfo");
#endif
  size_t free_bytes = 0, total = 0, bytes = 0, size = 2 << 20;
  int info = cudaMemGetInfo(&free_bytes, &total), result = info;
  void *pointer;
  while (info == 0 && (result = cudaMalloc(&pointer, size)) == 0) bytes += size;
  printf("{\"info\": %d, \"total\": %zu, \"free\": %zu, \"bytes\": %zu, \"result\": %d}\n", info,
         total, free_bytes, bytes, result);
  return 0;
}
