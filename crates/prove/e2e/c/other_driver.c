/* A driver of another year: what the fake one has, in another shape. With `-DCUDA` libcuda, else
 * libnvidia-ml.
 *
 *   BEHIND      the fake driver's file
 *   FUNCTIONS   a file with FORWARD(name) for each function that is the fake's own here; those
 *               that are neither there nor below, this driver has not
 *   VERSION     what it says it is, 14000 for CUDA 14.0
 *   NUMBER      a file with the number of a process
 *
 * Like NVIDIA's it calls functions of its own by their exported names, and so gets those that
 * somebody has put in front of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define FORWARD(name)                                                                      \
  __attribute__((visibility("hidden"))) void *to_##name;                                   \
  __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n\tjmp *to_" #name \
          "(%rip)\n");
#include FUNCTIONS
#undef FORWARD

static void *behind;

__attribute__((constructor)) static void open_the_fake(void) {
  behind = dlopen(BEHIND, RTLD_NOW | RTLD_LOCAL);
#define FORWARD(name) to_##name = dlsym(behind, #name);
#include FUNCTIONS
#undef FORWARD
}

/* A function of the fake driver, of any type. */
#define FAKE(name) ((int (*)())dlsym(behind, name))

#ifdef CUDA

enum { NEWEST_OF_OUR_TABLE = 13050, VERSION_OF_THE_FAKE = 13000, NOT_FOUND = 500 };

int cuDriverGetVersion(int *version) {
  if (!version) return 1;
  *version = VERSION;
  return 0;
}

#ifdef LOOK_UP

/* What nobody has heard of yet. */
static int from_the_future(void) { return 0; }

static const char *const NAMES[] = {"cuMemAllocTiered", "cuLaunchKernelSoon",
                                    "cuGraphLaunchTwice", "cuArrayFold", "cuTensorDream"};

int cuInit(unsigned flags);
int cuGetProcAddress(const char *, void **, int, unsigned long);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long, int *);

/* What this driver does not take from the fake. */
static void *own(const char *name, int version) {
  if (!strcmp(name, "cuInit")) return (void *)cuInit;
  if (!strcmp(name, "cuDriverGetVersion")) return (void *)cuDriverGetVersion;
  if (strcmp(name, "cuGetProcAddress")) return NULL;
  return version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
}

static void *newer(const char *name, int version) {
  for (size_t i = 0; version > NEWEST_OF_OUR_TABLE && i < sizeof NAMES / sizeof *NAMES; i++)
    if (!strcmp(name, NAMES[i])) return (void *)from_the_future;
  /* An old name with a new meaning. */
  int is_new = version > NEWEST_OF_OUR_TABLE && !strcmp(name, "cuMemAlloc");
  return is_new ? (void *)from_the_future : own(name, version);
}

static int at_most(int version) {
  return version > VERSION_OF_THE_FAKE ? VERSION_OF_THE_FAKE : version;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags,
                        int *status) {
  void *new = name && found ? newer(name, version) : NULL;
  if (!new) return FAKE("cuGetProcAddress_v2")(name, found, at_most(version), flags, status);
  *found = new;
  if (status) *status = 0;
  return 0;
}

int cuGetProcAddress(const char *name, void **found, int version, unsigned long flags) {
  void *new = name && found ? newer(name, version) : NULL;
  if (!new) return FAKE("cuGetProcAddress")(name, found, at_most(version), flags);
  *found = new;
  return 0;
}

#endif

int cuDeviceGetCount(int *count);

int cuInit(unsigned flags) {
  int version, count, code = cuDriverGetVersion(&version);
#ifdef LOOK_UP
  void *found;
  if (!code) code = cuGetProcAddress_v2("cuMemAlloc", &found, VERSION, 0, NULL);
  if (code == NOT_FOUND) code = 0; /* what somebody keeps from programs is not needed here */
#endif
  if (!code) code = FAKE("cuInit")(flags);
  return code ? code : cuDeviceGetCount(&count);
}

#else

int nvmlDeviceGetCount_v2(unsigned *count);

int nvmlInitWithFlags(unsigned flags) {
  unsigned count;
  int code = FAKE("nvmlInitWithFlags")(flags);
  return code ? code : nvmlDeviceGetCount_v2(&count);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

#ifdef NUMBER

struct sample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder;
};

/* Processes by their numbers on the machine, as R560 tells them, whoever asks: the one in the file
 * works at 40 %, number 1 at 90 %. */
int nvmlDeviceGetProcessUtilization(void *device, struct sample *samples, unsigned *count,
                                    unsigned long long since) {
  unsigned number = 0, room = *count;
  FILE *file = fopen(NUMBER, "r");
  (void)device;
  if (!file || fscanf(file, "%u", &number) != 1) return 999;
  fclose(file);
  *count = 2;
  if (!samples || room < 2) return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
  samples[0] = (struct sample){.pid = 1, .time_us = since + 1, .sm = 90};
  samples[1] = (struct sample){.pid = number, .time_us = since + 1, .sm = 40};
  return 0;
}

#endif

#endif
