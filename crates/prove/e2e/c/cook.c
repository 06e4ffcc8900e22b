/* A program of a job that cooks the books: it finds the page on which its own processes count,
 * overwrites what is written there (with FILL, zero if it is not defined), and goes on taking
 * memory.
 *
 *   cook WHAT GIB    take so many GiB in blocks of 256 MiB, before each of which it
 *                    overwrites the page's `total`, or `all` but the page's stamp
 *   then it says `has BYTES` and waits for the end of its input
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FILL
#define FILL 0
#endif

/* Where the page has a word for each of sixteen cards. */
enum { HEADS = 64, HEAD_BYTES = 64, N_CARDS = 16 };

static unsigned char *page;
static size_t page_bytes;

static void find_page(void) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (strstr(line, "sublet-ledger") && sscanf(line, "%lx-%lx", &from, &to) == 2) {
      page = (unsigned char *)from;
      page_bytes = to - from;
    }
  }
  if (maps) fclose(maps);
}

static void cook(const char *what) {
  if (!page) find_page();
  if (!page) return;
  if (!strcmp(what, "total"))
    for (int card = 0; card < N_CARDS; card++) memset(page + HEADS + card * HEAD_BYTES, FILL, 8);
  else
    memset(page + HEADS, FILL, page_bytes - HEADS);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return 3;
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*enter)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
  int (*take)(unsigned long long *, size_t) =
      (int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2");
  void *context;
  if (init(0) || retain(&context, 0) || enter(context)) return 4;
  unsigned long long address, has = 0, wanted = strtoull(argv[2], 0, 10) << 30;
  while (has < wanted) {
    cook(argv[1]);
    if (take(&address, 256 << 20)) break;
    has += 256 << 20;
  }
  cook(argv[1]);
  printf("has %llu\n", has);
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return 0;
}
