/*
 * A driver that does nothing, so that what a call through the interposer takes is the
 * interposer's. It has one device, the one that CUDA_VISIBLE_DEVICES names, because the arbiter
 * knows its cards by UUID. Memory is a number that grows: nothing is behind it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
#define EXPORT __attribute__((visibility("default")))

static unsigned char uuid[16];
static uint64_t next = 1ull << 40;
static uint64_t pool_used, pool_reserved;

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* GPU-8-4-4-4-12 */
EXPORT result cuInit(unsigned flags) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;
    (void)flags;
    if (!text || strncmp(text, "GPU-", 4)) return 100;
    for (text += 4; *text && *text != ',' && n < 32; text++) {
        int value = digit(*text);
        if (value < 0) continue;
        uuid[n / 2] = (unsigned char)(uuid[n / 2] << 4 | value);
        n++;
    }
    return n == 32 ? 0 : 100;
}

EXPORT result cuDriverGetVersion(int *version) { *version = 13000; return 0; }
EXPORT result cuDeviceGetCount(int *count) { *count = 1; return 0; }
EXPORT result cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? 101 : 0; }
EXPORT result cuDeviceGetUuid(void *to, int device) { (void)device; memcpy(to, uuid, 16); return 0; }
EXPORT result cuDeviceGetUuid_v2(void *to, int device) { return cuDeviceGetUuid(to, device); }
EXPORT result cuDevicePrimaryCtxRetain(uint64_t *context, int device) { (void)device; *context = 0x1000; return 0; }
EXPORT result cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
EXPORT result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = 1; return 0; }
EXPORT result cuCtxSetCurrent(uint64_t context) { (void)context; return 0; }
EXPORT result cuCtxGetCurrent(uint64_t *context) { *context = 0x1000; return 0; }
EXPORT result cuCtxGetDevice(int *device) { *device = 0; return 0; }
EXPORT result cuCtxSynchronize(void) { return 0; }
EXPORT result cuGetErrorName(int error, const char **name) { (void)error; *name = "CUDA_ERROR_OF_NULL_DRIVER"; return 0; }

EXPORT result cuStreamCreate(uint64_t *stream, unsigned flags) { (void)flags; *stream = 0x2000; return 0; }
EXPORT result cuStreamDestroy_v2(uint64_t stream) { (void)stream; return 0; }
EXPORT result cuStreamSynchronize(uint64_t stream) { (void)stream; return 0; }
EXPORT result cuStreamGetDevice(uint64_t stream, int *device) { (void)stream; *device = 0; return 0; }
EXPORT result cuStreamGetCtx(uint64_t stream, uint64_t *context) { (void)stream; *context = 0x1000; return 0; }
EXPORT result cuStreamIsCapturing(uint64_t stream, int *status) { (void)stream; *status = 0; return 0; }
EXPORT result cuEventCreate(uint64_t *event, unsigned flags) { (void)flags; *event = 0x3000; return 0; }
EXPORT result cuEventDestroy_v2(uint64_t event) { (void)event; return 0; }
EXPORT result cuEventRecord(uint64_t event, uint64_t stream) { (void)event; (void)stream; return 0; }
EXPORT result cuEventQuery(uint64_t event) { (void)event; return 0; }
EXPORT result cuEventElapsedTime(float *ms, uint64_t from, uint64_t to) { (void)from; (void)to; *ms = 0; return 0; }

EXPORT result cuModuleLoadData(uint64_t *module, const void *image) { (void)image; *module = 0x4000; return 0; }
EXPORT result cuModuleUnload(uint64_t module) { (void)module; return 0; }
EXPORT result cuModuleGetFunction(uint64_t *function, uint64_t module, const char *name) { (void)module; (void)name; *function = 0x5000; return 0; }
EXPORT result cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, void *stream, void **parameters, void **extra) {
    (void)f; (void)gx; (void)gy; (void)gz; (void)bx; (void)by; (void)bz;
    (void)shared; (void)stream; (void)parameters; (void)extra;
    return 0;
}
EXPORT result cuLaunchKernelEx(const void *configuration, void *f, void **parameters, void **extra) {
    (void)configuration; (void)f; (void)parameters; (void)extra;
    return 0;
}
EXPORT result cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
    (void)to; (void)from; (void)size; (void)stream;
    return 0;
}

EXPORT result cuGraphCreate(uint64_t *graph, unsigned flags) { (void)flags; *graph = 0x6000; return 0; }
EXPORT result cuGraphDestroy(uint64_t graph) { (void)graph; return 0; }
EXPORT result cuGraphAddKernelNode_v2(uint64_t *node, uint64_t graph, const void *after, size_t n, const void *parameters) {
    (void)graph; (void)after; (void)n; (void)parameters;
    *node = 0x7000;
    return 0;
}
EXPORT result cuGraphGetNodes(uint64_t graph, uint64_t *nodes, size_t *n) { (void)graph; (void)nodes; *n = 0; return 0; }
EXPORT result cuGraphInstantiateWithFlags(uint64_t *executable, uint64_t graph, unsigned long long flags) { (void)graph; (void)flags; *executable = 0x8000; return 0; }
EXPORT result cuGraphExecDestroy(uint64_t executable) { (void)executable; return 0; }
EXPORT result cuGraphLaunch(uint64_t executable, uint64_t stream) { (void)executable; (void)stream; return 0; }

static uint64_t address(size_t size) {
    uint64_t given = next;
    next += (size + 0x1fffff) & ~(uint64_t)0x1fffff;
    return given;
}

EXPORT result cuMemAlloc_v2(uint64_t *to, size_t size) { *to = address(size); return 0; }
EXPORT result cuMemFree_v2(uint64_t from) { (void)from; return 0; }
EXPORT result cuMemCreate(uint64_t *handle, size_t size, const void *properties, unsigned long long flags) {
    (void)properties; (void)flags;
    *handle = address(size);
    return 0;
}
EXPORT result cuMemRelease(uint64_t handle) { (void)handle; return 0; }

/* A pool that keeps what was freed: 2 MiB is all that the benchmark has of it at a time. */
EXPORT result cuDeviceGetMemPool(uint64_t *pool, int device) { (void)device; *pool = 0x9000; return 0; }
EXPORT result cuDeviceGetDefaultMemPool(uint64_t *pool, int device) { return cuDeviceGetMemPool(pool, device); }
EXPORT result cuMemAllocAsync(uint64_t *to, size_t size, void *stream) {
    (void)stream;
    *to = address(size);
    pool_used += size;
    if (pool_used > pool_reserved) pool_reserved = pool_used;
    return 0;
}
EXPORT result cuMemFreeAsync(uint64_t from, void *stream) { (void)from; (void)stream; pool_used = 0; return 0; }
EXPORT result cuMemPoolTrimTo(uint64_t pool, size_t keep) { (void)pool; (void)keep; pool_reserved = pool_used; return 0; }
EXPORT result cuMemPoolGetAttribute(uint64_t pool, int attribute, uint64_t *value) {
    (void)pool;
    /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT and CU_MEMPOOL_ATTR_USED_MEM_CURRENT */
    if (attribute == 5) *value = pool_reserved;
    else if (attribute == 7) *value = pool_used;
    else return 1;
    return 0;
}
