/* All that NVIDIA's header declares of libnvidia-ml, older versions under their own names. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

/* What it does not declare, and programs look for: the private door of nvidia-smi, the old names
 * of nvmlGetExcluded…, and three functions of CUDA 11.8. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *tableId);
nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *deviceCount);
nvmlReturn_t nvmlGetBlacklistDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info);
nvmlReturn_t nvmlDeviceGetPowerMode(nvmlDevice_t device, unsigned int *powerModeId);
nvmlReturn_t nvmlDeviceGetSupportedPowerModes(nvmlDevice_t device, unsigned int *supportedPowerModes);
nvmlReturn_t nvmlDeviceSetPowerMode(nvmlDevice_t device, unsigned int powerModeId);
