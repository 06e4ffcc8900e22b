/* Memory of the host. It is on no card, and counted by itself: what this driver has pinned. */
static struct { u64 address, bytes, context; int is_registered; } host[MANY];
static u64 pinned;
u64 fake_pinned(void) { return pinned; }

static int pin(u64 address, u64 bytes, int is_registered) {
    for (int i = 0; i < MANY; i++) if (!host[i].bytes) {
        host[i].address = address; host[i].bytes = bytes; host[i].context = current;
        host[i].is_registered = is_registered;
        pinned += bytes;
        return OK;
    }
    return NO_MEMORY;
}
static int unpin(u64 address, int is_registered) {
    ALONE;
    if (fail_next && !--fail_next) return FAILED;
    for (int i = 0; i < MANY; i++) if (host[i].bytes && host[i].address == address && host[i].is_registered == is_registered) {
        pinned -= host[i].bytes; host[i].bytes = 0;
        return OK;
    }
    return is_registered ? 713 : INVALID;
}
static void unpin_all_of(u64 context) {
    for (int i = 0; i < MANY; i++) if (host[i].bytes && host[i].context == context) { pinned -= host[i].bytes; host[i].bytes = 0; }
}
int cuMemHostAlloc(u64 *out, u64 bytes, u32 flags) {
    ALONE;
    (void)flags;
    if (current_card() < 0) return NO_CONTEXT;
    if (!bytes || !out) return INVALID;
    if (failing()) return FAILED;
    *out = next_address; next_address += (bytes + 0xfffff) & ~0xfffffull;
    return pin(*out, bytes, 0);
}
int cuMemAllocHost(u64 *out, u32 bytes) { return cuMemHostAlloc(out, bytes, 0); }
int cuMemAllocHost_v2(u64 *out, u64 bytes) { return cuMemHostAlloc(out, bytes, 0); }
int cuMemFreeHost(u64 address) { return address ? unpin(address, 0) : OK; }
int cuMemHostRegister_v2(u64 address, u64 bytes, u32 flags) {
    ALONE;
    (void)flags;
    if (current_card() < 0) return NO_CONTEXT;
    if (!bytes) return INVALID;
    if (failing()) return FAILED;
    for (int i = 0; i < MANY; i++) if (host[i].bytes && host[i].address == address) return 712;
    return pin(address, bytes, 1);
}
int cuMemHostRegister(u64 address, u64 bytes, u32 flags) { return cuMemHostRegister_v2(address, bytes, flags); }
int cuMemHostUnregister(u64 address) { return unpin(address, 1); }
