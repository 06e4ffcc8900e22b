/* A program that asks the management library what there is, and prints the answers.
 *
 * Arguments: the library, then what to ask: `cards`, `processes`, `changes`, `again` (memory,
 * once for each line of input) or `child` (memory, then again after a fork).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "structs.h"

typedef u64 (*function)();

static void *library;
static function find(const char *name) {
    function found = (function)dlsym(library, name);
    if (!found) { printf("no %s\n", name); exit(1); }
    return found;
}
#define CALL(name, ...) ((u32)find("nvml" name)(__VA_ARGS__))

static void cards(void) {
    u32 count = 9, index, minor, room;
    char text[96], name[96];
    void *card, *found, *old, *list[8];
    u32 result = CALL("DeviceGetCount_v2", &count);
    printf("count %u %u", result, count);
    result = CALL("DeviceGetCount", &count);
    printf(" %u %u\n", result, count);
    for (u32 i = 0; i <= count; i++) {
        card = 0;
        old = 0;
        result = CALL("DeviceGetHandleByIndex_v2", i, &card);
        if (CALL("DeviceGetHandleByIndex", i, &old) != result || old != card) printf("another by the old index\n");
        if (result) { printf("card %u: %u\n", i, result); continue; }
        CALL("DeviceGetUUID", card, text, 96);
        CALL("DeviceGetName", card, name, 96);
        CALL("DeviceGetIndex", card, &index);
        CALL("DeviceGetMinorNumber", card, &minor);
        printf("card %u: index %u minor %u %s %s\n", i, index, minor, name, text);
        u64 memory[5] = {0};
        u32 first = CALL("DeviceGetMemoryInfo", card, memory);
        printf("  total %lu free %lu used %lu (%u)\n", memory[0] >> 20, memory[1] >> 20, memory[2] >> 20, first);
        memset(memory, 0, sizeof memory);
        *(u32 *)memory = 0x02000028;
        first = CALL("DeviceGetMemoryInfo_v2", card, memory);
        printf("  total %lu reserved %lu free %lu used %lu (%u)\n", memory[1] >> 20, memory[2] >> 20, memory[3] >> 20, memory[4] >> 20, first);
        *(u32 *)memory = 5;
        first = CALL("DeviceGetMemoryInfo_v2", card, memory);
        printf("  wrong version %u\n", first);
        static const char *const ALIKE[] = {"nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetConfComputeProtectedMemoryUsage"};
        for (u32 k = 0; k < 2; k++) {
            first = (u32)find(ALIKE[k])(card, memory);
            printf("  %s: total %lu free %lu used %lu (%u)\n", k ? "protected" : "BAR1", memory[0] >> 20, memory[1] >> 20, memory[2] >> 20, first);
        }
        field fields[2] = {{82}, {83}};
        first = CALL("DeviceGetFieldValues", card, 2, fields);
        printf("  fields %lu %lu (%u)\n", fields[0].value, fields[1].value, first);
        room = 0;
        u32 second = CALL("DeviceGetTopologyNearestGpus", card, 20, &room, 0);
        u32 n = room;
        u32 third = CALL("DeviceGetTopologyNearestGpus", card, 20, &n, list);
        printf("  near: %u %u, %u %u\n", second, room, third, n);
    }
    for (u32 i = 0; i < 3; i++) {
        char uuid[96], key[96], pci[96], serial[96];
        snprintf(uuid, 96, "GPU-0000000%u-0000-0000-0000-0000000000c%u", i, i);
        memset(key, 0, 8);
        strcpy(key + 8, uuid);
        snprintf(pci, 96, "0000:0%u:00.0", i);
        snprintf(serial, 96, "S%u", i);
        printf("machine's card %u by uuid %u %u pci %u %u serial %u\n", i,
               CALL("DeviceGetHandleByUUID", uuid, &found), CALL("DeviceGetHandleByUUIDV", key, &found),
               CALL("DeviceGetHandleByPciBusId_v2", pci, &found), CALL("DeviceGetHandleByPciBusId", pci, &found),
               CALL("DeviceGetHandleBySerial", serial, &found));
    }
    room = 0;
    result = CALL("SystemGetTopologyGpuSet", 3, &room, 0);
    printf("near a processor: %u %u", result, room);
    room = 8;
    result = CALL("UnitGetDevices", (void *)0x77, &room, list);
    printf(", in a unit: %u %u\n", result, room);
    printf("no card: memory %u index %u\n", CALL("DeviceGetMemoryInfo", (void *)0x99, (u64 *)list),
           CALL("DeviceGetIndex", (void *)0x99, &index));
}

static void *first_card(void) {
    void *card = 0;
    CALL("DeviceGetHandleByIndex_v2", 0, &card);
    return card;
}

/* One function that lists processes: first asked for their number, then for them. */
static void show(const char *what, const char *end, void *card) {
    char symbol[96];
    snprintf(symbol, sizeof symbol, "nvmlDeviceGet%sRunningProcesses%s", what, end);
    char room[200 * sizeof(info2)];
    info1 *old = (info1 *)room;
    info2 *list = (info2 *)room;
    u32 n = 0, first = (u32)find(symbol)(card, &n, 0);
    u32 count = 200, result = (u32)find(symbol)(card, &count, room);
    printf("%s%s (%u %u):", what, end, first, n);
    for (u32 i = 0; !result && i < count; i++) {
        if (*end) printf(" %u:%lu:%d:%d", list[i].pid, list[i].bytes >> 20, (int)list[i].gpu, (int)list[i].compute);
        else printf(" %u:%lu", old[i].pid, old[i].bytes >> 20);
    }
    printf(" (%u)\n", result);
}

/* One function that lists sessions, of so many words each. */
static void show_sessions(const char *what, const char *symbol, u32 words, void *card) {
    u32 room[200 * 12], n = 0, first = (u32)find(symbol)(card, &n, 0);
    u32 count = 200, result = (u32)find(symbol)(card, &count, room);
    printf("%s: (%u %u)", what, first, n);
    for (u32 i = 0; !result && i < count; i++) printf(" %u:%u", room[i * words + 1], room[i * words]);
    printf(" (%u)\n", result);
}

static void processes(int n, char **names) {
    void *card = first_card();
    static const char *const KINDS[] = {"Compute", "Graphics", "MPSCompute"}, *const ENDS[] = {"", "_v2", "_v3"};
    for (u32 kind = 0; kind < 3; kind++)
        for (u32 end = 0; end < 3; end++) show(KINDS[kind], ENDS[end], card);
    for (u32 mode = 0; mode < 6; mode++) {
        detail list[200];
        details asked = {mode == 5 ? 0x02000018 : 0x01000018, mode % 5, 200, list};
        u32 result = CALL("DeviceGetRunningProcessDetailList", card, &asked);
        printf("details %u:", mode);
        for (u32 i = 0; !result && i < asked.count; i++) printf(" %u:%lu", list[i].pid, list[i].bytes >> 20);
        printf(" (%u)\n", result);
    }
    sample used[200];
    u32 count = 0, result = CALL("DeviceGetProcessUtilization", card, 0, &count, (u64)5);
    printf("utilization: (%u %u)", result, count);
    result = CALL("DeviceGetProcessUtilization", card, used, &count, (u64)5);
    for (u32 i = 0; !result && i < count; i++) printf(" %u:%u@%lu", used[i].pid, used[i].sm, used[i].time);
    printf(" (%u)\n", result);
    sample1 more[200];
    samples asked = {0x01000018, 200, 5, more};
    result = CALL("DeviceGetProcessesUtilizationInfo", card, &asked);
    printf("utilization:");
    for (u32 i = 0; !result && i < asked.count; i++) printf(" %u:%u", more[i].pid, more[i].sm);
    printf(" (%u)\n", result);
    asked.version = 7;
    printf("another version: %u\n", CALL("DeviceGetProcessesUtilizationInfo", card, &asked));
    u32 rates[2] = {0};
    result = CALL("DeviceGetUtilizationRates", card, rates);
    printf("rates: %u %u (%u)\n", rates[0], rates[1], result);
    show_sessions("encoders", "nvmlDeviceGetEncoderSessions", 8, card);
    show_sessions("captures", "nvmlDeviceGetFBCSessions", 12, card);
    u32 mode = 0, size = 0;
    result = CALL("DeviceGetAccountingMode", card, &mode);
    printf("accounting: mode %u (%u)", mode, result);
    result = CALL("DeviceGetAccountingBufferSize", card, &size);
    printf(" size %u (%u)\n", size, result);
    u32 accounts[200];
    count = 200;
    result = CALL("DeviceGetAccountingPids", card, &count, accounts);
    printf("accounts:");
    for (u32 i = 0; !result && i < count; i++) printf(" %u", accounts[i]);
    printf(" (%u)\n", result);
    for (int i = 0; i < n; i++) {
        u32 pid = (u32)atoi(names[i]), stats[40] = {0}, stats2[40] = {pid};
        char name[64] = "";
        u32 first = CALL("DeviceGetAccountingStats", card, pid, stats);
        u32 second = CALL("DeviceGetAccountingStats_v2", card, stats2);
        u32 third = CALL("SystemGetProcessName", pid, name, 64);
        printf("of %u: %u %u, %u %u %u, %u %s\n", pid, first, stats[0], second, stats2[0], stats2[2], third, name);
    }
}

static void changes(void) {
    void *card = first_card();
    const void *table = (void *)1;
    static const char *names[] = {
        "nvmlDeviceSetPersistenceMode", "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceClearAccountingPids", "nvmlDeviceSetAccountingMode", "nvmlDeviceCreateGpuInstance",
        "nvmlDeviceSetMemoryLimits_v1",
        "nvmlDeviceGetMemoryLimits_v1",
    };
    for (u32 i = 0; i < sizeof names / sizeof *names; i++) printf("%s %u\n", names[i], (u32)find(names[i])(card, 1, 2, 3));
    printf("unknown to the library: %u\n", CALL("DeviceSetFanSpeed_v2", card, 0, 100));
    printf("own processors %u\n", CALL("DeviceSetCpuAffinity", card));
    u32 result = CALL("InternalGetExportTable", &table, "id");
    printf("export table %u\n", result);
}

static void memory(const char *who) {
    u64 memory[3] = {0};
    u32 result = CALL("DeviceGetMemoryInfo", first_card(), memory);
    printf("%s %u total %lu used %lu\n", who, result, memory[0] >> 20, memory[2] >> 20);
    fflush(stdout);
}

int main(int argc, char **argv) {
    library = dlopen(argv[1], RTLD_NOW);
    if (!library) { printf("%s\n", dlerror()); return 1; }
    u64 early = 0;
    printf("before: %u %u\n", CALL("DeviceGetCount_v2", &early), CALL("DeviceGetHandleByIndex_v2", 40, &early));
    u32 result = CALL("Init_v2");
    printf("init %u %u: %s\n", result, CALL("InitWithFlags", 7), (const char *)find("nvmlErrorString")(result));
    if (result) return 0;
    if (!strcmp(argv[2], "cards")) cards();
    if (!strcmp(argv[2], "processes")) processes(argc - 3, argv + 3);
    if (!strcmp(argv[2], "changes")) changes();
    if (!strcmp(argv[2], "again")) {
        char line[8];
        memory("first");
        while (fgets(line, sizeof line, stdin)) memory("again");
    }
    if (!strcmp(argv[2], "child")) {
        memory("parent");
        pid_t child = fork();
        if (!child) { memory("child"); _exit(0); }
        waitpid(child, 0, 0);
        memory("parent");
    }
    return 0;
}
