/* Part of driver.c: graphs, streams with their work, and look-ups. */

/* ---- graphs: nodes that allocate. A program's struct that has an address names it: a driver gives
 * the address of what was freed before to what comes after ---- */
struct node { u32 kind, handles, place, device; char none[88]; u64 bytes, address; };
int cuGraphCreate(u64 *out) { ALONE; static u64 last = 0x5000000; *out = ++last; return OK; }
int cuGraphAddMemAllocNode(u64 *out, u64 graph, const u64 *after, u64 n_after, struct node *node) {
    struct thing *made = make(NODE, 0, node->bytes, NOWHERE);
    if (!node->address) node->address = new_address(node->bytes);
    made->of = graph;
    made->at = node->address;
    made->count = (int)node->device;
    return give(out, made);
}
int cuGraphGetNodes(u64 graph, u64 *out, u64 *count) {
    u64 n = 0;
    EACH(node, NODE) if (node->of == graph) {
        if (out && n < *count) out[n] = node->handle;
        n++;
    }
    *count = n;
    return OK;
}
int cuGraphNodeGetType(u64 node, int *kind) { *kind = 10; return OK; }
int cuGraphMemAllocNodeGetParams(u64 handle, struct node *out) {
    struct thing *node = find(NODE, handle);
    if (untold) return NOT_SUPPORTED;
    *out = (struct node){ .place = 1, .device = (u32)node->count, .bytes = node->bytes, .address = node->at };
    return OK;
}
/* Memory behind an address counts once, as the largest that is there. */
static int counts(const struct thing *node) {
    EACH(other, NODE) if (other->of == node->of && other->at == node->at)
        if (other->bytes > node->bytes || (other->bytes == node->bytes && other < node)) return 0;
    return 1;
}
int cuGraphInstantiateWithFlags(u64 *out, u64 graph) {
    ALONE;
    u64 bytes = growth;
    int card = 0;
    if (failing()) return FAILED;
    EACH(node, NODE) if (node->of == graph && counts(node)) {
        bytes += node->bytes;
        card = card_of(node->count);
    }
    return give(out, make(EXEC, 0, bytes, card));
}
/* The card keeps the memory until it is trimmed. */
int cuGraphExecDestroy(u64 handle) { FIND(exec, EXEC, handle, INVALID); exec->kind = KEPT; return OK; }
int cuDeviceGraphMemTrim(int device) {
    ALONE;
    EACH(kept, KEPT) if (kept->place == card_of(device)) end(kept);
    return OK;
}
/* In use is nothing, because nothing is ever launched here. */
int cuDeviceGetGraphMemAttribute(int device, int attribute, u64 *value) {
    ALONE;
    u64 reserved = 0;
    for (EVERY(t)) if ((t->kind == EXEC || t->kind == KEPT) && t->place == card_of(device)) reserved += t->bytes;
    *value = attribute == 2 ? reserved : 0;
    return attribute == 0 || attribute == 2 ? OK : INVALID;
}

/* ---- streams, and work in them that lasts until the test says otherwise ---- */
/* The card's own clock, which goes on while somebody asks for an event; and when all will have run. */
static u64 now_us, free_us;
u64 fake_drain(void) { ALONE; now_us = free_us; deepest = 0; return 0; }
/* From now on, and until it is finished, the stream has work. The default one comes after all. */
u64 fake_run(u64 stream) { ALONE; if (!find(RUNNING, stream)) make(RUNNING, stream, 0, NOWHERE); return 0; }
u64 fake_finish(u64 stream) { return destroy(RUNNING, stream); }
int fake_arrive(void) {
    {
        ALONE;
        arrived++;
        free_us += each;
        if (free_us - now_us > deepest) deepest = free_us - now_us;
    }
    while (hold) usleep(100);
    return 0;
}
static int records(u64 stream) { return capture == 1 || (capture && capture == stream); }
/* Something in the context records, and the default streams would come after it. */
static int would_disturb(u64 stream) { return stream <= 1 && capture > 1; }
static void touch(u64 stream) { if (records(stream) || find(DESTROYED, stream) || would_disturb(stream)) disturbed++; }

int cuStreamCreate(u64 *out) { ALONE; static u64 last = 0x900000; *out = last += 16; return OK; }
int cuStreamDestroy_v2(u64 stream) { make(DESTROYED, stream, 0, NOWHERE); return OK; }
int cuStreamBeginCapture_v2(u64 stream) { capture = stream; return OK; }
int cuStreamIsCapturing(u64 stream, int *status) {
    if (would_disturb(stream)) return WOULD_DISTURB;
    *status = records(stream);
    return OK;
}
int cuThreadExchangeStreamCaptureMode(void) { return OK; }
int cuStreamQuery(u64 stream) { ALONE; touch(stream); return find(RUNNING, stream) ? NOT_READY : OK; }
int cuStreamSynchronize(u64 stream) { while (find(RUNNING, stream)) usleep(100); return OK; }

/* An event comes after what its stream has now: `of` a stream, `at` a time of the card's clock. */
int cuEventCreate(u64 *out) { return give(out, make(EVENT, 0, current, NOWHERE)); }
int cuEventDestroy_v2(u64 event) { return destroy(EVENT, event); }
u64 fake_events(void) { ALONE; u64 n = 0; EACH(event, EVENT) n++; return n; }
int cuEventRecord(u64 event, u64 stream) {
    ALONE;
    struct thing *it = find(EVENT, event);
    touch(stream);
    recorded++;
    it->of = stream; it->at = free_us; it->in_use = 1;
    return OK;
}
/* Once reached, it comes after nothing that begins later. */
int cuEventQuery(u64 event) {
    ALONE;
    struct thing *it = find(EVENT, event);
    if (it->bytes && !find(CONTEXT, it->bytes)) disturbed++; /* it went with its context */
    if (busy) return NOT_READY;
    if (it->at > now_us) {
        u64 rest = it->at - now_us, step = each > rest / 2 ? each : rest / 2;
        now_us += step < rest ? step + 1 : rest;
        return NOT_READY;
    }
    EACH(work, RUNNING) if (it->in_use && (it->of <= 1 || it->of == work->handle)) return NOT_READY;
    it->in_use = 0;
    return OK;
}
int cuEventElapsedTime(float *ms, u64 from, u64 to) {
    ALONE;
    *ms = (float)(int64_t)(find(EVENT, to)->at - find(EVENT, from)->at) / 1000;
    return OK;
}

/* A function or a kernel, three sizes of the grid and of a block, shared memory, a stream, two lists. */
int cuLaunchKernel(u64 a, u32 b, u32 c, u32 d, u32 e, u32 f, u32 g, u32 h, u64 i, u64 j, u64 k) {
    struct thing *library = a > KERNEL ? find(MODULE, a - KERNEL) : NULL;
    if (library) bring(library);
    fake_arrive();
    launched = a + 3 * b + 5 * c + 7 * d + 11 * e + 13 * f + 17 * g + 19 * h + 23 * i + 29 * j + 31 * k;
    return OK;
}
int cuLaunchKernel_ptsz(u64 a, u32 b, u32 c, u32 d, u32 e, u32 f, u32 g, u32 h, u64 i, u64 j, u64 k) {
    return cuLaunchKernel(a, b, c, d, e, f, g, h, i, j, k) + 7000;
}

/* ---- threads of the program that launch by way of the interposer ---- */
static struct { int (*launch)(u64, u32, u32, u32, u32, u32, u32, u32, u64, u64, u64); u64 context, stream, times; } plan;
static void *launches(void *at) {
    current = plan.context;
    for (u64 i = 0; i < plan.times; i++) plan.launch(1, 1, 1, 1, 1, 1, 1, 1, plan.stream ? plan.stream + 16 * (u64)at : 0, 1, 1);
    return 0;
}
/* So many threads at once, each with so many launches, in streams of their own or all in the default one. */
u64 fake_threads(u64 n, u64 times, u64 context, u64 stream) {
    pthread_t threads[64];
    plan.launch = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
    plan.context = context; plan.stream = stream; plan.times = times;
    for (u64 i = 0; i < n; i++) pthread_create(&threads[i], 0, launches, (void *)i);
    for (u64 i = 0; i < n; i++) pthread_join(threads[i], 0);
    return 0;
}

/* ---- look-ups: base, version, symbol, symbol with per-thread streams ---- */
int cuMemPrefetchAsync(void) { return 8000; }
int cuMemPrefetchAsync_v2(void) { return 12020; }
int cuMemFromTheFuture(void) { return 15000; }
int cuHarmlessFuture(void) { return 15001; }
int cudbgGetAPIVersion(u32 *major, u32 *minor, u32 *rev) { *major = 12; *minor = 5; *rev = 131; return OK; }
int cuMemAlloc_v9(void) { return 15002; }
static const struct { const char *base; int version; const char *symbol, *twin; } known[] = {
    { "cuInit", 2000, "cuInit", 0 }, { "cuMemAlloc", 3020, "cuMemAlloc_v2", 0 },
    { "cuMemAlloc", 15000, "cuMemAlloc_v9", 0 }, { "cuMemFree", 3020, "cuMemFree_v2", 0 },
    { "cuMemAllocAsync", 11020, "cuMemAllocAsync", "cuMemAllocAsync_ptsz" },
    { "cuMemPrefetchAsync", 8000, "cuMemPrefetchAsync", 0 },
    { "cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2", 0 },
    { "cuLaunchKernel", 4000, "cuLaunchKernel", "cuLaunchKernel_ptsz" },
    { "cuCtxGetCurrent", 4000, "cuCtxGetCurrent", 0 }, { "cuGetProcAddress", 11030, "cuGetProcAddress", 0 },
    { "cuGetProcAddress", 12000, "cuGetProcAddress_v2", 0 },
    { "cuMemFromTheFuture", 15000, "cuMemFromTheFuture", 0 }, { "cuHarmlessFuture", 15000, "cuHarmlessFuture", 0 },
};
int cuGetProcAddress_v2(const char *base, void **out, int of, u64 flags, int *status) {
    const char *best = 0;
    int exists = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) if (!strcmp(known[i].base, base)) {
        exists = 1;
        if ((unsigned)known[i].version <= (unsigned)of) best = flags & 2 && known[i].twin ? known[i].twin : known[i].symbol;
    }
    *out = 0;
    if (status) *status = best ? 0 : exists ? 2 : 1;
    if (!best) return OK; /* the status says it */
    Dl_info here;
    dladdr((void *)cuGetProcAddress_v2, &here);
    *out = dlsym(dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD), best);
    return OK;
}
int cuGetProcAddress(const char *base, void **out, int of, u64 flags) {
    int code = cuGetProcAddress_v2(base, out, of, flags, 0);
    return !code && !*out ? NOT_FOUND : code;
}
