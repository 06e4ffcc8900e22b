/* Part of driver.c: memory of other interfaces, and memory that goes to other processes. */
int cuImportExternalMemory(u64 *out, const u64 *description) {
    return description ? give(out, make(EXTERNAL, 0, 0, NOWHERE)) : INVALID;
}
int cuDestroyExternalMemory(u64 handle) { return destroy(EXTERNAL, handle); }
int cuExternalMemoryGetMappedBuffer(u64 *out) {
    struct thing *made = make(BLOCK, new_address(0), 0, NOWHERE);
    made->of = current;
    return give(out, made);
}
int cuExternalMemoryGetMappedMipmappedArray(u64 *out) { return give(out, make(ARRAY, 0, 0, NOWHERE)); }

static u64 file_of(int fd) { struct stat about; return fstat(fd, &about) ? 0 : about.st_ino; }
static int new_file(void) { return memfd_create("exported", 0); }
int cuMemExportToShareableHandle(void *out, u64 handle, int kind) {
    if (!find(PHYSICAL, handle)) return INVALID;
    if (kind == FABRIC) {
        memset(out, 0, 64);
        memcpy(out, &handle, 8);
        return OK;
    }
    int fd = new_file();
    make(EXPORTED, file_of(fd), 0, NOWHERE)->at = handle;
    memcpy(out, &fd, 4);
    return OK;
}
/* A handle of its own for each import; another process's memory is not counted here. */
int cuMemImportFromShareableHandle(u64 *out, void *from, int kind) {
    struct thing *file = kind == DESCRIPTOR ? find(EXPORTED, file_of((int)(u64)from)) : NULL;
    struct thing *made = make(IMPORT, 0, 0, NOWHERE);
    if (file && (made->memory = find(PHYSICAL, file->at))) made->memory->count++;
    return give(out, made);
}
int cuMemGetHandleForAddressRange(int *out, u64 address, u64 bytes, int kind) {
    if (kind != 1) return INVALID;
    *out = new_file();
    return OK;
}
struct ipc { u64 words[8]; };
int cuIpcGetMemHandle(struct ipc *out, u64 address) {
    *out = (struct ipc){ .words = { (u64)getpid(), 0, 0, address } };
    return find(BLOCK, address) ? OK : INVALID;
}
int cuIpcOpenMemHandle_v2(u64 *out, struct ipc handle) {
    *out = handle.words[3] + OF_OTHERS;
    return handle.words[0] == (u64)getpid() ? NO_CONTEXT : OK;
}
int cuIpcCloseMemHandle(u64 address) { return address >= OF_OTHERS ? OK : INVALID; }
int cuMemPoolExportPointer(struct ipc *out, u64 address) { return cuIpcGetMemHandle(out, address); }
int cuMemPoolImportFromShareableHandle(u64 *out) { return give(out, make(POOL, 0, 1 << 30, NOWHERE)); }
int cuMemPoolImportPointer(u64 *out, u64 pool, const struct ipc *from) {
    *out = from->words[3] + OF_OTHERS_POOLS;
    return OK;
}
