/* Streams, and work in them that lasts until the test says otherwise. Part of driver.c. */
#include <unistd.h>

static u64 running[64];     /* streams with work */
static u64 gone[64];        /* streams that were destroyed */
static u64 streams_made = 1;
static u64 arrived;         /* launches of all kinds */
static u64 disturbed;       /* questions that the driver forbids */
static volatile u64 held;   /* launches stay inside the driver */
static struct { u64 event, stream, at; } before[64]; /* what an event comes after */
static u64 reached, deepest; /* how many launches a thread knows to have run; most beyond that */
static u64 each_us;          /* how long each takes, as events measure it */

static int in(const u64 *list, u64 stream) {
    for (int i = 0; i < 64; i++) if (stream && list[i] == stream) return 1;
    return 0;
}
static void put(u64 *list, u64 old, u64 now) {
    for (int i = 0; i < 64; i++) if (list[i] == old) { list[i] = now; return; }
}
static int records(u64 stream) { return capturing == 1 || (capturing && (u64)capturing == stream); }

/* From now on, and until it is finished, the stream has work. The default one comes after all. */
u64 fake_run(u64 stream) { ALONE; if (!in(running, stream)) put(running, 0, stream); return 0; }
u64 fake_finish(u64 stream) { ALONE; put(running, stream, 0); return 0; }
u64 fake_hold(u64 on) { held = on; return 0; }
u64 fake_arrived(void) { return __atomic_load_n(&arrived, __ATOMIC_SEQ_CST); }
u64 fake_each(u64 us) { each_us = us; return 0; }
u64 fake_deepest(void) { u64 was = deepest; deepest = 0; return was; }
u64 fake_disturbed(void) { return disturbed; }
int fake_arrive(void) {
    u64 queued = __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST) - reached;
    if (queued > deepest) deepest = queued;
    while (held) usleep(100);
    return 0;
}
#define arrive fake_arrive

int cuStreamIsCapturing(u64 stream, int *status) {
    if (stream <= 1 && capturing > 1) return 906; /* something in the context records */
    *status = records(stream);
    return OK;
}
int cuStreamCreate(u64 *out, u32 flags) { ALONE; (void)flags; *out = 0x9000 + 16 * streams_made++; return OK; }
int cuStreamDestroy_v2(u64 stream) { ALONE; put(gone, 0, stream); return OK; }
int cuStreamBeginCapture_v2(u64 stream, int mode) { (void)mode; capturing = (int)stream; return OK; }
int cuStreamQuery(u64 stream) {
    ALONE;
    if (records(stream) || in(gone, stream) || (stream <= 1 && capturing > 1)) disturbed++;
    return in(running, stream) ? 600 : OK;
}
int cuStreamSynchronize(u64 stream) { while (in(running, stream)) usleep(100); return OK; }
static __thread u64 below[8];
static __thread int depth;
int cuCtxPushCurrent_v2(u64 context) { below[depth++] = current; current = context; return OK; }
int cuCtxPopCurrent_v2(u64 *context) { *context = current; current = below[--depth]; return OK; }
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return OK; }

static int record(u64 event, u64 stream) {
    ALONE;
    if (records(stream) || in(gone, stream) || (stream <= 1 && capturing > 1)) disturbed++;
    for (int i = 0; i < 64; i++) if (!before[i].event || before[i].event == event) {
        before[i].event = event; before[i].stream = stream; before[i].at = arrived;
        return OK;
    }
    return FAILED;
}
static u64 launches_before(u64 event) {
    for (int i = 0; i < 64; i++) if (before[i].event == event) return before[i].at;
    return 0;
}
int cuEventSynchronize(u64 event) { if (launches_before(event) > reached) reached = launches_before(event); return OK; }
int cuEventElapsedTime(float *ms, u64 from, u64 to) {
    *ms = (float)(launches_before(to) - launches_before(from)) * (float)each_us / 1000;
    return OK;
}
static int is_before(u64 event) {
    ALONE;
    for (int i = 0; i < 64; i++) if (before[i].event == event) {
        for (int j = 0; j < 64; j++) if (running[j] && (before[i].stream <= 1 || before[i].stream == running[j])) return 1;
        before[i].event = 0;
    }
    return 0;
}
