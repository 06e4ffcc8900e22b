/* All that NVIDIA's headers declare of libcuda: every version, and the per-thread twins. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaEGL.h>
#include <cudaGL.h>
#include <cudaProfiler.h>
#include <vdpau/vdpau.h>

#include <cudaVDPAU.h>
