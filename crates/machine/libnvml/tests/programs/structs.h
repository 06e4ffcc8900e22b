/* The structs of nvml.h that pass between the program and the library, under short names. */
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef struct { u32 pid; u64 bytes; } info1;
typedef struct { u32 pid; u64 bytes; u32 gpu, compute; } info2;
typedef struct { u32 pid; u64 bytes; u32 gpu, compute; u64 secret; } detail;
typedef struct { u32 version, mode, count; detail *list; } details;
typedef struct { u32 pid; u64 time; u32 sm, memory, encoder, decoder; } sample;
typedef struct { u64 time; u32 pid, sm, memory, encoder, decoder, jpg, ofa; } sample1;
typedef struct { u32 version, count; u64 since; sample1 *list; } samples;
typedef struct { u32 words[8]; } session8;
typedef struct { u32 words[12]; } session12;
typedef struct { u32 id, scope; u64 time, latency; u32 type, result; u64 value; } field;
