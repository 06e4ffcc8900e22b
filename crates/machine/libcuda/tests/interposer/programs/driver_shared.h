/* The rest of driver.c: memory that others can hold, and what only newer drivers have.
 *
 * This driver lives in one process, so it cannot know what other processes hold: where that
 * matters, the tests ask the ledger alone. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- multicast objects and logical endpoints: memory is bound to them ---- */
static struct { u64 object, offset, bytes; int at; } bound[MANY];

int cuMulticastCreate(u64 *out, const void *properties) {
    ALONE;
    (void)properties;
    if (failing()) return FAILED;
    for (int i = 0; i < MANY; i++) if (!physical[i].references) {
        physical[i].handle = *out = next_handle++; physical[i].bytes = 0; physical[i].card = -1;
        physical[i].references = 1; physical[i].is_object = 1;
        return OK;
    }
    return NO_MEMORY;
}
static int bind(u64 object, u64 offset, int at, u64 bytes) {
    ALONE;
    if (at < 0 || failing()) return INVALID;
    for (int i = 0; i < MANY; i++) if (!bound[i].bytes) {
        bound[i].object = object; bound[i].offset = offset; bound[i].bytes = bytes; bound[i].at = at;
        physical[at].references++;
        return OK;
    }
    return NO_MEMORY;
}
static int mapped_at(u64 address) {
    for (int i = 0; i < MANY; i++) if (maps[i].bytes && address >= maps[i].address && address < maps[i].address + maps[i].bytes) return maps[i].at;
    return -1;
}
static int unbind(u64 object, u64 offset, u64 bytes) {
    ALONE;
    for (int i = 0; i < MANY; i++) if (bound[i].bytes && bound[i].object == object && bound[i].offset >= offset && bound[i].offset + bound[i].bytes <= offset + bytes) {
        bound[i].bytes = 0; drop_physical(bound[i].at);
    }
    return OK;
}
/* With the last reference to an object goes what was bound to it. */
static void end_object(u64 handle) { unbind(handle, 0, ~0ull); }
int cuMulticastBindMem(u64 object, u64 offset, u64 memory, u64 from, u64 bytes, u64 flags) { (void)from; (void)flags; return bind(object, offset, physical_at(memory), bytes); }
int cuMulticastBindMem_v2(u64 object, int device, u64 offset, u64 memory, u64 from, u64 bytes, u64 flags) { (void)device; return cuMulticastBindMem(object, offset, memory, from, bytes, flags); }
int cuMulticastBindAddr(u64 object, u64 offset, u64 address, u64 bytes, u64 flags) { (void)flags; return bind(object, offset, mapped_at(address), bytes); }
int cuMulticastBindAddr_v2(u64 object, int device, u64 offset, u64 address, u64 bytes, u64 flags) { (void)device; return cuMulticastBindAddr(object, offset, address, bytes, flags); }
int cuMulticastUnbind(u64 object, int device, u64 offset, u64 bytes) { (void)device; return unbind(object, offset, bytes); }
/* Endpoints have small numbers, handles have large ones. */
int cuLogicalEndpointBindMem(u32 endpoint, int device, u64 offset, u64 memory, u64 from, u64 bytes, u64 flags) { (void)device; (void)from; (void)flags; return bind(endpoint, offset, physical_at(memory), bytes); }
int cuLogicalEndpointBindAddr(u32 endpoint, int device, u64 offset, u64 address, u64 bytes, u64 flags) { (void)device; (void)flags; return bind(endpoint, offset, mapped_at(address), bytes); }
int cuLogicalEndpointUnbind(u32 endpoint, int device, u64 offset, u64 bytes) { (void)device; return unbind(endpoint, offset, bytes); }
int cuLogicalEndpointDestroy(u32 endpoint) { end_object(endpoint); return OK; }

/* ---- handles for other processes ---- */
static struct { u64 file; int at; } exported[MANY];
static u64 file_of(int fd) { struct stat about; return fstat(fd, &about) ? 0 : about.st_ino; }
static int new_file(void) { return memfd_create("exported", 0); }

int cuMemExportToShareableHandle(void *out, u64 handle, int kind, u64 flags) {
    int at = physical_at(handle);
    (void)flags;
    if (at < 0) return INVALID;
    if (kind == 8) { memset(out, 0, 64); memcpy(out, &handle, 8); return OK; }
    int fd = new_file();
    for (int i = 0; i < MANY; i++) if (!exported[i].file) { exported[i].file = file_of(fd); exported[i].at = at; break; }
    memcpy(out, &fd, 4);
    return OK;
}
/* A handle of its own for each import; another process's memory is not counted here. */
static struct { u64 handle; int at; } imports[MANY];
int cuMemImportFromShareableHandle(u64 *out, void *from, int kind) {
    int at = -1;
    if (kind == 1) for (int i = 0; i < MANY; i++) if (exported[i].file && exported[i].file == file_of((int)(u64)from)) at = exported[i].at;
    for (int i = 0; i < MANY; i++) if (!imports[i].handle) {
        imports[i].handle = *out = next_handle++; imports[i].at = at;
        if (at >= 0) physical[at].references++;
        return OK;
    }
    return NO_MEMORY;
}
static int release_import(u64 handle) {
    for (int i = 0; i < MANY; i++) if (handle && imports[i].handle == handle) {
        imports[i].handle = 0;
        if (imports[i].at >= 0) drop_physical(imports[i].at);
        return 1;
    }
    return 0;
}
int cuMemGetHandleForAddressRange(int *out, u64 address, u64 bytes, int kind, u64 flags) { (void)address; (void)bytes; (void)flags; if (kind != 1) return INVALID; *out = new_file(); return OK; }
int cuMemGetAddressRange_v2(u64 *first, u64 *bytes, u64 address) {
    for (int i = 0; i < MANY; i++) if (blocks[i].address && address >= blocks[i].address && address < blocks[i].address + blocks[i].bytes) { *first = blocks[i].address; *bytes = blocks[i].bytes; return OK; }
    return INVALID;
}
struct ipc { u64 words[8]; };
int cuIpcGetMemHandle(struct ipc *out, u64 address) { memset(out, 0, sizeof *out); out->words[0] = (u64)getpid(); out->words[3] = address; return block_at(address) < 0 ? INVALID : OK; }
int cuIpcOpenMemHandle_v2(u64 *out, struct ipc handle, u32 flags) { (void)flags; if (handle.words[0] == (u64)getpid()) return 201; *out = handle.words[3] + (1ull << 44); return OK; }
int cuIpcCloseMemHandle(u64 address) { return address >> 44 ? OK : INVALID; }
int cuMemPoolExportPointer(struct ipc *out, u64 address) { return cuIpcGetMemHandle(out, address); }
int cuMemPoolImportFromShareableHandle(u64 *out, void *from, int kind, u64 flags) { (void)from; (void)kind; (void)flags; *out = make_pool(0); pool_at(*out)->reserved = 1 << 30; return OK; }
int cuMemPoolImportPointer(u64 *out, u64 pool, const struct ipc *from) { (void)pool; *out = from->words[3] + (2ull << 44); return OK; }
/* cuMemFree of what was imported from a pool. */
static int is_imported(u64 address) { return address >> 45 == 1; }

/* ---- sparse arrays: cells of one element are mapped to memory ---- */
static struct { u64 array; u32 level, layer, x; int at; } cells[MANY];
struct map { u32 array_kind; u64 array; u32 part; u64 box[4]; u32 operation, handle_kind; u64 handle, offset; u32 devices, flags, reserved[2]; };
static void set_cell(u64 array, u32 level, u32 layer, u32 x, int at) {
    int spot = -1;
    for (int i = 0; i < MANY; i++) {
        if (cells[i].array == array && cells[i].level == level && cells[i].layer == layer && cells[i].x == x) {
            cells[i].array = 0; drop_physical(cells[i].at);
        }
        if (!cells[i].array && spot < 0) spot = i;
    }
    if (at >= 0) { cells[spot].array = array; cells[spot].level = level; cells[spot].layer = layer; cells[spot].x = x; cells[spot].at = at; physical[at].references++; }
}
int cuMemMapArrayAsync(const struct map *list, u32 count, u64 stream) {
    ALONE;
    (void)stream;
    if (failing()) return FAILED;
    for (u32 i = 0; i < count; i++) {
        const u32 *box = (const u32 *)list[i].box; /* level, layer, three offsets, three extents */
        int at = list[i].operation == 1 ? physical_at(list[i].handle) : -1;
        for (u32 x = box[2]; x < box[2] + box[5]; x++) set_cell(list[i].array, box[0], box[1], x, at);
    }
    return OK;
}
static void unmap_array(u64 array) { for (int i = 0; i < MANY; i++) if (array && cells[i].array == array) { cells[i].array = 0; drop_physical(cells[i].at); } }

/* ---- events: streams are as busy as the test says ---- */
static u64 busy, events;
u64 fake_busy(u64 now) { busy = now; return 0; }
u64 fake_events(void) { return events; }
int cuEventCreate(u64 *out, u32 flags) { (void)flags; *out = next_handle++; events++; return OK; }
int cuEventRecord(u64 event, u64 stream) { return record(event, stream); }
int cuEventQuery(u64 event) { return busy || is_before(event) ? 600 : OK; }
int cuEventDestroy_v2(u64 event) { (void)event; events--; return OK; }

/* ---- other interfaces ---- */
int cuExternalMemoryGetMappedBuffer(u64 *out, u64 memory, const void *description) { (void)memory; (void)description; return new_block(out, 0, 0, current, NULL); }
int cuExternalMemoryGetMappedMipmappedArray(u64 *out, u64 memory, const void *description) {
    (void)memory; (void)description;
    for (int i = 0; i < MANY; i++) if (!arrays[i].handle) { arrays[i].handle = *out = next_handle++; arrays[i].bytes = 0; return OK; }
    return NO_MEMORY;
}

/* ---- contexts ---- */
int cuGLCtxCreate_v2(u64 *out, u32 flags, int device) { return cuCtxCreate_v2(out, flags, device); }
int cuVDPAUCtxCreate_v2(u64 *out, u32 flags, int device, u32 video, void *functions) { (void)video; (void)functions; return cuCtxCreate_v2(out, flags, device); }
int cuCtxAttach(u64 *out, u32 flags) { int at = context_at(current); (void)flags; if (at < 0) return NO_CONTEXT; contexts[at].count++; *out = current; return OK; }
int cuCtxDetach(u64 context) { int at = context_at(context); if (at < 0) return NO_CONTEXT; if (--contexts[at].count) return OK; return cuCtxDestroy_v2(context); }
int cuGreenCtxCreate(u64 *out, u64 resources, int device, u32 flags) { (void)resources; (void)flags; u64 primary; int r = cuDevicePrimaryCtxRetain(&primary, device); *out = primary + (1ull << 50); return r; }
int cuGreenCtxDestroy(u64 green) { return cuDevicePrimaryCtxRelease_v2(contexts[context_at(green - (1ull << 50))].device); }
static u64 limits[3] = { 1024, 1 << 20, 8 << 20 };
int cuCtxGetLimit(u64 *value, int limit) { if (limit > 2) return 215; *value = limits[limit]; return OK; }
int cuCtxSetLimit(int limit, u64 value) { if (limit > 2) return 215; if (failing()) return FAILED; limits[limit] = value; return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; *value = attribute == 16 ? 10 : attribute == 39 ? 1024 : 0; return OK; }
