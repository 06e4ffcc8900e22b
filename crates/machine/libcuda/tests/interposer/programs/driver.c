/* A driver of a few functions, for tests of the interposer.
 *
 * It counts memory and nothing else: what each call takes from a card and gives back, as the
 * real driver is documented to do it. Functions that begin with `fake_` are for the test. What
 * the interposer must never call is not here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_CONTEXT = 201, NOT_FOUND = 500, FAILED = 999 };
enum { CARDS = 4, MANY = 4096 };
#define CARD_BYTES (64ull << 30)
#define POOL_BLOCK (4ull << 20)
#define CONTEXT_BYTES (100ull << 20)

static u64 used[CARDS];       /* bytes that are really taken, by card */
static int visible[CARDS], n_visible;
static char told[4096];       /* CUDA_VISIBLE_DEVICES as cuInit saw it */
static int fail_next;
static u64 calls;             /* of functions that take memory */
static u64 next_handle = 0x1000;
static __thread u64 current;  /* the context */

/* Threads of the program meet here; functions call each other, so the lock is recursive. */
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int lock(void) { pthread_mutex_lock(&mutex); return 0; }
static void unlock(int *held) { (void)held; pthread_mutex_unlock(&mutex); }
#define ALONE int held __attribute__((cleanup(unlock), unused)) = lock()

static int failing(void) { calls++; return fail_next && !--fail_next; }
u64 fake_fail(u64 nth) { fail_next = (int)nth; return 0; }
u64 fake_used(u64 card) { return used[card]; }
u64 fake_calls(void) { return calls; }
const char *fake_told(void) { return told; }

/* ---- devices and contexts ---- */
static int card_of(int device) { return device >= 0 && device < n_visible ? visible[device] : -1; }

int cuInit(u32 flags) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(told, sizeof told, "%s", list ? list : "(unset)");
    n_visible = 0;
    for (int card = 0; card < CARDS; card++) {
        char name[8];
        snprintf(name, sizeof name, "GPU-%02x", 0xa0 + card);
        /* An instance of a card that is split: its own name begins with b. */
        char instance[8];
        snprintf(instance, sizeof instance, "MIG-%02x", 0xb0 + card);
        if (!list || strstr(list, name) || strstr(list, instance)) visible[n_visible++] = card;
    }
    return flags ? INVALID : n_visible ? OK : 100;
}
int cuDriverGetVersion(int *version) { *version = getenv("FAKE_VERSION") ? atoi(getenv("FAKE_VERSION")) : 13000; return OK; }
int cuDeviceGetCount(int *count) { *count = n_visible; return OK; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    if (card_of(device) < 0) return 101;
    memset(uuid, (getenv("FAKE_MIG") ? 0xb0 : 0xa0) + card_of(device), 16);
    return OK;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    if (card_of(device) < 0) return 101;
    memset(uuid, 0xa0 + card_of(device), 16);
    return OK;
}
int cuDeviceTotalMem_v2(u64 *bytes, int device) { *bytes = CARD_BYTES; return card_of(device) < 0 ? 101 : OK; }
int cuGetErrorString(int error, const char **text) { *text = "from the driver"; return error == 2 ? OK : INVALID; }

static struct { u64 handle; int device, primary, count; } contexts[MANY];
static int context_at(u64 handle) {
    for (int i = 0; i < MANY; i++) if (handle && contexts[i].handle == handle) return i;
    return -1;
}
static int make_context(u64 *out, int device, int primary) {
    if (failing()) return FAILED;
    if (card_of(device) < 0) return 101;
    for (int i = 0; i < MANY; i++) if (!contexts[i].handle) {
        contexts[i].handle = *out = next_handle++;
        contexts[i].device = device; contexts[i].primary = primary; contexts[i].count = 1;
        used[card_of(device)] += CONTEXT_BYTES;
        return OK;
    }
    return NO_MEMORY;
}
static void free_memory_of(u64 context);
static void unpin_all_of(u64 context);
static void end_context(int at) {
    used[card_of(contexts[at].device)] -= CONTEXT_BYTES;
    free_memory_of(contexts[at].handle);
    unpin_all_of(contexts[at].handle);
    contexts[at].handle = 0;
}
int cuCtxCreate_v2(u64 *out, u32 flags, int device) { (void)flags; int r = make_context(out, device, 0); if (!r) current = *out; return r; }
int cuCtxCreate_v4(u64 *out, void *p, u32 flags, int device) { (void)p; return cuCtxCreate_v2(out, flags, device); }
int cuCtxDestroy_v2(u64 context) { int at = context_at(context); if (at < 0) return NO_CONTEXT; end_context(at); if (current == context) current = 0; return OK; }
static int primary_of(int device) {
    for (int i = 0; i < MANY; i++) if (contexts[i].handle && contexts[i].primary && contexts[i].device == device) return i;
    return -1;
}
static int owed[CARDS];
int cuDevicePrimaryCtxRetain(u64 *out, int device) {
    int at = primary_of(device);
    if (at >= 0) { contexts[at].count++; *out = contexts[at].handle; return OK; }
    int r = make_context(out, device, 1);
    /* A reset releases nothing. */
    if (!r) { contexts[context_at(*out)].count += owed[device]; owed[device] = 0; }
    return r;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    int at = primary_of(device);
    if (at < 0) { if (!owed[device]) return NO_CONTEXT; owed[device]--; return OK; }
    if (!--contexts[at].count) end_context(at);
    return OK;
}
int cuDevicePrimaryCtxReset_v2(int device) { int at = primary_of(device); if (at >= 0) { owed[device] = contexts[at].count; end_context(at); } return OK; }
int cuCtxSetCurrent(u64 context) { current = context; return OK; }
int cuCtxGetCurrent(u64 *context) { *context = current; return OK; }
int cuCtxGetDevice(int *device) {
    int at = context_at(current);
    if (at < 0) return NO_CONTEXT;
    *device = contexts[at].device;
    return OK;
}
static int current_card(void) { int device; return cuCtxGetDevice(&device) ? -1 : card_of(device); }

int cuMemGetInfo_v2(u64 *free, u64 *total) {
    ALONE;
    int card = current_card();
    if (card < 0) return NO_CONTEXT;
    *free = CARD_BYTES - used[card]; *total = CARD_BYTES;
    return OK;
}

/* ---- linear memory and pools ---- */
struct pool { u64 handle, reserved, used; int card; };
static struct pool pools[MANY];
static struct { u64 address, bytes, context; int card; struct pool *pool; } blocks[MANY];
static u64 next_address = 0x7000000000ull;

static int block_at(u64 address) {
    for (int i = 0; i < MANY; i++) if (address && blocks[i].address == address) return i;
    return -1;
}
static int new_block(u64 *out, u64 bytes, int card, u64 context, struct pool *pool) {
    for (int i = 0; i < MANY; i++) if (!blocks[i].address) {
        blocks[i].address = *out = next_address;
        next_address += (bytes + 0x1fffff) & ~0x1fffffull;
        blocks[i].bytes = bytes; blocks[i].card = card; blocks[i].context = context; blocks[i].pool = pool;
        return OK;
    }
    return NO_MEMORY;
}
static int allocate(u64 *out, u64 bytes) {
    ALONE;
    int card = current_card();
    if (card < 0) return NO_CONTEXT;
    if (!bytes || !out) return INVALID;
    if (failing()) return FAILED;
    if (used[card] + bytes > CARD_BYTES) return NO_MEMORY;
    used[card] += bytes;
    return new_block(out, bytes, card, current, NULL);
}
static void free_block(int at) {
    if (blocks[at].pool) blocks[at].pool->used -= blocks[at].bytes;
    else used[blocks[at].card] -= blocks[at].bytes;
    blocks[at].address = 0;
}
static void free_memory_of(u64 context) {
    for (int i = 0; i < MANY; i++) if (blocks[i].address && !blocks[i].pool && blocks[i].context == context) free_block(i);
}
int cuMemAlloc_v2(u64 *out, u64 bytes) { return allocate(out, bytes); }
int cuMemAllocManaged(u64 *out, u64 bytes, u32 flags) { (void)flags; return allocate(out, bytes); }
int cuMemAllocPitch_v2(u64 *out, u64 *pitch, u64 width, u64 height, u32 element) {
    (void)element;
    u64 step = getenv("FAKE_PITCH") ? strtoull(getenv("FAKE_PITCH"), 0, 0) : 512;
    *pitch = (width + step - 1) / step * step;
    return allocate(out, *pitch * height);
}
static int is_imported(u64 address);
int cuMemFree_v2(u64 address) {
    ALONE;
    int at = block_at(address);
    if (!address || is_imported(address)) return OK;
    if (at < 0 || (fail_next && !--fail_next)) return INVALID;
    free_block(at);
    return OK;
}

static struct pool *pool_at(u64 handle) {
    for (int i = 0; i < MANY; i++) if (handle && pools[i].handle == handle) return &pools[i];
    return NULL;
}
static u64 make_pool(int card) {
    for (int i = 0; i < MANY; i++) if (!pools[i].handle) {
        pools[i].handle = next_handle++; pools[i].card = card; pools[i].reserved = pools[i].used = 0;
        return pools[i].handle;
    }
    return 0;
}
int cuDeviceGetDefaultMemPool(u64 *pool, int device) {
    ALONE;
    static u64 made[CARDS];
    int card = card_of(device);
    if (card < 0) return 101;
    if (!made[card]) made[card] = make_pool(card);
    *pool = made[card];
    return OK;
}
int cuDeviceGetMemPool(u64 *pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
int cuMemPoolCreate(u64 *pool, const int *properties) {
    if (!properties) return INVALID;
    int card = properties[2] == 1 ? card_of(properties[3]) : -1; /* location: type, id */
    *pool = make_pool(card);
    return OK;
}
int cuMemPoolTrimTo(u64 handle, u64 keep) {
    ALONE;
    struct pool *pool = pool_at(handle);
    u64 floor = (pool->used + POOL_BLOCK - 1) / POOL_BLOCK * POOL_BLOCK;
    if (floor < keep) floor = keep;
    if (pool->reserved > floor) {
        if (pool->card >= 0) used[pool->card] -= pool->reserved - floor;
        pool->reserved = floor;
    }
    return OK;
}
int cuMemPoolDestroy(u64 handle) { struct pool *pool = pool_at(handle); if (!pool) return INVALID; cuMemPoolTrimTo(handle, 0); pool->handle = 0; return OK; }
static u64 threshold;
u64 fake_threshold(void) { return threshold; }
int cuMemPoolSetAttribute(u64 handle, int attribute, u64 *value) { (void)handle; if (attribute == 4) threshold = *value; return OK; }
int cuMemPoolGetAttribute(u64 handle, int attribute, u64 *value) {
    ALONE;
    struct pool *pool = pool_at(handle);
    if (!pool) return INVALID;
    if (attribute == 5) *value = pool->reserved;
    else if (attribute == 7) *value = pool->used;
    else return INVALID; /* as before CUDA 13 */
    return OK;
}
static int capturing; /* 1: all streams; else this one */
u64 fake_capture(u64 on) { capturing = (int)on; return 0; }
#include "driver_work.h"
int cuMemAllocFromPoolAsync(u64 *out, u64 bytes, u64 handle, u64 stream) {
    ALONE;
    struct pool *pool = pool_at(handle);
    (void)stream;
    if (!pool || !bytes) return INVALID;
    if (failing()) return FAILED;
    if (pool->used + bytes > pool->reserved) {
        u64 more = (pool->used + bytes - pool->reserved + POOL_BLOCK - 1) / POOL_BLOCK * POOL_BLOCK;
        pool->reserved += more;
        if (pool->card >= 0) used[pool->card] += more;
    }
    pool->used += bytes;
    return new_block(out, bytes, pool->card, 0, pool);
}
int cuMemAllocAsync(u64 *out, u64 bytes, u64 stream) {
    int device; u64 pool;
    if (cuCtxGetDevice(&device)) return NO_CONTEXT;
    if (capturing) return new_block(out, bytes, 0, 0, &pools[MANY - 1]);
    cuDeviceGetMemPool(&pool, device);
    return cuMemAllocFromPoolAsync(out, bytes, pool, stream);
}
int cuMemAllocAsync_ptsz(u64 *out, u64 bytes, u64 stream) { return cuMemAllocAsync(out, bytes, stream); }
int cuMemFreeAsync(u64 address, u64 stream) { (void)stream; return cuMemFree_v2(address); }

/* ---- memory behind handles ---- */
static struct { u64 handle, bytes; int card, references, is_object; } physical[MANY];
static struct { u64 address, bytes; int at; } maps[MANY];
static int physical_at(u64 handle) {
    for (int i = 0; i < MANY; i++) if (handle && physical[i].handle == handle && physical[i].references) return i;
    return -1;
}
static void end_object(u64 handle);
static int release_import(u64 handle);
static void drop_physical(int at) {
    if (--physical[at].references) return;
    if (physical[at].card >= 0) used[physical[at].card] -= physical[at].bytes;
    if (physical[at].is_object) { physical[at].is_object = 0; end_object(physical[at].handle); }
}
int cuMemCreate(u64 *out, u64 bytes, const int *properties, u64 flags) {
    ALONE;
    (void)flags;
    if (!properties) return INVALID;
    if (properties[2] == 1 && card_of(properties[3]) < 0) return 101;
    if (failing()) return FAILED;
    for (int i = 0; i < MANY; i++) if (!physical[i].references) {
        physical[i].handle = *out = next_handle++; physical[i].bytes = bytes; physical[i].references = 1;
        physical[i].card = properties[2] == 1 ? card_of(properties[3]) : -1;
        if (physical[i].card >= 0) used[physical[i].card] += bytes;
        return OK;
    }
    return NO_MEMORY;
}
int cuMemRelease(u64 handle) { ALONE; if (release_import(handle)) return OK; int at = physical_at(handle); if (at < 0) return INVALID; drop_physical(at); return OK; }
int cuMemMap(u64 address, u64 bytes, u64 offset, u64 handle, u64 flags) {
    int at = physical_at(handle);
    (void)offset; (void)flags;
    if (at < 0) return INVALID;
    for (int i = 0; i < MANY; i++) if (!maps[i].bytes) {
        maps[i].address = address; maps[i].bytes = bytes; maps[i].at = at; physical[at].references++;
        return OK;
    }
    return NO_MEMORY;
}
int cuMemUnmap(u64 address, u64 bytes) {
    for (int i = 0; i < MANY; i++) if (maps[i].bytes && maps[i].address >= address && maps[i].address + maps[i].bytes <= address + bytes) {
        drop_physical(maps[i].at); maps[i].bytes = 0;
    }
    return OK;
}
int cuMemRetainAllocationHandle(u64 *out, u64 address) {
    for (int i = 0; i < MANY; i++) if (maps[i].bytes && address >= maps[i].address && address < maps[i].address + maps[i].bytes) {
        physical[maps[i].at].references++; *out = physical[maps[i].at].handle;
        return OK;
    }
    return INVALID;
}

/* ---- arrays, external memory, graphs: in driver_more.h; what others hold: in driver_shared.h;
 * memory of the host: in driver_host.h; streams and what runs in them: in driver_work.h ---- */
#include "driver_more.h"
#include "driver_shared.h"
#include "driver_host.h"
