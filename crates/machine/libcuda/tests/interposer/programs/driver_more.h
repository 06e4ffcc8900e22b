/* The rest of driver.c: arrays, external memory, graphs, launches, and the look-up. */

struct array { u64 handle, bytes, bytes_if_mapped; int card; };
static struct array arrays[MANY];
struct description { u64 width, height, depth; u32 format, channels, flags; };

static int make_array(u64 *out, const struct description *d, u32 levels) {
    int card = current_card();
    if (!d) return INVALID;
    if (card < 0) return NO_CONTEXT;
    if (failing()) return FAILED;
    if (d->flags & 0x80 && getenv("FAKE_NO_DEFERRED")) return 801;
    u64 bytes = (d->width * (d->height ? d->height : 1) * (d->depth ? d->depth : 1) * d->channels + 4096) * levels;
    for (int i = 0; i < MANY; i++) if (!arrays[i].handle) {
        arrays[i].handle = *out = next_handle++; arrays[i].card = card;
        arrays[i].bytes_if_mapped = bytes;
        arrays[i].bytes = d->flags & 0xc0 ? 0 : bytes;
        used[card] += arrays[i].bytes;
        return OK;
    }
    return NO_MEMORY;
}
int cuArray3DCreate_v2(u64 *out, const struct description *d) { return make_array(out, d, 1); }
int cuArrayCreate_v2(u64 *out, const u64 *d) {
    if (!d) return INVALID;
    struct description whole = { d[0], d[1], 0, (u32)d[2], (u32)(d[2] >> 32), 0 };
    return make_array(out, &whole, 1);
}
int cuMipmappedArrayCreate(u64 *out, const struct description *d, u32 levels) { return make_array(out, d, levels); }
static void unmap_array(u64 array);
int cuArrayDestroy(u64 handle) {
    unmap_array(handle);
    for (int i = 0; i < MANY; i++) if (handle && arrays[i].handle == handle) {
        used[arrays[i].card] -= arrays[i].bytes; arrays[i].handle = 0;
        return OK;
    }
    return INVALID;
}
int cuMipmappedArrayDestroy(u64 handle) { return cuArrayDestroy(handle); }
int cuArrayGetMemoryRequirements(u64 *needs, u64 handle, int device) {
    (void)device;
    for (int i = 0; i < MANY; i++) if (arrays[i].handle == handle && !arrays[i].bytes) { needs[0] = arrays[i].bytes_if_mapped; return OK; }
    return INVALID;
}
int cuMipmappedArrayGetMemoryRequirements(u64 *needs, u64 handle, int device) { return cuArrayGetMemoryRequirements(needs, handle, device); }

int cuImportExternalMemory(u64 *out, const u64 *description) { if (!description) return INVALID; *out = next_handle++; return OK; }
int cuDestroyExternalMemory(u64 handle) { return handle ? OK : INVALID; }

/* Graphs: nodes in the order they were added. An allocation that comes after the free of another
 * gets the other's address, if it is not larger and nobody else has got that. */
static struct { u64 graph, handle, bytes, address; int kind, device; } nodes[MANY];
static struct { u64 from, to; } edges[MANY];
static int n_nodes, n_edges;
static u64 graph_reserved[CARDS];
static struct { u64 handle, bytes; int card; } execs[MANY];

int cuGraphCreate(u64 *out, u32 flags) { (void)flags; *out = next_handle++; return OK; }
static u64 add_node(u64 graph, int kind, const u64 *after, u64 n_after) {
    u64 handle = next_handle++;
    nodes[n_nodes].graph = graph; nodes[n_nodes].handle = handle; nodes[n_nodes++].kind = kind;
    for (u64 i = 0; i < n_after; i++) { edges[n_edges].from = after[i]; edges[n_edges++].to = handle; }
    return handle;
}
static int node_at(u64 handle) { for (int i = 0; i < n_nodes; i++) if (nodes[i].handle == handle) return i; return 0; }
static int comes_after(u64 node, u64 other) {
    for (int i = 0; i < n_edges; i++) if (edges[i].to == node && (edges[i].from == other || comes_after(edges[i].from, other))) return 1;
    return 0;
}
static u64 address_after(int node) {
    for (int i = 0; i < node; i++) if (nodes[i].kind == 10 && nodes[i].graph == nodes[node].graph && nodes[i].bytes >= nodes[node].bytes) {
        int allocs = 0, frees = 0;
        for (int j = 0; j < node; j++) if (nodes[j].graph == nodes[node].graph && nodes[j].address == nodes[i].address) {
            if (nodes[j].kind == 10) allocs++;
            if (nodes[j].kind == 11 && comes_after(nodes[node].handle, nodes[j].handle)) frees++;
        }
        if (allocs == frees) return nodes[i].address;
    }
    u64 address = next_address;
    next_address += (nodes[node].bytes + 0x1fffff) & ~0x1fffffull;
    return address;
}
int cuGraphAddMemAllocNode(u64 *out, u64 graph, const u64 *after, u64 n_after, unsigned char *params) {
    *out = add_node(graph, 10, after, n_after);
    memcpy(&nodes[n_nodes - 1].device, params + 12, 4);
    memcpy(&nodes[n_nodes - 1].bytes, params + 104, 8);
    nodes[n_nodes - 1].address = address_after(n_nodes - 1);
    memcpy(params + 112, &nodes[n_nodes - 1].address, 8);
    return OK;
}
int cuGraphAddMemFreeNode(u64 *out, u64 graph, const u64 *after, u64 n_after, u64 address) {
    *out = add_node(graph, 11, after, n_after); nodes[n_nodes - 1].address = address;
    return OK;
}
int cuGraphGetNodes(u64 graph, u64 *out, u64 *count) {
    u64 n = 0;
    for (int i = 0; i < n_nodes; i++) if (nodes[i].graph == graph) { if (out && n < *count) out[n] = nodes[i].handle; n++; }
    *count = n;
    return OK;
}
int cuGraphGetEdges(u64 graph, u64 *from, u64 *to, u64 *count) {
    u64 n = 0;
    for (int i = 0; i < n_edges; i++) if (nodes[node_at(edges[i].to)].graph == graph) { if (from && n < *count) { from[n] = edges[i].from; to[n] = edges[i].to; } n++; }
    *count = n;
    return OK;
}
int cuGraphNodeGetType(u64 node, int *kind) { *kind = nodes[node_at(node)].kind; return OK; }
int cuGraphMemAllocNodeGetParams(u64 node, unsigned char *params) {
    int at = node_at(node), device_type = 1;
    if (getenv("FAKE_UNTOLD")) return 801;
    memset(params, 0, 120);
    memcpy(params + 8, &device_type, 4); memcpy(params + 12, &nodes[at].device, 4);
    memcpy(params + 104, &nodes[at].bytes, 8); memcpy(params + 112, &nodes[at].address, 8);
    return OK;
}
int cuGraphMemFreeNodeGetParams(u64 node, u64 *address) { *address = nodes[node_at(node)].address; return OK; }
int cuGraphInstantiateWithFlags(u64 *out, u64 graph, u64 flags) {
    (void)flags;
    if (failing()) return FAILED;
    /* Memory behind an address counts once; FAKE_GROWTH is what this driver takes beyond it. */
    u64 peak = getenv("FAKE_GROWTH") ? strtoull(getenv("FAKE_GROWTH"), 0, 0) : 0; int card = 0;
    for (int i = 0; i < n_nodes; i++) if (nodes[i].graph == graph && nodes[i].kind == 10) {
        int is_new = 1;
        for (int j = 0; j < i; j++) if (nodes[j].graph == graph && nodes[j].kind == 10 && nodes[j].address == nodes[i].address) is_new = 0;
        if (is_new) peak += nodes[i].bytes;
        card = card_of(nodes[i].device);
    }
    for (int i = 0; i < MANY; i++) if (!execs[i].handle) {
        execs[i].handle = *out = next_handle++; execs[i].bytes = peak; execs[i].card = card;
        graph_reserved[card] += peak; used[card] += peak;
        return OK;
    }
    return NO_MEMORY;
}
int cuGraphExecDestroy(u64 handle) {
    for (int i = 0; i < MANY; i++) if (handle && execs[i].handle == handle) { execs[i].handle = 0; return OK; }
    return INVALID;
}
int cuDeviceGraphMemTrim(int device) {
    u64 live = 0; int card = card_of(device);
    for (int i = 0; i < MANY; i++) if (execs[i].handle && execs[i].card == card) live += execs[i].bytes;
    used[card] -= graph_reserved[card] - live; graph_reserved[card] = live;
    return OK;
}
/* Nothing is ever launched here, so nothing is in use. */
int cuDeviceGetGraphMemAttribute(int device, int attribute, u64 *value) { if (attribute != 0 && attribute != 2) return INVALID; *value = attribute ? graph_reserved[card_of(device)] : 0; return OK; }

static u64 launched;
u64 fake_launched(void) { return launched; }
int cuLaunchKernel(u64 f, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, u64 stream, void **params, void **extra) {
    arrive();
    launched = f + 3 * gx + 5 * gy + 7 * gz + 11 * bx + 13 * by + 17 * bz + 19 * shared + 23 * stream + 29 * (u64)params + 31 * (u64)extra;
    return OK;
}
int cuLaunchKernel_ptsz(u64 f, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, u64 stream, void **params, void **extra) {
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra) + 7000;
}
int cuMemPrefetchAsync(u64 a, u64 b, int c, u64 d) { (void)a; (void)b; (void)c; (void)d; return 8000; }
int cuMemPrefetchAsync_v2(u64 a, u64 b, u64 c, u32 d, u64 e) { (void)a; (void)b; (void)c; (void)d; (void)e; return 12020; }
int cuMemFromTheFuture(void) { return 15000; }
int cuHarmlessFuture(void) { return 15001; }
int cuMemAlloc_v9(void) { return 15002; }

/* What a newer driver would resolve: base, version, symbol, symbol with per-thread streams. */
static const struct { const char *base; int version; const char *symbol, *twin; } known[] = {
    { "cuInit", 2000, "cuInit", 0 }, { "cuMemAlloc", 3020, "cuMemAlloc_v2", 0 },
    { "cuMemAlloc", 15000, "cuMemAlloc_v9", 0 }, { "cuMemFree", 3020, "cuMemFree_v2", 0 },
    { "cuMemAllocAsync", 11020, "cuMemAllocAsync", "cuMemAllocAsync_ptsz" },
    { "cuMemPrefetchAsync", 8000, "cuMemPrefetchAsync", 0 }, { "cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2", 0 },
    { "cuLaunchKernel", 4000, "cuLaunchKernel", "cuLaunchKernel_ptsz" },
    { "cuCtxGetCurrent", 4000, "cuCtxGetCurrent", 0 }, { "cuGetProcAddress", 11030, "cuGetProcAddress", 0 },
    { "cuGetProcAddress", 12000, "cuGetProcAddress_v2", 0 },
    { "cuMemFromTheFuture", 15000, "cuMemFromTheFuture", 0 }, { "cuHarmlessFuture", 15000, "cuHarmlessFuture", 0 },
};
int cuGetProcAddress_v2(const char *base, void **out, int version, u64 flags, int *status) {
    const char *best = 0;
    int exists = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) if (!strcmp(known[i].base, base)) {
        exists = 1;
        if (known[i].version <= version) best = flags & 2 && known[i].twin ? known[i].twin : known[i].symbol;
    }
    *out = 0;
    if (status) *status = best ? 0 : exists ? 2 : 1;
    if (!best) return NOT_FOUND;
    Dl_info here;
    dladdr((void *)cuGetProcAddress_v2, &here);
    *out = dlsym(dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD), best);
    return OK;
}
int cuGetProcAddress(const char *base, void **out, int version, u64 flags) { return cuGetProcAddress_v2(base, out, version, flags, 0); }
