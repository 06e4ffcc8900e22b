/* libnvidia-ml of a driver that tells the utilisation of processes by their numbers on the
 * machine, as R560 does, whoever asks. All else is the fake's.
 *
 *   BEHIND    the fake library's file
 *   NUMBER    a file with the number of a process, which works at 40 %
 *
 * Another process of the machine works at 90 %: its number 1.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

struct sample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder;
};

/* What the fake has and this has not is looked for by nobody but the tests. */
#define FORWARD(name) \
  int name(long a, long b, long c, long d) { \
    void *behind = dlopen(BEHIND, RTLD_NOW | RTLD_LOCAL); \
    return ((int (*)(long, long, long, long))dlsym(behind, #name))(a, b, c, d); \
  }

FORWARD(nvmlInit_v2)
FORWARD(nvmlShutdown)
FORWARD(nvmlDeviceGetCount_v2)
FORWARD(nvmlDeviceGetHandleByIndex_v2)
FORWARD(nvmlDeviceGetHandleByUUID)
FORWARD(nvmlDeviceGetUUID)

int nvmlDeviceGetProcessUtilization(long device, struct sample *samples, unsigned *count,
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
