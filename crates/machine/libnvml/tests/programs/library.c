/* A management library that answers as a test says.
 *
 * A machine with three cards of 16 GiB, on which the processes run whose numbers are in
 * LIBRARY_PIDS, each with 1 GiB. The fake driver's library shows the processes that live on its
 * machine; tests of the view also need those of other namespaces, and some that never were.
 * Functions that change something end the program: the interposer must not let them through.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The structs of nvml.h, under short names. `none` is set, so that tests can compare whole structs. */
typedef uint64_t u64;
typedef uint32_t u32;
typedef struct { u32 pid, none; u64 bytes; } info1;
typedef struct { u32 pid, none; u64 bytes; u32 gpu, compute; } info2;
typedef struct { u32 pid, none; u64 bytes; u32 gpu, compute; u64 secret; } detail;
typedef struct { u32 version, mode, count; detail *list; } details;
typedef struct { u32 pid, none; u64 time; u32 sm, memory, encoder, decoder; } sample;
typedef struct { u64 time; u32 pid, sm, memory, encoder, decoder, jpg, ofa; } sample1;
typedef struct { u32 version, count; u64 since; sample1 *list; } samples;
typedef struct { u32 words[8]; } session8;
typedef struct { u32 words[12]; } session12;
typedef struct { u32 id, scope; u64 time, latency; u32 type, result; u64 value; } field;

typedef struct card { u32 index; } card;

enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, FORBIDDEN, ALREADY, NOT_FOUND, TOO_SMALL };
enum { CARDS = 3 };
static card cards[CARDS] = {{0}, {1}, {2}};
static int started;

static int pids(u32 *list) {
    int n = 0;
    const char *text = getenv("LIBRARY_PIDS");
    while (text && *text && n < 200) {
        list[n++] = (u32)strtoul(text, (char **)&text, 10);
        if (*text == ',') text++;
    }
    return n;
}
#define CHECK(card) do { if (!started) return UNINITIALIZED; \
    if ((card) < cards || (card) >= cards + CARDS) return INVALID; } while (0)
/* Fills `*count` places of `list`, one for each process. */
#define LIST(count, list, fill) do { \
    u32 all[200]; u32 n = (u32)pids(all); u32 room = *(count); *(count) = n; \
    if (room < n) return TOO_SMALL; \
    for (u32 i = 0; i < n; i++) { u32 pid = all[i]; fill; } \
    return OK; } while (0)

int nvmlInit_v2(void) { started = 1; return OK; }
int nvmlInitWithFlags(u32 flags) { started = 1; return flags == 7 ? OK : INVALID; }
const char *nvmlErrorString(int error) {
    static char text[32];
    snprintf(text, sizeof text, "error %d", error);
    return text;
}
int nvmlDeviceGetCount(u32 *count) { if (!started) return UNINITIALIZED; *count = CARDS; return OK; }
int nvmlDeviceGetCount_v2(u32 *count) { return nvmlDeviceGetCount(count); }
int nvmlDeviceGetHandleByIndex_v2(u32 index, card **found) {
    if (!started) return UNINITIALIZED;
    if (index >= CARDS) return INVALID;
    *found = &cards[index];
    return OK;
}
int nvmlDeviceGetHandleByIndex(u32 index, card **found) { return nvmlDeviceGetHandleByIndex_v2(index, found); }
int nvmlDeviceGetUUID(card *card, char *text, u32 length) {
    CHECK(card);
    int n = snprintf(text, length, "GPU-0000000%u-0000-0000-0000-0000000000c%u", card->index, card->index);
    return (u32)n < length ? OK : TOO_SMALL;
}
static int by(const char *key, const char *format, card **found) {
    if (!started) return UNINITIALIZED;
    for (u32 i = 0; i < CARDS; i++) {
        char text[96];
        snprintf(text, sizeof text, format, i, i);
        if (!strcmp(key, text)) { *found = &cards[i]; return OK; }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *key, card **found) {
    return by(key, "GPU-0000000%u-0000-0000-0000-0000000000c%u", found);
}
int nvmlDeviceGetHandleByUUIDV(const char *key, card **found) {
    return nvmlDeviceGetHandleByUUID(key + 8, found);
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *key, card **found) { return by(key, "0000:0%u:00.0", found); }
int nvmlDeviceGetHandleByPciBusId(const char *key, card **found) { return by(key, "0000:0%u:00.0", found); }
int nvmlDeviceGetHandleBySerial(const char *key, card **found) { return by(key, "S%u", found); }
int nvmlDeviceGetIndex(card *card, u32 *index) { CHECK(card); *index = card->index; return OK; }
int nvmlDeviceGetMinorNumber(card *card, u32 *minor) { CHECK(card); *minor = 10 + card->index; return OK; }
int nvmlDeviceGetName(card *card, char *name, u32 length) {
    CHECK(card);
    snprintf(name, length, "Card %u", card->index);
    return OK;
}
int nvmlDeviceGetMemoryInfo(card *card, u64 *memory) {
    CHECK(card);
    memory[0] = 16ull << 30; memory[1] = 15ull << 30; memory[2] = 1ull << 30;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(card *card, u64 *memory) {
    CHECK(card);
    if (*(u32 *)memory != 0x02000028) return 25;
    memory[1] = 16ull << 30; memory[2] = 512ull << 20; memory[3] = 14ull << 30; memory[4] = 1ull << 30;
    return OK;
}
int nvmlDeviceGetConfComputeProtectedMemoryUsage(card *card, u64 *memory) { return nvmlDeviceGetMemoryInfo(card, memory); }
int nvmlDeviceGetBAR1MemoryInfo(card *card, u64 *memory) {
    CHECK(card);
    memory[0] = 2ull << 30; memory[1] = 512ull << 20; memory[2] = 1536ull << 20;
    return OK;
}
int nvmlDeviceGetUtilizationRates(card *card, u32 *rates) { CHECK(card); rates[0] = 90; rates[1] = 45; return OK; }
int nvmlDeviceGetFieldValues(card *card, int count, field *fields) {
    CHECK(card);
    for (int i = 0; i < count; i++) fields[i].value = 1000 * card->index + fields[i].id;
    return OK;
}
#define PROCESSES_1(name) int name(card *card, u32 *count, info1 *list) { \
    CHECK(card); LIST(count, list, list[i] = ((info1){pid, 0, 1ull << 30})); }
#define PROCESSES_2(name) int name(card *card, u32 *count, info2 *list) { \
    CHECK(card); LIST(count, list, list[i] = ((info2){pid, 0, 1ull << 30, 3, 4})); }
PROCESSES_1(nvmlDeviceGetComputeRunningProcesses)
PROCESSES_2(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES_2(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES_1(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES_2(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES_2(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES_1(nvmlDeviceGetMPSComputeRunningProcesses)
PROCESSES_2(nvmlDeviceGetMPSComputeRunningProcesses_v2)
PROCESSES_2(nvmlDeviceGetMPSComputeRunningProcesses_v3)
int nvmlDeviceGetRunningProcessDetailList(card *card, details *asked) {
    CHECK(card);
    if (asked->version != 0x01000018) return 25;
    LIST(&asked->count, asked->list, asked->list[i] = ((detail){pid, 0, 1ull << 30, 3, 4, 5}));
}
int nvmlDeviceGetProcessUtilization(card *card, sample *list, u32 *count, u64 since) {
    CHECK(card);
    if (!list) { *count = 200; return TOO_SMALL; }
    LIST(count, list, list[i] = ((sample){pid, 0, since + i, 10 + i, 20, 30, 40}));
}
int nvmlDeviceGetProcessesUtilizationInfo(card *card, samples *asked) {
    CHECK(card);
    if (asked->version != 0x01000018) return 25;
    if (!asked->list) { asked->count = 200; return TOO_SMALL; }
    LIST(&asked->count, asked->list, asked->list[i] = ((sample1){asked->since, pid, 10 + i, 20, 30, 40, 50, 60}));
}
#define SESSIONS(name, session) int name(card *card, u32 *count, session *list) { \
    CHECK(card); \
    if (!*count) { u32 all[200]; *count = (u32)pids(all); return OK; } \
    LIST(count, list, list[i] = ((session){{100 + i, pid, 0, 0, 1920, 1080, 60, 5}})); }
SESSIONS(nvmlDeviceGetEncoderSessions, session8)
SESSIONS(nvmlDeviceGetFBCSessions, session12)
int nvmlDeviceGetAccountingPids(card *card, u32 *count, u32 *list) { CHECK(card); LIST(count, list, list[i] = pid); }
int nvmlDeviceGetAccountingStats(card *card, u32 pid, u32 *stats) {
    CHECK(card);
    u32 all[200];
    for (int i = pids(all); i-- > 0;)
        if (all[i] == pid) { stats[0] = pid % 100; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetAccountingStats_v2(card *card, u32 *stats) { return nvmlDeviceGetAccountingStats(card, stats[0], stats + 2); }
int nvmlDeviceGetAccountingMode(card *card, u32 *mode) { CHECK(card); *mode = 1; return OK; }
int nvmlDeviceGetAccountingBufferSize(card *card, u32 *size) { CHECK(card); *size = 4000; return OK; }
int nvmlSystemGetProcessName(u32 pid, char *name, u32 length) { snprintf(name, length, "name of %u", pid); return OK; }
static int near(u32 *count, card **list) {
    if (!*count) { *count = CARDS; return OK; }
    if (!list) return INVALID;
    if (*count > CARDS) *count = CARDS;
    for (u32 i = 0; i < *count; i++) list[i] = &cards[i];
    return OK;
}
int nvmlDeviceGetTopologyNearestGpus(card *card, u32 level, u32 *count, struct card **list) {
    CHECK(card);
    return level == 20 ? near(count, list) : INVALID;
}
int nvmlSystemGetTopologyGpuSet(u32 cpu, u32 *count, card **list) { return cpu == 3 ? near(count, list) : INVALID; }
int nvmlUnitGetDevices(void *unit, u32 *count, card **list) {
    if (unit != (void *)0x77) return INVALID;
    u32 room = *count;
    *count = CARDS;
    return room < CARDS ? TOO_SMALL : near(count, list);
}
int nvmlInternalGetExportTable(const void **table, const void *id) { *table = id; return OK; }
int nvmlDeviceSetCpuAffinity(card *card) { CHECK(card); return OK; }
#define CHANGES(name) int name(void) { fputs(#name " came through\n", stderr); abort(); }
CHANGES(nvmlDeviceSetPersistenceMode)
CHANGES(nvmlDeviceSetPowerManagementLimit)
CHANGES(nvmlDeviceResetGpuLockedClocks)
CHANGES(nvmlDeviceClearAccountingPids)
CHANGES(nvmlDeviceSetAccountingMode)
CHANGES(nvmlDeviceCreateGpuInstance)
CHANGES(nvmlDeviceSetMemoryLimits_v1)
CHANGES(nvmlDeviceGetMemoryLimits_v1)
