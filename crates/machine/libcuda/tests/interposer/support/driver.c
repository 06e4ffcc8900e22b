/* A driver that answers as a test says.
 *
 * The fake driver (`crates/fake`) is a machine: it does what NVIDIA's does, in its own time, and
 * many processes share it. This one is no second machine. It counts what each call takes and gives
 * back, and is for what no machine does when it is told to:
 *   - a call that fails, a launch that stays inside the driver, work that ends when the test says,
 *     and kernels that last a second and are over at once
 *   - a pitch, an array or a graph that takes more than anybody expects, or is not told
 *   - a driver that works in a forked child, calls its own functions by their exported names, and
 *     starts without a variable that describes a machine
 *   - functions that programs of CUDA 13 do not get: older forms, some newer ones, and a few that
 *     nobody has heard of
 * Functions that begin with `fake_` are for the test. What the interposer must never call is not
 * here, and parameters behind the last one that counts are left out. Everything lives in one
 * process: what other processes hold, only the ledger shows.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint32_t u32;

enum { OK, INVALID, NO_MEMORY, NO_CARD = 100, NO_DEVICE, NO_CONTEXT = 201, NO_SUCH_LIMIT = 215 };
enum { NOT_FOUND = 500, NOT_READY = 600, IS_REGISTERED = 712, NOT_REGISTERED, NOT_SUPPORTED = 801 };
enum { WOULD_DISTURB = 906, FAILED = 999 };
enum { DESCRIPTOR = 1, FABRIC = 8 }; /* kinds of handles for other processes */
enum { CARDS = 4, HOST = CARDS, NOWHERE, PLACES, MANY = 4096 };
#define CARD_BYTES (64ull << 30)
#define CONTEXT_BYTES (100ull << 20)
#define POOL_BLOCK (4ull << 20)
#define UP(bytes, unit) (((bytes) + (unit) - 1) / (unit) * (unit))

/* ---- what a test sets ---- */
#define SETS(name, at_first) \
    static volatile u64 name = at_first; \
    u64 fake_##name(u64 to) { name = to; return 0; }
SETS(version, 13000)
SETS(mig, 0)      /* devices are instances of cards, with names of their own */
SETS(fail, 0)     /* of the calls from now on, this one fails */
SETS(pitch, 512)  /* rows begin at multiples of it */
SETS(secret, 0)   /* arrays do not say what they will take */
SETS(untold, 0)   /* nor do the nodes of graphs */
SETS(growth, 0)   /* a graph takes so many bytes beyond its nodes */
SETS(capture, 0)  /* 1: all streams record; else this one */
SETS(hold, 0)     /* launches stay inside the driver */
SETS(each, 0)     /* a launch takes so many microseconds of the card's own clock */
SETS(busy, 0)     /* no event is reached */
SETS(lazy, 0)     /* modules take their memory when a function is first asked for */

/* ---- and asks ---- */
#define ASKS(name) static u64 name; u64 fake_##name(void) { return name; }
ASKS(calls)     /* that could have failed */
ASKS(recorded)  /* events, so many times */
ASKS(deepest)   /* microseconds of work that were queued, since the last drain */
ASKS(launched)  /* the arguments of the last launch, in one number */
ASKS(arrived)   /* launches of all kinds */
ASKS(disturbed) /* questions that the driver forbids */
ASKS(threshold) /* of the last pool that was given one */
static u64 used[PLACES]; /* bytes that are really taken */
u64 fake_used(u64 card) { return used[card]; }
u64 fake_take(u64 card, u64 bytes) { used[card] += bytes; return 0; } /* by itself, as a launch may */
u64 fake_pinned(void) { return used[HOST]; }
static char told[4096]; /* CUDA_VISIBLE_DEVICES as cuInit saw it */
const char *fake_told(void) { return told; }
static char told_mps[4096]; /* MPS's variables, in the same way */
const char *fake_told_mps(void) { return told_mps; }

/* Threads of the program meet here; functions call each other, so the lock is recursive. */
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int lock(void) { pthread_mutex_lock(&mutex); return 0; }
static void unlock(int *held) { pthread_mutex_unlock(&mutex); }
#define ALONE int held __attribute__((cleanup(unlock), unused)) = lock()

static int failing(void) { ALONE; calls++; return fail && !--fail; }

/* ---- all that there is, in one list. The first kinds own others, which end with them ---- */
enum kind { NONE, CONTEXT, PHYSICAL, ARRAY, OWNERS, BLOCK, POOL, PINNED, REGISTERED, MAP, BOUND, TILE,
            IMPORT, EXPORTED, EXTERNAL, NODE, EXEC, MODULE, KEPT, EVENT, RUNNING, DESTROYED };
struct thing {
    int kind, place, count;  /* users of it */
    u64 handle, bytes, of;   /* handle or address; what it takes of its place; the owner */
    u64 in_use, at;          /* of a pool; what else must be known of this kind */
    struct thing *memory;    /* what it refers to, or the pool that it is from */
};
static struct thing things[MANY];
static int n_things;         /* so many places were ever taken */
#define EVERY(t) struct thing *t = things; t < things + n_things; t++
#define EACH(t, wanted) for (EVERY(t)) if (t->kind == (wanted))

static struct thing *find(int kind, u64 handle) {
    ALONE;
    EACH(t, kind) if (handle && t->handle == handle) return t;
    return NULL;
}
#define FIND(t, kind, handle, else_return) struct thing *t = find(kind, handle); if (!t) return else_return
/* Something new, with a handle of its own if it has none. */
static struct thing *make(int kind, u64 handle, u64 bytes, int place) {
    ALONE;
    static u64 last_handle = 0x1000;
    int at = 0;
    while (things[at].kind) if (++at == MANY) abort();
    if (at >= n_things) n_things = at + 1;
    if (!handle) handle = ++last_handle;
    things[at] = (struct thing){ .kind = kind, .place = place, .count = 1, .handle = handle, .bytes = bytes };
    used[place] += bytes;
    return &things[at];
}
static int give(u64 *out, struct thing *made) { *out = made->handle; return OK; }
static void let_go(struct thing *t);
static void end(struct thing *t) {
    ALONE;
    int is_owner = t->kind < OWNERS;
    used[t->place] -= t->bytes;
    t->kind = NONE;
    if (t->memory && t->memory->kind == POOL) t->memory->in_use -= t->bytes;
    else if (t->memory) let_go(t->memory);
    for (EVERY(other)) if (is_owner && other->kind && other->of == t->handle) end(other);
}
static void let_go(struct thing *t) { if (!--t->count) end(t); }
static int destroy(int kind, u64 handle) { ALONE; FIND(t, kind, handle, INVALID); end(t); return OK; }

/* Something refers to memory: so many bytes from there, in an object or array, or alone. */
static int hold_on(int kind, u64 of, u64 from, u64 bytes, struct thing *memory) {
    ALONE;
    struct thing *made = make(kind, 0, bytes, NOWHERE);
    made->handle = from;
    made->of = of;
    made->memory = memory;
    if (memory) memory->count++;
    return OK;
}
/* What refers to it no more: all that lies in these bytes, but not a part of anything. */
static int release(int kind, u64 of, u64 from, u64 bytes) {
    ALONE;
    EACH(t, kind) if (t->of == of && t->handle >= from && t->handle + t->bytes <= from + bytes) end(t);
    return OK;
}
static struct thing *around(int kind, u64 address) {
    ALONE;
    EACH(t, kind) if (address >= t->handle && address < t->handle + t->bytes) return t;
    return NULL;
}
static u64 new_address(u64 bytes) {
    ALONE;
    static u64 next = 0x7000000000;
    u64 address = next;
    next += UP(bytes ? bytes : 1, 2ull << 20);
    return address;
}

/* ---- devices ---- */
static int visible[CARDS], n_visible;
static int card_of(int device) { return device >= 0 && device < n_visible ? visible[device] : -1; }

static const char *setting(const char *name) { const char *value = getenv(name); return value ? value : "(unset)"; }
static void inject(void) {
    static int done;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path && !done++ ? dlopen(path, RTLD_NOW) : NULL;
    int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    if (begin) begin();
}

int cuInit(u32 flags) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(told, sizeof told, "%s", setting("CUDA_VISIBLE_DEVICES"));
    snprintf(told_mps, sizeof told_mps, "%s|%s|%s", setting("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
             setting("CUDA_MPS_PIPE_DIRECTORY"), setting("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"));
    n_visible = 0;
    for (int card = 0; card < CARDS; card++) {
        /* An instance of a card that is split has a name that begins with b. */
        char name[8], instance[8];
        snprintf(name, sizeof name, "GPU-%02x", 0xa0 + card);
        snprintf(instance, sizeof instance, "MIG-%02x", 0xb0 + card);
        if (!list || strstr(list, name) || strstr(list, instance)) visible[n_visible++] = card;
    }
    inject();
    return flags ? INVALID : n_visible ? OK : NO_CARD;
}
int cuDriverGetVersion(int *told_version) { *told_version = (int)version; return OK; }
int cuDeviceGetCount(int *count) { *count = n_visible; return OK; }
static int uuid_of(unsigned char *uuid, int device, int first) {
    if (card_of(device) < 0) return NO_DEVICE;
    memset(uuid, first + card_of(device), 16);
    return OK;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return uuid_of(uuid, device, mig ? 0xb0 : 0xa0); }
int cuDeviceGetUuid(unsigned char *uuid, int device) { return uuid_of(uuid, device, 0xa0); }
int cuDeviceTotalMem_v2(u64 *bytes, int device) { *bytes = CARD_BYTES; return card_of(device) < 0 ? NO_DEVICE : OK; }
/* Multiprocessors, and the threads of one. */
int cuDeviceGetAttribute(int *value, int attribute) {
    *value = attribute == 16 ? 10 : attribute == 39 ? 1024 : 0;
    return OK;
}
int cuGetErrorString(int error, const char **text) {
    *text = "from the driver";
    return error == NO_MEMORY ? OK : INVALID;
}

/* ---- contexts ---- */
static __thread u64 current, below[8];
static __thread int depth;
static u64 primaries[CARDS]; /* by device */
static int owed[CARDS];      /* a reset releases nothing */

static int new_context(u64 *out, int device) {
    if (failing()) return FAILED;
    if (card_of(device) < 0) return NO_DEVICE;
    struct thing *made = make(CONTEXT, 0, CONTEXT_BYTES, card_of(device));
    made->at = (u64)device;
    return give(out, made);
}
int cuCtxCreate_v2(u64 *out, u32 flags, int device) {
    int result = new_context(out, device);
    if (!result) current = *out;
    return result;
}
int cuCtxCreate_v4(u64 *out, void *more, u32 flags, int device) { return cuCtxCreate_v2(out, flags, device); }
int cuGLCtxCreate_v2(u64 *out, u32 flags, int device) { return cuCtxCreate_v2(out, flags, device); }
int cuVDPAUCtxCreate_v2(u64 *out, u32 flags, int device) { return cuCtxCreate_v2(out, flags, device); }
int cuCtxDestroy_v2(u64 context) {
    if (destroy(CONTEXT, context)) return NO_CONTEXT;
    if (current == context) current = 0;
    return OK;
}
int cuCtxAttach(u64 *out) { FIND(it, CONTEXT, current, NO_CONTEXT); it->count++; return give(out, it); }
int cuCtxDetach(u64 context) {
    FIND(it, CONTEXT, context, NO_CONTEXT);
    return --it->count ? OK : cuCtxDestroy_v2(context);
}
int cuDevicePrimaryCtxRetain(u64 *out, int device) {
    struct thing *it = card_of(device) < 0 ? NULL : find(CONTEXT, primaries[device]);
    if (it) it->count++;
    int result = it ? give(out, it) : new_context(out, device);
    if (it || result) return result;
    primaries[device] = *out;
    find(CONTEXT, *out)->count += owed[device];
    owed[device] = 0;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    struct thing *it = find(CONTEXT, primaries[device]);
    if (!it && !owed[device]) return NO_CONTEXT;
    if (it) let_go(it); else owed[device]--;
    return OK;
}
int cuDevicePrimaryCtxReset_v2(int device) {
    FIND(it, CONTEXT, primaries[device], OK);
    owed[device] = it->count;
    end(it);
    return OK;
}
/* A green context is its device, so far away that no handle is there. */
#define GREEN (1ull << 50)
int cuGreenCtxCreate(u64 *out, u64 resources, int device) {
    u64 primary;
    *out = GREEN + device;
    return cuDevicePrimaryCtxRetain(&primary, device);
}
int cuGreenCtxDestroy(u64 green) { return cuDevicePrimaryCtxRelease_v2((int)(green - GREEN)); }
int cuCtxSetCurrent(u64 context) { current = context; return OK; }
int cuCtxGetCurrent(u64 *context) { *context = current; return OK; }
int cuCtxPushCurrent_v2(u64 context) { below[depth++] = current; current = context; return OK; }
int cuCtxPopCurrent_v2(u64 *context) { *context = current; current = below[--depth]; return OK; }
int cuCtxGetDevice(int *device) { FIND(it, CONTEXT, current, NO_CONTEXT); *device = (int)it->at; return OK; }
static int current_card(void) { int device; return cuCtxGetDevice(&device) ? -1 : card_of(device); }
static u64 limits[] = { 1024, 1 << 20, 8 << 20 };
int cuCtxGetLimit(u64 *value, int limit) { if (limit > 2) return NO_SUCH_LIMIT; *value = limits[limit]; return OK; }
int cuCtxSetLimit(int limit, u64 value) {
    if (limit > 2) return NO_SUCH_LIMIT;
    if (failing()) return FAILED;
    limits[limit] = value;
    return OK;
}

/* ---- linear memory ---- */
int cuMemGetInfo_v2(u64 *free, u64 *total) {
    int card = current_card();
    if (card < 0) return NO_CONTEXT;
    *free = CARD_BYTES - used[card]; *total = CARD_BYTES;
    return OK;
}
/* Memory that goes with the current context. */
static int allocate(int kind, u64 *out, u64 bytes, int place) {
    ALONE;
    if (place < 0) return NO_CONTEXT;
    if (!bytes || !out) return INVALID;
    if (failing()) return FAILED;
    if (place < CARDS && used[place] + bytes > CARD_BYTES) return NO_MEMORY;
    struct thing *made = make(kind, new_address(bytes), bytes, place);
    made->of = current;
    return give(out, made);
}
int cuMemAlloc_v2(u64 *out, u64 bytes) { return allocate(BLOCK, out, bytes, current_card()); }
int cuMemAllocManaged(u64 *out, u64 bytes) { return allocate(BLOCK, out, bytes, current_card()); }
int cuMemAllocPitch_v2(u64 *out, u64 *wide, u64 width, u64 height) {
    *wide = UP(width, pitch);
    return allocate(BLOCK, out, *wide * height, current_card());
}
/* Memory of other processes is far away. */
#define OF_OTHERS (1ull << 44)
#define OF_OTHERS_POOLS (2ull << 44)
int cuMemFree_v2(u64 address) {
    ALONE;
    struct thing *block = find(BLOCK, address);
    if (!address || address >= OF_OTHERS_POOLS) return OK;
    if (!block || failing()) return INVALID;
    end(block);
    return OK;
}
int cuMemGetAddressRange_v2(u64 *first, u64 *bytes, u64 address) {
    struct thing *block = around(BLOCK, address);
    if (!block) return INVALID;
    *first = block->handle;
    *bytes = block->bytes;
    return OK;
}

/* ---- code: an image is the number of bytes that it takes ---- */
static int load(u64 *out, u64 image) {
    int card = current_card();
    if (card < 0) return NO_CONTEXT;
    if (failing()) return FAILED;
    struct thing *made = make(MODULE, 0, lazy ? 0 : image, card);
    made->of = current;
    made->at = image;
    return give(out, made);
}
int cuModuleLoadData(u64 *out, u64 image) { return load(out, image); }
int cuModuleLoadDataEx(u64 *out, u64 image) { return cuModuleLoadData(out, image); } /* nested */
int cuLibraryLoadData(u64 *out, u64 image) { return load(out, image); }
/* A file is called after the MiB that it takes. */
int cuLibraryLoadFromFile(u64 *out, const char *name) { return load(out, strtoull(name, NULL, 10) << 20); }
static void bring(struct thing *code) {
    ALONE;
    used[code->place] += code->at - code->bytes;
    code->bytes = code->at;
}
int cuModuleGetFunction(u64 *out, u64 module, const char *name) {
    FIND(it, MODULE, module, INVALID);
    if (!name) return NOT_FOUND;
    bring(it);
    *out = it->handle + *name;
    return OK;
}
int cuLibraryGetModule(u64 *out, u64 library) {
    FIND(it, MODULE, library, INVALID);
    bring(it);
    return give(out, it);
}
/* A kernel is its library, so far away that no handle is there. Using it loads the library. */
#define KERNEL (1ull << 51)
int cuLibraryGetKernel(u64 *out, u64 library, const char *name) {
    FIND(it, MODULE, library, INVALID);
    *out = KERNEL + it->handle;
    return name ? OK : NOT_FOUND;
}
int cuKernelGetFunction(u64 *out, u64 kernel) { return cuLibraryGetModule(out, kernel - KERNEL); }
int cuModuleGetLoadingMode(int *mode) { *mode = lazy ? 2 : 1; return OK; }
int cuModuleUnload(u64 module) { return destroy(MODULE, module); }
int cuLibraryUnload(u64 library) { return destroy(MODULE, library); }

/* ---- memory of the host ---- */
static int host(void) { return current_card() < 0 ? -1 : HOST; }
static int unpin(int kind, u64 address, int otherwise) {
    return failing() ? FAILED : destroy(kind, address) ? otherwise : OK;
}
int cuMemHostAlloc(u64 *out, u64 bytes) { return allocate(PINNED, out, bytes, host()); }
int cuMemAllocHost(u64 *out, u32 bytes) { return allocate(PINNED, out, bytes, host()); }
int cuMemAllocHost_v2(u64 *out, u64 bytes) { return allocate(PINNED, out, bytes, host()); }
int cuMemFreeHost(u64 address) { return address ? unpin(PINNED, address, INVALID) : OK; }
static int pin(u64 address, u64 bytes) {
    ALONE;
    u64 made;
    if (find(REGISTERED, address)) return IS_REGISTERED;
    int result = allocate(REGISTERED, &made, bytes, host());
    if (!result) find(REGISTERED, made)->handle = address;
    return result;
}
int cuMemHostRegister_v2(u64 address, u64 bytes) { return pin(address, bytes); }
int cuMemHostRegister(u64 address, u64 bytes) { return pin(address, bytes); }
int cuMemHostUnregister(u64 address) { return unpin(REGISTERED, address, NOT_REGISTERED); }

/* ---- pools: a pool takes blocks, and keeps them until it is trimmed ---- */
/* Where the properties of pools and of physical memory say: on a device, or on the host. */
static int place_of(const int *properties) { return properties[2] == 1 ? card_of(properties[3]) : HOST; }
int cuDeviceGetDefaultMemPool(u64 *out, int device) {
    ALONE;
    static struct thing *made[CARDS];
    int card = card_of(device);
    if (card < 0) return NO_DEVICE;
    if (!made[card]) made[card] = make(POOL, 0, 0, card);
    return give(out, made[card]);
}
int cuDeviceGetMemPool(u64 *pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
int cuMemPoolCreate(u64 *out, const int *properties) {
    int place = properties ? place_of(properties) : -1;
    return place < 0 ? INVALID : give(out, make(POOL, 0, 0, place));
}
static void reserve(struct thing *pool, u64 bytes) { used[pool->place] += bytes - pool->bytes; pool->bytes = bytes; }
int cuMemPoolTrimTo(u64 handle, u64 keep) {
    ALONE;
    struct thing *pool = find(POOL, handle);
    u64 least = UP(pool->in_use, POOL_BLOCK);
    if (least < keep) least = keep;
    if (pool->bytes > least) reserve(pool, least);
    return OK;
}
/* Its allocations are still there. */
int cuMemPoolDestroy(u64 handle) {
    FIND(pool, POOL, handle, INVALID);
    cuMemPoolTrimTo(handle, 0);
    pool->handle = 0;
    return OK;
}
int cuMemPoolSetAttribute(u64 handle, int attribute, u64 *value) { if (attribute == 4) threshold = *value; return OK; }
int cuMemPoolGetAttribute(u64 handle, int attribute, u64 *value) {
    FIND(pool, POOL, handle, INVALID);
    *value = attribute == 5 ? pool->bytes : pool->in_use;
    return attribute == 5 || attribute == 7 ? OK : INVALID; /* as before CUDA 13 */
}
int cuMemAllocFromPoolAsync(u64 *out, u64 bytes, u64 handle, u64 stream) {
    ALONE;
    FIND(pool, POOL, handle, INVALID);
    if (!bytes) return INVALID;
    if (failing()) return FAILED;
    pool->in_use += bytes;
    if (pool->in_use > pool->bytes) reserve(pool, pool->bytes + UP(pool->in_use - pool->bytes, POOL_BLOCK));
    struct thing *made = make(BLOCK, new_address(bytes), bytes, NOWHERE);
    made->memory = pool;
    return give(out, made);
}
int cuMemAllocAsync(u64 *out, u64 bytes, u64 stream) {
    int device;
    u64 pool;
    if (cuCtxGetDevice(&device)) return NO_CONTEXT;
    if (capture) return give(out, make(BLOCK, new_address(bytes), bytes, NOWHERE));
    cuDeviceGetMemPool(&pool, device);
    return cuMemAllocFromPoolAsync(out, bytes, pool, stream);
}
int cuMemAllocAsync_ptsz(u64 *out, u64 bytes, u64 stream) { return cuMemAllocAsync(out, bytes, stream); }
int cuMemFreeAsync(u64 address) { return cuMemFree_v2(address); }

/* ---- memory behind handles, and what it is mapped and bound to ---- */
int cuMemCreate(u64 *out, u64 bytes, const int *properties) {
    if (!properties) return INVALID;
    if (place_of(properties) < 0) return NO_DEVICE;
    return failing() ? FAILED : give(out, make(PHYSICAL, 0, bytes, place_of(properties)));
}
int cuMemRelease(u64 handle) {
    ALONE;
    if (!destroy(IMPORT, handle)) return OK;
    FIND(memory, PHYSICAL, handle, INVALID);
    let_go(memory);
    return OK;
}
int cuMemMap(u64 address, u64 bytes, u64 offset, u64 handle) {
    FIND(memory, PHYSICAL, handle, INVALID);
    return hold_on(MAP, 0, address, bytes, memory);
}
int cuMemUnmap(u64 address, u64 bytes) { return release(MAP, 0, address, bytes); }
static struct thing *mapped_at(u64 address) {
    struct thing *map = around(MAP, address);
    return map ? map->memory : NULL;
}
int cuMemRetainAllocationHandle(u64 *out, u64 address) {
    struct thing *memory = mapped_at(address);
    if (memory) memory->count++;
    return memory ? give(out, memory) : INVALID;
}

int cuMulticastCreate(u64 *out) { return failing() ? FAILED : give(out, make(PHYSICAL, 0, 0, NOWHERE)); }
static int bind(u64 object, u64 offset, struct thing *memory, u64 bytes) {
    return !memory || failing() ? INVALID : hold_on(BOUND, object, offset, bytes, memory);
}
int cuMulticastBindMem(u64 object, u64 offset, u64 memory, u64 from, u64 bytes) {
    return bind(object, offset, find(PHYSICAL, memory), bytes);
}
int cuMulticastBindMem_v2(u64 object, int device, u64 offset, u64 memory, u64 from, u64 bytes) {
    return bind(object, offset, find(PHYSICAL, memory), bytes);
}
int cuMulticastBindAddr_v2(u64 object, int device, u64 offset, u64 address, u64 bytes) {
    return bind(object, offset, mapped_at(address), bytes);
}
int cuMulticastUnbind(u64 object, int device, u64 offset, u64 bytes) { return release(BOUND, object, offset, bytes); }
/* Endpoints have small numbers, handles have large ones. */
int cuLogicalEndpointBindMem(u32 endpoint, int device, u64 offset, u64 memory, u64 from, u64 bytes) {
    return bind(endpoint, offset, find(PHYSICAL, memory), bytes);
}
int cuLogicalEndpointBindAddr(u32 endpoint, int device, u64 offset, u64 address, u64 bytes) {
    return bind(endpoint, offset, mapped_at(address), bytes);
}
int cuLogicalEndpointUnbind(u32 endpoint, int device, u64 offset, u64 bytes) {
    return release(BOUND, endpoint, offset, bytes);
}
int cuLogicalEndpointDestroy(u32 endpoint) { return release(BOUND, endpoint, 0, ~0ull); }

/* ---- arrays ---- */
struct description { u64 width, height, depth; u32 format, channels, flags; };
enum { SPARSE = 0x40, DEFERRED = 0x80 };
static int make_array(u64 *out, const struct description *d, u32 levels) {
    ALONE;
    int card = current_card();
    if (!d) return INVALID;
    if (card < 0) return NO_CONTEXT;
    if (failing()) return FAILED;
    if (d->flags & DEFERRED && secret) return NOT_SUPPORTED;
    u64 elements = d->width * (d->height ? d->height : 1) * (d->depth ? d->depth : 1);
    u64 bytes = (elements * d->channels + 4096) * levels;
    struct thing *made = make(ARRAY, 0, d->flags & (SPARSE | DEFERRED) ? 0 : bytes, card);
    made->at = bytes;
    made->of = current;
    return give(out, made);
}
int cuArray3DCreate_v2(u64 *out, const struct description *d) { return make_array(out, d, 1); }
int cuArrayCreate_v2(u64 *out, const u64 *d) {
    if (!d) return INVALID;
    struct description whole = { d[0], d[1], 0, (u32)d[2], (u32)(d[2] >> 32), 0 };
    return make_array(out, &whole, 1);
}
int cuMipmappedArrayCreate(u64 *out, const struct description *d, u32 levels) { return make_array(out, d, levels); }
int cuArrayDestroy(u64 handle) { return destroy(ARRAY, handle); }
int cuMipmappedArrayDestroy(u64 handle) { return cuArrayDestroy(handle); }
int cuArrayGetMemoryRequirements(u64 *needs, u64 handle) {
    FIND(array, ARRAY, handle, INVALID);
    *needs = array->at;
    return OK;
}
int cuMipmappedArrayGetMemoryRequirements(u64 *needs, u64 array) { return cuArrayGetMemoryRequirements(needs, array); }
/* Tiles of one element. */
struct map {
    u32 array_kind; u64 array;
    u32 part, none, level, layer, x, y, z, width, height, depth;
    u32 operation, handle_kind; u64 handle, offset;
    u32 devices, flags, reserved[2];
};
int cuMemMapArrayAsync(const struct map *list, u32 count) {
    ALONE;
    if (failing()) return FAILED;
    for (const struct map *map = list; map < list + count; map++) {
        struct thing *memory = map->operation == 1 ? find(PHYSICAL, map->handle) : NULL;
        for (u32 x = map->x; x < map->x + map->width; x++) {
            u64 tile = (u64)map->level << 48 | (u64)map->layer << 32 | x;
            release(TILE, map->array, tile, 1);
            if (memory) hold_on(TILE, map->array, tile, 1, memory);
        }
    }
    return OK;
}

#include "driver_shared.h"
#include "driver_work.h"
